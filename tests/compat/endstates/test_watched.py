"""Which new statements must run before anything is said of a function: all but those that do nothing."""

import pytest

from unhang.compat.endstates.endstate import Source
from unhang.compat.endstates.watched import Unlike, Watched

BODY = "def log(x):\n    global flag\n    if x:\n        {}\n    return x\n"


@pytest.mark.parametrize(
    ("statement", "does_nothing"),
    [
        ("print('here', x)", True),
        ("import logging", True),
        ("unused = 1", True),
        ("pass", True),
        ("import json as x", False),
        ("import torch", False),
        ("x = 1", False),
        ("flag = True", False),
        ("print(x := 1)", False),
        ("print(x.pop())", False),
        ("unused = x.pop()", False),
        ("pass; x = 1", False),
    ],
)
def test_a_new_statement_that_runs_in_no_setting_is_a_doubt_unless_it_does_nothing(
    statement: str, does_nothing: bool
) -> None:
    source = Source(BODY.format(statement), "log")
    assert (not [*Watched(source, Unlike((), (4,)), ()).doubts()]) == does_nothing
    assert [*Watched(source, Unlike((4,)), ()).doubts()]  # in the place of another one
    assert [*Watched(source, Unlike((), (4,), (), (4,)), ()).doubts()]  # where another one is missing


@pytest.mark.parametrize(
    ("entered", "is_doubt"),
    [("nullcontext()", False), ("contextlib.nullcontext()", False), ("suppress(OSError)", True), ("x.lock", True)],
)
def test_a_context_that_no_known_shape_enters_is_a_doubt(entered: str, is_doubt: bool) -> None:
    source = Source(f"def log(x):\n    with {entered}:\n        return x\n", "log")
    watched = Watched(source, Unlike((), (2,)), ())
    watched.watch(0)
    assert bool([*watched.doubts()]) == is_doubt
