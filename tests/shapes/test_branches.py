"""The conditions of a function are found wherever Python has one."""

import ast
from typing import cast

import pytest

from unhang.shapes.branches import branches, words
from unhang.shapes.shape import Function

CODE = {
    "if self.config.fp8: pass": ["self.config.fp8"],
    "if a:\n  pass\nelif b == F.silu: pass": ["F.silu", "a", "b"],
    "while not done(self): pass": ["done", "self"],
    "x = a if b else c": ["b"],
    "x = a and (b or c.d)": ["a", "b", "c.d"],
    "x = [y for y in z if y.wanted]": ["y.wanted"],
    "if (v := self.limit) is not None: pass": ["self.limit"],
    "match mode:\n  case 1 if late: pass": ["late", "mode"],
    "def inner():\n  if deep: pass": ["deep"],
    "if found[key].size(0): pass": ["found", "key"],
    "assert a and b": [],
    "x = self.config.fp8": [],
}


@pytest.mark.parametrize("code", CODE)
def test_the_names_in_conditions(code: str) -> None:
    body = "\n".join(f"  {line}" for line in code.splitlines())
    (function,) = ast.parse(f"def f():\n{body}\n").body
    assert branches(cast(Function, function)) == CODE[code]


def test_words_are_whole_identifiers_and_those_of_strings() -> None:
    assert words(ast.parse("x = f(a.num_layers, 'b c')")) == {"x", "f", "a", "num_layers", "b", "c"}
