"""verl: give the backbone its gradient, whatever the layout of the hidden states.

https://github.com/verl-project/verl/pull/7235
"""

from __future__ import annotations

import ast

from unhang.codemods.base import AnchorError, Codemod, expression, mentioned, once, replaced_by
from unhang.codemods.edit import Edit
from unhang.shapes.shape import Function

_SAVED, _FLAG, _NEEDED = "saved_tensors", "requires_grad", "needs_input_grad"
_COMMENT = "# unhang fused-head-no-gradient: {}"
_WHY = "what is saved may be a copy without the flag, so ask autograd"


class Backward(Codemod):
    """Ask autograd which inputs need a gradient, and not the tensors that were saved: these are in its order.

    Before::

        def backward(ctx, given):
            hidden, weights = ctx.saved_tensors
            if hidden.requires_grad:
                given = given @ weights
            return given, given.t() @ hidden if weights.requires_grad else None

    After::

        def backward(ctx, given):
            hidden, weights = ctx.saved_tensors
            # unhang fused-head-no-gradient: what is saved may be a copy without the flag, so ask autograd
            if ctx.needs_input_grad[0]:
                given = given @ weights
            # unhang fused-head-no-gradient: as above
            return given, given.t() @ hidden if ctx.needs_input_grad[1] else None
    """

    def plan(self, function: Function) -> list[Edit]:
        ctx = function.args.args[0].arg
        inputs = _saved(function, ctx)[:2]
        found = {name: _flags(function, name) for name in inputs}
        for name in inputs:
            if not found[name]:
                raise AnchorError(f"{name}.{_FLAG}")
        needed = [(flag, f"{ctx}.{_NEEDED}[{at}]") for at, name in enumerate(inputs) for flag in found[name]]
        needed.sort(key=lambda place: place[0].lineno)
        whys = [_WHY, *["as above"] * len(needed)]
        return [replaced_by(function, flag, new, _COMMENT.format(why)) for (flag, new), why in zip(needed, whys)]

    def fixed_upstream(self, function: Function) -> bool:
        return _NEEDED in mentioned(function) and _FLAG not in mentioned(function)


def _saved(function: Function, ctx: str) -> list[str]:
    """Return the names of the tensors that forward has saved."""
    rows = [it for it in function.body if isinstance(it, ast.Assign) and expression(it.value) == f"{ctx}.{_SAVED}"]
    tuples = [row.targets[0].elts for row in rows if isinstance(row.targets[0], ast.Tuple)]
    return [expression(name) for name in once(tuples, f"..., ... = {ctx}.{_SAVED}")]


def _flags(function: Function, name: str) -> list[ast.Attribute]:
    wanted = f"{name}.{_FLAG}"
    return [node for node in ast.walk(function) if isinstance(node, ast.Attribute) and expression(node) == wanted]


CODEMODS = {"FusedLinearForPPOFunction.backward": Backward()}
