"""Megatron-LM: broadcast the packed-sequence metadata once on every pipeline stage, on sender and receivers.

https://github.com/NVIDIA/Megatron-LM/pull/4150 (it leaves the last stage without the metadata)
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from textwrap import indent
from typing import TYPE_CHECKING, NamedTuple

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
from unhang.shapes.shape import Function

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
_COMMENT = "# unhang sft-packed-seq-broadcast: this stage attends over packed sequences too\n"
_ONE_BUFFER = "# unhang sft-packed-seq-broadcast: one buffer, and one broadcast after the arms, for all"


class GetBatchOnThisTpRank(Codemod):
    """With ``args.sft``, the last and the middle stages get the metadata too.

    In 0.16, of the broadcasts in the arms and after them, only the latter stay, which serve all stages.

    Before::

        def get_batch_on_this_tp_rank():
            args = get_args()
            if mpu.get_tensor_model_parallel_rank() == 0:
                if args.pipeline_model_parallel_size == 1 or mtp_on_this_rank: ...
                elif mpu.is_pipeline_first_stage(): ...
                elif mpu.is_pipeline_last_stage():
                    _broadcast(batch['labels'])
            else:
                if args.sft:
                    max_seqlen = torch.empty(1)
                else:
                    max_seqlen = None
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
        sender, receiver = _halves(function)
        ifs = [node for node in receiver.body if isinstance(node, ast.If) and ".sft" in expression(node.test)]
        made = [node for node in ifs if receiver.those(node.orelse, _NO_MAX_SEQLEN)]
        buffer = once(made, "if args.sft: max_seqlen = ...")
        if any("_broadcast_cu_seqlens" in mentioned(*half.after()) for half in (sender, receiver)):
            return _trailing(function, sender, receiver, buffer)
        return [
            _of_stages(sender, "", _NO_METADATA, "", "_broadcast(batch['attention_mask'])\n"),
            _of_stages(receiver, _NO_MAX_SEQLEN, _NO_MAX_SEQLEN, receiver.nothing(), "_broadcast(attention_mask)\n"),
        ]

    def names(self, function: Function) -> frozenset[str]:
        return frozenset({"torch", "mpu", "get_args"})

    def fixed_upstream(self, function: Function) -> bool:
        """Return whether core's function has the metadata as often as it has arms, all for the same flag."""
        flags = [given.arg for given in function.args.args if given.arg in ("is_sft", "has_cu_seqlens")]
        # in the first drafts of that change, receivers lacked the batch dimension
        if len(flags) != 1 or "cu_seqlens.dim() == 2" not in expression(function):
            return False
        gates = (flags[0], f"{flags[0]} or is_hybrid_cp")
        ifs = [it.body for it in ast.walk(function) if isinstance(it, ast.If) and expression(it.test) in gates]
        pairs = [block[at : at + 2] for block in ifs for at in range(len(block))]
        return all(sum(matches(pair, metadata) for pair in pairs) == len(_ARMS) + 1 for metadata in (_SENT, _RECEIVED))


class Half(NamedTuple):
    """The sending (TP rank 0) or the receiving half of the function."""

    body: list[ast.stmt]
    chain: ast.If
    """The ``if`` whose arms serve the pipeline stages."""
    arms: list[list[ast.stmt]]
    """Of the whole batch, the first stage, the last stage, and, in some shapes, the middle stages."""
    metadata: str
    """The two statements by which this half broadcasts the packed-sequence metadata."""
    names: Mapping[str, str]
    """What this half calls the variables of the templates."""

    def spelled(self, template: str) -> str:
        """Return a template with the names of the function itself."""
        return re.sub(r"(?<!['\w])[a-z_]+(?!['\w])", lambda found: self.names.get(found[0], found[0]), template)

    def those(self, block: Sequence[ast.stmt], line: str) -> list[ast.stmt]:
        """Return the statements of a block that are this one."""
        return [node for node in block if matches([node], self.spelled(line))]

    def each(self, block: Sequence[ast.stmt], template: str) -> list[ast.stmt]:
        """Return the statements of a template in a block. Raises AnchorError unless each is there once."""
        return [once(self.those(block, line), line) for line in template.splitlines()]

    def after(self) -> list[ast.stmt]:
        return self.body[self.body.index(self.chain) + 1 :]

    def nothing(self) -> str:
        """Return statements that set to None all that this half returns, except the metadata."""
        made = [it for node in self.after() for _, name, it in assignments(node) if name == self.names.get("batch")]
        names = [node.id for node in ast.walk(once(made, "batch = {...}")) if isinstance(node, ast.Name)]
        metadata = self.spelled("cu_seqlens max_seqlen").split()
        return "".join(f"{name} = None\n" for name in names if name not in metadata) + "\n"


def _halves(function: Function) -> tuple[Half, Half]:
    """Return the two halves. Raises AnchorError unless each of them, and its chain of arms, occurs once."""
    split = once(_ifs(function.body, _RANK), f"if {_RANK}")
    args = next((name for _, name, value in assignments(function) if expression(value) == "get_args()"), "args")
    return _half(split.body, _SENT, args), _half(split.orelse, _RECEIVED, args)


def _half(body: list[ast.stmt], metadata: str, args: str) -> Half:
    names = {"args": args}
    for name, made in ((name, it) for node in body for _, name, it in assignments(node)):
        for key, value in zip(made.keys, made.values) if isinstance(made, ast.Dict) else ():
            if isinstance(key, ast.Constant) and key.value in ("cu_seqlens", "max_seqlen"):
                names |= {"batch": name, **({str(key.value): value.id} if isinstance(value, ast.Name) else {})}
    wanted = [re.sub(r"\bargs\b", args, test) for test in _ARMS]
    chain = once(_ifs(body, wanted[0]), f"if {_ARMS[0]}")
    arms: list[list[ast.stmt]] = []
    rest: list[ast.stmt] = [chain]
    tests = []
    while len(rest) == 1 and isinstance(rest[0], ast.If):
        tests.append(expression(rest[0].test))
        arms.append(rest[0].body)
        rest = rest[0].orelse
    if tests != wanted:  # our rewrite may have one more
        raise AnchorError(f"{' / '.join(_ARMS)}, and no other arm but else")
    return Half(body, chain, [*arms, *([rest] if rest else [])], metadata, names)


def _ifs(nodes: Sequence[ast.stmt], test: str) -> list[ast.If]:
    return [node for node in nodes if isinstance(node, ast.If) and expression(node.test) == test]


def _of_stages(half: Half, last: str, middle: str, nothing: str, mask: str) -> Edit:
    """Return the edit of a half by which the last and the middle stages have the metadata, with ``args.sft``.

    ``last`` and ``middle`` are statements of these arms that are to run without ``args.sft`` only. A new arm of the
    middle stages begins with ``nothing``; it replaces that of pull request 4150, which broadcasts the ``mask`` too.
    """
    of_last, of_middle = (*half.arms[2:], [])[:2]
    if "_broadcast_cu_seqlens" in mentioned(*of_last):
        raise AnchorError("an arm of the last stage without the packed-sequence metadata")
    # only the pull request sets local_cp_size to None on the last stage
    gone = half.each(of_last, last) + half.those(of_last, "local_cp_size = None")
    events = [node for node in of_middle if "_broadcast" in expression(node)]
    extends = bool(of_middle) and not matches(events, half.spelled(mask + half.metadata))
    gone += half.each(of_middle, middle) if extends else []
    test, metadata = half.spelled("args.sft"), half.spelled(half.metadata)

    def gated(suite: cst.BaseSuite, arm: Sequence[ast.stmt], otherwise: str) -> cst.BaseSuite:
        """Return an arm with the broadcasts at its end, if ``args.sft``, and without what is gone."""
        from unhang.codemods import splice

        ours = f"{_COMMENT}if {test}:\n{indent(metadata, '    ')}"
        ours += f"else:\n{indent(half.spelled(otherwise), '    ')}" if otherwise else ""
        return splice.block([*splice.without(splice.body_of(suite), arm, gone), *splice.suite(ours)], suite)

    def changed(nodes: Statements) -> Statements:
        import libcst as cst

        from unhang.codemods import splice

        chain = cst.ensure_type(nodes[0], cst.If)
        arm = cst.ensure_type(cst.ensure_type(chain.orelse, cst.If).orelse, cst.If)
        orelse: cst.If | cst.Else = splice.elif_(test, _COMMENT + nothing + metadata)
        if extends:
            other = cst.ensure_type(arm.orelse, cst.Else)
            orelse = other.with_changes(body=gated(other.body, of_middle, middle))
        done = chain.with_deep_changes(arm, body=gated(arm.body, of_last, last), orelse=orelse)
        return [cst.ensure_type(done, cst.If)]

    return span(half.chain, half.chain, changed)


def _trailing(function: Function, sender: Half, receiver: Half, buffer: ast.If) -> list[Edit]:
    """Return the edits of 0.16: the broadcasts after the arms stay, and the receiver makes its buffer once."""
    between = receiver.body[receiver.body.index(buffer) + 1 : receiver.body.index(receiver.chain)]
    names = receiver.spelled("cu_seqlens max_seqlen").split()
    again = {node: f"{it[0]} = {expression(it[1])}" for node in between if (it := assigned(node)) and it[0] in names}
    wanted = receiver.spelled(r"cu_seqlens = None; max_seqlen = .* if args\.hybrid_context_parallel else None")
    is_as_wanted = re.fullmatch(wanted, "; ".join(again.values()))
    if expression(buffer.test) != receiver.spelled("args.sft") or not is_as_wanted:
        raise AnchorError("max_seqlen made for args.sft, and then again, for args.hybrid_context_parallel only")
    edits = []
    for half, first, gone in ((sender, None, []), (receiver, buffer, [*again])):
        helpers = [it for it in half.body if isinstance(it, ast.FunctionDef) and it.name == "_broadcast_cu_seqlens"]
        if len(helpers) != 2:
            raise AnchorError("def _broadcast_cu_seqlens(...), twice")
        half.each(half.after(), half.metadata)
        end = half.body.index(helpers[0])
        start = half.body.index(first) if first else max(end - 1, 0)
        edits.append(dropping(half.body[start : end + 1], [*gone, helpers[0]]))
        edits += [dropping(arm, half.each(arm, half.metadata)) for arm in half.arms[:2]]
    last, dropped = receiver.arms[2], edits[3]
    made = replaced_by(function, buffer.test, receiver.spelled("args.sft or args.hybrid_context_parallel"), _ONE_BUFFER)

    def with_one_buffer(nodes: Statements) -> Statements:
        first, *rest = dropped.change(nodes)
        return [*made.change([first]), *rest]

    edits[3] = dropped._replace(change=with_one_buffer)
    return [*edits, dropping(last, receiver.each(last, _NO_CU_SEQLENS + _NO_MAX_SEQLEN))]


CODEMODS = {"get_batch_on_this_tp_rank": GetBatchOnThisTpRank()}
