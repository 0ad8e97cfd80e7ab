"""0.17 and dev: with ``args.sft``, the arms of the last and the middle stages broadcast the metadata too."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from unhang.codemods.base import AnchorError, expression, matches, mentioned, once
from unhang.codemods.edit import Edit
from unhang.codemods.sft_packed_seq_broadcast.halves import NO_MAX_SEQLEN, Half, buffer, rewritten

if TYPE_CHECKING:
    from collections.abc import Callable

    import libcst as cst

    from unhang.codemods.edit import Statements

_COMMENT = "# unhang sft-packed-seq-broadcast: this stage attends over packed sequences too\n"
_DROP_BATCH = "batch['cu_seqlens'] = None\nbatch['max_seqlen'] = None\n"


def plan(sender: Half, receiver: Half) -> list[Edit]:
    """Return the edits. Raises AnchorError."""
    buffer(receiver)
    _each_once(receiver.arms[2], NO_MAX_SEQLEN)
    return [
        _edit(sender, "_broadcast(batch['attention_mask'])\n", "", _DROP_BATCH, ""),
        _edit(receiver, "_broadcast(attention_mask)\n", NO_MAX_SEQLEN, NO_MAX_SEQLEN, _nothing_else(receiver)),
    ]


def _edit(half: Half, mask: str, in_last: str, in_middle: str, nothing: str) -> Edit:
    """Return the edit of one half.

    ``in_last`` and ``in_middle`` are the statements of these arms that are to run only without ``args.sft``; a new
    arm for the middle stages begins with ``nothing``. Pull request 4150 broadcasts the ``mask`` on these stages.
    """
    last, *others = half.arms[2:]
    if "_broadcast_cu_seqlens" in mentioned(*last):
        raise AnchorError("an arm of the last stage without the packed-sequence metadata")
    middle = others[0] if others else []
    is_new = not middle or matches([node for node in middle if "_broadcast" in expression(node)], mask + half.metadata)
    if not is_new:
        _each_once(middle, in_middle)

    def change_last(body: Statements) -> Statements:
        from unhang.codemods import splice

        # only the pull request sets local_cp_size to None here
        return _gated(half, in_last)(splice.without(body, "local_cp_size = None"))

    def change_middle(arm: cst.If | cst.Else | None) -> cst.If | cst.Else:
        from unhang.codemods import splice

        if arm is None or is_new:
            return splice.elif_("args.sft", f"{_COMMENT}{nothing}{half.metadata}")
        return arm.with_changes(body=splice.block(_gated(half, in_middle)(splice.body_of(arm.body)), arm.body))

    return rewritten(half, [list, list, change_last], change_middle)


def _gated(half: Half, otherwise: str) -> Callable[[Statements], Statements]:
    """Return a change that adds the broadcasts, if ``args.sft``, and moves statements to the ``else`` of that."""

    def change(body: Statements) -> Statements:
        from unhang.codemods import splice

        ours = f"{_COMMENT}if args.sft:\n{_indented(half.metadata)}" + (otherwise and f"else:\n{_indented(otherwise)}")
        return [*splice.without(body, otherwise), *splice.suite(ours)]

    return change


def _indented(template: str) -> str:
    return "".join(f"    {line}\n" for line in template.splitlines())


def _each_once(arm: list[ast.stmt], template: str) -> None:
    for line in template.splitlines():
        once([node for node in arm if matches([node], line)], line)


def _nothing_else(receiver: Half) -> str:
    """Return statements that set to None all that the receiver returns, except the metadata."""
    found = [node for node in receiver.after() if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict)]
    batch = once([node for node in found if expression(node.targets[0]) == "batch"], "batch = {...}")
    assert isinstance(batch, ast.Assign)
    assert isinstance(batch.value, ast.Dict)
    names = [expression(value) for value in batch.value.values]
    return "".join(f"{name} = None\n" for name in names if name not in ("cu_seqlens", "max_seqlen")) + "\n"
