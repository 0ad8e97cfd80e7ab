"""Render the figures as tables, for the terminal and for docs/performance.md. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from imports import Breakdown

from support.work import Work

if TYPE_CHECKING:
    import pyperf


class Goal(NamedTuple):
    """A limit that fails the run, perhaps a stricter aim that does not, and what was measured."""

    what: str
    limit: float
    value: float
    by_processor: float | None
    """The same measured by processor time, which says more on a busy machine."""
    unit: str = "x"
    at_least: bool = False
    aim: float | None = None

    @property
    def met(self) -> bool:
        """Whether the limit is kept."""
        return self._keeps(self.limit)

    @property
    def judged(self) -> str:
        """The result in words."""
        if not self.met:
            return "**fail**"
        return "pass" if self.aim is None or self._keeps(self.aim) else "pass, aim not reached"

    def shown(self, bound: float | None) -> str:
        """Return a bound with its sign and unit; empty without one."""
        return "" if bound is None else f"{'>=' if self.at_least else '<='} {bound:g}{self.unit}"

    def _keeps(self, bound: float) -> bool:
        return self.value >= bound if self.at_least else self.value <= bound


class Measured(NamedTuple):
    """All figures of one run."""

    processes: Mapping[str, pyperf.Benchmark]
    processor: Mapping[str, pyperf.Benchmark]
    """The warm processes, by processor time."""
    functions: Mapping[str, pyperf.Benchmark]
    peak: float
    """Megabytes."""
    work: Mapping[str, Work]
    imports: Breakdown
    judged: int
    """How many files `check` judges here."""
    changed: int
    """How many files `apply` changes here."""
    changed_by_thirty: int
    """How many it changes with thirty fixes."""
    machine: str
    dropped: bool
    """Whether the page cache was emptied before each cold process."""

    def ratio(self, name: str, yardstick: str) -> float:
        """Return the median of a process divided by the median of the yardstick."""
        ratio: float = self.processes[name].median() / self.processes[yardstick].median()
        return ratio

    def goals(self) -> list[Goal]:
        """Return the goals that one run can judge."""
        return [
            self._goal("unhang check", "import importlib.metadata", 1, aim=0.6),
            self._goal("unhang check, thirty fixes", "import importlib.metadata", 1),
            self._goal("unhang check, crowded", "unhang check", 1.15),
            self._goal("unhang check, a pack of thirty", "unhang check, beside no pack", 1.5),
            self._beyond_reading(),
            *self._calls_goal(),
            self._each("unhang diff", self.changed, 0.2),
            self._each("unhang apply", self.changed, aim=0.1),
            self._each("unhang apply, thirty fixes", self.changed_by_thirty),
            self._goal("libcst.tool codemod", "unhang diff", 4)._replace(at_least=True),
            self._goal("libcst.tool codemod", "unhang apply", 4)._replace(at_least=True),
            self._goal("unhang --help", "import argparse", 1.5),
            Goal("peak memory of apply", 100, self.peak, None, " MB"),
        ]

    def _goal(self, name: str, yardstick: str, limit: float, aim: float | None = None) -> Goal:
        by_processor: float = self.processor[name].median() / self.processor[yardstick].median()
        return Goal(f"{name}: of {yardstick}", limit, self.ratio(name, yardstick), by_processor, aim=aim)

    def _each(self, name: str, files: int, limit: float = 0.15, aim: float | None = None) -> Goal:
        """Judge what a process takes beyond LibCST's import, for each file that it changes."""
        whole = self._goal(name, "import libcst", 0)
        value, by_processor = ((ratio - 1) / files for ratio in (whole.value, whole.by_processor or 0))
        what = f"{name}, beyond the import, for each of {files} files: of import libcst"
        return Goal(what, limit, value, by_processor, aim=aim)

    def _beyond_reading(self) -> Goal:
        """Judge what a check of a lock file takes beyond a process that only reads it."""

        def beyond(found: Mapping[str, pyperf.Benchmark]) -> float:
            check, reading, start, yardstick = (
                found[name].median()
                for name in (
                    "unhang check --lock",
                    "reading the lock file",
                    "python -c pass",
                    "import importlib.metadata",
                )
            )
            value: float = (check - reading + start) / yardstick
            return value

        what = "unhang check --lock, beyond reading the file: of import importlib.metadata"
        return Goal(what, 1.2, beyond(self.processes), beyond(self.processor))

    def _calls_goal(self) -> list[Goal]:
        """Compare file system calls too: unlike wall time in a crowded environment, they have no noise."""
        if not self.work:
            return []
        asked = self.work["unhang check, crowded"].calls / self.work["unhang check"].calls
        return [Goal("calls to the file system, crowded: of unhang check", 1, asked, None)]


def tables(measured: Measured) -> str:
    """Return all tables as Markdown."""
    parts = [
        ("Goals", goals_table(measured.goals())),
        ("Whole processes", processes_table(measured)),
        ("Functions, all imported", functions_table(measured)),
    ]
    if measured.work:
        parts.append(("File system use", work_table(measured.work)))
    parts.append(("LibCST's import", imports_table(measured.imports)))
    return "\n\n".join(f"## {title}\n\n{table}" for title, table in parts)


def render(measured: Measured) -> str:
    """Return the text of docs/performance.md."""
    cold = "the page cache emptied" if measured.dropped else "the page cache kept, as this user may not empty it"
    return _PAGE.format(machine=measured.machine, cold=cold, tables=tables(measured))


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table. The first column is text, the others are figures."""
    lines = [head, ["---", *["--:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def goals_table(goals: Sequence[Goal]) -> str:
    """Return a row for each goal: its limit, its aim, the figure, and the result."""
    rows = [
        [goal.what, goal.shown(goal.limit), goal.shown(goal.aim), f"{goal.value:.2f}{goal.unit}", goal.judged,
         "" if goal.by_processor is None else f"{goal.by_processor:.2f}x"]
        for goal in goals
    ]  # fmt: skip
    return table(["goal", "limit", "aim", "measured", "result", "by processor time"], rows)


def processes_table(measured: Measured) -> str:
    """Return a row for each process: median, spread and ratios."""
    rows = []
    for name, bench in measured.processes.items():
        cold = name.endswith(", cold")
        yardsticks = ["import importlib.metadata", "import libcst"]
        ratios = [f"{measured.ratio(name, f'{other}, cold' if cold else other):.2f}" for other in yardsticks]
        values = sorted(bench.get_values())
        spread = f"{_milliseconds(_quantile(values, 0.25))} - {_milliseconds(_quantile(values, 0.75))}"
        rows.append([name, _milliseconds(bench.median()), spread, str(len(values)), *ratios])
    return table(["process", "median ms", "middle half", "runs", "of importlib.metadata", "of libcst"], rows)


def functions_table(measured: Measured) -> str:
    """Return a row for each function: median and spread; of `judge`, also for each file that it judges."""
    figures = {name: (bench.median(), bench.median_abs_dev()) for name, bench in measured.functions.items()}
    median, spread = figures["judge"]
    figures[f"judge, each of {measured.judged} files"] = median / measured.judged, spread / measured.judged
    rows = [[name, *map(_milliseconds, pair)] for name, pair in figures.items()]
    return table(["function", "median ms", "MAD"], rows)


def work_table(work: Mapping[str, Work]) -> str:
    """Return a row for each process: its use of the file system."""
    rows = [
        [name, str(len(did.opened)), str(len(did.listed)), str(did.calls), f"{did.read / 1024:.0f}"]
        for name, did in work.items()
    ]
    return table(["process", "files opened", "folders listed", "calls with a path", "KiB read"], rows)


def imports_table(imports: Breakdown) -> str:
    """Return how long each part of LibCST takes to import, and each public way to import some of it."""
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
# How fast it is

Generated by `nox -s bench -- --write-docs`; do not edit by hand. All figures are from one run with all fixes, on the
same files of verl 0.7.1, megatron-core 0.17.1 and ms-swift 4.6.0: {machine}.
On another machine, only the ratios mean anything.

![Median wall time of each process, with the middle half of its runs](performance.svg)

- *Thirty fixes*: with made-up fixes added. Each is a copy of a real one, for copies of the files that it rewrites.
- *Crowded*: among 400 other distributions with 60,000 files. *Cold*: {cold}, and no bytecode,
  not even of the standard library.
- Each `apply` is reverted and each edit undone, untimed.
- `git apply` and `patch` apply our own diff. `libcst.tool codemod` makes the same edits as unhang, but parses whole
  modules (`benchmarks/whole_module.py`; `unhang check` confirms that the edits are the same). These three do not sync
  to disk, give no verdict, and cannot undo. `ast-grep` makes one edit in one file.

{tables}

Files opened, folders listed, calls and bytes are counted by strace, less those of `python -c pass`.
`tests/whole/test_work.py` pins those of `check`.

LibCST's public interface cannot be imported in part: every submodule first runs `libcst/__init__.py`, which imports all
nodes, and the metadata providers for one base class. Most of the time goes to the node classes, which the parser
builds, so importing a part would not help. unhang imports LibCST only when it rewrites something, and then in full.
"""
