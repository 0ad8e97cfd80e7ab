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
    assert {read.name: len(read.calls) for read in found.reads} == {
        "a.size": 1,
        "b": 0,
        "dist.all_reduce": 1,
        "mpu.get_rank": 1,
        "self.config.fp8": 0,
        "self.group": 0,
        "self.parts": 0,
    }
    assert found.conditions == {
        "b": "b",
        "it.wanted": "it_wanted",
        "mpu.get_rank": "mpu_get_rank",
        "self.config.fp8": "config_fp8",
        "self.group": "group",
        "x": "x",
    }
    assert (found.builtins, found.operations) == (("len",), ("all_reduce",))


def test_both_versions_count_and_the_later_ones_arguments() -> None:
    found = of("def f(a):\n    return g(a)\n", "def f(a):\n    if a:\n        dist.all_gather_into_tensor(a, a)\n")
    assert [read.name for read in found.reads] == ["a", "dist.all_gather_into_tensor", "g"]
    assert (found.conditions, found.operations) == ({"a": "a"}, ("all_gather",))


@pytest.mark.parametrize("name", reads.COLLECTIVES)
def test_a_collective_has_the_kind_that_a_recorder_gives_it(name: str) -> None:
    (kind,) = of(f"def f():\n    dist.{name}()\n").operations
    assert kind in {
        *("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "gather", "scatter"),
        "barrier",
    }


@pytest.mark.parametrize(
    ("calls", "head"),
    [
        ("f()", ""),
        ("f(a, 1, k=b)", "a, given_2, k=None"),
        ("f(a); f(b, c, j=1); f()", "a=None, c=None, j=None"),
        ("f(a, a, a=1)", "a, given_2"),
        ("f(a, *b, **c)", "a, *given, **others"),
        ("f(π, π=1)", "given_1, **others"),
    ],
)
def test_the_calls_of_a_function_tell_its_parameters(calls: str, head: str) -> None:
    found = [node for node in ast.walk(ast.parse(calls)) if isinstance(node, ast.Call)]
    assert ", ".join(reads.parameters(found).values()) == head
    compile(f"lambda {head}: 0", "head", "eval")


def test_a_field_has_a_name_of_its_own_that_python_takes() -> None:
    names = ["self.class", "self.a.b", "a.b", "count", "π", "self._x", "1", "self.x"]
    fields = [*reads._fields(names)]
    assert fields == [
        "condition_1",
        "a_b",
        "condition_3",
        "condition_4",
        "condition_5",
        "x",
        "condition_7",
        "condition_8",
    ]
