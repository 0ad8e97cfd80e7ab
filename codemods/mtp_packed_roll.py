"""megatron-core: multi-token prediction shifts packed sequences between the ends that their padding gives them.

https://github.com/NVIDIA/Megatron-LM/pull/4495, open (6205, open, is the same but for parameters without the attribute)
"""

from __future__ import annotations

import ast

from unhang.codemods.base import AnchorError, Codemod, assigned, expression, followed_by, mentioned, once, span
from unhang.codemods.edit import Edit
from unhang.shapes.shape import Function

_ENDS, _PADDED = "cu_seqlens_q", "cu_seqlens_q_padded"
_NEW = f"""\
# unhang mtp-packed-roll: the tensor has the padding, too, so shift between the padded ends
if getattr({{params}}, "{_PADDED}", None) is not None:
    {{ends}} = {{params}}.{_PADDED}
"""


class RollPackedSeq(Codemod):
    """Take the padded ends, where there are any.

    Before::

        def roll(tensor, packed):
            ends = packed.cu_seqlens_q
            return shifted(tensor, ends)

    After::

        def roll(tensor, packed):
            ends = packed.cu_seqlens_q
            # unhang mtp-packed-roll: the tensor has the padding, too, so shift between the padded ends
            if getattr(packed, "cu_seqlens_q_padded", None) is not None:
                ends = packed.cu_seqlens_q_padded
            return shifted(tensor, ends)
    """

    def plan(self, function: Function) -> list[Edit]:
        if _PADDED in mentioned(function):
            raise AnchorError(f"{function.name} without {_PADDED}")
        given = [(row, *found) for row in function.body if (found := assigned(row))]
        taken = [it for it in given if expression(it[2]).endswith(f".{_ENDS}")]
        row, ends, value = once(taken, f"... = ....{_ENDS}")
        params = expression(value).removesuffix(f".{_ENDS}")
        return [span(row, row, followed_by(_NEW.format(ends=ends, params=params)))]

    def fixed_upstream(self, function: Function) -> bool:
        chosen = [it for it in ast.walk(function) if isinstance(it, ast.IfExp)]
        return any(isinstance(it.body, ast.Attribute) and it.body.attr == _PADDED for it in chosen)


CODEMODS = {"_roll_tensor_packed_seq": RollPackedSeq()}
