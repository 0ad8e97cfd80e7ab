"""The figures as tables, for the terminal and for docs/performance.md. Pure: nothing is typed in by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pyperf
from imports import Breakdown

from support.work import Work


class Goal(NamedTuple):
    """One goal, and what was measured."""

    what: str
    limit: float
    value: float
    by_processor: float | None
    """The same by the processor's time, which says more on a busy machine."""
    unit: str = "x"
    at_least: bool = False

    @property
    def met(self) -> bool:
        """Whether it is reached."""
        return self.value >= self.limit if self.at_least else self.value <= self.limit


class Measured(NamedTuple):
    """All figures of one run."""

    processes: Mapping[str, pyperf.Benchmark]
    processor: Mapping[str, pyperf.Benchmark]
    """The warm ones, by the processor's time."""
    functions: Mapping[str, pyperf.Benchmark]
    peak: float
    """Megabytes."""
    work: Mapping[str, Work]
    imports: Breakdown
    machine: str
    dropped: bool
    """Whether the page cache was emptied for the cold processes."""

    def ratio(self, name: str, yardstick: str) -> float:
        """How many times as long as the yardstick a process takes, by their medians."""
        ratio: float = self.processes[name].median() / self.processes[yardstick].median()
        return ratio

    def goals(self) -> list[Goal]:
        """The goals of issue 8 that one run can judge."""
        return [
            self._goal("unhang check", "import importlib.metadata", 2),
            self._goal("unhang check, crowded", "unhang check", 1.15),
            *self._calls_goal(),
            self._goal("unhang diff", "import libcst", 2),
            self._goal("unhang apply", "import libcst", 2),
            self._goal("libcst.tool codemod", "unhang diff", 4)._replace(at_least=True),
            self._goal("libcst.tool codemod", "unhang apply", 4)._replace(at_least=True),
            self._goal("unhang --help", "import argparse", 1.5),
            Goal("peak memory of apply", 100, self.peak, None, " MB"),
        ]

    def _goal(self, name: str, yardstick: str, limit: float) -> Goal:
        by_processor: float = self.processor[name].median() / self.processor[yardstick].median()
        return Goal(f"{name}: of {yardstick}", limit, self.ratio(name, yardstick), by_processor)

    def _calls_goal(self) -> list[Goal]:
        """What the clock says of a crowded environment is noise; how often the file system is asked is not."""
        if not self.work:
            return []
        asked = self.work["unhang check, crowded"].calls / self.work["unhang check"].calls
        return [Goal("calls to the file system, crowded: of unhang check", 1, asked, None)]


def tables(measured: Measured) -> str:
    """All tables, in Markdown."""
    parts = [
        ("Goals", goals_table(measured.goals())),
        ("Whole processes", processes_table(measured)),
        ("Functions, all imported", functions_table(measured.functions)),
    ]
    if measured.work:
        parts.append(("What a process asks of the file system", work_table(measured.work)))
    parts.append(("LibCST's import", imports_table(measured.imports)))
    return "\n\n".join(f"## {title}\n\n{table}" for title, table in parts)


def render(measured: Measured) -> str:
    """docs/performance.md."""
    cold = "the page cache emptied" if measured.dropped else "the page cache as it was, for this user may not empty it"
    return _PAGE.format(machine=measured.machine, cold=cold, tables=tables(measured))


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; the first column is text, the others are figures."""
    lines = [head, ["---", *["--:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def goals_table(goals: Sequence[Goal]) -> str:
    """Each goal, its limit, the figure, and whether it is met."""
    rows = [
        [goal.what, f"{'>=' if goal.at_least else '<='} {goal.limit:g}{goal.unit}", f"{goal.value:.2f}{goal.unit}",
         "pass" if goal.met else "**fail**", "" if goal.by_processor is None else f"{goal.by_processor:.2f}x"]
        for goal in goals
    ]  # fmt: skip
    return table(["goal", "limit", "measured", "", "by processor time"], rows)


def processes_table(measured: Measured) -> str:
    """Median, spread and ratios of each process."""
    rows = []
    for name, bench in measured.processes.items():
        cold = name.endswith(", cold")
        yardsticks = ["import importlib.metadata", "import libcst"]
        ratios = [f"{measured.ratio(name, f'{other}, cold' if cold else other):.2f}" for other in yardsticks]
        values = sorted(bench.get_values())
        spread = f"{_milliseconds(_quantile(values, 0.25))} - {_milliseconds(_quantile(values, 0.75))}"
        rows.append([name, _milliseconds(bench.median()), spread, str(len(values)), *ratios])
    return table(["process", "median ms", "middle half", "runs", "of importlib.metadata", "of libcst"], rows)


def functions_table(functions: Mapping[str, pyperf.Benchmark]) -> str:
    """Median and spread of each function."""
    rows = [[name, _milliseconds(b.median()), _milliseconds(b.median_abs_dev())] for name, b in functions.items()]
    return table(["function", "median ms", "MAD"], rows)


def work_table(work: Mapping[str, Work]) -> str:
    """What each process asks of the file system."""
    rows = [
        [name, str(len(did.opened)), str(len(did.listed)), str(did.calls), f"{did.read / 1024:.0f}"]
        for name, did in work.items()
    ]
    return table(["process", "files opened", "folders listed", "calls with a path", "KiB read"], rows)


def imports_table(imports: Breakdown) -> str:
    """Where LibCST's import goes, and what each public way to a part of it takes."""
    names = {part: f"`{part}`" if part.startswith("libcst") else part for part in imports.parts}
    parts = [[names[part], f"{took:.1f}"] for part, took in imports.parts.items()]
    ways = [[f"`{way}`", f"{took:.1f}"] for way, took in imports.ways.items()]
    inside = table(["part, by `-X importtime`", "ms by itself"], parts)
    return f"{inside}\n\n{table(['whole process', 'median ms'], ways)}"


def _milliseconds(seconds: float) -> str:
    took = seconds * 1000
    return f"{took:.1f}" if took >= 10 else f"{took:.2f}"


def _quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[round(share * (len(ordered) - 1))]


_PAGE = """\
# How fast it is, and what it costs

Generated by `nox -s bench -- --write-docs`; not to be edited by hand. All figures are of one run, on the same five
files of verl 0.7.1, megatron-core 0.17.1 and ms-swift 4.6.0, all fixes: {machine}. Only the ratios mean
anything on another machine.

![Median wall time of each process, with the middle half of its runs](performance.svg)

*Crowded*: among 400 other distributions with 60,000 files. *Cold*: {cold}, and no bytecode of
anything, the standard library's included. Each `apply` is reverted, each edit taken back, untimed. `git apply` and
`patch` take our own diff; they and `libcst.tool` sync nothing, judge nothing, and cannot undo. `ast-grep` makes one
edit in one file. `libcst.tool codemod` makes the same edits with LibCST over whole modules
(`benchmarks/whole_module.py`; that they are the same is checked, by `unhang check`).

{tables}

Files opened, folders listed, calls and bytes are counted by strace, beyond those of `python -c pass`;
`tests/test_work.py` pins those of `check`.

LibCST cannot be imported in part by its public interface: every submodule first runs `libcst/__init__.py`, which
imports all nodes, and the metadata providers for one base class. The nodes' classes, which the parser builds, are most
of it, so that no part of it would do. `unhang` imports it only where something is rewritten, and then in full.
"""
