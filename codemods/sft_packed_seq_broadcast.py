"""Megatron-LM: broadcast the packed-sequence metadata once on every pipeline stage, on sender and receivers.

https://github.com/NVIDIA/Megatron-LM/pull/4150 (it leaves the last stage without the metadata)
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from textwrap import indent
from typing import TYPE_CHECKING, Any

from unhang.codemods.base import (
    AnchorError,
    Codemod,
    assigned,
    assignments,
    bound,
    dropping,
    expression,
    matches,
    mentioned,
    once,
    replaced_by,
    span,
)
from unhang.codemods.edit import Edit
from unhang.shapes.shape import Function, unannotated

if TYPE_CHECKING:
    import libcst as cst

    from unhang.codemods.edit import Statements

_WHOLE = "args.pipeline_model_parallel_size == 1 or mtp_on_this_rank"
_ARMS = (_WHOLE, "mpu.is_pipeline_first_stage()", "mpu.is_pipeline_last_stage()")
_RANK = "mpu.get_tensor_model_parallel_rank() == 0"
_SENT = "_broadcast_cu_seqlens(batch['cu_seqlens'])\n_broadcast(batch['max_seqlen'])\n"
_RECEIVED = "cu_seqlens = _broadcast_cu_seqlens()\n_broadcast(max_seqlen)\n"
_NO_CU_SEQLENS, _NO_MAX_SEQLEN = "cu_seqlens = None\n", "max_seqlen = None\n"
_NO_METADATA = "batch['cu_seqlens'] = None\nbatch['max_seqlen'] = None\n"
_BUFFERS = r"args\.sft; cu_seqlens = None; max_seqlen = .* if args\.hybrid_context_parallel else None"
_COMMENT = "# unhang sft-packed-seq-broadcast: this stage attends over packed sequences too\n"
_ONE_BUFFER = "# unhang sft-packed-seq-broadcast: one buffer, and one broadcast after the arms, for all"


class GetBatchOnThisTpRank(Codemod):
    """With ``args.sft``, the last and the middle stages get the metadata too.

    In 0.16, of the broadcasts in the arms and after them, only the latter stay, which serve all stages.

    Before::

        def get_batch_on_this_tp_rank():
            args = get_args()
            if mpu.get_tensor_model_parallel_rank() == 0:
                batch = {'max_seqlen': ...}
                if args.pipeline_model_parallel_size == 1 or mtp_on_this_rank: ...
                elif mpu.is_pipeline_first_stage(): ...
                elif mpu.is_pipeline_last_stage():
                    _broadcast(batch['labels'])
            else:
                if args.sft: max_seqlen = torch.empty(1)
                else: max_seqlen = None
                if args.pipeline_model_parallel_size == 1 or mtp_on_this_rank: ...
                elif mpu.is_pipeline_first_stage(): ...
                elif mpu.is_pipeline_last_stage():
                    max_seqlen = None
                    _broadcast(labels)
                batch = {'labels': labels, 'max_seqlen': max_seqlen}

    After::

        def get_batch_on_this_tp_rank():
            ...
                elif mpu.is_pipeline_last_stage():
                    _broadcast(batch['labels'])
                    # unhang sft-packed-seq-broadcast: this stage attends over packed sequences too
                    if args.sft:
                        _broadcast_cu_seqlens(batch['cu_seqlens'])
                        _broadcast(batch['max_seqlen'])

                elif args.sft:
            ...
                        max_seqlen = None

                elif args.sft:
                    # unhang sft-packed-seq-broadcast: this stage attends over packed sequences too
                    labels = None

                    cu_seqlens = _broadcast_cu_seqlens()
                    _broadcast(max_seqlen)
                batch = {'labels': labels, 'max_seqlen': max_seqlen}
    """

    def plan(self, function: Function) -> list[Edit]:
        # stages that did not call the helpers do so now, and the helpers use these names
        for name in sorted(bound(*function.body) & {"int", "isinstance", "torch"}):
            raise AnchorError(f"{function.name} that does not rebind {name}")
        split = once(_ifs(function.body, _RANK), f"if {_RANK}")
        sender, receiver = Half(function, split.body, _SENT), Half(function, split.orelse, _RECEIVED)
        ifs = [node for node in receiver.before if isinstance(node, ast.If) and ".sft" in expression(node.test)]
        made = [node for node in ifs if receiver.those(node.orelse, _NO_MAX_SEQLEN)]
        buffer = once(made, "if args.sft: max_seqlen = ...")
        if "_broadcast_cu_seqlens" in mentioned(*sender.after, *receiver.after):
            return _trailing(function, sender, receiver, buffer)
        return [
            _of_stages(sender, "", _NO_METADATA, "_broadcast(batch['attention_mask'])\n"),
            _of_stages(receiver, _NO_MAX_SEQLEN, _NO_MAX_SEQLEN, "_broadcast(attention_mask)\n"),
        ]

    def names(self, function: Function) -> frozenset[str]:
        return frozenset({"torch", "mpu", "get_args"})

    def fixed_upstream(self, function: Function) -> bool:
        """Return whether core's function has the metadata as often as it has arms, all for the same flag."""
        flags = [given.arg for given in function.args.args if given.arg in ("is_sft", "has_cu_seqlens")]
        gates = [gate for flag in flags for gate in (flag, f"{flag} or is_hybrid_cp")]
        ifs = [it.body for it in ast.walk(function) if isinstance(it, ast.If) and expression(it.test) in gates]
        pairs = [block[at : at + 2] for block in ifs for at in range(len(block))]
        counts = [sum(matches(pair, metadata) for pair in pairs) for metadata in (_SENT, _RECEIVED)]
        # in the first drafts of that change, receivers lacked the batch dimension
        has_dimension = "cu_seqlens.dim() == 2" in expression(function)
        return len(flags) == 1 and has_dimension and counts == [len(_ARMS) + 1] * 2


class Half:
    """The sending (TP rank 0) or the receiving half of the function.

    ``metadata`` are the two statements by which it broadcasts the packed-sequence metadata. ``arms`` serve the pipeline
    stages: all at once, the first, the last, and, in some shapes, the middle ones.
    """

    def __init__(self, function: Function, body: list[ast.stmt], metadata: str) -> None:
        dicts = [(name, it) for node in body for _, name, it in assignments(node) if isinstance(it, ast.Dict)]
        batch, made = once([row for row in dicts if "max_seqlen" in mentioned(row[1])], "batch = {...}")
        values = {str(key.value): it for key, it in zip(made.keys, made.values) if isinstance(key, ast.Constant)}
        self.fields = {field: it.id for field, it in values.items() if isinstance(it, ast.Name)}
        args = next((name for _, name, value in assignments(function) if expression(value) == "get_args()"), "args")
        self.names, self.metadata = {"args": args, "batch": batch, **self.fields}, metadata
        wanted = [self.spelled(test) for test in _ARMS]
        self.chain = once(_ifs(body, wanted[0]), f"if {_ARMS[0]}")
        at = body.index(self.chain)
        self.before, self.after = body[:at], body[at + 1 :]
        ifs = [self.chain]
        while len(rest := ifs[-1].orelse) == 1 and isinstance(rest[0], ast.If):
            ifs.append(rest[0])
        if [expression(node.test) for node in ifs] != wanted:  # our rewrite may have one more
            raise AnchorError(f"{' / '.join(_ARMS)}, and no other arm but else")
        self.arms = [*(node.body for node in ifs), rest]

    def spelled(self, template: str) -> str:
        """Return a template with the names of the function itself."""
        return re.sub(r"(?<!['\w])[a-z_]+(?!['\w])", lambda found: self.names.get(found[0], found[0]), template)

    def those(self, block: Sequence[ast.stmt], line: str) -> list[ast.stmt]:
        """Return the statements of a block that are this one."""
        return [node for node in block if matches([node], self.spelled(line))]

    def each(self, block: Sequence[ast.stmt], template: str) -> list[ast.stmt]:
        """Return the statements of a template in a block. Raises AnchorError unless each is there once."""
        return [once(self.those(block, line), line) for line in template.splitlines()]


def _ifs(nodes: Sequence[ast.stmt], test: str) -> list[ast.If]:
    return [node for node in nodes if isinstance(node, ast.If) and expression(node.test) == test]


def _helper(nodes: Sequence[ast.stmt]) -> ast.stmt:
    found = [it for it in nodes if isinstance(it, ast.FunctionDef) and it.name == "_broadcast_cu_seqlens"]
    return once(found, "def _broadcast_cu_seqlens(...)")


def _of_stages(half: Half, last: str, middle: str, mask: str) -> Edit:
    """Return the edit of a half by which the last and the middle stages have the metadata, with ``args.sft``.

    ``last`` and ``middle`` are statements of these arms that are to run without ``args.sft`` only. A new arm of the
    middle stages returns nothing else; it replaces that of pull request 4150, which broadcasts the ``mask`` too.
    """
    of_last, of_middle = half.arms[2:]
    if "_broadcast_cu_seqlens" in mentioned(*of_last):
        raise AnchorError("an arm of the last stage without the packed-sequence metadata")
    # only the pull request sets local_cp_size to None on the last stage
    gone = half.each(of_last, last) + half.those(of_last, "local_cp_size = None")
    events = [node for node in of_middle if "_broadcast" in expression(node)]
    extends = bool(of_middle) and not matches(events, half.spelled(mask + half.metadata))
    gone += half.each(of_middle, middle) if extends else []
    others = [name for field, name in half.fields.items() if field not in ("cu_seqlens", "max_seqlen")]
    nothing = "".join(f"{name} = None\n" for name in others) + "\n" * bool(others)
    test, metadata = half.spelled("args.sft"), half.spelled(half.metadata)

    def changed(nodes: Statements) -> Statements:
        from unhang.codemods import splice

        def gated(suite: cst.BaseSuite, arm: Sequence[ast.stmt], otherwise: str) -> cst.BaseSuite:
            """Return an arm with the broadcasts at its end, if ``args.sft``, and without what is gone."""
            ours = f"{_COMMENT}if {test}:\n{indent(metadata, '    ')}"
            ours += f"else:\n{indent(half.spelled(otherwise), '    ')}" if otherwise else ""
            return splice.block([*splice.without(splice.body_of(suite), arm, gone), *splice.suite(ours)], suite)

        chain: Any = nodes[0]
        arm = chain.orelse.orelse
        orelse: Any = splice.elif_(test, _COMMENT + nothing + metadata)
        if extends:
            orelse = arm.orelse.with_changes(body=gated(arm.orelse.body, of_middle, middle))
        return [chain.with_deep_changes(arm, body=gated(arm.body, of_last, last), orelse=orelse)]

    return span(half.chain, half.chain, changed)


def _trailing(function: Function, sender: Half, receiver: Half, buffer: ast.If) -> list[Edit]:
    """Return the edits of 0.16: the broadcasts after the arms stay, and the receiver makes its buffer once."""
    below = receiver.before[receiver.before.index(buffer) :]
    names = receiver.spelled("cu_seqlens max_seqlen").split()
    again = [node for node in below if (it := assigned(node)) and it[0] in names]
    found = "; ".join(expression(node) for node in (buffer.test, *map(unannotated, again)))
    if not re.fullmatch(receiver.spelled(_BUFFERS), found):
        raise AnchorError("max_seqlen made for args.sft, and then again, for args.hybrid_context_parallel only")
    edits = []
    for half, block, gone in (sender, sender.before, []), (receiver, below, again):
        first, _ = _helper(block), _helper(half.after)
        half.each(half.after, half.metadata)
        edits.append(dropping(block, [*gone, first]))
        edits += [dropping(arm, half.each(arm, half.metadata)) for arm in half.arms[:2]]
    last, dropped = receiver.arms[2], edits[3].change
    made = replaced_by(function, buffer.test, receiver.spelled("args.sft or args.hybrid_context_parallel"), _ONE_BUFFER)
    edits[3] = edits[3]._replace(change=lambda nodes: [*made.change(nodes[:1]), *dropped(nodes)[1:]])
    return [*edits, dropping(last, receiver.each(last, _NO_CU_SEQLENS + _NO_MAX_SEQLEN))]


CODEMODS = {"get_batch_on_this_tp_rank": GetBatchOnThisTpRank()}
