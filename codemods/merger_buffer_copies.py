"""verl: merge what is whole on each rank to one copy.

https://github.com/verl-project/verl/pull/7610
"""

from __future__ import annotations

import ast

from unhang.codemods.base import AnchorError, Codemod, calls, expression, instead, once, span
from unhang.codemods.edit import Edit
from unhang.shapes.shape import Function

_CAT = "..[key] = torch.cat(..[key], dim=0)"
_ONE = """\
# unhang merger-buffer-copies: a plain tensor is whole on each rank, so keep one copy, if all agree
torch.testing.assert_close(
    {0}[1:], {0}[:1] * (len({0}) - 1),
    rtol=0, atol=0, equal_nan=True, msg=f"{{{1}}} differs between ranks",
)
{0} = {0}[0].clone(memory_format=torch.contiguous_format)
"""
_UPSTREAMS = "merge_non_dtensor_shards"


class LoadAndMerge(Codemod):
    """Keep the first of the tensors, in a storage of its own, as `torch.cat` gave it, and refuse those that differ.

    Before::

        def merge(state_dict):
            for key in state_dict:
                state_dict[key] = torch.cat(state_dict[key], dim=0)

    After::

        def merge(state_dict):
            for key in state_dict:
                # unhang merger-buffer-copies: a plain tensor is whole on each rank, so keep one copy, if all agree
                torch.testing.assert_close(
                    ...
                )
                state_dict[key] = state_dict[key][0].clone(memory_format=torch.contiguous_format)
    """

    def plan(self, function: Function) -> list[Edit]:
        rows = [(row, row.targets[0]) for row in _merged(function, "torch.cat")]
        cats = [(row, to) for row, to in rows if expression(row.value) == f"torch.cat({expression(to)}, dim=0)"]
        row, whole = once(cats, _CAT)
        if not isinstance(whole, ast.Subscript) or not isinstance(whole.slice, ast.Name):
            raise AnchorError(_CAT)
        return [span(row, row, instead(_ONE.format(expression(whole), whole.slice.id)))]

    def names(self, function: Function) -> frozenset[str]:
        return frozenset({"torch"})

    def fixed_upstream(self, function: Function) -> bool:
        return len(_merged(function, _UPSTREAMS)) == 1 and not calls(function, "torch.cat")


def _merged(function: Function, merge: str) -> list[ast.Assign]:
    """Return the assignments of what a call makes of a list to the place of that list, which is its last argument."""
    rows = [row for row in ast.walk(function) if isinstance(row, ast.Assign) and row.value in calls(function, merge)]
    return [row for row in rows if [expression(it) for it in row.targets] == [expression(row.value.args[-1])]]  # type: ignore[attr-defined]


CODEMODS = {"FSDPModelMerger._load_and_merge_state_dicts": LoadAndMerge()}
