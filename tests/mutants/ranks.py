"""Give mutants to the proofs on real ranks: the second judge, which shares no code with the end states."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from mutants.by_hand import Mutants
from mutants.rules import Mutant
from proofs import judging, suite
from proofs.others import Other
from support import sources
from unhang.prove import host

BATCH = 8
"""How many mutants one child process is given."""


class Judged(NamedTuple):
    """What the proof of a release says of a mutant."""

    mutant: Mutant
    failed: str
    """The case that fails, and how; empty if none does."""


def proof_of(fix: str, of: Mutants, version: str) -> suite.Proof | None:
    """Return the proof of a core release, if the version is one."""
    known = (it for it in suite.every_proof() if (it.fix, it.upstream, it.version) == (fix, of.upstream, version))
    return next((it for it in known if it.release.core and not it.is_tree), None)


def judged(proof: suite.Proof, of: Mutants, seconds: float) -> Iterator[Judged]:
    """Judge mutants by a proof until the time is over, those by hand first. Each runs in all core cases."""
    made, began, cases = of.made(proof.fix, proof.version), time.monotonic(), proof.cases()
    source, names = sources.wheel(proof.fix, proof.version, proof.upstream, of.function), tuple(it.name for it in cases)
    for start in range(0, len(made), BATCH):
        if time.monotonic() - began > seconds:
            return
        batch = made[start : start + BATCH]
        others = {it.name: Other(partial(_spliced, source._replace(data=it.text.encode())), names) for it in batch}
        outcomes = suite.run(replace(proof, of=proof.of._replace(others=others)), cases).outcomes
        assert not (wrong := judging.failure(outcomes[host.PATCHED])), wrong
        yield from (Judged(it, judging.failure(outcomes[it.name])) for it in batch)


def _spliced(mutant: sources.Source, path: str, before: bytes, after: bytes) -> bytes:
    """Put the mutant's function in place of the rewritten one; the fix may have others in the file."""
    if path != mutant.target.file:
        return after
    above, _, below = sources.around(mutant._replace(data=after))
    return b"".join([*above, *sources.around(mutant)[1], *below])
