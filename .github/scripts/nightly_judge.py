"""Judges what a nightly job printed: green or not, and what upstream has fixed. Does no I/O."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

_UNKNOWN = ("drifted", "unlisted")
_UNPROVEN = ("failed", "unknown")
_TAIL = 6_000  # characters of a log: an issue holds 65,536, for several jobs


class Ran(NamedTuple):
    """A finished command."""

    code: int
    out: str
    err: str


class Result(NamedTuple):
    """A job's result."""

    green: bool
    detail: str
    """A sentence."""
    log: str = ""
    """The end of its output; empty if it is green."""
    news: tuple[tuple[str, str, str], ...] = ()
    """Upstream, fix and place of each defect that upstream has fixed after its newest release."""


def by_code(ran: Ran) -> Result:
    """Judge a run by its exit code."""
    return Result(ran.code == 0, f"exit code {ran.code}", _tail(ran) if ran.code else "")


def by_verdicts(ran: Ran, place: str, newest: Mapping[tuple[str, str], str]) -> Result:
    """Judge a run by the verdicts in its JSON: an unknown shape is trouble, a needed fix is not, since it is known.

    ``place``: where the code is; empty if each row names its release. ``newest``: the verdicts on each upstream's
    newest release, by upstream and fix.
    """
    document = _document(ran.out)
    rows = document.get("results", document.get("findings"))
    if ran.code not in (0, 1) or rows is None:
        return Result(False, f"exit code {ran.code}, and no verdicts", _tail(ran))
    # upstream has abandoned a branch that is older than the oldest release of the matrix
    unknown = [row for row in rows if row["verdict"] in _UNKNOWN and row.get("code") != "older-than-floor"]
    fixed = [row for row in rows if row["verdict"] == "fixed-upstream"]
    news = {
        (row["upstream"], row["fix"], place or f"release {row['version']}")
        for row in fixed
        if newest.get((row["upstream"], row["fix"])) == "needed"
    }
    log = [
        f"{row['upstream']} {place or row['version']}: {row['fix']} is {row['verdict']}: "
        f"{row['function']} has the shape {row['shape'] or '-'}: {row['detail']}"
        for row in unknown
    ]
    detail = f"{len(unknown)} of {len(rows)} verdicts are of unknown shapes"
    return Result(not unknown, detail, "\n".join(log)[-_TAIL:], tuple(sorted(news)))


def by_answers(ran: Ran, upstreams: Collection[str]) -> Result:
    """Judge a run of ``unhang prove`` by its answers about these upstreams.

    It is trouble if a proof does not know the source, or if the patched source does not pass; it is not if the
    untouched source shows its defect.
    """
    rows = [row for row in _document(ran.out).get("results", ()) if row["upstream"] in upstreams]
    if not rows:
        return Result(False, f"exit code {ran.code}, and no answers", _tail(ran))
    bad = [row for row in rows if row["answer"] in _UNPROVEN]
    log = [
        f"{row['upstream']} {row['fix']} {row['case']}: {row['answer']}: {row['detail']}"
        + "".join(f"; {side}: {row[side]['detail']}" for side in ("untouched", "patched") if row[side])
        for row in bad
    ]
    return Result(not bad, f"{len(bad)} of {len(rows)} answers are bad", "\n".join(log)[-_TAIL:])


def _document(text: str) -> dict[str, Any]:
    """Return the JSON object in a command's output, which may begin with lines of pip and nox; {} if it has none."""
    start = 0 if text.startswith("{") else text.find("\n{") + 1
    try:
        document, _ = json.JSONDecoder().raw_decode(text[start:])
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _tail(ran: Ran) -> str:
    text = "\n".join(part.strip() for part in (ran.out, ran.err) if part.strip())
    return text if len(text) <= _TAIL else f"[...]\n{text[-_TAIL:]}"
