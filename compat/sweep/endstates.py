"""Prints the end states by which the sweep decides: ``python -m unhang.compat.sweep.endstates``.

The shapes come from the releases on the index, and from history where clones are given, as for the sweep.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from unhang.compat import index
from unhang.compat.endstates.compare import Row
from unhang.compat.sweep import fetch, gather, pins, sources
from unhang.compat.sweep.cache import Cache, default_folder
from unhang.compat.sweep.collect import Collection, Key
from unhang.compat.sweep.learnt import Learnt
from unhang.compat.sweep.settle import settle
from unhang.errors import UnhangError
from unhang.judge.decide import NO_REWRITE
from unhang.tell import progress, report
from unhang.tell.progress import Step

FIGURES = ("configurations", "passed", "cured", "failed", "worse")


class Shape(NamedTuple):
    """One shape and its end state."""

    key: Key
    state: str
    """As the matrix has it."""
    row: Row
    decided: str
    """Why a person decided the state; empty if the end state did."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Show every shape. Return 1 if a person must decide one, 2 if it could not run."""
    parser = argparse.ArgumentParser(prog="python -m unhang.compat.sweep.endstates", description=__doc__)
    parser.add_argument("--fix", action="append", default=[], metavar="ID", help="only this fix")
    parser.add_argument("--shape", default="", help="only shapes that start with this")
    options = parser.parse_args(arguments)
    try:
        with progress.shown() as step:
            found = list(_shapes(options.fix, options.shape, step))
    except UnhangError as error:
        print(report.text_error(error), file=sys.stderr)
        return 2
    for before, shape in zip([None, *found], found):
        if before is None or before.key[0] != shape.key[0]:
            print(heading(shape.key[0]))
        print("\n".join(lines(shape)))
    problems = sum(len(shape.row.problems) for shape in found if not shape.decided and shape.state != NO_REWRITE)
    print(
        f"{len(found)} shapes, {sum(shape.row.configurations for shape in found)} configurations, {problems} problems"
    )
    return 1 if problems else 0


def heading(fix: str) -> str:
    """Return the head of a fix's table."""
    return f"{fix:26} {'state':13}" + "".join(f"{name:>15}" for name in FIGURES)


def lines(shape: Shape) -> list[str]:
    """Return the line of a shape, and a line for each of its problems, or for why a person decided it."""
    figures = "".join(f"{getattr(shape.row, name):>15}" for name in FIGURES)
    below = [f"by a person: {shape.decided}"] if shape.decided else shape.row.problems
    return [f"{shape.key[2]:26} {shape.state:13}{figures}", *(f"    {line}" for line in below)]


def _shapes(fixes: Sequence[str], prefix: str, step: Step) -> Iterator[Shape]:
    """Yield the shapes of the sweep whose fix has an end state: those of the matrix, and those that it lacks."""
    cache = Cache(default_folder())
    learnt = Learnt(cache)
    collection = Collection(gather.targets(fixes), learnt)
    try:
        with index.client(fetch.CONNECTIONS) as client:
            offered = gather.offers(client, collection.targets, pins.read(sources.HERE))
            gather.releases(client, collection, offered, cache, os.environ.get("UNHANG_WHEELS"), step)
        repos = gather.open_clones(gather.clone_places(()), cache)
        gather.history(collection, repos, step)
        step("running the functions")
        gather.pull_requests(collection, learnt, repos)
        collection.rows = {key: row for key, row in collection.rows.items() if key[2].startswith(prefix)}
        settled = settle(collection, learnt, sources.decisions())
    finally:
        learnt.save()
    rows = {(row["fix"], row["function"], row["shape"]): row for row in settled.rows}
    for key, state in settled.states.items():
        if state.row is not None:
            row = rows.get(key, {"state": "undecided"})
            yield Shape(key, row["state"], state.row, row["note"] if key in settled.by_person else "")


if __name__ == "__main__":
    raise SystemExit(main())
