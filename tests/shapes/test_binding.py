"""What binds a name: its statements, their shape, and the place of a name that nothing binds yet."""

import ast

import pytest

from unhang.shapes import binding, shape
from unhang.shapes.catalog import Target

CODE = """\
import os, sys as system
from a import (
    one,
    two,  # why
)
try:
    import fast
except ImportError:
    fast = None
LIMIT: int = 3
if LIMIT:
    @overload
    def run(x): ...
    def run(x): return x
class Loop:
    size = 1
    '''How many.'''
    def stop(self): return self
"""


def target(name: str, how: str = "", beside: str = "") -> Target:
    return Target("f", "verl", "verl/a.py", name, binding=True, beside=(how, beside) if how else None)


def of(code: str, name: str, how: str = "", beside: str = "") -> str | None:
    return binding.of(shape.parse(code.encode()), target(name, how, beside))


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("os", [1]),
        ("system", [1]),
        ("sys", []),
        ("two", [2]),
        ("fast", [7, 9]),
        ("LIMIT", [10]),
        ("run", [13, 14]),
        ("Loop", [15]),
        ("Loop.size", [16]),
        ("Loop.stop", [18]),
        ("Loop.x", []),
        ("x", []),
    ],
)
def test_the_statements_that_bind_a_name(name: str, lines: list[int]) -> None:
    found = binding.statements(ast.parse(CODE), name)
    assert found is not None
    assert [node.lineno for node in found] == lines


def test_no_class_and_two_classes_have_nothing_to_say() -> None:
    assert of(CODE, "Gone.x") is None
    assert of(CODE + "class Loop: pass\n", "Loop.size") is None


def test_a_function_that_is_defined_once_has_the_shape_of_the_function() -> None:
    (stop,) = shape.find(ast.parse(CODE), "Loop.stop")
    assert of(CODE, "Loop.stop") == shape.digest(stop)
    assert of(CODE + "Loop.stop = 1\n", "Loop.stop") == shape.digest(stop)


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("run", "return x", "return x + 1"),
        ("run", "@overload\n    ", ""),
        ("fast", "fast = None", "fast = os"),
        ("two", "from a", "from b"),
        ("LIMIT", "int = 3", "int = 4"),
        ("LIMIT", ": int", ""),
        ("Loop.size", "size = 1", "size = 2"),
        ("Loop", "class Loop", "class Loop(Base)"),
        ("x", "import os", "import x, os"),
    ],
)
def test_a_change_of_what_binds_it_changes_the_shape(name: str, old: str, new: str) -> None:
    assert of(CODE, name) != of(CODE.replace(old, new), name)


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("two", "    one,\n", "    other,\n"),
        ("two", "  # why", ""),
        ("os", ", sys as system", ""),
        ("run", "LIMIT: int = 3", "LIMIT = 4"),
        ("Loop.size", "'''How many.'''", ""),
    ],
)
def test_what_else_changes_does_not(name: str, old: str, new: str) -> None:
    assert of(CODE, name) == of(CODE.replace(old, new), name) is not None


def test_a_name_that_is_not_bound_has_a_shape_where_it_has_a_place() -> None:
    assert of(CODE, "x") == of("", "x") != of(CODE, "y")
    assert of(CODE, "x", "after", "LIMIT") == of(CODE, "x")
    assert of(CODE, "x", "after", "gone") is None
    in_try = of(CODE, "x", "after", "fast")
    assert in_try == of(CODE + "fast = 1\n", "x", "after", "fast"), "bound more than once: beside the first"
    assert of(CODE, "Loop.x", "after", "size") == of(CODE, "Loop.x")
    assert of(CODE, "Loop.x", "after", "LIMIT") is None


BLOCKS = (
    "if TYPE_CHECKING:\n    {}\n", "if 0:\n    {}\n", "if 0:\n    pass\nelse:\n    {}\n",
    "if 0:\n    pass\nelif a:\n    {}\n", "try:\n    {}\nexcept A:\n    pass\n", "try:\n    pass\nexcept A:\n    {}\n",
    "try:\n    pass\nfinally:\n    {}\n", "with a:\n    {}\n", "while a:\n    {}\n", "match a:\n  case 1:\n    {}\n",
)  # fmt: skip


def test_the_blocks_around_a_statement_and_a_neighbour_are_part_of_the_shape() -> None:
    """Nobody can tell whether such a block runs: `if TYPE_CHECKING` never does."""
    for beside in (), ("after", "y"):
        line, codes = "import y" if beside else "import x", ("{}\n", *BLOCKS)
        found = [of(code.format(line), "x", *beside) for code in codes]
        assert len({*found, None}) == len(codes) + 1
        assert found == [of(f"a = 1\n{code.format(f'b = 1; {line}')}", "x", *beside) for code in codes], "what else is"
        in_class = [of(code.format(f"class A: {line}"), "A.x", *beside) for code in codes]
        assert len({*in_class, None}) == len(codes) + 1, "so does that of a class"


def test_its_place_is_after_what_documents_its_neighbour() -> None:
    tree = ast.parse(CODE)
    block, at = binding.place(tree, target("Loop.x", "after", "size")) or ([], 0)
    assert [type(node).__name__ for node in block[:at]] == ["Assign", "Expr"]
    assert binding.place(tree, target("Loop.x", "before", "size")) == (block, 0)
    inner, at = binding.place(ast.parse("if a:\n    b = 1\n    c = 2\n"), target("x", "before", "c")) or ([], 0)
    assert (len(inner), at) == (2, 1)


@pytest.mark.parametrize(
    ("code", "digest"),
    [
        ("try:\n    import x\nexcept E:\n    x=f'{1:>{w}}'\n", "fd6173bc44a24e65"),
        ("from a import y, x\n", "0a772922f261f04f"),
        ("def x(): pass\nx = w(x)\n", "4524f5aa2c89f932"),
    ],
)
def test_shapes_are_equal_on_every_python(code: str, digest: str) -> None:
    assert of(code, "x") == digest
