"""verl: make the tokens the ragged axis of position ids, where samples of one length leave it open.

https://github.com/verl-project/verl/pull/7349
"""

from __future__ import annotations

import ast

from unhang.codemods.base import AnchorError, Codemod, calls, expression, followed_by, once, refuse_own, span
from unhang.codemods.edit import Edit
from unhang.shapes.shape import Function

_MADE, _UPSTREAMS = "torch.nested.as_nested_tensor", "nested_tensor_from_tensor_list"
_ANCHOR = f"... = {_MADE}(..., layout=torch.jagged)"
_TURNED = """\
# unhang mrope-ragged-axis: of samples of one length, torch takes the first axis for the ragged one
if {when}{0}.dim() == 3 and {0}._ragged_idx == 1:
    {0} = torch.nested.nested_tensor_from_jagged(
        {0}.values().unflatten(0, ({0}.size(0), -1)).transpose(0, 1).flatten(1),
        torch.arange({0}.size(0) + 1, device={0}.device)
        * {0}.size(2),
        jagged_dim=2,
    )
"""


class Nest(Codemod):
    """Turn position ids whose axes torch took for the tokens; all other nested tensors stay as they are.

    Before::

        def no_padding(ids):
            nested = torch.nested.as_nested_tensor(ids, layout=torch.jagged)
            return nested

    After::

        def no_padding(ids):
            nested = torch.nested.as_nested_tensor(ids, layout=torch.jagged)
            # unhang mrope-ragged-axis: of samples of one length, torch takes the first axis for the ragged one
            if nested.dim() == 3 and nested._ragged_idx == 1:
                nested = torch.nested.nested_tensor_from_jagged(
                    ...
                )
            return nested
    """

    def plan(self, function: Function) -> list[Edit]:
        refuse_own(function, ["unflatten"])
        made = calls(function, _MADE)
        rows = [row for row in ast.walk(function) if isinstance(row, (ast.Assign, ast.AnnAssign)) and row.value in made]
        if not made or len(rows) != len(made):
            raise AnchorError(_ANCHOR, len(rows))
        return [self._turned(row) for row in sorted(rows, key=lambda row: row.lineno)]

    def _turned(self, row: ast.Assign | ast.AnnAssign) -> Edit:
        target = once(row.targets, _ANCHOR) if isinstance(row, ast.Assign) else row.target
        if [expression(it) for it in row.value.keywords] != ["layout=torch.jagged"]:  # type: ignore[union-attr]
            raise AnchorError(_ANCHOR)
        when = ""
        if isinstance(target, ast.Subscript):  # a batch, which has other nested tensors too
            when = f'{expression(target.slice)} == "position_ids" and '
        return span(row, row, followed_by(_TURNED.format(expression(target), when=when)))

    def names(self, function: Function) -> frozenset[str]:
        return frozenset({"torch"})

    def fixed_upstream(self, function: Function) -> bool:
        return bool(calls(function, f"tu.{_UPSTREAMS}") or calls(function, _UPSTREAMS)) and not calls(function, _MADE)


CODEMODS = dict.fromkeys(("left_right_2_no_padding", "chunk_tensordict", "index_select_tensor_dict"), Nest())
