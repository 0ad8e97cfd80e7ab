"""Measure what an overlay adds to the start of Python: `python benchmarks/startup.py OVERLAY [--python PY]...`.

Starts `PY -c pass` without the overlay, with it, and with it but without bytecode, which may not be written either. An
empty hook without bytecode shows what Python needs to compile anything at all. The four alternate hundreds of times, so
that each run is compared with its neighbours. Prints milliseconds of processor time (user and system) and of wall time.
Needs only the standard library, not `unhang`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

WITHOUT, COMPILED, UNCOMPILED, EMPTY = "no overlay", "with bytecode", "without", "without, empty hook"
WARM_UP = 10


class Took(NamedTuple):
    """Milliseconds of one process."""

    processor: float
    clock: float


def measure(overlay: Path, python: str, runs: int, folder: Path) -> dict[str, list[Took]]:
    """Time the four in turn. ``folder`` receives copies of the overlay; the overlay itself is not changed."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    compiled, uncompiled, empty = (folder / name for name in ("compiled", "uncompiled", "empty"))
    shutil.copytree(overlay, compiled)
    shutil.copytree(overlay, uncompiled, ignore=shutil.ignore_patterns("__pycache__"))
    empty.mkdir()
    (empty / "sitecustomize.py").touch()
    uncached = {**plain, "PYTHONDONTWRITEBYTECODE": "1"}
    environments = {
        WITHOUT: plain,
        COMPILED: {**plain, "PYTHONPATH": str(compiled)},
        UNCOMPILED: {**uncached, "PYTHONPATH": str(uncompiled)},
        EMPTY: {**uncached, "PYTHONPATH": str(empty)},
    }
    took: dict[str, list[Took]] = {name: [] for name in environments}
    for number in range(WARM_UP + runs):
        for name, environment in environments.items():
            found = _process(python, environment)
            if number >= WARM_UP:  # the first run has written the bytecode
                took[name].append(found)
    return took


def added(took: dict[str, list[Took]], name: str) -> tuple[float, float, float, float]:
    """Return what a hook adds: least and median milliseconds of processor time, then of wall time.

    The least is the difference of the two fastest runs, the median that of the differences between neighbours.
    """
    before, after = took[WITHOUT], took[name]
    least = [min(column) for column in (*zip(*before), *zip(*after))]
    median = Took(*(statistics.median(b - a for a, b in zip(*pair)) for pair in zip(zip(*before), zip(*after))))
    return least[2] - least[0], median.processor, least[3] - least[1], median.clock


def _process(python: str, environment: dict[str, str]) -> Took:
    start = time.perf_counter()
    child = os.posix_spawn(python, [python, "-c", "pass"], environment)
    _, status, usage = os.wait4(child, 0)
    clock = time.perf_counter() - start
    if status:
        raise SystemExit(f"{python} -c pass failed: {os.waitstatus_to_exitcode(status)}")
    return Took((usage.ru_utime + usage.ru_stime) * 1000, clock * 1000)


def main() -> None:
    """Measure, and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overlay", type=Path, metavar="OVERLAY", help="a folder that `unhang overlay` made")
    parser.add_argument("--python", action="append", metavar="PY", help="repeatable; default: this one")
    parser.add_argument("--runs", type=int, default=300)
    options = parser.parse_args()
    print("| Python | the hook | processor, least | processor, median | clock, least | clock, median |")
    print("|---|---|---|---|---|---|")
    for word in options.python or [sys.executable]:
        python = shutil.which(word) or parser.error(f"no such Python: {word}")
        with tempfile.TemporaryDirectory() as folder:
            took = measure(options.overlay, python, options.runs, Path(folder))
        for name in COMPILED, UNCOMPILED, EMPTY:
            cells = " | ".join(f"{cell:.2f}" for cell in added(took, name))
            print(f"| {Path(word).name} | {name} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
