"""megatron-core: add up the gradients of a gated delta net's output norm over its tensor-parallel ranks.

Upstream has no such change. https://github.com/NVIDIA/Megatron-LM/issues/7452 names the defect.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from unhang.codemods.base import Codemod, expression, once, operand, refuse_own, span
from unhang.codemods.edit import Edit
from unhang.shapes.shape import Function

if TYPE_CHECKING:
    from unhang.codemods.edit import Statements

_NORM = ".self_attention.out_norm."
_QK = "q_layernorm"
_CONDITION = f"""(
    "{_NORM}" in {{name}}
    and not getattr({{param}}, "tensor_model_parallel", False)
)"""
_COMMENT = "# unhang gdn-out-norm-tp: all heads share it, so a rank has a part of its gradient"


class NonTensorModelParallelGrads(Codemod):
    """Add the norm to the condition that lets the norms of query and key be summed.

    Before::

        def reduce(config, named):
            total = []
            for name, param in named:
                if param.averaged:
                    continue
                elif config.qk_layernorm and "q_layernorm" in name:
                    total.append(param)
            return total

    After::

        def reduce(config, named):
            total = []
            for name, param in named:
                if param.averaged:
                    continue
                # unhang gdn-out-norm-tp: all heads share it, so a rank has a part of its gradient
                elif config.qk_layernorm and "q_layernorm" in name or (
                    ".self_attention.out_norm." in name
                    and not getattr(param, "tensor_model_parallel", False)
                ):
                    total.append(param)
            return total
    """

    def plan(self, function: Function) -> list[Edit]:
        refuse_own(function, [_NORM])
        arms = [(node, arm) for node in ast.walk(function) if isinstance(node, ast.If) for arm in _asking(node)]
        outer, asked = once(arms, f"elif ... {_QK!r} in ...")
        name = operand(asked, f"{_QK!r} in a name")
        loops = [it for it in ast.walk(function) if isinstance(it, ast.For) and _goes_over(name, it, outer)]
        loop = once(loops, f"for {name}, ... in ...")
        param = expression(loop.target).strip("()").rpartition(", ")[2]
        return [span(outer, outer, _or(_CONDITION.format(name=name, param=param)))]

    def names(self, function: Function) -> frozenset[str]:
        return frozenset()


def _asking(node: ast.If) -> Iterator[ast.expr]:
    """Yield that in which the ``elif`` of a statement looks for the norm of the query."""
    arm = node.orelse[0] if len(node.orelse) == 1 else None
    if isinstance(arm, ast.If) and isinstance(arm.test, ast.BoolOp):
        for one in ast.walk(arm.test):
            if isinstance(one, ast.Compare) and isinstance(one.ops[0], ast.In) and expression(one.left) == repr(_QK):
                yield one.comparators[0]


def _goes_over(name: str, loop: ast.For, node: ast.stmt) -> bool:
    """Return whether a loop has this node inside, and takes the name and something else in each turn."""
    names = loop.target.elts if isinstance(loop.target, ast.Tuple) else []
    return [*map(expression, names)][:-1] == [name] and any(inner is node for inner in ast.walk(loop))


def _or(condition: str) -> Callable[[Statements], Statements]:
    """Return a change that adds an alternative to the ``elif`` of a statement, and a comment above it."""

    def change(nodes: Statements) -> Statements:
        import libcst as cst

        outer = cst.ensure_type(nodes[0], cst.If)
        arm = cst.ensure_type(outer.orelse, cst.If)
        test = cst.BooleanOperation(arm.test, cst.Or(), cst.parse_expression(condition))
        above = [*arm.leading_lines, cst.EmptyLine(comment=cst.Comment(_COMMENT))]
        return [outer.with_changes(orelse=arm.with_changes(test=test, leading_lines=above))]

    return change


CODEMODS = {
    "_allreduce_non_tensor_model_parallel_grads": NonTensorModelParallelGrads(),
}
