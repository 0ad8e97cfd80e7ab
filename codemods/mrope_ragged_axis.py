"""verl: say which axis of position ids is ragged, where samples of one length leave it open.

https://github.com/verl-project/verl/pull/7349
"""

from __future__ import annotations

import ast

from unhang.codemods.base import (
    AnchorError,
    Codemod,
    argument,
    assigned,
    calls,
    expression,
    instead,
    mentioned,
    once,
    span,
)
from unhang.codemods.edit import Edit
from unhang.shapes.shape import Function

_ANCHOR = "... = torch.nested.as_nested_tensor(..., layout=torch.jagged)"
_JAGGED = "torch.nested.nested_tensor_from_jagged"
_OFFSETS = f"{_JAGGED}(..., offsets=...), of the same offsets each"
_NEWER = "teacher_logprobs"
"""What 0.7 does not have yet. There a batch of right ids becomes wrong, without an error, where it is cut."""
_LAST = """\
# unhang mrope-ragged-axis: with samples of one length, torch takes the first axis for the ragged one
if {list}[0].dim() == 1:
    {name} = torch.nested.as_nested_tensor({list}, layout=torch.jagged)
else:
    {name} = torch.nested.nested_tensor_from_jagged(
        torch.cat({list}, dim=1), {offsets}.long(), jagged_dim=2
    )
"""


class LeftRight(Codemod):
    """Make position ids of several axes of the offsets that the tokens have; those of one axis stay as they are.

    Before::

        def no_padding(tokens, ids, cu_seqlens):
            tokens = torch.nested.nested_tensor_from_jagged(tokens, offsets=cu_seqlens)
            nested = torch.nested.as_nested_tensor(ids, layout=torch.jagged)
            return tokens, nested, teacher_logprobs

    After::

        def no_padding(tokens, ids, cu_seqlens):
            tokens = torch.nested.nested_tensor_from_jagged(tokens, offsets=cu_seqlens)
            # unhang mrope-ragged-axis: with samples of one length, torch takes the first axis for the ragged one
            if ids[0].dim() == 1:
                nested = torch.nested.as_nested_tensor(ids, layout=torch.jagged)
            else:
                nested = torch.nested.nested_tensor_from_jagged(
                    torch.cat(ids, dim=1), cu_seqlens.long(), jagged_dim=2
                )
            return tokens, nested, teacher_logprobs
    """

    def plan(self, function: Function) -> list[Edit]:
        if _NEWER not in mentioned(function):
            raise AnchorError(f"{_NEWER}, as in 0.8.0 and newer")
        made = calls(function, "torch.nested.as_nested_tensor")
        row, name = once([(row, it[0]) for row in function.body if (it := assigned(row)) and it[1] in made], _ANCHOR)
        (call,) = made[:1]
        if len(made) != 1 or [expression(it) for it in call.keywords] != ["layout=torch.jagged"] or len(call.args) != 1:
            raise AnchorError(_ANCHOR, len(made))
        given = {expression(one) for each in calls(function, _JAGGED) if (one := argument(each, "offsets"))}
        offsets = once([*given], _OFFSETS)
        if not isinstance(call.args[0], ast.Name) or not offsets.isidentifier():
            raise AnchorError(_ANCHOR)
        return [span(row, row, instead(_LAST.format(list=call.args[0].id, name=name, offsets=offsets)))]

    def names(self, function: Function) -> frozenset[str]:
        return frozenset({"torch"})

    def fixed_upstream(self, function: Function) -> bool:
        made = calls(function, "tu.nested_tensor_from_tensor_list")
        return len(made) == 1 and not calls(function, "torch.nested.as_nested_tensor")


CODEMODS = {"left_right_2_no_padding": LeftRight()}
