"""Hold matrix, end states and judge against each other over history: `PYTHONPATH=src:tests python -m independent`.

Every distinct content that a target's file has in the clones is judged: the untouched function, and its rewrite.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from typing import Any, NamedTuple

from independent.judges import Judgement, judge, known
from unhang.compat import upstreams
from unhang.compat.sweep import clones, commits, gather, sources
from unhang.compat.sweep.cache import Cache, default_folder
from unhang.compat.sweep.commits import Found
from unhang.errors import UnhangError
from unhang.rewrite import one_file
from unhang.shapes import catalog, shape
from unhang.shapes.catalog import Shape
from unhang.tell import report


class Job(NamedTuple):
    """A content whose function is on record."""

    found: Found
    shape: str
    known: Shape


def main() -> int:
    """Judge the history in the clones that are given. Return 1 if there is a disagreement, 2 if it could not run."""
    places, problems = gather.clone_places(()), 0
    for fix in catalog.fixes():
        if not known(fix):
            print(f"no independent judge: {fix}")
    for project, variable in clones.VARIABLES.items():
        if project not in places:
            print(f"{project}: history not judged, for no clone is given ({variable})")
            continue
        try:
            clone = gather.open_clones({project: places[project]}, Cache(default_folder()))[project]
        except UnhangError as error:
            print(report.text_error(error), file=sys.stderr)
            return 2
        history = commits.of_upstream(project, clone)
        mine = upstreams.of_project(project)
        targets = [it for it in gather.targets() if it.upstream in mine and known(it.fix)]
        found = [*commits.contents(history, targets)]
        jobs = [*_jobs(found)]
        shapes = {(job.found.target.fix, job.found.target.function, job.shape) for job in jobs}
        with ProcessPoolExecutor(os.cpu_count()) as pool:
            judgements = [*pool.map(_judged, jobs)]
        lines = [line for job, done in zip(jobs, judgements) for line in _disagreements(job, done)]
        count = len(judgements) + sum(job.known.state == "affected" for job in jobs)
        print(
            f"{project}: {history.commits:,} commits, {len(found)} contents, {len(jobs)} of them with one of "
            f"{len(shapes)} shapes on record, {count} judgements, {len(lines)} disagreements"
        )
        for line in lines:
            print(f"  {line}")
        problems += len(lines)
    return 1 if problems else 0


def _jobs(found: list[Found]) -> Iterator[Job]:
    """Yield the contents whose shape is on record. The verdicts over history name the others."""
    for item in found:
        try:
            functions = shape.find(shape.parse(item.content.data), item.target.function)
        except (SyntaxError, ValueError):  # a branch may be broken for a day
            continue
        if len(functions) == 1:
            digest = shape.digest(functions[0])
            listed = catalog.shape_table().shapes.get((item.target.fix, item.target.function, digest))
            if listed is not None:
                yield Job(item, digest, listed)


def _judged(job: Job) -> Judgement:
    target, data = job.found.target, job.found.content.data
    after = None
    if job.known.state == "affected":
        after = one_file.rewrite(data, [one_file.Step(target, job.known.result)]).data
    return judge(target.fix, target.function, data, after, "applied as written" in job.known.note)


def _disagreements(job: Job, done: Judgement) -> Iterator[str]:
    target, known = job.found.target, job.known
    where = f"{target.fix} {job.shape} in {target.file} at {job.found.commits[-1]}"
    if done.state != known.state:
        yield f"{where}: {known.state} in the matrix, the judge says {done.state}"
    if done.wrong:
        yield f"{where}: the judge calls the rewrite wrong in {len(done.wrong)} settings: {done.wrong[0]}"
    row = _endstates().get((target.fix, target.function, job.shape))
    if row is None:
        yield f"{where}: no end state is on record"
    elif row["worse"] or (row["cured"] > 0) != (known.state == "affected"):
        yield f"{where}: {known.state} in the matrix, but its end states are {row['cured']} cured, {row['worse']} worse"


@cache
def _endstates() -> Mapping[tuple[str, str, str], Mapping[str, Any]]:
    rows = json.loads((sources.HERE / "endstates.json").read_bytes())["endstates"]
    return {(row["fix"], row["function"], row["shape"]): row for row in rows}


if __name__ == "__main__":
    raise SystemExit(main())
