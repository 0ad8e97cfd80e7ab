"""Give mutants of every rewrite to the scenes, and print those that survive: `nox -s mutants`."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import groupby, takewhile
from multiprocessing.queues import SimpleQueue
from typing import NamedTuple

from mutants import judge
from mutants.by_hand import Mutants
from mutants.rules import Mutant
from support import fixes, sources
from support.checkout import REPOSITORY
from unhang.compat.sweep import parts
from unhang.judge.rows import Source


class Subject(NamedTuple):
    """The rewrite of one release, which is mutated."""

    fix: str
    of: Mutants
    version: str

    @property
    def name(self) -> str:
        """The fix, the upstream and its version, and the function if the fix has several there."""
        return f"{self.fix} {self.of.upstream} {self.version}{' ' * bool(self.of.function)}{self.of.function}"


def subjects(fix: str = "") -> list[Subject]:
    """Return what is mutated of the fixes whose names begin with this."""
    return [
        Subject(name, one, version)
        for name, found in fixes.of_each("MUTANTS").items()
        if name.startswith(fix)
        for one in found
        for version in one.versions
    ]


class Told(NamedTuple):
    """What becomes of the mutants of one function of a fix."""

    lines: list[str]
    mutants: int
    equivalent: int
    survived: int
    few: bool
    """Whether a rewrite has too few."""


def main() -> int:
    """Return 1 if a mutant survives that some setting tells from our rewrite, or if a rewrite has too few mutants."""
    parser = argparse.ArgumentParser(prog="mutants", description=__doc__)
    parser.add_argument("--fix", default="", help="only fixes whose names begin with this")
    parser.add_argument("--processes", type=int, default=2, help="how many play at a time, each on one core")
    parser.add_argument("--all", action="store_true", help="also print how each mutant was caught")
    options = parser.parse_args()
    began, told = time.monotonic(), []
    for fix in fixes.without("MUTANTS"):
        print(f"no mutants: {fix}")
    by_function = [[*it] for _, it in groupby(subjects(options.fix), lambda it: (it.fix, it.of.function))]
    by_function.sort(key=len, reverse=True)  # the longest first
    # few are judged one after another, on all cores, so that none is left to one core
    each = 1 if len(by_function) >= 2 * options.processes else options.processes
    cores = sorted(os.sched_getaffinity(0))
    shares: SimpleQueue[set[int]] = multiprocessing.SimpleQueue()
    for first in range(0, options.processes, each):
        shares.put({cores[number % len(cores)] for number in range(first, first + each)})
    with ProcessPoolExecutor(options.processes // each, initializer=_stay_on, initargs=(shares,)) as pool:
        for of_one in pool.map(partial(judged, is_each_told=options.all), by_function):
            print(*of_one.lines, sep="\n", flush=True)
            told.append(of_one)
    bad = sum(of_one.survived for of_one in told)
    equivalent = sum(of_one.equivalent for of_one in told)
    print(f"{sum(of_one.mutants for of_one in told)} mutants, {equivalent} equivalent, survived: {bad}")
    print(f"{options.processes} processes, {time.monotonic() - began:.0f} seconds", file=sys.stderr)
    return 1 if bad or any(of_one.few for of_one in told) else 0


def _stay_on(shares: SimpleQueue[set[int]]) -> None:
    """Give this process its share of the processor cores."""
    os.sched_setaffinity(0, shares.get())


def judged(of_one: Sequence[Subject], is_each_told: bool) -> Told:
    """Judge the mutants of one function, on this process's cores; with ``is_each_told``, say how each was caught."""
    least, lines = parts.limit(REPOSITORY, "mutants", "minimum"), list[str]()
    cores = sorted(os.sched_getaffinity(0))
    known = set[tuple[tuple[str, ...], ...]]()
    total = equivalent = bad = 0
    few = False
    for subject in of_one:
        made, same, survived = subject.of.made(subject.fix, subject.version), 0, 0
        source = sources.wheel(subject.fix, subject.version, subject.of.upstream, subject.of.function)
        before, after = (Source(it.data.decode(), source.target.function) for it in (source, source.rewritten))
        changes = dict(zip(made, changed(after.text, made)))
        new = [mutant for mutant in made if changes[mutant] not in known]
        answers = judge.judged(subject.fix, before, after, [it.text for it in new], cores) if new else []
        for mutant, (caught, why) in zip(new, answers):
            if caught:
                known.add(changes[mutant])
            if why == judge.SAME:
                same += 1
                lines += [f"    equivalent: {mutant.name}"] * is_each_told
            elif not caught:
                survived += 1
                lines.append(f"    survived: {mutant.name}")
            else:
                lines += [f"    {mutant.name}: {why}"] * is_each_told
        if len(made) < least:
            few = True
            lines.append(f"    fewer than {least} mutants: write more by hand")
        old = f"{len(made) - len(new)} caught in another release, " if len(new) < len(made) else ""
        lines.append(f"{subject.name}: {len(made)} mutants, {old}{same} equivalent, survived: {survived}")
        total, equivalent, bad = total + len(made), equivalent + same, bad + survived
    return Told(lines, total, equivalent, bad, few)


def changed(ours: str, made: list[Mutant]) -> Iterator[tuple[tuple[str, ...], ...]]:
    """Yield what each mutant changes of our rewrite, before and after, with the line above it and the line below."""
    old = ours.splitlines()
    for mutant in made:
        new = mutant.text.splitlines()
        first, last = _alike(old, new), _alike(old[::-1], new[::-1])
        yield tuple(tuple(side[first - 1 : len(side) - last + 1]) for side in (old, new))


def _alike(one: list[str], other: list[str]) -> int:
    """Return how many items two lists have in common before they differ."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other)))


if __name__ == "__main__":
    sys.exit(main())
