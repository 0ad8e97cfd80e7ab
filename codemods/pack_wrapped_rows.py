"""trl: pack the values of the rows that a table has, not those at the start of its buffer.

https://github.com/huggingface/trl/pull/6670 flattens each column in their place.
"""

from __future__ import annotations

import ast
import re

from unhang.codemods.base import (
    Codemod,
    assignments,
    expression,
    followed_by,
    holder,
    once,
    refuse_own,
    replaced_by,
    span,
)
from unhang.codemods.edit import Edit
from unhang.shapes.shape import Function

_FIRST, _LAST = "first", "last"
_BOUNDS = f"""\
# unhang pack-wrapped-rows: values is a column's whole buffer; a slice of a table has these of it
{_FIRST}, {_LAST} = {{columns}}[0].offsets[0].as_py(), {{columns}}[0].offsets[-1].as_py()
"""
_MADE = "[...from_arrays(..., column.values) for column in columns]"


class PackWrapped(Codemod):
    """Pack the values from the first row of the table to its last, not those from the start of the buffer.

    Before::

        def pack(columns, offsets):
            check(columns)
            return [type(column).from_arrays(offsets, column.values) for column in columns]

    After::

        def pack(columns, offsets):
            check(columns)
            # unhang pack-wrapped-rows: values is a column's whole buffer; a slice of a table has these of it
            first, last = columns[0].offsets[0].as_py(), columns[0].offsets[-1].as_py()
            # unhang pack-wrapped-rows: as above
            return [type(column).from_arrays(offsets, column.values[first:last]) for column in columns]
    """

    def plan(self, function: Function) -> list[Edit]:
        refuse_own(function, [_FIRST, _LAST])
        values, columns = once([it for it in _made(function) if _is_whole(*it)], _MADE)
        row = holder(function.body, values)
        above = function.body[[it is row for it in function.body].index(True) - 1]
        new, text = f"{expression(values)}[{_FIRST}:{_LAST}]", _BOUNDS.format(columns=expression(columns.iter))
        return [
            span(above, above, followed_by(text)),
            replaced_by(function, values, new, "# unhang pack-wrapped-rows: as above"),
        ]

    def fixed_upstream(self, function: Function) -> bool:
        values, columns = once(_made(function), "[...from_arrays(..., ...) for ... in ...]")
        own = r"\[(\w+)\.flatten\(\) for \1 in \w+\]"
        flat = [name for _, name, value in assignments(function) if re.fullmatch(own, expression(value))]
        loop = f"{expression(columns.target)} in {expression(columns.iter)}"
        pair = re.fullmatch(r"\(?\w+, (\w+)\)? in zip\(\w+, (\w+), strict=True\)", loop)
        return pair is not None and pair[1] == expression(values) and [pair[2]] == flat


def _made(function: Function) -> list[tuple[ast.expr, ast.comprehension]]:
    """Return what each comprehension makes a column's lists of, and what it goes over."""
    loops = [it for it in ast.walk(function) if isinstance(it, ast.ListComp) and isinstance(it.elt, ast.Call)]
    made = [(it.elt, it.generators[0]) for it in loops if isinstance(it.elt, ast.Call)]
    return [(it.args[1], of) for it, of in made if expression(it.func).endswith(".from_arrays") and len(it.args) == 2]


def _is_whole(values: ast.expr, columns: ast.comprehension) -> bool:
    """Return whether these are the values of each of some columns."""
    return isinstance(columns.iter, ast.Name) and expression(values) == f"{expression(columns.target)}.values"


CODEMODS = {"_pack_wrapped": PackWrapped()}
