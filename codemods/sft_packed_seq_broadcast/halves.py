"""What both rewrites share: the two halves of the function, their arms, and how each half broadcasts the metadata."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from unhang.codemods.base import AnchorError, expression, matches, once, span
from unhang.codemods.edit import Edit
from unhang.shapes.shape import Function

if TYPE_CHECKING:
    import libcst as cst

    from unhang.codemods.edit import Statements

RANK = "mpu.get_tensor_model_parallel_rank() == 0"
WHOLE = "args.pipeline_model_parallel_size == 1 or mtp_on_this_rank"
ARMS = (WHOLE, "mpu.is_pipeline_first_stage()", "mpu.is_pipeline_last_stage()")
NO_MAX_SEQLEN = "max_seqlen = None"


class Half(NamedTuple):
    """The sending (TP rank 0) or the receiving half of the function."""

    body: list[ast.stmt]
    metadata: str
    """The two statements by which this half broadcasts the packed-sequence metadata."""
    chain: ast.If
    """The ``if`` whose arms serve the pipeline stages."""
    arms: list[list[ast.stmt]]
    """Of the whole batch, the first stage, the last stage, and, in some shapes, the middle stages."""

    def after(self) -> list[ast.stmt]:
        return self.body[self.body.index(self.chain) + 1 :]

    def broadcasts(self, nodes: list[ast.stmt], gates: Sequence[str] = ()) -> int:
        """Return how often these statements broadcast the metadata, also in an ``if`` on one of the ``gates``."""
        gated = [node.body for node in nodes if isinstance(node, ast.If) and expression(node.test) in gates]
        pairs = (both for body in (nodes, *gated) for both in zip(body, body[1:]))
        return sum(matches(both, self.metadata) for both in pairs)


def halves(function: Function, rank: str = RANK, arms: Sequence[str] = ARMS) -> tuple[Half, Half]:
    """Return the two halves. Raises AnchorError unless each of them, and its chain of arms, occurs once."""
    found = [node for node in function.body if isinstance(node, ast.If) and expression(node.test) == rank]
    split = once(found, f"if {rank}")
    assert isinstance(split, ast.If)  # for the type checker
    sent = "_broadcast_cu_seqlens(batch['cu_seqlens'])\n_broadcast(batch['max_seqlen'])\n"
    received = "cu_seqlens = _broadcast_cu_seqlens()\n_broadcast(max_seqlen)\n"
    return _half(split.body, sent, arms), _half(split.orelse, received, arms)


def _half(body: list[ast.stmt], metadata: str, wanted: Sequence[str]) -> Half:
    chain = once([node for node in body if isinstance(node, ast.If) and expression(node.test) == wanted[0]], wanted[0])
    tests, arms, rest = [], [], [chain]
    while len(rest) == 1 and isinstance(rest[0], ast.If):
        tests.append(expression(rest[0].test))
        arms.append(rest[0].body)
        rest = rest[0].orelse
    if tests != [*wanted]:  # our rewrite may have one more
        raise AnchorError(" / ".join(f"elif {test}" for test in wanted[1:]))
    assert isinstance(chain, ast.If)
    return Half(body, metadata, chain, [*arms, rest] if rest else arms)


def buffer(receiver: Half) -> ast.If:
    """Return the ``if`` that makes the receiver's buffer for ``max_seqlen``."""
    found = [
        node
        for node in receiver.body
        if isinstance(node, ast.If) and "args.sft" in expression(node.test) and matches(node.orelse, NO_MAX_SEQLEN)
    ]
    node = once(found, "if args.sft: max_seqlen = torch.empty(...)")
    assert isinstance(node, ast.If)
    return node


def rewritten(
    half: Half,
    changes: Sequence[Callable[[Statements], Statements]],
    middle: Callable[[cst.If | cst.Else | None], cst.If | cst.Else | None] = lambda arm: arm,
) -> Edit:
    """Return an edit that changes what is in the first arms, and the arm after them."""

    def change(nodes: Statements) -> Statements:
        import libcst as cst

        from unhang.codemods import splice

        def arm(node: cst.If, number: int) -> cst.If:
            body = splice.block(changes[number](splice.body_of(node.body)), node.body)
            last = number + 1 == len(changes)
            orelse = middle(node.orelse) if last else arm(cst.ensure_type(node.orelse, cst.If), number + 1)
            return node.with_changes(body=body, orelse=orelse)

        (chain,) = nodes
        return [arm(cst.ensure_type(chain, cst.If), 0)]

    return span(half.chain, half.chain, change)
