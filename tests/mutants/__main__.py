"""Give mutants of every rewrite to the end states, and print those that survive: `nox -s mutants`."""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import multiprocessing
import re
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from mutants import ranks
from mutants.by_hand import Mutants
from mutants.judge import SAME, Judge, by_scene
from mutants.rules import Mutant
from support import fixes, sources
from support.checkout import REPOSITORY
from unhang.compat.endstates import scenes
from unhang.compat.endstates.endstate import Source
from unhang.compat.sweep import parts


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


_JUDGES: dict[str, Judge] = {}


def main() -> int:
    """Return 1 if a mutant survives that is not on record as equivalent, or the record names one that does not.

    Also if a rewrite has fewer mutants than the schema of the manifests asks for.
    """
    parser = argparse.ArgumentParser(prog="mutants", description=__doc__)
    parser.add_argument("--fix", default="", help="only fixes whose names begin with this")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--all", action="store_true", help="also print how each mutant was caught")
    parser.add_argument(
        "--proofs", action="store_true", help="give them to the proofs of the core releases, with torch"
    )
    parser.add_argument(
        "--seconds", type=float, default=300, help="with --proofs: at most about so long for each rewrite"
    )
    options = parser.parse_args()
    if options.proofs:
        return on_ranks(subjects(options.fix), options.seconds, options.processes)
    began, total, equivalent, bad, wrong = time.monotonic(), 0, 0, 0, 0
    matched: set[tuple[str, str, str]] = set()
    chosen, least = subjects(options.fix), parts.limit(REPOSITORY, "mutants", "minimum")
    for fix in fixes.without("MUTANTS"):
        print(f"no mutants: {fix}")
    for subject in chosen:
        made, same, survived = subject.of.made(subject.fix, subject.version), 0, 0
        for mutant, (caught, why) in zip(made, judged(subject, made, options.processes)):
            names = (mutant.name, f"{subject.version}: {mutant.name}")
            reasons = {it for it in subject.of.equivalent if any(re.fullmatch(it, name) for name in names)}
            matched |= {(subject.fix, subject.of.upstream, it) for it in reasons}
            if not caught and (reasons or why == SAME):
                same += 1
                if options.all:
                    print(f"    equivalent: {mutant.name}")
            elif not caught:
                survived += 1
                print(f"    survived: {mutant.name}" + (f" ({why})" if why else ""))
            elif reasons:
                wrong += 1
                print(f"    on record as equivalent, but caught: {mutant.name}: {why}")
            elif options.all:
                print(f"    {mutant.name}: {why}")
        if len(made) < least:
            wrong += 1
            print(f"    fewer than {least} mutants: write more by hand")
        print(f"{subject.name}: {len(made)} mutants, {same} equivalent, survived: {survived}", flush=True)
        total, equivalent, bad = total + len(made), equivalent + same, bad + survived
    recorded = {(one.fix, one.of.upstream, pattern) for one in chosen for pattern in one.of.equivalent}
    stale = sorted(recorded - matched)
    for fix, upstream, pattern in stale:
        print(f"on record as equivalent, but no such mutant: {fix} {upstream}: {pattern}")
    print(f"{total} mutants, {equivalent} equivalent, survived: {bad}")
    print(f"{options.processes} processes, {time.monotonic() - began:.0f} seconds", file=sys.stderr)
    return 1 if bad or wrong or stale else 0


def on_ranks(chosen: list[Subject], seconds: float, processes: int) -> int:
    """Hold the proofs against the end states. Return 1 if a proof fails on a mutant that an end state calls right."""
    missed = 0
    for subject in chosen:
        proof = ranks.proof_of(subject.fix, subject.of, subject.version)
        if proof is None:
            continue
        answers = [*ranks.judged(proof, subject.of, seconds)]
        caught = [why for why, _ in judged(subject, [it.mutant for it in answers], processes)]
        both = sum(bool(it.failed) and why for it, why in zip(answers, caught))
        for answer in (it for it, why in zip(answers, caught) if it.failed and not why):
            missed += 1
            print(f"    by the proof alone: {answer.mutant.name}: {answer.failed}")
        alone = sum(why and not it.failed for it, why in zip(answers, caught))
        print(f"{subject.name}: {len(answers)} mutants, {both} caught by both judges, {alone} by the end state alone")
    return 1 if missed else 0


def judged(subject: Subject, made: list[Mutant], processes: int) -> Iterator[tuple[bool, str]]:
    """Judge mutants in processes of their own, which end after some, because upstream's stand-ins keep much."""
    source = sources.wheel(subject.fix, subject.version, subject.of.upstream, subject.of.function)
    name = source.target.function
    before, after = (Source(it.data.decode(), name) for it in (source, source.rewritten))
    texts, context = [mutant.text for mutant in made], multiprocessing.get_context("fork")
    if scenes.of(subject.fix, name):
        parts = [texts[number::processes] for number in range(processes)]
        with ThreadPoolExecutor(processes) as threads:  # each waits for a child process
            found = list(threads.map(lambda part: by_scene(subject.fix, before, after, part), parts))
        yield from (found[number % processes][number // processes] for number in range(len(made)))
        return
    _JUDGES[subject.name] = Judge(subject.fix, before, after)
    with context.Pool(processes, maxtasksperchild=10) as pool:
        yield from pool.imap(_judge, [(subject.name, text) for text in texts])


def _judge(job: tuple[str, str]) -> tuple[bool, str]:
    logging.disable(logging.CRITICAL)
    with contextlib.redirect_stdout(io.StringIO()):
        return _JUDGES[job[0]].why(job[1])


if __name__ == "__main__":
    sys.exit(main())
