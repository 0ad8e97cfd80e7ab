"""Prints the end state of every shape: ``python -m unhang.compat.endstates.run``.

The shapes come from the releases on the index, and from history where clones are given, as for the sweep.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from unhang.compat.endstates import sandbox
from unhang.compat.endstates.compare import Row
from unhang.compat.endstates.endstate import Source
from unhang.compat.sweep import gather, matrix_files, pins, sources
from unhang.compat.sweep.cache import Cache, default_folder
from unhang.compat.sweep.collect import Collection, Key
from unhang.compat.sweep.learnt import Learnt
from unhang.compat.sweep.settle import settle
from unhang.errors import UnhangError
from unhang.rewrite import one_file
from unhang.tell import progress, report
from unhang.tell.progress import Step

FIGURES = ("configurations", "passed", "cured", "failed", "worse")


class Job(NamedTuple):
    """One shape to run."""

    key: Key
    state: str
    """As the matrix has it."""
    before: Source
    after: Source | None
    """Its rewrite, if it is affected."""
    as_written: bool = False
    """Whether it is a pull request as written."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run every shape. Return 1 if a configuration is worse or a shape has another problem, 2 if it could not run."""
    parser = argparse.ArgumentParser(prog="python -m unhang.compat.endstates.run", description=__doc__)
    parser.add_argument("--fix", default="", help="only this fix")
    parser.add_argument("--shape", default="", help="only shapes that start with this")
    parser.add_argument("--write", action="store_true", help="record the figures in compat/endstates.json")
    options = parser.parse_args(arguments)
    try:
        with progress.shown() as step:
            found_jobs = _jobs(step)
            jobs = [
                it for it in found_jobs if it.key[0].startswith(options.fix) and it.key[2].startswith(options.shape)
            ]
    except UnhangError as error:
        print(report.text_error(error), file=sys.stderr)
        return 2
    if not sandbox.without_network():
        print("this system permits no `unshare --net`: upstream's code has a network", file=sys.stderr)
    found: list[tuple[Job, Row]] = []
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for job, row in zip(jobs, pool.map(_row, jobs)):
            if not found or found[-1][0].key[0] != job.key[0]:
                print(heading(job.key[0]))
            print("\n".join(lines(job, row)), flush=True)
            found.append((job, row))
    problems = sum(len(row.problems) for _, row in found)
    print(f"{len(found)} shapes, {sum(row.configurations for _, row in found)} configurations, {problems} problems")
    if options.write:
        path = sources.HERE / "endstates.json"
        before = json.loads(path.read_bytes())["endstates"] if path.exists() else []
        matrix_files.write({str(path): matrix_files.endstates(recorded(before, found))})
    return 1 if problems else 0


def _row(job: Job) -> Row:
    return sandbox.run(job.key[0], job.before, job.after, job.as_written)


def heading(fix: str) -> str:
    """Return the head of a fix's table."""
    return f"{fix:26} {'state':13}" + "".join(f"{name:>15}" for name in FIGURES)


def lines(job: Job, row: Row) -> list[str]:
    """Return the line of a shape, and a line for each of its problems."""
    figures = "".join(f"{getattr(row, name):>15}" for name in FIGURES)
    return [f"{job.key[2]:26} {job.state:13}{figures}", *(f"    {problem}" for problem in row.problems)]


def recorded(before: Iterable[Mapping[str, Any]], found: Iterable[tuple[Job, Row]]) -> list[dict[str, Any]]:
    """Return the rows of endstates.json: those on record, and in their place those that were run now. Pure."""
    rows = {(row["fix"], row["function"], row["shape"]): dict(row) for row in before}
    for job, row in found:
        names = dict(zip(("fix", "function", "shape"), job.key))
        rows[job.key] = {**names, "branches": row.branches, **{name: getattr(row, name) for name in FIGURES}}
    return [row for _, row in sorted(rows.items())]


def _jobs(step: Step) -> Iterator[Job]:
    """Yield every shape of the matrix whose fix has an end state."""
    cache = Cache(default_folder())
    learnt = Learnt(cache)
    collection = Collection(gather.targets(), learnt)
    try:
        gather.releases(collection, pins.read(sources.HERE), cache, os.environ.get("UNHANG_WHEELS"), step)
        repos = gather.open_clones(gather.clone_places(()), cache)
        gather.history(collection, repos)
        gather.pull_requests(collection, learnt, repos)
        settled = settle(collection, learnt, sources.load("decisions"), sources.load("superseded"))
    finally:
        learnt.save()
    targets = {(target.fix, target.function): target for target in collection.targets}
    for row in settled.rows:
        key = row["fix"], row["function"], row["shape"]
        target = targets[key[:2]]
        if key not in collection.rows or sandbox.end_state(target.fix, target.function) is None:
            continue
        data = collection.rows[key].content.data
        before, after = Source(data.decode(), target.function), None
        if row["state"] == "affected":
            done = one_file.rewrite(data, [one_file.Step(target, settled.results[key])])
            after = Source(done.data.decode(), target.function)
        yield Job(key, row["state"], before, after, bool(collection.rows[key].note))


if __name__ == "__main__":
    raise SystemExit(main())
