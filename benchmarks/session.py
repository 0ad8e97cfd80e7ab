"""`nox -s bench`: lay out the environments, time everything in one run, check the goals, and write the docs.

It takes about ten minutes on an idle machine. `nox -s bench -- --quick` takes two, and is noisier. `--write-docs` also
writes docs/performance.md and docs/performance.svg.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

import pyperf
from cases import findings_in, may_drop_caches, processes, rewritten, warm_environment
from chart import render as chart
from document import Measured, render, tables
from imports import breakdown
from layout import copied, crowded, packed, thirty

from support.work import STRACE, Work, beyond, count

HERE = Path(__file__).parent
WARM = ["--processes", "1", "--values", "3", "--warmups", "1", "--loops", "1"]
COLD = ["--processes", "1", "--values", "1", "--warmups", "0", "--loops", "1"]  # only the first run is cold
QUICK, FULL = 2, 12  # rounds over all cases, so that noise hits them alike
UNHANG = str(Path(sys.executable).with_name("unhang"))


def main() -> None:
    """Measure and print. Exit with 1 if a limit is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pristine", type=Path, help="a site-packages folder with unpatched upstreams")
    parser.add_argument("--quick", action="store_true", help="fewer runs")
    parser.add_argument("--write-docs", action="store_true", help="write docs/performance.md and docs/performance.svg")
    parser.add_argument("--work", type=Path, help="where to lay out the environments, instead of $TMPDIR")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="unhang-bench-", dir=options.work) as folder:
        measured = measure(options.pristine.resolve(), Path(folder), quick=options.quick)
    print(tables(measured))
    if options.write_docs:
        docs = HERE.parent / "docs"
        (docs / "performance.svg").write_text(chart(measured.processes))
        (docs / "performance.md").write_text(render(measured))
    missed = [goal for goal in measured.goals() if not goal.met]
    raise SystemExit(1 if missed else 0)


def measure(pristine: Path, folder: Path, *, quick: bool) -> Measured:
    """Return all figures of one run."""
    small, large = copied(pristine, folder / "small"), crowded(pristine, folder / "large")
    more, pack = thirty(pristine, folder / "thirty"), packed(pristine, folder / "packed")
    diff = folder / "unhang.diff"
    diff.write_bytes(subprocess.run([UNHANG, "diff", "--target", small], stdout=subprocess.PIPE, check=False).stdout)
    _prove_equal_edits(copied(pristine, folder / "tool"), folder)
    places = ["--small", str(small), "--large", str(large), "--thirty", str(more)]
    places += ["--packed", str(pack), "--diff", str(diff)]
    rounds = QUICK if quick else FULL
    warm = _pyperf("warm", folder, rounds, [*places, *WARM])
    processor = _pyperf("processor", folder, rounds, [*places, *WARM])
    cold = _pyperf("cold", folder, rounds, [*places, *COLD])
    functions = _pyperf("functions", folder, 1, [*places, "--processes", "3" if quick else "10"])
    peak = _peak_megabytes(small)
    work = _work(small, large)
    judged = len({finding.seen.path for finding in findings_in(small)})
    counted = judged, len(rewritten(small)), _changed(more)
    machine = _machine(quick), may_drop_caches()
    return Measured({**warm, **cold}, processor, functions, peak, work, breakdown(), *counted, *machine)


def _pyperf(group: str, folder: Path, rounds: int, options: list[str]) -> dict[str, pyperf.Benchmark]:
    """Run a group of cases and return the results by name."""
    out = folder / f"{group}.json"
    command = [sys.executable, str(HERE / "cases.py"), "--group", group, "--append", str(out), "--quiet", *options]
    for _ in range(rounds):
        subprocess.run(command, check=True, cwd=folder)
    return {bench.get_name(): bench for bench in pyperf.BenchmarkSuite.load(str(out)).get_benchmarks()}


def _prove_equal_edits(site: Path, folder: Path) -> None:
    """Check that LibCST's own tool makes the same edits as unhang. Otherwise the comparison means nothing."""
    case = processes(site, site, site, site, folder / "unhang.diff")["libcst.tool codemod"]
    subprocess.run(case.command, cwd=site, env=warm_environment(), check=True, capture_output=True)
    subprocess.run([UNHANG, "check", "--target", site], check=True, capture_output=True)


def _changed(more: Path) -> int:
    """Return how many files `apply` changes with thirty fixes."""
    command = [UNHANG, "diff", "--target", str(more / "site")]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": str(more / "path")}, capture_output=True, check=False
    )
    return sum(line.startswith(b"+++ ") for line in done.stdout.splitlines())


def _peak_megabytes(site: Path) -> float:
    """Return the peak memory of one `apply`, and revert it."""
    with open(os.devnull, "wb") as nothing:
        child = subprocess.Popen([UNHANG, "apply", "--target", site], stdout=nothing, stderr=nothing)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    subprocess.run([UNHANG, "revert", "--target", site], check=True, capture_output=True)
    return usage.ru_maxrss / 1024


def _work(small: Path, large: Path) -> dict[str, Work]:
    """Count the file system calls of `check`, less those of starting Python. Returns nothing without strace."""
    if STRACE is None:
        return {}
    start = count([sys.executable, "-c", "pass"])
    return {
        "unhang check": beyond(count([UNHANG, "check", "--target", str(small)]), start),
        "unhang check, crowded": beyond(count([UNHANG, "check", "--target", str(large)]), start),
        "import importlib.metadata": beyond(count([sys.executable, "-c", "import importlib.metadata"]), start),
        "import libcst": beyond(count([sys.executable, "-c", "import libcst"]), start),
    }


def _machine(quick: bool) -> str:
    runs = "a quick run" if quick else "a full run"
    return f"{runs}, {os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}"


if __name__ == "__main__":
    main()
