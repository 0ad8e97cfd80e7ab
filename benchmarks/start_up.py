"""Whole processes, in one run: `check`, `diff` and `apply` beside the imports they are measured against.

`nox -s bench` runs it. Prints a table: median and spread of wall time in milliseconds, and the ratio to the yardstick.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

RUNS = 15


def measure(command: Sequence[str], before: Callable[[], object] = lambda: None) -> list[float]:
    """The wall times of a command's runs, in milliseconds; ``before`` runs ahead of each, untimed."""
    times = []
    for _ in range(RUNS + 1):
        before()
        start = time.perf_counter()
        subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
        times.append((time.perf_counter() - start) * 1000)
    return times[1:]  # the first run warms the caches


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", help="a site-packages folder with unpatched upstreams")
    folder = parser.parse_args().folder
    unhang = [sys.executable, "-m", "unhang"]

    def revert() -> None:
        subprocess.run([*unhang, "revert", "--target", folder], capture_output=True, check=False)

    rows = [
        ("python -c pass", measure([sys.executable, "-c", "pass"]), None),
        ("import importlib.metadata", measure([sys.executable, "-c", "import importlib.metadata"]), None),
        ("import libcst", measure([sys.executable, "-c", "import libcst"]), None),
        ("unhang check", measure([*unhang, "check", "--target", folder]), 1),
        ("unhang diff", measure([*unhang, "diff", "--target", folder]), 2),
        ("unhang apply", measure([*unhang, "apply", "--target", folder], revert), 2),
        ("unhang check, patched", measure([*unhang, "check", "--target", folder]), 1),
    ]
    revert()
    print(f"{'whole process, ' + str(RUNS) + ' runs':<28}{'median ms':>10}{'min':>8}{'max':>8}  ratio")
    for name, times, yardstick in rows:
        ratio = ""
        if yardstick is not None:
            against, base, _ = rows[yardstick]
            ratio = f"{statistics.median(times) / statistics.median(base):.2f}x {against}"
        print(f"{name:<28}{statistics.median(times):>10.1f}{min(times):>8.1f}{max(times):>8.1f}  {ratio}")


if __name__ == "__main__":
    main()
