"""Give mutants of every rewrite to the scenes, and print those that survive: `nox -s mutants`."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from itertools import takewhile
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


def main() -> int:
    """Return 1 if a mutant survives that some setting tells from our rewrite, or if a rewrite has too few mutants."""
    parser = argparse.ArgumentParser(prog="mutants", description=__doc__)
    parser.add_argument("--fix", default="", help="only fixes whose names begin with this")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--all", action="store_true", help="also print how each mutant was caught")
    options = parser.parse_args()
    began, total, equivalent, bad, few = time.monotonic(), 0, 0, 0, 0
    chosen, least = subjects(options.fix), parts.limit(REPOSITORY, "mutants", "minimum")
    known: dict[tuple[str, str], set[tuple[tuple[str, ...], ...]]] = {}
    for fix in fixes.without("MUTANTS"):
        print(f"no mutants: {fix}")
    for subject in chosen:
        made, same, survived = subject.of.made(subject.fix, subject.version), 0, 0
        known_here = known.setdefault((subject.fix, subject.of.function), set())
        ours = sources.wheel(subject.fix, subject.version, subject.of.upstream, subject.of.function).rewritten
        changes = dict(zip(made, changed(ours.data.decode(), made)))
        new = [mutant for mutant in made if changes[mutant] not in known_here]
        for mutant, (caught, why) in zip(new, judged(subject, new, options.processes)):
            if caught:
                known_here.add(changes[mutant])
            if why == judge.SAME:
                same += 1
                if options.all:
                    print(f"    equivalent: {mutant.name}")
            elif not caught:
                survived += 1
                print(f"    survived: {mutant.name}")
            elif options.all:
                print(f"    {mutant.name}: {why}")
        if len(made) < least:
            few += 1
            print(f"    fewer than {least} mutants: write more by hand")
        old = f"{len(made) - len(new)} caught in another release, " if len(new) < len(made) else ""
        print(f"{subject.name}: {len(made)} mutants, {old}{same} equivalent, survived: {survived}", flush=True)
        total, equivalent, bad = total + len(made), equivalent + same, bad + survived
    print(f"{total} mutants, {equivalent} equivalent, survived: {bad}")
    print(f"{options.processes} processes, {time.monotonic() - began:.0f} seconds", file=sys.stderr)
    return 1 if bad or few else 0


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


def judged(subject: Subject, made: list[Mutant], processes: int) -> list[tuple[bool, str]]:
    """Judge mutants in child processes, unless there is none."""
    source = sources.wheel(subject.fix, subject.version, subject.of.upstream, subject.of.function)
    before, after = (Source(it.data.decode(), source.target.function) for it in (source, source.rewritten))
    return judge.judged(subject.fix, before, after, [mutant.text for mutant in made], processes) if made else []


if __name__ == "__main__":
    sys.exit(main())
