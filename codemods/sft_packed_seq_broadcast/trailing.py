"""0.16: the metadata is broadcast in the arms, and once more after them. Keep only the latter, which serves all."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from unhang.codemods.base import AnchorError, expression, matches, once, only_first, span
from unhang.codemods.edit import Edit
from unhang.codemods.sft_packed_seq_broadcast.halves import NO_MAX_SEQLEN, Half, buffer, rewritten

if TYPE_CHECKING:
    from unhang.codemods.edit import Statements


def plan(sender: Half, receiver: Half) -> list[Edit]:
    """Return the edits. Raises AnchorError."""
    return [
        *_edits(sender, sender.metadata),
        _one_buffer(receiver),
        *_edits(receiver, f"{receiver.metadata}cu_seqlens = None\n{NO_MAX_SEQLEN}"),
    ]


def _edits(half: Half, dropped: str) -> list[Edit]:
    """Return the edits that drop statements from the arms, and the helper before the arms, which they called."""
    if [half.broadcasts(nodes) for nodes in (*half.arms, half.after())] != [1, 1, 0, 1]:
        raise AnchorError("the metadata in the arms of the whole batch and the first stage, and after the arms")
    helpers = [
        number
        for number, node in enumerate(half.body)
        if isinstance(node, ast.FunctionDef) and node.name == "_broadcast_cu_seqlens"
    ]
    if len(helpers) != 2 or not 0 < helpers[0] < half.body.index(half.chain) < helpers[1]:
        raise AnchorError("def _broadcast_cu_seqlens(...), before and after the arms")

    def change(body: Statements) -> Statements:
        from unhang.codemods import splice

        return splice.without(body, dropped)

    before, helper = half.body[helpers[0] - 1], half.body[helpers[0]]
    return [span(before, helper, only_first), rewritten(half, [change] * 3)]


def _one_buffer(receiver: Half) -> Edit:
    """Return the edit of the statements that make the buffer, the last of which undoes the first."""
    first = buffer(receiver)
    start = receiver.body.index(first)
    *_, again, last = receiver.body[start : start + 3]
    if not (
        expression(first.test) == "args.sft"
        and matches([again], "cu_seqlens = None")
        and isinstance(last, ast.Assign)
        and expression(last.targets[0]) == "max_seqlen"
        and isinstance(last.value, ast.IfExp)
        and expression(last.value.test) == "args.hybrid_context_parallel"
        and expression(last.value.orelse) == "None"
    ):
        raise AnchorError("two statements that make max_seqlen, for args.sft and for args.hybrid_context_parallel")

    def change(nodes: Statements) -> Statements:
        import libcst as cst

        test = cst.parse_expression("args.sft or args.hybrid_context_parallel")
        text = "# unhang sft-packed-seq-broadcast: one buffer, and one broadcast after the arms, for all"
        return [nodes[0].with_changes(test=test, leading_lines=[cst.EmptyLine(comment=cst.Comment(text))])]

    return span(first, last, change)
