"""Megatron-LM: broadcast the packed-sequence metadata once on every pipeline stage, on sender and receivers.

https://github.com/NVIDIA/Megatron-LM/pull/4150 (it leaves the last stage without the metadata)
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from unhang.codemods.base import (
    AnchorError,
    Codemod,
    bound,
    check_plain,
    digests,
    expression,
    leaving,
    matches,
    mentioned,
    once,
    only_first,
    span,
)
from unhang.codemods.edit import Edit
from unhang.shapes.shape import Function

if TYPE_CHECKING:
    import libcst as cst

    from unhang.codemods.edit import Statements

_COMMENT = "# unhang sft-packed-seq-broadcast: this stage attends over packed sequences too"
_METADATA = ["cu_seqlens", "max_seqlen"]
_ARMS = (
    "args.pipeline_model_parallel_size == 1 or mtp_on_this_rank",
    "mpu.is_pipeline_first_stage()",
    "mpu.is_pipeline_last_stage()",
)
_SEND = "_broadcast_cu_seqlens(batch['cu_seqlens'])\n_broadcast(batch['max_seqlen'])\n"
_RECEIVE = "cu_seqlens = _broadcast_cu_seqlens()\n_broadcast(max_seqlen)\n"
_NO_MAX_SEQLEN = "max_seqlen = None\n"
_DROP_BATCH = "batch['cu_seqlens'] = None\nbatch['max_seqlen'] = None\n"
# Upstream's helpers: of all ranks, of the sender, of the receiver.
_BROADCAST = frozenset({"d2919b3a0ed542c9"})
_SEND_CU_SEQLENS = frozenset({"c850058c187af238", "a46df62fe0586b9d", "c3bc5e35e519e2df"})
_RECEIVE_CU_SEQLENS = frozenset({"f58ff5e51302e401", "e2973ea8c1f9bb9c"})
# With dynamic context parallelism the length is broadcast first: the sender's statement, the receiver's.
_SEND_LENGTH = frozenset({"115ed8019073aa58", "77e7f94af1d8b5b3"})
_RECEIVE_LENGTH = frozenset({"877424249ccc9083", "c8d2fa7b036b0938"})
_BUFFER = "max_seqlen = torch.empty(1, dtype=torch.int32, device=torch.cuda.current_device())"
_DYNAMIC = ("args.hybrid_context_parallel", "args.dynamic_context_parallel")
# The names of the metadata; the other names that the statements in the arms use.
_ABOUT = frozenset({"cu_seqlens", "max_seqlen", "_broadcast_cu_seqlens", "sft"})
_WITH = frozenset({"_broadcast", "args", "batch", "data", "get_args", "mpu", "torch"})
# The middle-stage arms of pull request 4150 as written: the sender's, the receiver's.
_AS_WRITTEN = (
    ["b694442e894763e6", "0fe1a9cccd060b70", "49dcb77f8b9ceb30"],
    [
        "dca7a48fc26fb6f5",
        "566ff306f7b8349a",
        "7ade05092020f6fd",
        "34f3054b74bae09b",
        "8fc1a2304bd88f55",
        "a28f48096e02c84f",
        "9952ce9ddf401615",
        "80c05f308ef1ebeb",
    ],
)


class Half(NamedTuple):
    """The sending (TP rank 0) or the receiving half of the function."""

    body: list[ast.stmt]
    chain: ast.If
    """The ``if`` whose arms serve the pipeline stages."""
    arms: list[list[ast.stmt]]
    """Whole batch, first stage, last stage, and (in some shapes) middle stages."""
    after: list[ast.stmt]
    """The statements after the chain: in 0.16 they broadcast the metadata again."""


class GetBatchOnThisTpRank(Codemod):
    """0.17 and dev: add the metadata to the arms of last and middle stages. 0.16: broadcast only after the arms."""

    def plan(self, function: Function) -> list[Edit]:
        sender, receiver = _halves(function)
        return _plan_trailing(sender, receiver) if _is_trailing(sender, receiver) else _plan_arms(sender, receiver)

    def check(self, function: Function) -> None:
        sender, receiver = _halves(function)
        _check_around(function, sender, receiver, _is_trailing(sender, receiver))

    def holds(self, function: Function) -> bool:
        try:
            sender, receiver = _halves(function)
            self.check(function)
            holds = _holds_trailing if _is_trailing(sender, receiver) else _holds_arms
            return holds(sender, receiver)
        except AnchorError:
            return False

    def holds_upstream(self, function: Function) -> bool:
        try:
            return _holds_upstream(function)
        except AnchorError:
            return False

    def lacks_feature(self, function: Function) -> bool:
        return not any(isinstance(node, ast.Constant) and node.value == "cu_seqlens" for node in ast.walk(function))

    def names(self, function: Function) -> frozenset[str]:
        return frozenset({"torch", "mpu", "get_args"})


def _is_trailing(sender: Half, receiver: Half) -> bool:
    """Return whether this is a shape of 0.16, which broadcasts the metadata after the arms."""
    return bool(_after_arms(sender) or _after_arms(receiver))


# 0.17 and dev: the arms of the last and the middle stages lack the metadata


def _plan_arms(sender: Half, receiver: Half) -> list[Edit]:
    for half in sender, receiver:
        for name, arm in zip(("whole batch", "first stage"), half.arms):
            if _metadata_events(arm) != _METADATA:
                raise AnchorError(f"the broadcast of {' and '.join(_METADATA)} in the arm of the {name}")
        if _metadata_events(half.arms[2]):
            raise AnchorError("an arm of the last stage without the packed-sequence metadata")
    _check_buffer(receiver)
    once([node for node in receiver.arms[2] if matches([node], _NO_MAX_SEQLEN)], "max_seqlen = None, on the last stage")
    _, fields = _dict_of_batch(receiver.after)
    return [
        _chain_edit(sender, _send_last, lambda arm: _send_middle(arm, _middle_kind(sender, _AS_WRITTEN[0]))),
        _chain_edit(
            receiver, _receive_last, lambda arm: _receive_middle(arm, fields, _middle_kind(receiver, _AS_WRITTEN[1]))
        ),
    ]


def _middle_kind(half: Half, as_written: list[str]) -> str:
    """Return what the middle stages have: no arm, the pull request's arm, or upstream's own arm for other fields."""
    if len(half.arms) == 3:
        return "none"
    if digests(half.arms[3]) == as_written:
        return "as written"
    if _metadata_events(half.arms[3]):
        raise AnchorError("an arm of the middle stages without the packed-sequence metadata")
    return "own"


def _chain_edit(
    half: Half, last: Callable[[Statements], Statements], middle: Callable[[cst.Else | None], cst.If | cst.Else]
) -> Edit:
    """Return an edit that changes the third arm with ``last``, and the ``else`` after it with ``middle``."""

    def change(nodes: Statements) -> Statements:
        import libcst as cst

        from unhang.codemods import splice

        def arm(node: cst.If, number: int) -> cst.If:
            if number < 3:
                following = cst.ensure_type(node.orelse, cst.If)
                return node.with_changes(orelse=arm(following, number + 1))
            body = splice.block(last(splice.body_of(node.body)), node.body)
            orelse = None if node.orelse is None else cst.ensure_type(node.orelse, cst.Else)
            return node.with_changes(body=body, orelse=middle(orelse))

        (chain,) = nodes
        return [arm(cst.ensure_type(chain, cst.If), 1)]

    return span(half.chain, half.chain, change)


def _send_last(body: Statements) -> Statements:
    from unhang.codemods import splice

    return [*body, *splice.suite(f"{_COMMENT}\nif args.sft:\n{_indented(_SEND)}")]


def _send_middle(arm: cst.Else | None, kind: str) -> cst.If | cst.Else:
    from unhang.codemods import splice

    if arm is None or kind == "as written":
        return splice.elif_("args.sft", f"{_COMMENT}\n{_SEND}")
    kept = splice.without(splice.body_of(arm.body), _DROP_BATCH)
    ours = splice.suite(f"{_COMMENT}\nif args.sft:\n{_indented(_SEND)}else:\n{_indented(_DROP_BATCH)}")
    return arm.with_changes(body=splice.block([*kept, *ours], arm.body))


def _receive_last(body: Statements) -> Statements:
    from unhang.codemods import splice

    # the pull request also sets local_cp_size to None here; upstream's code does not
    kept = splice.without(body, _NO_MAX_SEQLEN + "local_cp_size = None\n")
    ours = f"{_COMMENT}\nif args.sft:\n{_indented(_RECEIVE)}else:\n{_indented(_NO_MAX_SEQLEN)}"
    return [*kept, *splice.suite(ours)]


def _receive_middle(arm: cst.Else | None, fields: Iterable[str], kind: str) -> cst.If | cst.Else:
    from unhang.codemods import splice

    if arm is None or kind == "as written":
        nothing = "".join(f"{field} = None\n" for field in fields if field not in _METADATA)
        return splice.elif_("args.sft", f"{_COMMENT}\n{nothing}\n{_RECEIVE}")
    kept = splice.without(splice.body_of(arm.body), _NO_MAX_SEQLEN)
    ours = f"{_COMMENT}\nif args.sft:\n{_indented(_RECEIVE)}else:\n{_indented(_NO_MAX_SEQLEN)}"
    return arm.with_changes(body=splice.block([*kept, *splice.suite(ours)], arm.body))


def _indented(template: str) -> str:
    return "".join(f"    {line}\n" for line in template.splitlines())


# 0.16: the metadata is broadcast in the arms and once more after them


def _plan_trailing(sender: Half, receiver: Half) -> list[Edit]:
    edits = []
    for half, item in (sender, _SEND), (receiver, _RECEIVE):
        if _after_arms(half) != _METADATA:
            raise AnchorError(f"the broadcast of {' and '.join(_METADATA)} after the arms")
        if [_metadata_events(arm) for arm in half.arms] != [_METADATA, _METADATA, []]:
            raise AnchorError(f"the broadcast of {' and '.join(_METADATA)} in the arms of whole batch and first stage")
        helpers = [node for node in half.body if isinstance(node, ast.FunctionDef)]
        if [node.name for node in helpers] != ["_broadcast_cu_seqlens"] * 2 or len(set(digests(helpers))) != 1:
            raise AnchorError("two equal definitions of _broadcast_cu_seqlens")
        dropped = item if half is sender else f"{item}cu_seqlens = None\n{_NO_MAX_SEQLEN}"
        edits += [
            # nothing calls the first definition any more
            span(half.body[half.body.index(helpers[0]) - 1], helpers[0], only_first),
            span(half.chain, half.chain, _filtered_arms(dropped)),
        ]
    first, last = _double_buffer(receiver)
    return sorted([*edits, span(first, last, _one_buffer)], key=lambda edit: edit.first)


def _filtered_arms(dropped: str) -> Callable[[Statements], Statements]:
    """Return a change that drops these statements from every arm of the chain."""

    def change(nodes: Statements) -> Statements:
        import libcst as cst

        from unhang.codemods import splice

        def arm(node: cst.If) -> cst.If:
            orelse = None if node.orelse is None else arm(cst.ensure_type(node.orelse, cst.If))
            body = splice.block(splice.without(splice.body_of(node.body), dropped), node.body)
            return node.with_changes(body=body, orelse=orelse)

        (chain,) = nodes
        return [arm(cst.ensure_type(chain, cst.If))]

    return change


def _double_buffer(receiver: Half) -> tuple[ast.stmt, ast.stmt]:
    """Return the first and last of the statements that make the receiver's buffers; the last undoes the others."""
    nodes = _buffer_statements(receiver)
    if len(nodes) == 2 and isinstance(nodes[0], ast.If) and isinstance(nodes[1], ast.Assign):
        value = nodes[1].value
        start, end = receiver.body.index(nodes[0]), receiver.body.index(nodes[1])
        if (
            expression(nodes[0].test) == "args.sft"
            and _is_buffer(nodes[0])
            and isinstance(value, ast.IfExp)
            and expression(value.test) == "args.hybrid_context_parallel"
            and expression(value.body) == _BUFFER.partition(" = ")[2]
            and expression(value.orelse) == "None"
            and matches(receiver.body[start + 1 : end], "cu_seqlens = None")
        ):
            return nodes[0], nodes[1]
    raise AnchorError("two statements that make max_seqlen, for args.sft and for args.hybrid_context_parallel")


def _one_buffer(nodes: Statements) -> Statements:
    import libcst as cst

    test = cst.parse_expression("args.sft or args.hybrid_context_parallel")
    text = "# unhang sft-packed-seq-broadcast: one buffer, and one broadcast after the arms, for all"
    comment = cst.EmptyLine(comment=cst.Comment(text))
    return [nodes[0].with_changes(test=test, leading_lines=[comment])]


# The code around the arms must be upstream's, and no other statement may use the metadata


def _check_around(function: Function, sender: Half, receiver: Half, trailing: bool) -> None:
    """Raise AnchorError unless the metadata depends only on known code around the arms.

    ``_follow`` reads the arms themselves statement by statement, so they may have fields that no release has.
    """
    check_plain(function, ("mpu", "torch", "get_args", "int", "isinstance"))  # also what the helpers call
    outer = [node for node in function.body if not (isinstance(node, ast.If) and node.body is sender.body)]
    known = [
        _one(outer, "args = get_args()"),
        _helper(outer, "_broadcast", _BROADCAST),
        _one(outer, "return batch"),
    ]
    if function.body[-1] is not known[-1]:
        raise AnchorError("return batch, as the last statement")
    _check_others(outer, known)
    for half, helpers, lengths in (
        (sender, _SEND_CU_SEQLENS, _SEND_LENGTH),
        (receiver, _RECEIVE_CU_SEQLENS, _RECEIVE_LENGTH),
    ):
        before = half.body[: half.body.index(half.chain)]
        length = once([node for node in before if {*digests([node])} <= lengths], "if args....: _broadcast(seq_len)")
        if trailing:  # our rewrite does not change the second definition
            known = [*_helpers(before), _helper(half.after, "_broadcast_cu_seqlens", helpers)]
            if not {*digests(known)} <= helpers or half.after[0] is not known[-1]:
                raise AnchorError("def _broadcast_cu_seqlens(...), after the arms")
        else:
            known = [_helper(before, "_broadcast_cu_seqlens", helpers)]
        ours = known[-1:] if trailing else []
        known.append(length)
        if half is sender:
            known += [_one(before, "data = next(data_iterator)"), _made_batch(before)]
        else:
            known += [_one(before, "cu_seqlens = None", most=2), *_buffer_statements(receiver)]
            known += [node for node in before if matches([node], "cu_seqlens = None")]
        _check_others(before, known)
        known = [*ours, *(node for node in half.after if _broadcast_field(node) in _METADATA)]
        known += [_returned_batch(half.after)] if half is receiver else []
        _check_others(half.after, known)


def _check_others(nodes: list[ast.stmt], known: list[ast.stmt]) -> None:
    """Raise AnchorError if another statement uses the metadata, rebinds a name of the arms, or leaves the function."""
    for node in nodes:
        if any(node is other for other in known):
            continue
        if mentioned(node) & (_ABOUT | {"_broadcast"}) or bound(node) & _WITH or leaving(node):
            raise AnchorError(f"no other use of the metadata, as in line {node.lineno}")


def _one(nodes: list[ast.stmt], template: str, most: int = 1) -> ast.stmt:
    found = [node for node in nodes if matches([node], template)]
    if not 1 <= len(found) <= most:
        raise AnchorError(template, len(found))
    return found[0]


def _helpers(nodes: list[ast.stmt]) -> list[ast.stmt]:
    return [node for node in nodes if isinstance(node, ast.FunctionDef) and node.name == "_broadcast_cu_seqlens"]


def _helper(nodes: list[ast.stmt], name: str, known: frozenset[str]) -> ast.stmt:
    """Return the only definition of a nested function, which must be a known one."""
    found = [node for node in nodes if isinstance(node, ast.FunctionDef) and node.name == name]
    if not {*digests(found)} <= known:
        raise AnchorError(f"def {name}(...) of a release")
    return once(found, f"def {name}(...)")


def _made_batch(nodes: list[ast.stmt]) -> ast.stmt:
    """Return the sender's ``batch = {...}``, with the metadata from the data loader."""
    node, items = _dict_of_batch(nodes)
    for name in _METADATA:
        wanted = f"None if '{name}' not in data else data['{name}'].cuda(non_blocking=True)"
        if name not in items or expression(items[name]) != wanted:
            raise AnchorError(f"batch['{name}']: {wanted}")
    for name, value in items.items():
        if name not in _METADATA and mentioned(value) & _ABOUT:
            raise AnchorError(f"batch['{name}'] without the metadata")
    return node


def _returned_batch(nodes: list[ast.stmt]) -> ast.stmt:
    """Return the receiver's ``batch = {...}``, with the metadata that it received."""
    node, items = _dict_of_batch(nodes)
    for name in _METADATA:
        if name not in items or expression(items[name]) != name:
            raise AnchorError(f"batch['{name}']: {name}")
    return node


def _dict_of_batch(nodes: list[ast.stmt]) -> tuple[ast.stmt, dict[str, ast.expr]]:
    """The one ``batch = {...}`` in these statements, and what it holds."""
    found = [node for node in nodes if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict)]
    node = once([node for node in found if [*map(expression, node.targets)] == ["batch"]], "batch = {...}")
    assert isinstance(node, ast.Assign)  # for the type checker
    assert isinstance(node.value, ast.Dict)
    keys = [key.value if isinstance(key, ast.Constant) else None for key in node.value.keys]
    if len({*keys}) != len(keys) or None in keys:
        raise AnchorError("batch = {...}, with each field once")
    return node, {str(key): value for key, value in zip(keys, node.value.values)}


# The post-condition is checked by following what each half does, stage by stage


class Unreadable(AnchorError):
    """A broadcast is in a statement that ``_follow`` cannot read."""


def _holds_arms(sender: Half, receiver: Half) -> bool:
    _check_buffer(receiver)
    _, fields = _dict_of_batch(receiver.after)
    for sft in (True, False):
        known = {"args.sft": sft, "not args.sft": not sft}
        for stage in range(4):
            sent, _ = _follow_arm(sender, stage, known)
            received, values = _follow_arm(receiver, stage, known)
            if sent != received:
                return False
            wanted = _METADATA if sft or stage < 2 else []
            if [event for event in sent if event in _METADATA] != wanted:
                return False
            if wanted and {values[name] for name in wanted} != {"received"}:
                return False
            if stage >= 2 and wanted and sent[-2:] != wanted:
                return False
            if stage == 2 and not sft and {values.get(name) for name in _METADATA} != {"None"}:
                return False
            if (
                stage == 3
                and sft
                and any(values.get(field) != ("received" if field in sent else "None") for field in fields)
            ):
                return False
    return len(sender.arms) == len(receiver.arms) == 4


def _holds_trailing(sender: Half, receiver: Half) -> bool:
    _check_buffer(receiver)
    for stage in range(3):
        sent, _ = _follow_arm(sender, stage, {})
        received, values = _follow_arm(receiver, stage, {})
        if sent != received or set(_METADATA) & {*sent, *values}:
            return False
    return _after_arms(sender) == _after_arms(receiver) == _METADATA


def _holds_upstream(function: Function) -> bool:
    """Return whether this is upstream's fix: a flag that all ranks share, and both halves broadcast on every stage."""
    flags = {argument.arg for argument in function.args.args} & {"is_sft", "has_cu_seqlens"}
    if len(flags) != 1 or function.args.args[0].arg != "batch":
        return False
    (flag,) = flags
    known = {flag: True, f"{flag} or is_hybrid_cp": True}
    whole = "pipeline_model_parallel_size == 1 or mtp_on_this_rank"
    tests = (whole, "is_pipeline_first_stage", "is_pipeline_last_stage", flag)
    sender, receiver = _halves(function, "tp_rank == 0", tests)
    for stage in range(4):
        sent, _ = _follow_arm(sender, stage, known)
        received, values = _follow_arm(receiver, stage, known)
        if sent != received or [event for event in sent if event in _METADATA] != _METADATA:
            return False
        if {values.get(name) for name in _METADATA} != {"received"}:
            return False
    return True


def _halves(
    function: Function,
    sending: str = "mpu.get_tensor_model_parallel_rank() == 0",
    tests: Sequence[str] = _ARMS,
) -> tuple[Half, Half]:
    """Return the two halves; raise AnchorError unless each of them, and its chain of arms, occurs exactly once."""
    found = [node for node in function.body if isinstance(node, ast.If) and expression(node.test) == sending]
    split = once(found, f"if {sending}")
    assert isinstance(split, ast.If)  # for the type checker: `found` has nothing else
    return _half(split.body, tests), _half(split.orelse, tests)


def _half(body: list[ast.stmt], tests: Sequence[str]) -> Half:
    chains = [node for node in body if isinstance(node, ast.If) and expression(node.test) == tests[0]]
    chain = once(chains, f"if {tests[0]}")
    assert isinstance(chain, ast.If)
    arms, rest = [chain.body], chain.orelse
    for test in tests[1:]:
        if len(rest) != 1 or not isinstance(rest[0], ast.If) or expression(rest[0].test) != test:
            raise AnchorError(f"elif {test}")
        arms.append(rest[0].body)
        rest = rest[0].orelse
    if len(rest) == 1 and isinstance(rest[0], ast.If) and expression(rest[0].test) == "args.sft" and not rest[0].orelse:
        rest = [rest[0]]  # our arm: `_follow` reads it as an `if`
    if rest:
        arms.append(rest)
    return Half(body, chain, arms, body[body.index(chain) + 1 :])


def _follow_arm(half: Half, stage: int, known: dict[str, bool]) -> tuple[list[str], dict[str, str]]:
    return _follow(half.arms[stage], known) if stage < len(half.arms) else ([], {})


def _follow(
    body: list[ast.stmt], known: dict[str, bool], before: dict[str, str] | None = None
) -> tuple[list[str], dict[str, str]]:
    """Return the fields that these statements broadcast, in order, and the value of each name after them.

    ``known`` maps conditions to their values, ``before`` maps names to their values so far. The broadcasts under any
    other condition are one event, named after the condition. Raises Unreadable if a broadcast is in anything except an
    expression, an assignment or an ``if``.
    """
    events: list[str] = []
    values = dict(before or {})
    for node in body:
        field = _broadcast_field(node)
        if field is not None and values.get(field) == "None" and isinstance(node, ast.Expr):
            pass  # `_broadcast(None)` sends nothing
        elif field is not None:
            events.append(field)
            values[field] = "received"
        elif isinstance(node, ast.If):
            test = expression(node.test)
            if test in known:
                inner, values = _follow(node.body if known[test] else node.orelse, known, values)
                events += inner
            else:
                inner, held = _follow(node.body, known, values)
                otherwise, _ = _follow(node.orelse, known, values)
                if inner or otherwise:
                    events.append(f"if {test}: {inner} else: {otherwise}")
                values.update({name: f"if {test}" for name in held if held[name] != values.get(name)})
        elif (mentioned(node) & (_ABOUT | _WITH | {"_broadcast"}) and not _is_nulling(node)) or leaving(node):
            raise Unreadable(expression(node))
        else:
            nothing = isinstance(node, ast.Assign) and expression(node.value) == "None"
            values.update(dict.fromkeys(_assigned(node), "None" if nothing else "set"))
    return events, values


def _is_nulling(node: ast.stmt) -> bool:
    """Return whether this is ``FIELD = None`` or ``batch['FIELD'] = None``."""
    if not isinstance(node, ast.Assign) or len(node.targets) != 1 or expression(node.value) != "None":
        return False
    return re.fullmatch(r"[a-z_]+|batch\['[a-z_]+'\]", expression(node.targets[0])) is not None


_FORMS = (
    "_broadcast(batch['{}'])",
    "_broadcast_cu_seqlens(batch['{}'])",
    "_broadcast({})",
    "{} = _broadcast_cu_seqlens()",
)


def _broadcast_field(node: ast.stmt) -> str | None:
    """Return the field that a statement broadcasts, as either half writes it."""
    text = expression(node)
    for form in _FORMS:
        before, _, after = form.partition("{}")
        if text.startswith(before) and text.endswith(after):
            field = text[len(before) : len(text) - len(after)]
            if field.isidentifier():
                return field
    return None


def _metadata_events(body: list[ast.stmt]) -> list[str]:
    events, _ = _follow(body, {})
    return [event for event in events if event in _METADATA]


def _after_arms(half: Half) -> list[str]:
    """Return the metadata fields that statements after the arms broadcast."""
    return [field for field in map(_broadcast_field, half.after) if field in _METADATA]


def _assigned(node: ast.stmt) -> set[str]:
    """Return the names and the keys of ``batch`` that a statement assigns."""
    if isinstance(node, ast.FunctionDef):
        return set()
    places = (inner for inner in ast.walk(node) if isinstance(inner, (ast.Name, ast.Subscript)))
    stored = [inner for inner in places if isinstance(inner.ctx, ast.Store)]
    return {inner.id if isinstance(inner, ast.Name) else expression(inner.slice).strip("'") for inner in stored}


def _buffer_statements(receiver: Half) -> list[ast.stmt]:
    """Return the receiver's statements before the arms that make its max_seqlen buffer."""
    return [node for node in receiver.body[: receiver.body.index(receiver.chain)] if "max_seqlen" in _assigned(node)]


def _check_buffer(receiver: Half) -> None:
    """Raise AnchorError unless one ``if`` makes the receiver's max_seqlen buffer, for SFT or dynamic CP."""
    node = once(_buffer_statements(receiver), "max_seqlen = torch.empty(...)")
    test = node.test if isinstance(node, ast.If) else None
    joined = test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or) else []
    conditions = {expression(value) for value in joined}
    if not any(conditions == {"args.sft", dynamic} for dynamic in _DYNAMIC) or not _is_buffer(node):
        raise AnchorError(f"if args.sft or {_DYNAMIC[1]}: {_BUFFER}")


def _is_buffer(node: ast.stmt) -> bool:
    """Return whether an ``if`` makes the buffer, and its ``else`` sets it to None."""
    return isinstance(node, ast.If) and matches(node.body, _BUFFER) and matches(node.orelse, _NO_MAX_SEQLEN)


CODEMODS = {"get_batch_on_this_tp_rank": GetBatchOnThisTpRank()}
