"""What the nightly run does, one list: prints it as the matrix of the workflow's jobs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

REPOSITORY = Path(__file__).resolve().parents[2]
EVERY = "all upstreams"
PRE_RELEASE = "pre-release"
CHECK, RADAR, TESTS, PROVE = "check", "radar", "upstream", "prove"
# Checked, and no more: upstream's last change of it is from 2024, and older than all that a proof knows.
LEFT_BEHIND = {("ms-swift", "dev")}


class Job(NamedTuple):
    """One thing to run."""

    name: str
    """Unique, and fit for a file's name."""
    subject: str
    """Whose issue tells of it: an upstream, or ``all upstreams`` where a session cannot be split."""
    what: str
    """``check`` of a tree; else the nox session: ``radar``, ``upstream``, ``prove``, ``sweep`` or ``proofs``."""
    ref: str | None = None
    """What it runs on: a branch, or ``pre-release``, the newest one if that is newer than all releases."""


def jobs() -> list[Job]:
    """All jobs, for the upstreams and branches in compat/upstreams.json."""
    return [job for name, about in upstreams().items() for job in _of_upstream(name, about)] + [
        Job("sweep", EVERY, "sweep"),
        Job("proofs", EVERY, "proofs"),
    ]


def upstreams() -> dict[str, dict[str, Any]]:
    """What compat/upstreams.json says of each."""
    found: dict[str, dict[str, Any]] = json.loads((REPOSITORY / "compat" / "upstreams.json").read_text("utf-8"))
    return found["upstreams"]


def names_of(upstream: str) -> list[str]:
    """The upstreams that a clone of this one holds: megatron-core is one folder of Megatron-LM."""
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
