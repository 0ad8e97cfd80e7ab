"""What a scene's answer makes of a shape."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from unhang.judge import rows, scene
from unhang.judge.rows import Source

FIX, NAME = "mean-metric-dtype", "MeanMetric.compute"
CASES = {case.is_control: case.name for case in reversed(scene.of(FIX).GRID)}
CONTROL, CONCERNED = CASES[True], CASES[False]
REDUCES = Source("class MeanMetric:\n    def compute(self):\n        if self.count: dist.all_reduce(1)\n", NAME)
ALONE = Source("class MeanMetric:\n    def compute(self):\n        return 1\n", NAME)


def played(*wrong: str, undecided: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"wrong": {name: f"why {name}" for name in wrong}, "ran": 10, "seen": "", "open": undecided}


@pytest.mark.parametrize(
    ("before", "after", "figures", "problem"),
    [
        (played(CONCERNED), played(), (9, 1, 0, 0), ""),
        (played(CONCERNED), played(CONTROL), (8, 1, 0, 1), "worse with"),
        (played(CONCERNED, CONTROL), played(CONTROL), (8, 1, 1, 0), "not cured with"),
        (played(), played(), (10, 0, 0, 0), "nothing is cured"),
        (played(CONCERNED), played(undecided=("x > 1",)), (9, 1, 0, 0), "a new branch: x > 1"),
        (played(), None, (10, 0, 0, 0), ""),
        (played(CONCERNED), None, (9, 0, 1, 0), "fails with"),
        (played(undecided=("x > 1",)), None, (10, 0, 0, 0), "a new branch: x > 1"),
    ],
)
def test_the_figures_of_a_shape_and_its_problems(
    before: Any, after: Any, figures: tuple[int, ...], problem: str
) -> None:
    answer = {"before": before, **({"after": after} if after else {})}
    row = rows.row(FIX, REDUCES, REDUCES if after else None, answer)
    assert (row.passed, row.cured, row.failed, row.worse) == figures
    assert (row.branches, row.configurations, bool(row.failing)) == (["self.count"], 10, bool(row.failed))
    assert [one.startswith(problem) for one in row.problems] == [True] * bool(problem)


def test_a_rewrite_must_not_lose_the_feature() -> None:
    answer = {"before": played(CONCERNED), "after": played()}
    assert rows.row(FIX, REDUCES, ALONE, answer).problems == ["the rewrite has lost the feature that the fix is about"]


def test_a_function_that_a_target_depends_on_may_fail_where_the_defect_is() -> None:
    grid = {case.is_control: case.name for case in scene.of("fused-head-no-gradient").GRID}
    forward = Source(
        "class FusedLinearForPPOFunction:\n    def forward(ctx): pass\n", "FusedLinearForPPOFunction.forward"
    )
    for name, problems in (grid[False], 0), (grid[True], 1):
        row = rows.row("fused-head-no-gradient", forward, None, {"before": played(name)})
        assert (row.failed, len(row.problems)) == (1, problems)


def test_what_goes_beyond_upstreams_own_fix_only_our_rewrite_must_do() -> None:
    fix = "mtp-zero-tokens"
    grid = {case.options["beyond"]: case.name for case in scene.of(fix).GRID if case.is_control}
    loss = Source("def process_mtp_loss(): MTPLossAutoScaler.apply()\n", "process_mtp_loss")
    for name, problems in (grid[True], []), (grid[False], [f"fails with {grid[False]}: why {grid[False]}"]):
        assert rows.row(fix, loss, None, {"before": played(name)}).problems == problems
    row = rows.row(fix, loss, loss, {"before": played(CONCERNED), "after": played(grid[True])})
    assert row.problems == [f"worse with {grid[True]}: why {grid[True]}"]


def test_what_plays_has_no_network() -> None:
    if not (command := rows.without_network()):
        pytest.skip("this system permits no unshare")
    code = "import socket; print([name for _, name in socket.if_nameindex()])"
    done = subprocess.run([*command, sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "['lo']\n"
