"""0.16: the metadata is broadcast in the arms, and once more after them. Keep only the latter, which serves all."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from unhang.codemods.base import AnchorError, expression, once, only_first, span
from unhang.codemods.edit import Edit
from unhang.codemods.sft_packed_seq_broadcast.halves import NO_MAX_SEQLEN, Half, buffer, places

if TYPE_CHECKING:
    from unhang.codemods.edit import Statements

_UNDONE = r"cu_seqlens = None\nmax_seqlen = .* if args\.hybrid_context_parallel else None"


def plan(sender: Half, receiver: Half) -> list[Edit]:
    """Return the edits. Raises AnchorError."""
    first = buffer(receiver)
    start = receiver.body.index(first)
    undone = "\n".join(map(expression, receiver.body[start + 1 : start + 3]))
    if expression(first.test) != "args.sft" or not re.fullmatch(_UNDONE, undone):
        raise AnchorError("max_seqlen made for args.sft, and then again, for args.hybrid_context_parallel only")
    one_buffer = span(first, receiver.body[start + 2], _one_buffer)
    return [
        *_edits(sender),
        one_buffer,
        *_edits(receiver),
        _drop(receiver.arms[2], "cu_seqlens = None\n" + NO_MAX_SEQLEN),
    ]


def _edits(half: Half) -> list[Edit]:
    """Return the edits that drop the helper before the arms, and the broadcasts in the arms, which call it."""
    helpers = [node for node in half.body if isinstance(node, ast.FunctionDef) and node.name == "_broadcast_cu_seqlens"]
    if len(helpers) != 2 or len(places(half.after(), half.metadata)) != 1:
        raise AnchorError("def _broadcast_cu_seqlens(...) twice, and the broadcasts of the metadata after the arms")
    return [_dropped(half.body, helpers[0]), *(_drop(arm, half.metadata) for arm in half.arms[:2])]


def _drop(arm: list[ast.stmt], template: str) -> Edit:
    return _dropped(arm, *once(places(arm, template), template))


def _dropped(block: list[ast.stmt], *nodes: ast.stmt) -> Edit:
    """Return the edit that drops these statements, which follow another one."""
    start = block.index(nodes[0])
    if not start:
        raise AnchorError(f"a statement before line {nodes[0].lineno}")
    return span(block[start - 1], nodes[-1], only_first)


def _one_buffer(nodes: Statements) -> Statements:
    import libcst as cst

    test = cst.parse_expression("args.sft or args.hybrid_context_parallel")
    text = "# unhang sft-packed-seq-broadcast: one buffer, and one broadcast after the arms, for all"
    return [nodes[0].with_changes(test=test, leading_lines=[cst.EmptyLine(comment=cst.Comment(text))])]
