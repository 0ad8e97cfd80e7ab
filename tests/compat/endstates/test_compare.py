"""A made-up function and its rewrites: each configuration is counted once, and each kind of problem is told."""

import ast
from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

import pytest

from unhang.compat.endstates.compare import compare
from unhang.compat.endstates.endstate import EndState, Outcome, Source, called
from unhang.shapes.shape import Function


class Setting(NamedTuple):
    rows: int = 0
    fp8: bool = False
    broken: bool = False


class Made(EndState):
    """``f(rows, fp8)`` must return as many rows as it gets; a broken kernel fails without any."""

    varied: ClassVar[dict[str, str]] = {"fp8": "fp8", "rows": "rows"}
    held: ClassVar[dict[str, str]] = {}

    def configurations(self, function: Function) -> Iterator[Setting]:
        return (Setting(rows, fp8, broken) for rows in (0, 1) for fp8 in (False, True) for broken in (False, True))

    def observe(self, source: Source, configuration: Setting) -> Outcome:
        def kernel(rows: int) -> int:
            if configuration.broken and not rows:
                raise ValueError("no rows")
            calls.append(rows)
            return rows

        calls: list[int] = []
        found = called(source, {"kernel": kernel})(configuration.rows, configuration.fp8)
        faults = set() if found == configuration.rows else {"rows are lost"}
        return Outcome(frozenset(faults), tuple(calls))

    def concerned(self, configuration: Any) -> bool:
        return not configuration.rows

    def control(self, configuration: Any) -> Any:
        return None if configuration.rows else configuration._replace(broken=False)


def source(body: str) -> Source:
    return Source(f"@decorated\ndef f(rows: Rows, fp8) -> Rows:\n    {body}\n", "f")


BEFORE = source("return kernel(rows)")
CASES: dict[str, tuple[Source, str | None, tuple[int, ...], str]] = {
    "right": (BEFORE, "return kernel(rows or 1) if rows else kernel(1) - 1", (6, 2, 0, 0), ""),
    "no rewrite of a broken shape": (BEFORE, None, (6, 0, 2, 0), "fails with broken=True: raises ValueError"),
    "it always fails": (source("return kernel(0)"), None, (2, 0, 6, 0), "fails with rows=1: rows are lost"),
    "nothing is cured": (source("return rows"), "return rows", (8, 0, 0, 0), "nothing is cured"),
    "worse": (BEFORE, "return kernel(1) - 1 + fp8 if not rows else kernel(rows)", (5, 1, 1, 1), "worse with fp8=True"),
    "part": (BEFORE, "return 0 if not (rows or fp8) else kernel(rows)", (6, 1, 1, 0), "not cured with fp8=True, brok"),
    "more than the fix": (BEFORE, "kernel(2); return rows", (2, 2, 0, 4), "worse with rows=1: something else is seen"),
    "a new branch": (source("return kernel(rows) if rows or new else kernel(rows)"), None, (4, 0, 4, 0), "a new branc"),
    "a gap in the stand-ins": (source("return other(rows)"), None, (0, 0, 8, 0), "the stand-ins do not fit the def"),
}


@pytest.mark.parametrize("name", CASES)
def test_each_configuration_is_counted_and_each_problem_is_told(name: str) -> None:
    before, after, counts, problem = CASES[name]
    row = compare(Made(), before, None if after is None else source(after))
    assert (row.passed, row.cured, row.failed, row.worse) == counts
    assert sum(counts) == row.configurations == 8
    assert any(it.startswith(problem) for it in row.problems) if problem else not row.problems, row.problems


class Partly(Made):
    """Only the last statement is held to its conditions."""

    def part(self, function: Function) -> ast.stmt:
        return function.body[-1]


@pytest.mark.parametrize(
    ("endstate", "first", "problem"),
    [
        (Partly(), "spare = 1 if len else 0", ""),
        (Partly(), "spare = 0 if len else 0", "the rewrite changes more than the part that runs"),
        (Made(), "spare = 1 if len else 0", "a new branch: len"),
    ],
)
def test_the_rest_of_a_long_function_asks_anything_and_stays(endstate: EndState, first: str, problem: str) -> None:
    before = source("spare = 1 if len else 0\n    return kernel(rows)")
    after = source(f"{first}\n    return kernel(rows or 1) if rows else kernel(1) - 1")
    assert compare(endstate, before, after).problems == ([problem] if problem else [])
