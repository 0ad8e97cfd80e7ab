"""The line of a Dockerfile that cures an image, and the end of a report on one. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from unhang.suggest import first_line
from unhang.tell import console

if TYPE_CHECKING:
    from unhang.errors import UnhangError
    from unhang.judge.findings import Finding
    from unhang.records import Request


def build(*commands: str) -> str:
    """Return what is next in the build of an image, in two lines: the first says where the second goes."""
    run = " && ".join(filter(None, ("pip install --no-cache-dir unhang", *commands)))
    return f"next, in the Dockerfile, below the line that installs them:\n  RUN {run} 2>&1"


def summary(
    findings: Sequence[Finding], request: Request, collides: UnhangError | None = None, others: str = ""
) -> str:
    """Return as ``console.summary`` what is left to do; the next command is one for the build of the image."""
    first, _, _ = console.summary(findings, request, collides, others).partition("; next")
    left = [it for it in findings if it.left]
    if collides or not left:
        return first
    lines = dict.fromkeys(
        first_line(it.verdict.hint) for it in left if it.verdict.to_rewrite or it.source or it.to_write
    )
    if lines:
        return f"{first}; {build(*lines)}"
    looks = dict.fromkeys(first_line(it.verdict.hint) for it in left if it.result)
    return f"{first}; next, in a container of the image:\n  {' && '.join(filter(None, looks))}" if any(looks) else first
