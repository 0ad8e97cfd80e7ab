"""Megatron-LM: broadcast the packed-sequence metadata once on every pipeline stage, on sender and receivers.

https://github.com/NVIDIA/Megatron-LM/pull/4150 (it leaves the last stage without the metadata)
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from textwrap import indent
from typing import TYPE_CHECKING, NamedTuple

from unhang.codemods.base import AnchorError, Codemod, assigned, bound, expression, matches, mentioned, once, span
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
    """0.17 and dev: with ``args.sft``, the last and the middle stages get the metadata too.

    Before::

        def get_batch_on_this_tp_rank(data):
            args = get_args()
            if mpu.get_tensor_model_parallel_rank() == 0:
                batch = next(data)
                if args.pipeline_model_parallel_size == 1 or mtp_on_this_rank: ...
                elif mpu.is_pipeline_first_stage(): ...
                elif mpu.is_pipeline_last_stage():
                    _broadcast(batch['labels'])
            else:
                labels = torch.empty(8)
                if args.sft:
                    max_seqlen = torch.empty(1)
                else:
                    max_seqlen = None
                if args.pipeline_model_parallel_size == 1 or mtp_on_this_rank: ...
                elif mpu.is_pipeline_first_stage(): ...
                elif mpu.is_pipeline_last_stage():
                    max_seqlen = None
                    _broadcast(labels)
                batch = {'labels': labels, 'cu_seqlens': cu_seqlens, 'max_seqlen': max_seqlen}
            return batch

    After::

        def get_batch_on_this_tp_rank(data):
            ...
                elif mpu.is_pipeline_last_stage():
                    _broadcast(batch['labels'])
                    # unhang sft-packed-seq-broadcast: this stage attends over packed sequences too
                    if args.sft:
                        _broadcast_cu_seqlens(batch['cu_seqlens'])
                        _broadcast(batch['max_seqlen'])

                elif args.sft:
            ...
                    if args.sft:
                        cu_seqlens = _broadcast_cu_seqlens()
                        _broadcast(max_seqlen)
                    else:
                        max_seqlen = None

                elif args.sft:
                    # unhang sft-packed-seq-broadcast: this stage attends over packed sequences too
                    labels = None

                    cu_seqlens = _broadcast_cu_seqlens()
                    _broadcast(max_seqlen)
                batch = {'labels': labels, 'cu_seqlens': cu_seqlens, 'max_seqlen': max_seqlen}
            return batch

    0.16: of the broadcasts in the arms and after them, only the latter stay, which serve all stages.

    Before::

        def get_batch_on_this_tp_rank(data):
            args = get_args()
            if mpu.get_tensor_model_parallel_rank() == 0:
                batch = next(data)
                def _broadcast_cu_seqlens(cu_seqlens): ...
                if args.pipeline_model_parallel_size == 1 or mtp_on_this_rank:
                    _broadcast(batch['tokens'])
                    _broadcast_cu_seqlens(batch['cu_seqlens'])
                    _broadcast(batch['max_seqlen'])
                elif mpu.is_pipeline_first_stage():
                    _broadcast(batch['tokens'])
                    _broadcast_cu_seqlens(batch['cu_seqlens'])
                    _broadcast(batch['max_seqlen'])
                elif mpu.is_pipeline_last_stage(): ...
                def _broadcast_cu_seqlens(cu_seqlens): ...
                _broadcast_cu_seqlens(batch['cu_seqlens'])
                _broadcast(batch['max_seqlen'])
            else:
                if args.sft:
                    max_seqlen = torch.empty(1)
                else:
                    max_seqlen = None
                cu_seqlens = None
                max_seqlen = torch.empty(1) if args.hybrid_context_parallel else None
                def _broadcast_cu_seqlens(): ...
                if args.pipeline_model_parallel_size == 1 or mtp_on_this_rank:
                    _broadcast(tokens)
                    cu_seqlens = _broadcast_cu_seqlens()
                    _broadcast(max_seqlen)
                elif mpu.is_pipeline_first_stage():
                    _broadcast(tokens)
                    cu_seqlens = _broadcast_cu_seqlens()
                    _broadcast(max_seqlen)
                elif mpu.is_pipeline_last_stage():
                    tokens = None
                    cu_seqlens = None
                    max_seqlen = None
                def _broadcast_cu_seqlens(): ...
                cu_seqlens = _broadcast_cu_seqlens()
                _broadcast(max_seqlen)
            return tokens, cu_seqlens, max_seqlen

    After::

        def get_batch_on_this_tp_rank(data):
            ...
                if args.pipeline_model_parallel_size == 1 or mtp_on_this_rank:
                    _broadcast(batch['tokens'])
                elif mpu.is_pipeline_first_stage():
            ...
            else:
                # unhang sft-packed-seq-broadcast: one buffer, and one broadcast after the arms, for all
                if args.sft or args.hybrid_context_parallel:
                    max_seqlen = torch.empty(1)
                else:
                    max_seqlen = None
                if args.pipeline_model_parallel_size == 1 or mtp_on_this_rank:
                    _broadcast(tokens)
                elif mpu.is_pipeline_first_stage():
                    _broadcast(tokens)
                elif mpu.is_pipeline_last_stage():
                    tokens = None
                def _broadcast_cu_seqlens(): ...
                cu_seqlens = _broadcast_cu_seqlens()
                _broadcast(max_seqlen)
            return tokens, cu_seqlens, max_seqlen
    """

    def plan(self, function: Function) -> list[Edit]:
        # stages that did not call the helpers do so now, and the helpers use these names
        for name in sorted(bound(*function.body) & {"int", "isinstance", "torch"}):
            raise AnchorError(f"{function.name} that does not rebind {name}")
        sender, receiver = _halves(function)
        ifs = [node for node in receiver.body if isinstance(node, ast.If) and ".sft" in expression(node.test)]
        made = [node for node in ifs if any(receiver.has(other, _NO_MAX_SEQLEN) for other in node.orelse)]
        buffer = once(made, "if args.sft: max_seqlen = ...")
        if any("_broadcast_cu_seqlens" in mentioned(*half.after()) for half in (sender, receiver)):
            return _trailing(sender, receiver, buffer)
        return [
            _of_stages(sender, "", _NO_METADATA, "", "_broadcast(batch['attention_mask'])\n"),
            _of_stages(receiver, _NO_MAX_SEQLEN, _NO_MAX_SEQLEN, receiver.nothing(), "_broadcast(attention_mask)\n"),
        ]

    def names(self, function: Function) -> frozenset[str]:
        return frozenset({"torch", "mpu", "get_args"})

    def fixed_upstream(self, function: Function) -> bool:
        """Return whether each arm of both halves of core's function has the metadata, all for the same flag."""
        flags = [given.arg for given in function.args.args if given.arg in ("is_sft", "has_cu_seqlens")]
        tests = ["pipeline_model_parallel_size == 1 or mtp_on_this_rank", "is_pipeline_first_stage"]
        try:
            both = _halves(function, "tp_rank == 0", [*tests, "is_pipeline_last_stage", *flags])
        except AnchorError:
            return False
        # in the first drafts of that change, receivers lacked the batch dimension
        if len(flags) != 1 or "cu_seqlens.dim() == 2" not in expression(function):
            return False
        gates = (flags[0], f"{flags[0]} or is_hybrid_cp")
        for half in both:
            for arm in half.arms:
                blocks = [arm, *(it.body for it in arm if isinstance(it, ast.If) and expression(it.test) in gates)]
                if sum(matches(some[at : at + 2], half.metadata) for some in blocks for at in range(len(some))) != 1:
                    return False
        return True


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
        return _spelled(template, self.names)

    def has(self, node: ast.stmt, template: str) -> bool:
        return matches([node], self.spelled(template))

    def after(self) -> list[ast.stmt]:
        return self.body[self.body.index(self.chain) + 1 :]

    def once_each(self, block: Sequence[ast.stmt], template: str) -> None:
        """Raise AnchorError unless each statement of a template is once in this block."""
        for line in template.splitlines():
            once([node for node in block if self.has(node, line)], line)

    def nothing(self) -> str:
        """Return statements that set to None all that this half returns, except the metadata."""
        mine = self.names.get("batch")
        made = [it for name, it in _assignments(self.after()) if name == mine and isinstance(it, ast.Dict)]
        names = [node.id for node in ast.walk(once(made, "batch = {...}")) if isinstance(node, ast.Name)]
        metadata = {self.names.get(name, name) for name in ("cu_seqlens", "max_seqlen")}
        return "".join(f"{name} = None\n" for name in names if name not in metadata) + "\n"


def _spelled(template: str, names: Mapping[str, str]) -> str:
    return re.sub(r"(?<!['\w])[a-z_]+(?!['\w])", lambda found: names.get(found[0], found[0]), template)


def _assignments(nodes: Sequence[ast.AST]) -> Iterator[tuple[str, ast.expr]]:
    return filter(None, (assigned(inner) for node in nodes for inner in ast.walk(node)))


def _halves(function: Function, rank: str = _RANK, arms: Sequence[str] = _ARMS) -> tuple[Half, Half]:
    """Return the two halves. Raises AnchorError unless each of them, and its chain of arms, occurs once."""
    split = once(_ifs(function.body, rank), f"if {rank}")
    args = next((name for name, value in _assignments([function]) if expression(value) == "get_args()"), "args")
    return _half(split.body, arms, _SENT, args), _half(split.orelse, arms, _RECEIVED, args)


def _half(body: list[ast.stmt], wanted: Sequence[str], metadata: str, args: str) -> Half:
    names = {"args": args}
    for name, value in _assignments(body):
        for key, entry in zip(value.keys, value.values) if isinstance(value, ast.Dict) else ():
            if isinstance(key, ast.Constant) and key.value in ("cu_seqlens", "max_seqlen"):
                names.setdefault("batch", name)
                if isinstance(entry, ast.Name):
                    names.setdefault(key.value, entry.id)
    chain = once(_ifs(body, _spelled(wanted[0], names)), f"if {wanted[0]}")
    rest: list[ast.stmt] = [chain]
    tests, arms = [], []
    while len(rest) == 1 and isinstance(rest[0], ast.If):
        tests.append(expression(rest[0].test))
        arms.append(rest[0].body)
        rest = rest[0].orelse
    if tests != [_spelled(test, names) for test in wanted]:  # our rewrite may have one more
        raise AnchorError(f"{' / '.join(wanted)}, and no other arm but else")
    return Half(body, chain, [*arms, rest] if rest else arms, metadata, names)


def _ifs(nodes: Sequence[ast.stmt], test: str) -> list[ast.If]:
    return [node for node in nodes if isinstance(node, ast.If) and expression(node.test) == test]


def _edit(half: Half, first: ast.stmt, gone: Sequence[ast.stmt], changed: Callable[[cst.If], cst.If]) -> Edit:
    """Return the edit of a half, from ``first`` to its chain, which changes; what is ``gone`` between them goes."""
    rows = half.body[half.body.index(first) : half.body.index(half.chain) + 1]

    def change(nodes: Statements) -> Statements:
        import libcst as cst

        from unhang.codemods import splice

        if len(nodes) != len(rows):
            raise splice.SpanError("two statements share a line")
        *kept, chain = (node for node, row in zip(nodes, rows) if row not in gone)
        return [*kept, changed(cst.ensure_type(chain, cst.If))]

    return span(first, half.chain, change)


def _of_stages(half: Half, last: str, middle: str, nothing: str, mask: str) -> Edit:
    """Return the edit of a half by which the last and the middle stages have the metadata, with ``args.sft``.

    ``last`` and ``middle`` are statements of these arms that are to run without ``args.sft`` only. A new arm of the
    middle stages begins with ``nothing``; it replaces that of pull request 4150, which broadcasts the ``mask`` too.
    """
    if "_broadcast_cu_seqlens" in mentioned(*half.arms[2]):
        raise AnchorError("an arm of the last stage without the packed-sequence metadata")
    half.once_each(half.arms[2], last)
    in_place = half.arms[3] if len(half.arms) > 3 else []
    events = [node for node in in_place if "_broadcast" in expression(node)]
    extends = bool(in_place) and not matches(events, half.spelled(mask + half.metadata))
    if extends:
        half.once_each(in_place, middle)
    test, metadata = half.spelled("args.sft"), half.spelled(half.metadata)

    def gated(arm: cst.BaseSuite, otherwise: str, dropped: str) -> cst.BaseSuite:
        """Return an arm with the broadcasts at its end, if ``args.sft``, and without what it has no more."""
        from unhang.codemods import splice

        ours = f"if {test}:\n{indent(metadata, '    ')}"
        ours += f"else:\n{indent(half.spelled(otherwise), '    ')}" if otherwise else ""
        kept = splice.without(splice.body_of(arm), half.spelled(dropped))
        return splice.block([*kept, *splice.suite(_COMMENT + ours)], arm)

    def changed(chain: cst.If) -> cst.If:
        import libcst as cst

        from unhang.codemods import splice

        arm = cst.ensure_type(cst.ensure_type(chain.orelse, cst.If).orelse, cst.If)
        # only the pull request sets local_cp_size to None on the last stage
        body = gated(arm.body, last, f"{last}local_cp_size = None\n")
        orelse: cst.If | cst.Else = splice.elif_(test, _COMMENT + nothing + metadata)
        if extends:
            other = cst.ensure_type(arm.orelse, cst.Else)
            orelse = other.with_changes(body=gated(other.body, middle, middle))
        return cst.ensure_type(chain.with_deep_changes(arm, body=body, orelse=orelse), cst.If)

    return _edit(half, half.chain, (), changed)


def _trailing(sender: Half, receiver: Half, buffer: ast.If) -> list[Edit]:
    """Return the edits of 0.16: the broadcasts after the arms stay, and the receiver makes its buffer once."""
    between = receiver.body[receiver.body.index(buffer) + 1 : receiver.body.index(receiver.chain)]
    names = receiver.spelled("cu_seqlens max_seqlen").split()
    again = {node: f"{it[0]} = {expression(it[1])}" for node in between if (it := assigned(node)) and it[0] in names}
    wanted = receiver.spelled(r"cu_seqlens = None; max_seqlen = .* if args\.hybrid_context_parallel else None")
    is_as_wanted = re.fullmatch(wanted, "; ".join(again.values()))
    if expression(buffer.test) != receiver.spelled("args.sft") or not is_as_wanted:
        raise AnchorError("max_seqlen made for args.sft, and then again, for args.hybrid_context_parallel only")
    sent, received = _first_helper(sender), _first_helper(receiver)
    start = sender.body[max(sender.body.index(sent) - 1, 0)]
    edit = _edit(receiver, buffer, [*again, received], _without(receiver, _NO_CU_SEQLENS + _NO_MAX_SEQLEN))

    def with_one_buffer(nodes: Statements) -> Statements:
        import libcst as cst

        first, *rest = edit.change(nodes)
        test = cst.parse_expression(receiver.spelled("args.sft or args.hybrid_context_parallel"))
        return [first.with_changes(test=test, leading_lines=[cst.EmptyLine(comment=cst.Comment(_ONE_BUFFER))]), *rest]

    return [_edit(sender, start, [sent], _without(sender)), edit._replace(change=with_one_buffer)]


def _first_helper(half: Half) -> ast.stmt:
    helpers = [node for node in half.body if isinstance(node, ast.FunctionDef) and node.name == "_broadcast_cu_seqlens"]
    if len(helpers) != 2:
        raise AnchorError("def _broadcast_cu_seqlens(...), twice")
    half.once_each(half.after(), half.metadata)
    return helpers[0]


def _without(half: Half, *last: str) -> Callable[[cst.If], cst.If]:
    """Return a change of the chain that drops the metadata of the first two arms, and ``last`` of the last one."""
    templates = (half.metadata, half.metadata, *last)
    for arm, template in zip(half.arms, templates):
        half.once_each(arm, template)

    def changed(arm: cst.CSTNode | None, template: str, *others: str) -> cst.If:
        import libcst as cst

        from unhang.codemods import splice

        arm = cst.ensure_type(arm, cst.If)
        nodes = splice.body_of(arm.body)
        kept = splice.without(nodes, half.spelled(template))
        if len(nodes) - len(kept) != template.count("\n"):
            raise splice.SpanError("two statements share a line")
        orelse = changed(arm.orelse, *others) if others else arm.orelse
        return arm.with_changes(body=splice.block(kept, arm.body), orelse=orelse)

    return lambda chain: changed(chain, *templates)


CODEMODS = {"get_batch_on_this_tp_rank": GetBatchOnThisTpRank()}
