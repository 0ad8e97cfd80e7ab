"""Megatron-LM: broadcast the packed-sequence metadata to every pipeline stage, once, from sender and receiver alike.

https://github.com/NVIDIA/Megatron-LM/pull/4150 (which leaves the last stage without it)
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from unhang.codemods.base import (
    AnchorError,
    Codemod,
    Edit,
    Function,
    digests,
    expression,
    matches,
    once,
    only_first,
    span,
)

if TYPE_CHECKING:
    import libcst as cst

    from unhang.codemods.base import Statements

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
    """The statements behind the chain: in 0.16 they broadcast the metadata again."""


class GetBatchOnThisTpRank(Codemod):
    """0.17 and dev: metadata in the arms of last and middle stages. 0.16: one broadcast behind the arms, for all."""

    def plan(self, function: Function) -> list[Edit]:
        sender, receiver = _halves(function)
        if _metadata_events(sender.after) or _metadata_events(receiver.after):
            return _plan_trailing(sender, receiver)
        return _plan_arms(sender, receiver)

    def holds(self, function: Function) -> bool:
        try:
            sender, receiver = _halves(function)
            if _metadata_events(sender.after) or _metadata_events(receiver.after):
                return _holds_trailing(sender, receiver)
            return _holds_arms(sender, receiver)
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


# 0.17 and dev: the arms of the last and the middle stages lack the metadata


def _plan_arms(sender: Half, receiver: Half) -> list[Edit]:
    for half in sender, receiver:
        for name, arm in zip(("whole batch", "first stage"), half.arms):
            if _metadata_events(arm) != _METADATA:
                raise AnchorError(f"the broadcast of {' and '.join(_METADATA)} in the arm of the {name}")
        if _metadata_events(half.arms[2]):
            raise AnchorError("an arm of the last stage without the packed-sequence metadata")
    _check_buffer(receiver, {"args.sft"})
    once([node for node in receiver.arms[2] if matches([node], _NO_MAX_SEQLEN)], "max_seqlen = None, on the last stage")
    fields = _batch_fields(receiver)
    return [
        _chain_edit(sender, _send_last, lambda arm: _send_middle(arm, _middle_kind(sender, _AS_WRITTEN[0]))),
        _chain_edit(
            receiver, _receive_last, lambda arm: _receive_middle(arm, fields, _middle_kind(receiver, _AS_WRITTEN[1]))
        ),
    ]


def _middle_kind(half: Half, as_written: list[str]) -> str:
    """What the middle stages have: nothing, the pull request's arm, or an arm of upstream's own for other fields."""
    if len(half.arms) == 3:
        return "none"
    return "as written" if digests(half.arms[3]) == as_written else "own"


def _chain_edit(
    half: Half, last: Callable[[Statements], Statements], middle: Callable[[cst.Else | None], cst.If | cst.Else]
) -> Edit:
    """Change the third arm by ``last``, and what follows it by ``middle``."""

    def change(nodes: Statements) -> Statements:
        import libcst as cst

        from unhang.codemods import rewrite

        def arm(node: cst.If, number: int) -> cst.If:
            if number < 3:
                following = cst.ensure_type(node.orelse, cst.If)
                return node.with_changes(orelse=arm(following, number + 1))
            body = rewrite.block(last(rewrite.body_of(node.body)), node.body)
            orelse = None if node.orelse is None else cst.ensure_type(node.orelse, cst.Else)
            return node.with_changes(body=body, orelse=middle(orelse))

        (chain,) = nodes
        return [arm(cst.ensure_type(chain, cst.If), 1)]

    return span(half.chain, half.chain, change)


def _send_last(body: Statements) -> Statements:
    from unhang.codemods import rewrite

    return [*body, *rewrite.suite(f"{_COMMENT}\nif args.sft:\n{_indented(_SEND)}")]


def _send_middle(arm: cst.Else | None, kind: str) -> cst.If | cst.Else:
    from unhang.codemods import rewrite

    if arm is None or kind == "as written":
        return rewrite.elif_("args.sft", f"{_COMMENT}\n{_SEND}")
    kept = rewrite.without(rewrite.body_of(arm.body), _DROP_BATCH)
    ours = rewrite.suite(f"{_COMMENT}\nif args.sft:\n{_indented(_SEND)}else:\n{_indented(_DROP_BATCH)}")
    return arm.with_changes(body=rewrite.block([*kept, *ours], arm.body))


def _receive_last(body: Statements) -> Statements:
    from unhang.codemods import rewrite

    # the pull request also nulls local_cp_size here: untouched code does not
    kept = rewrite.without(body, _NO_MAX_SEQLEN + "local_cp_size = None\n")
    ours = f"{_COMMENT}\nif args.sft:\n{_indented(_RECEIVE)}else:\n{_indented(_NO_MAX_SEQLEN)}"
    return [*kept, *rewrite.suite(ours)]


def _receive_middle(arm: cst.Else | None, fields: list[str], kind: str) -> cst.If | cst.Else:
    from unhang.codemods import rewrite

    if arm is None or kind == "as written":
        nothing = "".join(f"{field} = None\n" for field in fields if field not in _METADATA)
        return rewrite.elif_("args.sft", f"{_COMMENT}\n{nothing}\n{_RECEIVE}")
    kept = rewrite.without(rewrite.body_of(arm.body), _NO_MAX_SEQLEN)
    ours = f"{_COMMENT}\nif args.sft:\n{_indented(_RECEIVE)}else:\n{_indented(_NO_MAX_SEQLEN)}"
    return arm.with_changes(body=rewrite.block([*kept, *rewrite.suite(ours)], arm.body))


def _indented(template: str) -> str:
    return "".join(f"    {line}\n" for line in template.splitlines())


# 0.16: the metadata is broadcast in the arms and once more behind them


def _plan_trailing(sender: Half, receiver: Half) -> list[Edit]:
    edits = []
    for half, item in (sender, _SEND), (receiver, _RECEIVE):
        if _metadata_events(half.after) != _METADATA:
            raise AnchorError(f"the broadcast of {' and '.join(_METADATA)} behind the arms")
        if [_metadata_events(arm) for arm in half.arms] != [_METADATA, _METADATA, []]:
            raise AnchorError(f"the broadcast of {' and '.join(_METADATA)} in the arms of whole batch and first stage")
        helpers = [node for node in half.body if isinstance(node, ast.FunctionDef)]
        if [node.name for node in helpers] != ["_broadcast_cu_seqlens"] * 2 or len(set(digests(helpers))) != 1:
            raise AnchorError("two equal definitions of _broadcast_cu_seqlens")
        dropped = item if half is sender else f"{item}cu_seqlens = None\n{_NO_MAX_SEQLEN}"
        edits += [
            # the first definition has no caller left
            span(half.body[half.body.index(helpers[0]) - 1], helpers[0], only_first),
            span(half.chain, half.chain, _filtered_arms(dropped)),
        ]
    first, last = _double_buffer(receiver)
    return sorted([*edits, span(first, last, _one_buffer)], key=lambda edit: edit.first)


def _filtered_arms(dropped: str) -> Callable[[Statements], Statements]:
    """Drop these statements from every arm of the chain."""

    def change(nodes: Statements) -> Statements:
        import libcst as cst

        from unhang.codemods import rewrite

        def arm(node: cst.If) -> cst.If:
            orelse = None if node.orelse is None else arm(cst.ensure_type(node.orelse, cst.If))
            body = rewrite.block(rewrite.without(rewrite.body_of(node.body), dropped), node.body)
            return node.with_changes(body=body, orelse=orelse)

        (chain,) = nodes
        return [arm(cst.ensure_type(chain, cst.If))]

    return change


def _double_buffer(receiver: Half) -> tuple[ast.stmt, ast.stmt]:
    """The four statements that make the receiver's buffers, the last of which undoes those before it."""
    nodes = _buffer_statements(receiver)
    if len(nodes) == 2 and isinstance(nodes[0], ast.If) and isinstance(nodes[1], ast.Assign):
        value = nodes[1].value
        start, end = receiver.body.index(nodes[0]), receiver.body.index(nodes[1])
        if (
            expression(nodes[0].test) == "args.sft"
            and isinstance(value, ast.IfExp)
            and expression(value.test) == "args.hybrid_context_parallel"
            and matches(receiver.body[start + 1 : end], "cu_seqlens = None")
        ):
            return nodes[0], nodes[1]
    raise AnchorError("two statements that make max_seqlen, for args.sft and for args.hybrid_context_parallel")


def _one_buffer(nodes: Statements) -> Statements:
    import libcst as cst

    test = cst.parse_expression("args.sft or args.hybrid_context_parallel")
    text = "# unhang sft-packed-seq-broadcast: one buffer, and one broadcast behind the arms, for all"
    comment = cst.EmptyLine(comment=cst.Comment(text))
    return [nodes[0].with_changes(test=test, leading_lines=[comment])]


# What a half does, stage by stage: the post-condition is checked by following it


class Unreadable(AnchorError):
    """A broadcast stands where this small reader cannot follow it."""


def _holds_arms(sender: Half, receiver: Half) -> bool:
    _check_buffer(receiver, {"args.sft"})
    fields = _batch_fields(receiver)
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
            if stage >= 2 and wanted and (sent[-2:] != wanted or {values[name] for name in wanted} != {"received"}):
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
    _check_buffer(receiver, {"args.sft", "args.hybrid_context_parallel"})
    for stage in range(3):
        sent, _ = _follow_arm(sender, stage, {})
        received, values = _follow_arm(receiver, stage, {})
        if sent != received or set(_METADATA) & {*sent, *values}:
            return False
    sent, _ = _follow(sender.after, {})
    received, _ = _follow(receiver.after, {})
    return sent == received == _METADATA


def _holds_upstream(function: Function) -> bool:
    """Upstream's own: a flag that all ranks share, and the metadata on every stage, sender and receiver alike."""
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
    """The two halves; AnchorError where one of them, or its chain of arms, does not stand there exactly once."""
    found = [node for node in function.body if isinstance(node, ast.If) and expression(node.test) == sending]
    split = once(found, f"if {sending}")
    assert isinstance(split, ast.If)  # for the type checker: `found` holds nothing else
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
        rest = [rest[0]]  # ours: followed as an `if` of its own
    if rest:
        arms.append(rest)
    return Half(body, chain, arms, body[body.index(chain) + 1 :])


def _follow_arm(half: Half, stage: int, known: dict[str, bool]) -> tuple[list[str], dict[str, str]]:
    return _follow(half.arms[stage], known) if stage < len(half.arms) else ([], {})


def _follow(
    body: list[ast.stmt], known: dict[str, bool], before: dict[str, str] | None = None
) -> tuple[list[str], dict[str, str]]:
    """Which fields these statements broadcast, in order, and what each name holds after them.

    ``known`` says which conditions hold, ``before`` what names hold already; what stands under another condition is one
    event, named by that condition. Raises Unreadable where a broadcast stands in anything but an expression, an
    assignment or an ``if``.
    """
    events: list[str] = []
    values = dict(before or {})
    for node in body:
        field = _broadcast_field(node)
        if field is not None and values.get(field) == "None" and isinstance(node, ast.Expr):
            pass  # `_broadcast(None)` is none
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
        elif _hides_a_broadcast(node):
            raise Unreadable(expression(node))
        else:
            nothing = isinstance(node, ast.Assign) and expression(node.value) == "None"
            values.update(dict.fromkeys(_assigned(node), "None" if nothing else "set"))
    return events, values


def _hides_a_broadcast(node: ast.stmt) -> bool:
    """Whether a broadcast stands anywhere in a statement that is not itself one (the helper's definition is none)."""
    return not isinstance(node, ast.FunctionDef) and any(
        isinstance(inner, ast.Name) and inner.id.startswith("_broadcast") for inner in ast.walk(node)
    )


_FORMS = (
    "_broadcast(batch['{}'])",
    "_broadcast_cu_seqlens(batch['{}'])",
    "_broadcast({})",
    "{} = _broadcast_cu_seqlens()",
)


def _broadcast_field(node: ast.stmt) -> str | None:
    """The field that a statement broadcasts, in either half's way of writing it."""
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


def _assigned(node: ast.stmt) -> set[str]:
    """The names, and the keys of ``batch``, that a statement assigns anywhere in it."""
    if isinstance(node, ast.FunctionDef):
        return set()
    places = (inner for inner in ast.walk(node) if isinstance(inner, (ast.Name, ast.Subscript)))
    stored = [inner for inner in places if isinstance(inner.ctx, ast.Store)]
    return {inner.id if isinstance(inner, ast.Name) else expression(inner.slice).strip("'") for inner in stored}


def _buffer_statements(receiver: Half) -> list[ast.stmt]:
    """The receiver's statements that make its max_seqlen buffer, ahead of the arms."""
    return [node for node in receiver.body[: receiver.body.index(receiver.chain)] if "max_seqlen" in _assigned(node)]


def _check_buffer(receiver: Half, wanted: set[str]) -> None:
    """AnchorError unless the receiver makes its max_seqlen buffer once, and under each of these conditions at least."""
    node = once(_buffer_statements(receiver), "max_seqlen = torch.empty(...)")
    test = node.test if isinstance(node, ast.If) else None
    joined = test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or) else []
    if not wanted <= {expression(value) for value in joined}:
        raise AnchorError(f"if {' or '.join(sorted(wanted))}: max_seqlen = torch.empty(...)")


def _batch_fields(receiver: Half) -> list[str]:
    """The fields of the dict that the receiver returns."""
    dicts = [node.value for node in receiver.after if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict)]
    if len(dicts) != 1:
        raise AnchorError("batch = {...}", len(dicts))
    return [expression(key).strip("'") for key in dicts[0].keys if key is not None]


CODEMODS = {"get_batch_on_this_tp_rank": GetBatchOnThisTpRank()}
