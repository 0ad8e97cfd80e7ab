"""The nightly run's jobs. As a script, prints them as the workflow's matrix."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

REPOSITORY = Path(__file__).resolve().parents[2]
_LISTED = {path.stem: json.loads(path.read_text("utf-8")) for path in (REPOSITORY / "upstreams").glob("*.json")}
UPSTREAMS: dict[str, dict[str, Any]] = {
    name: _LISTED[name]
    for name in sorted(_LISTED, key=lambda name: (_LISTED[name].get("place", float("inf")), name))
    if "tips" in _LISTED[name]
}
EVERY = "all upstreams"
PRE_RELEASE = "pre-release"
CHECK, RADAR, TESTS, PROVE, SWEEP, PROOFS = "check", "radar", "upstream", "prove", "sweep", "proofs"
# Only checked: upstream last changed it in 2024, and the proofs do not know code that old.
_OLD = {("ms-swift", "dev")}
# Only checked: their tests and modules need Transformer Engine, a GPU, or models. The proofs run on their wheels.
_HEAVY = {(name, ref) for name in ("megatron-bridge", "mcore-bridge", "trl") for ref in ("main", PRE_RELEASE)}
LEFT_BEHIND = _OLD | _HEAVY


class Job(NamedTuple):
    """One job of the nightly run."""

    name: str
    """Unique, and usable as a file name."""
    subject: str
    """Whose issue reports it: an upstream, or ``all upstreams`` for a session that cannot be split."""
    what: str
    """``check``: of a tree; ``radar``: the compat matrix against the package index; else a nox session."""
    ref: str | None = None
    """The branch to run on, or ``pre-release``: the newest one, if it is newer than all releases."""


def jobs() -> list[Job]:
    """Return all jobs, for the upstreams and branches in upstreams/."""
    found = []
    for name, about in UPSTREAMS.items():
        found += [Job(f"{name}-{CHECK}-{tip}", name, CHECK, tip) for tip in about["tips"]]
        found += [Job(f"{name}-{RADAR}", name, RADAR)]
        refs = [ref for ref in (*about["tips"], PRE_RELEASE) if (name, ref) not in LEFT_BEHIND]
        found += [Job(f"{name}-{what}-{ref}", name, what, ref) for what in (TESTS, PROVE) for ref in refs]
    return [*found, Job(SWEEP, EVERY, SWEEP), Job(PROOFS, EVERY, PROOFS)]


if __name__ == "__main__":
    print(f"jobs={json.dumps([job.name for job in jobs()])}")
