"""The nightly run's jobs. As a script, prints them as the workflow's matrix."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

REPOSITORY = Path(__file__).resolve().parents[2]
EVERY = "all upstreams"
PRE_RELEASE = "pre-release"
CHECK, RADAR, TESTS, PROVE, SWEEP = "check", "radar", "upstream", "prove", "sweep"
# Only checked: upstream last changed it in 2024, and the proofs do not know code that old.
LEFT_BEHIND = {("ms-swift", "dev")}


class Job(NamedTuple):
    """One job of the nightly run."""

    name: str
    """Unique, and usable as a file name."""
    subject: str
    """Whose issue reports it: an upstream, or ``all upstreams`` for a session that cannot be split."""
    what: str
    """``check``: of a tree; ``radar``: the compat matrix against the package index; else a nox session: ``upstream``,
    ``prove``, ``sweep`` or ``proofs``."""
    ref: str | None = None
    """The branch to run on, or ``pre-release``: the newest one, if it is newer than all releases."""


def jobs() -> list[Job]:
    """Return all jobs, for the upstreams and branches in compat/upstreams.json."""
    split = [job for name, about in upstreams().items() for job in _of_upstream(name, about)]
    return [*split, Job(SWEEP, EVERY, SWEEP), Job("proofs", EVERY, "proofs")]


def upstreams() -> dict[str, dict[str, Any]]:
    """Return the entries of compat/upstreams.json."""
    found: dict[str, dict[str, Any]] = json.loads((REPOSITORY / "compat" / "upstreams.json").read_text("utf-8"))
    return found["upstreams"]


def names_of(upstream: str) -> list[str]:
    """Return the upstreams in a clone of this one: megatron-core is a folder of Megatron-LM."""
    return [upstream, "megatron-lm"] if upstream == "megatron-core" else [upstream]


def _of_upstream(name: str, about: Mapping[str, Any]) -> list[Job]:
    alive = [tip for tip in about["tips"] if (name, tip) not in LEFT_BEHIND]
    return [
        *(Job(f"{name}-{tip}", name, CHECK, tip) for tip in about["tips"]),
        Job(f"{name}-radar", name, RADAR),
        *(Job(f"{name}-tests-{ref}", name, TESTS, ref) for ref in (*alive, PRE_RELEASE)),
        *(Job(f"{name}-prove-{ref}", name, PROVE, ref) for ref in (*alive, PRE_RELEASE)),
    ]


if __name__ == "__main__":
    print(f"jobs={json.dumps([job.name for job in jobs()])}")
