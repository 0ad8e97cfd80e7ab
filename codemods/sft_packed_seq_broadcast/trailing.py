"""0.16: the metadata is broadcast in the arms, and once more after them. Keep only the latter, which serves all."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import TYPE_CHECKING

from unhang.codemods.base import AnchorError, assigned, expression, matches, span
from unhang.codemods.edit import Edit
from unhang.codemods.sft_packed_seq_broadcast.halves import NO_MAX_SEQLEN, Half, buffer, listed

if TYPE_CHECKING:
    from unhang.codemods.edit import Statements

_NO_CU_SEQLENS = "cu_seqlens = None\n"


def plan(sender: Half, receiver: Half) -> list[Edit]:
    """Return the edits. Raises AnchorError."""
    first, body = buffer(receiver), receiver.body
    between = body[body.index(first) + 1 : body.index(receiver.chain)]
    again = [node for node in between if matches([node], _NO_CU_SEQLENS) or _is_for_hybrid(node)]
    if expression(first.test) != "args.sft" or list(map(_is_for_hybrid, again)) != [False, True]:
        raise AnchorError("max_seqlen made for args.sft, and then again, for args.hybrid_context_parallel only")
    merged, test = _dropped(body, first, again), receiver.spelled("args.sft or args.hybrid_context_parallel")
    return [
        *_edits(sender),
        merged._replace(change=lambda nodes: _one_buffer(merged.change(nodes), test)),
        *_edits(receiver),
        _drop(receiver.arms[2], _NO_CU_SEQLENS + NO_MAX_SEQLEN),
    ]


def _is_for_hybrid(node: ast.stmt) -> bool:
    name, value = assigned(node) or ("", None)
    is_choice = name == "max_seqlen" and isinstance(value, ast.IfExp)
    return is_choice and expression(getattr(value, "test", node)) == "args.hybrid_context_parallel"


def _edits(half: Half) -> list[Edit]:
    """Return the edits that drop the helper before the arms, and the broadcasts in the arms, which call it."""
    helpers = [node for node in half.body if isinstance(node, ast.FunctionDef) and node.name == "_broadcast_cu_seqlens"]
    if len(helpers) != 2:
        raise AnchorError("def _broadcast_cu_seqlens(...), twice")
    listed(half.after(), half.metadata)
    return [_after_another(half.body, helpers[:1]), *(_drop(arm, half.metadata) for arm in half.arms[:2])]


def _drop(arm: list[ast.stmt], template: str) -> Edit:
    return _after_another(arm, listed(arm, template))


def _after_another(block: list[ast.stmt], nodes: Sequence[ast.stmt]) -> Edit:
    """Return the edit that drops these statements of a block, which must follow another one."""
    start = block.index(nodes[0])
    if not start:
        raise AnchorError(f"a statement before line {nodes[0].lineno}")
    return _dropped(block, block[start - 1], nodes)


def _dropped(block: list[ast.stmt], first: ast.stmt, nodes: Sequence[ast.stmt]) -> Edit:
    """Return the edit that drops these statements of a block. It spans those from ``first`` to the last of them."""
    rows = block[block.index(first) : block.index(nodes[-1]) + 1]

    def change(old: Statements) -> Statements:
        from unhang.codemods import splice

        if len(old) != len(rows):
            raise splice.SpanError("two statements share a line")
        return [new for new, row in zip(old, rows) if row not in nodes]

    return span(first, nodes[-1], change)


def _one_buffer(nodes: Statements, test: str) -> Statements:
    import libcst as cst

    text = "# unhang sft-packed-seq-broadcast: one buffer, and one broadcast after the arms, for all"
    comment = cst.EmptyLine(comment=cst.Comment(text))
    return [nodes[0].with_changes(test=cst.parse_expression(test), leading_lines=[comment]), *nodes[1:]]
