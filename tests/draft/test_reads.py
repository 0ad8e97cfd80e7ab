"""What a function takes from outside, and which of that decides it."""

from __future__ import annotations

import ast

import pytest

from unhang.draft import reads
from unhang.shapes.shape import Function


def of(*texts: str) -> reads.Reads:
    functions: list[Function] = []
    for text in texts:
        (node,) = ast.parse(text).body
        assert isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        functions.append(node)
    return reads.of(functions)


def test_arguments_and_globals_are_read_and_locals_are_not() -> None:
    found = of(
        "def f(self, a: Tensor, *, b=None):\n"
        "    x = a.size(0)\n"
        "    if self.config.fp8 and len(x) > mpu.get_rank(group=self.group):\n"
        "        y: Hint = dist.all_reduce(x)\n"
        "    self.config\n"
        "    return [it for it in self.parts if it.wanted or b]\n"
    )
    assert found.arguments == ("self", "a", "b")
    assert found.read == ("b", "self.config.fp8", "self.group", "self.parts")
    assert found.called == ("a.size", "dist.all_reduce", "mpu.get_rank")
    assert found.conditions == ("b", "it.wanted", "mpu.get_rank", "self.config.fp8", "self.group", "x")
    assert found.operations == ("all_reduce",)


def test_both_versions_count_and_the_later_ones_arguments() -> None:
    found = of("def f(a):\n    return g(a)\n", "def f(a):\n    if a:\n        dist.all_gather_into_tensor(a, a)\n")
    assert (found.read, found.called) == (("a",), ("dist.all_gather_into_tensor", "g"))
    assert (found.conditions, found.operations) == (("a",), ("all_gather",))


@pytest.mark.parametrize("name", sorted(reads.COLLECTIVES))
def test_a_collective_has_the_kind_that_a_recorder_gives_it(name: str) -> None:
    (kind,) = of(f"def f():\n    dist.{name}()\n").operations
    assert kind in {
        *("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "gather", "scatter"),
        "barrier",
    }
