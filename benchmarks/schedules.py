"""Time the schedules of real upstreams at 32, 256 and 1,024 ranks, untouched and patched, and check the goals.

It needs what `nox -s proofs` installs, and the tests' helpers:

    PYTHONPATH=tests .nox/proofs/bin/python benchmarks/schedules.py

The goals apply to processor time divided by the number of recording processes, which is the wall time on an idle
machine; actual wall time is printed too. Imports are not included. For 32 ranks, the best of three runs counts.
`--largest 256` skips larger jobs, `--write PAGE` writes the table of untouched source into docs/maintainers/proofs.md.
The exit code is 1 if a goal is missed.
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from proofs import suite
from support import pages
from unhang.find import environment, locate
from unhang.prove import child, host
from unhang.prove.cases import HUNG, Case, Topology
from unhang.prove.ranks import schedule

SIZES = (
    Topology(tp=2, pp=4, cp=2, dp=2, ep=2),
    Topology(tp=4, pp=4, cp=4, dp=4, ep=4),
    Topology(tp=4, pp=8, cp=2, dp=16, ep=8),
)
GOALS_S = {32: 0.5, 1024: 120.0}
START, END = "<!-- timings: written by benchmarks/schedules.py -->", "<!-- timings: end -->"


class Timed(NamedTuple):
    """One run: its status, and the seconds for recording and playing all ranks."""

    status: str
    wall_s: float
    processor_s: float
    """Sum over all processes."""


def main() -> None:
    """Measure and print a line for each fix, side and size. Exit with 1 if a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--largest", type=int, default=1024, help="skip jobs with more ranks")
    parser.add_argument("--write", metavar="PAGE", type=Path, help="the page with the table of timings")
    options = parser.parse_args()
    largest = options.largest
    untouched: dict[str, dict[int, Timed]] = {}
    cases = [Case(f"{size.world}", size, "schedule", HUNG) for size in SIZES if size.world <= largest]
    print(f"{os.cpu_count()} cores\n\n| proof | ranks | side | | wall s | processor s | goal s | |")
    print("| --- | --: | --- | --- | --: | --: | --: | --- |")
    missed = 0
    for proof in (proof for proof in suite.every_proof() if proof.of.timed and proof.release.core):
        fix, releases = proof.fix, ((proof.upstream, proof.version), *proof.release.beside)
        roots = [suite.unpacked(*release) for release in releases]
        places = [environment.for_target(str(root)) for root in roots]
        found = [one for place in places for one in locate.search(place, cwd="/").installations]
        pairs = suite.sources(fix, releases[0][0], found)
        for number, side in enumerate((host.UNTOUCHED, host.PATCHED)):
            files = {path: pair[number] for path, pair in pairs.items()}
            for case, timed in zip(cases, in_fork(fix, roots, files, cases)):
                ranks = case.topology.world
                shared = timed.processor_s / schedule.workers(ranks)
                goal = GOALS_S.get(ranks)
                judged = "" if goal is None else "pass" if shared < goal else "MISSED"
                missed += judged == "MISSED"
                if side == host.UNTOUCHED:
                    untouched.setdefault(fix, {})[ranks] = timed
                seconds = f"{timed.wall_s:.2f} | {timed.processor_s:.2f} | {goal or ''}"
                print(f"| {fix} | {ranks} | {side} | {timed.status} | {seconds} | {judged} |", flush=True)
    if options.write:
        pages.fill(options.write, START, END, table(untouched))
    raise SystemExit(1 if missed else 0)


def table(timings: Mapping[str, Mapping[int, Timed]]) -> str:
    """Return Markdown with a row for each number of ranks, of these timings by fix and ranks."""
    head = ["ranks", *(f"`{fix}`: {what}" for fix in timings for what in ("processor s", "wall s"))]
    sizes = sorted({ranks for runs in timings.values() for ranks in runs})
    rows = []
    for ranks in sizes:
        timed = [runs[ranks] for runs in timings.values()]
        rows.append([f"{ranks:,}", *(f"{value:.2f}" for one in timed for value in (one.processor_s, one.wall_s))])
    return pages.table(head, rows)


def in_fork(fix: str, roots: list[Path], files: Mapping[str, bytes], cases: list[Case]) -> list[Timed]:
    """Run the cases in a new process that imports the upstreams with these files in place of their own."""
    with tempfile.TemporaryDirectory(prefix="unhang-bench-") as folder:
        modules = {}
        for path, data in files.items():
            target = Path(folder, path)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
            modules[path.removesuffix(".py").replace("/", ".")] = str(target)
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=run, args=(theirs, fix, roots, modules, cases))
        process.start()
        theirs.close()
        try:
            return [ours.recv() for _ in cases]
        finally:
            process.join()


def run(pipe: Any, fix: str, roots: list[Path], modules: Mapping[str, str], cases: list[Case]) -> None:
    """Run the cases. The first one runs once untimed, because it loads modules late."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    sys.path[:0] = map(str, roots)
    sys.meta_path.insert(0, child.Variant(modules))
    proof = importlib.import_module(f"unhang.prove.fixes.{fix.replace('-', '_')}")
    warnings.simplefilter("ignore")  # of the upstreams
    proof.prepare()
    proof.run(cases[0], 0.0)
    for case in cases:
        times = 3 if case.topology.world <= schedule.ALONE else 1
        pipe.send(min((once(proof, case) for _ in range(times)), key=lambda timed: timed.processor_s))


def once(proof: Any, case: Case) -> Timed:
    """Run a case once."""
    before, begun = os.times(), time.monotonic()
    outcome = proof.run(case, 0.0)
    wall, now = time.monotonic() - begun, os.times()
    return Timed(outcome.status, wall, sum(now[:4]) - sum(before[:4]))


if __name__ == "__main__":
    main()
