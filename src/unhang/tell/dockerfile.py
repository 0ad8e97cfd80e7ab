"""The end of a report on an image: the line of its Dockerfile that cures it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from unhang.suggest import first_line
from unhang.tell import console

if TYPE_CHECKING:
    from unhang.errors import UnhangError
    from unhang.judge.findings import Finding
    from unhang.records import Request


def summary(findings: Sequence[Finding], request: Request, collides: UnhangError | None = None) -> str:
    """Return as ``console.summary`` what is left to do; the next command is one for the build of the image."""
    first, _, _ = console.summary(findings, request, collides).partition("; next")
    left = [it for it in findings if not it.settled]
    if collides or not left:
        return first
    lines = dict.fromkeys(
        first_line(it.verdict.hint) for it in left if it.verdict.to_rewrite or it.source or it.to_write
    )
    if lines:
        commands = " && ".join(filter(None, ("pip install --no-cache-dir unhang", *lines)))
        return f"{first}; next, in the Dockerfile, below the line that installs them:\n  RUN {commands} 2>&1"
    looks = dict.fromkeys(first_line(it.verdict.hint) for it in left if it.result)
    return f"{first}; next, in a container of the image:\n  {' && '.join(filter(None, looks))}" if any(looks) else first
