"""What the nightly run does, one list: prints it as the matrix of the workflow's jobs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

REPOSITORY = Path(__file__).resolve().parents[2]
EVERY = "all upstreams"


class Job(NamedTuple):
    """One thing to run. A job without a session checks the tip of an upstream's branch."""

    name: str
    """Unique, and fit for a file's name."""
    subject: str
    """Whose issue tells of it: an upstream, or ``all upstreams`` where a session cannot be split."""
    session: str | None
    arguments: tuple[str, ...]
    verdicts: bool
    """Whether it is judged by the verdicts in its JSON, or by its exit code alone."""


def jobs() -> list[Job]:
    """All jobs, for the upstreams and branches in compat/upstreams.json."""
    upstreams = json.loads((REPOSITORY / "compat" / "upstreams.json").read_text(encoding="utf-8"))["upstreams"]
    return [job for name, about in upstreams.items() for job in _of_upstream(name, about)] + [
        Job("sweep", EVERY, "sweep", (), False),
        Job("proofs", EVERY, "proofs", (), False),
    ]


def _of_upstream(name: str, about: Mapping[str, Any]) -> list[Job]:
    # a clone of Megatron-LM holds two upstreams: megatron-core is one folder of it
    names = [name, "megatron-lm"] if name == "megatron-core" else [name]
    narrowed = [word for upstream in names for word in ("--upstream", upstream)]
    return [
        *(Job(f"{name}-{tip}", name, None, (about["repository"], tip), True) for tip in about["tips"]),
        Job(f"{name}-radar", name, "radar", ("--output-format", "json", *narrowed), True),
        *(Job(f"{name}-tests-{tip}", name, "upstream", (names[-1], tip), False) for tip in about["tips"]),
    ]


if __name__ == "__main__":
    print(f"jobs={json.dumps([job.name for job in jobs()])}")
