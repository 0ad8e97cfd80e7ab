"""How outlines are packed: without loss, and the same whatever the order."""

from __future__ import annotations

import ast
import json

import pytest

from unhang.compat.sweep import outlines
from unhang.shapes import outline, shape


def function(code: str) -> shape.Function:
    node = ast.parse(code).body[0]
    assert isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    return node


def made(code: shape.Function, last: str) -> outlines.Row:
    return outlines.Row("f", shape.digest(code), last, tuple(outline.outline(code)))


def test_packing_loses_nothing() -> None:
    bodies = ("with x:\n        a()\n        b()\n", "if x:\n        with x:\n            a()\n")
    codes = [f"def f(x):\n    {body}" for body in bodies]
    rows = [made(function(code), "2026-01-01 abc") for code in codes]
    data = json.loads(outlines.render([*rows, *rows]))
    assert [row["shape"] for row in data["outlines"]] == sorted(shape.digest(function(code)) for code in codes)
    for row in rows:
        (name,) = (entry["outline"] for entry in data["outlines"] if entry["shape"] == row.shape)
        assert outline.unpacked(name, data["blocks"], data["kinds"]) == list(row.entries)


def test_the_text_of_the_data_does_not_depend_on_the_order_of_the_rows() -> None:
    rows = [made(function(f"def f():\n    {name} = 1\n"), last) for name in "ab" for last in ("", "1")]
    text = outlines.render(rows)
    assert outlines.render(rows[::-1]) == text
    assert [row["last"] for row in json.loads(text)["outlines"]] == ["1", "1"]


def test_two_statements_with_one_digest_are_refused() -> None:
    rows = [outlines.Row("f", name, "", (outline.Entry(0, name, "00000000"),)) for name in ("If", "With")]
    with pytest.raises(ValueError, match="00000000 is the digest of both If and With"):
        outlines.render(rows)
