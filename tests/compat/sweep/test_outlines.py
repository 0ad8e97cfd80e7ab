"""How outlines are packed: without loss."""

import ast

import pytest

from unhang.compat.sweep.outlines import Packed
from unhang.shapes import outline, shape


def function(code: str) -> shape.Function:
    node = ast.parse(code).body[0]
    assert isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    return node


def test_packing_loses_nothing() -> None:
    bodies = ("with x:\n        a()\n        b()\n", "if x:\n        with x:\n            a()\n")
    packed = Packed()
    for body in bodies * 2:
        entries = outline.outline(function(f"def f(x):\n    {body}"))
        assert outline.unpacked(packed.add(entries), packed.blocks, packed.kinds) == entries
    assert len(packed.blocks) == 5, "what two outlines have in common is there once"


def test_two_statements_with_one_digest_are_refused() -> None:
    packed = Packed()
    packed.add([outline.Entry(0, "If", "00000000")])
    with pytest.raises(ValueError, match="00000000 is the digest of both If and With"):
        packed.add([outline.Entry(0, "With", "00000000")])
