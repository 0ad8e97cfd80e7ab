"""megatron-core: multi-token prediction shifts packed sequences between the ends that their padding gives them.

https://github.com/NVIDIA/Megatron-LM/pull/4495, open (6205, open, is the same but for parameters without the attribute)
"""

from __future__ import annotations

import ast

from unhang.codemods.base import Codemod, assigned, expression, followed_by, mentioned, once, span
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
        taken = [] if _PADDED in mentioned(function) else [row for row in function.body if _is_of(row)]
        row = once(taken, f"... = ....{_ENDS}, without {_PADDED}")
        ends, value = row.targets[0].id, row.value  # type: ignore[attr-defined]
        return [span(row, row, followed_by(_NEW.format(ends=ends, params=expression(value.value))))]

    def fixed_upstream(self, function: Function) -> bool:
        chosen = [it for it in ast.walk(function) if isinstance(it, ast.IfExp)]
        return any(isinstance(it.body, ast.Attribute) and it.body.attr == _PADDED for it in chosen)


def _is_of(row: ast.stmt) -> bool:
    """Return whether a statement gives a name to the ends of some parameters."""
    found = assigned(row)
    value = found and found[1]
    return isinstance(value, ast.Attribute) and value.attr == _ENDS and isinstance(value.value, ast.Name)


CODEMODS = {"_roll_tensor_packed_seq": RollPackedSeq()}
