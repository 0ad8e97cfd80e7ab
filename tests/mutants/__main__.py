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
from typing import NamedTuple

from mutants.by_hand import by_hand
from mutants.equivalent import EQUIVALENT
from mutants.judge import Judge
from mutants.rules import RANK, Added, Mutant, mutants
from support import sources
from unhang.compat.endstates.endstate import Source

TP, CP, DP, PP = (
    f"mpu.get_{name}_rank()"
    for name in ("tensor_model_parallel", "context_parallel", "data_parallel", "pipeline_model_parallel")
)


class Subject(NamedTuple):
    """A rewrite of one release, which is mutated."""

    fix: str
    upstream: str
    version: str
    ranks: tuple[str, ...] = (RANK,)
    others: tuple[str, ...] = ()
    """The names of groups, or of their accessors, that the rewrite does not mean."""

    @property
    def name(self) -> str:
        return f"{self.fix} {self.upstream} {self.version}"

    def made(self) -> list[Mutant]:
        """Return all mutants of it."""
        added = Added(sources.wheel(self.fix, self.version, self.upstream), self.ranks, self.others)
        hand = by_hand(self.fix, self.upstream, added.text)
        return [*(Mutant(f"by hand: {name}", text) for name, text in hand.items()), *mutants(added)]


_CORE_GROUPS = ("_EXPERT_MODEL_PARALLEL_GROUP", "_DATA_PARALLEL_GROUP")
SUBJECTS = [
    Subject("mtp-cp-deadlock", "verl", "0.7.1", (TP, CP, DP)),
    Subject("sft-packed-seq-broadcast", "megatron-lm", "0.17.1", (TP, DP, PP)),
    *(Subject("empty-expert-hang", "megatron-core", version) for version in ("0.10.0", "0.15.3", "0.19.2")),
    Subject("expert-dp-warmup", "megatron-core", "0.16.1", others=_CORE_GROUPS),
    Subject("expert-dp-warmup", "ms-swift", "4.6.0", others=("get_data_parallel_group",)),
]
_JUDGES: dict[str, Judge] = {}


def main() -> int:
    """Return 1 if a mutant survives that is not on record as equivalent, or the record names one that does not."""
    parser = argparse.ArgumentParser(prog="mutants", description=__doc__)
    parser.add_argument("--fix", default="", help="only fixes whose names begin with this")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--all", action="store_true", help="also print how each mutant was caught")
    options = parser.parse_args()
    began, total, equivalent, bad, wrong = time.monotonic(), 0, 0, 0, 0
    matched: set[tuple[str, str, str]] = set()
    for subject in SUBJECTS:
        if not subject.fix.startswith(options.fix):
            continue
        made, same, survived = subject.made(), 0, 0
        for mutant, (caught, why) in zip(made, judged(subject, made, options.processes)):
            names = (mutant.name, f"{subject.version}: {mutant.name}")
            known = EQUIVALENT[subject.fix, subject.upstream]
            reasons = {it for it in known if any(re.fullmatch(it, name) for name in names)}
            matched |= {(subject.fix, subject.upstream, it) for it in reasons}
            if reasons and not caught:
                same += 1
            elif not caught:
                survived += 1
                print(f"    survived: {mutant.name}" + (f" ({why})" if why else ""))
            elif reasons:
                wrong += 1
                print(f"    on record as equivalent, but caught: {mutant.name}: {why}")
            elif options.all:
                print(f"    {mutant.name}: {why}")
        print(f"{subject.name}: {len(made)} mutants, {same} equivalent, survived: {survived}", flush=True)
        total, equivalent, bad = total + len(made), equivalent + same, bad + survived
    stale = [key for key in sorted(recorded(options.fix)) if key not in matched]
    for fix, upstream, pattern in stale:
        print(f"on record as equivalent, but no such mutant: {fix} {upstream}: {pattern}")
    print(f"{total} mutants, {equivalent} equivalent, survived: {bad}")
    print(f"{options.processes} processes, {time.monotonic() - began:.0f} seconds", file=sys.stderr)
    return 1 if bad or wrong or stale else 0


def recorded(fix: str) -> set[tuple[str, str, str]]:
    """Return what is on record as equivalent."""
    return {(*key, pattern) for key, reasons in EQUIVALENT.items() for pattern in reasons if key[0].startswith(fix)}


def judged(subject: Subject, made: list[Mutant], processes: int) -> Iterator[tuple[bool, str]]:
    """Judge mutants in processes of their own, which end after some, because upstream's stand-ins keep much."""
    source, name = sources.wheel(subject.fix, subject.version, subject.upstream), ""
    name = source.target.function
    before, after = (Source(it.data.decode(), name) for it in (source, source.rewritten))
    _JUDGES[subject.name] = Judge(subject.fix, before, after)
    context = multiprocessing.get_context("fork")
    with context.Pool(processes, maxtasksperchild=10) as pool:
        yield from pool.imap(_judge, [(subject.name, mutant.text) for mutant in made])


def _judge(job: tuple[str, str]) -> tuple[bool, str]:
    logging.disable(logging.CRITICAL)
    with contextlib.redirect_stdout(io.StringIO()):
        return _JUDGES[job[0]].why(job[1])


if __name__ == "__main__":
    sys.exit(main())
