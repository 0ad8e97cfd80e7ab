"""Judges the result of a nightly job: green, trouble or missing; and finds what upstream has fixed. Does no I/O."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

GREEN, TROUBLE, MISSING = "green", "trouble", "missing"
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

    outcome: str
    detail: str
    """A sentence."""
    log: str
    """The end of its output; empty if it is green."""
    news: tuple[tuple[str, str, str], ...]
    """Upstream, fix and place of each defect that upstream has fixed after its newest release."""


def by_code(ran: Ran) -> Result:
    """Judge a run by its exit code."""
    if ran.code == 0:
        return Result(GREEN, "passed", "", ())
    return Result(TROUBLE, f"exit code {ran.code}", _tail(ran), ())


def by_verdicts(ran: Ran, place: str, newest: Mapping[tuple[str, str], str]) -> Result:
    """Judge a run by the verdicts in its JSON: an unknown shape is trouble, a needed fix is not, since it is known.

    ``newest``: the verdicts on each upstream's newest release, by upstream and fix.
    """
    document = _document(ran.out)
    rows = None if document is None else document.get("results", document.get("findings"))
    if ran.code not in (0, 1) or rows is None:
        return Result(TROUBLE, f"exit code {ran.code}, and no verdicts", _tail(ran), ())
    # upstream has abandoned a branch that is older than the oldest release of the matrix
    unknown = [row for row in rows if row["verdict"] in _UNKNOWN and row.get("code") != "older-than-floor"]
    news = {
        (row["upstream"], row["fix"], _place(row, place))
        for row in rows
        if row["verdict"] == "fixed-upstream" and newest.get((row["upstream"], row["fix"])) == "needed"
    }
    if not unknown:
        return Result(GREEN, f"{len(rows)} verdicts, none of an unknown shape", "", tuple(sorted(news)))
    log = "\n".join(_described(row, place) for row in unknown)
    return Result(TROUBLE, f"{len(unknown)} of {len(rows)} verdicts are of unknown shapes", log, tuple(sorted(news)))


def by_answers(ran: Ran, upstreams: Collection[str]) -> Result:
    """Judge a run of ``unhang prove`` by its answers about these upstreams.

    It is trouble if a proof does not know the source, or if the patched source does not pass; it is not if the
    untouched source shows its defect.
    """
    document = _document(ran.out)
    rows = [row for row in (document or {}).get("results", ()) if row["upstream"] in upstreams]
    if not rows:
        return Result(TROUBLE, f"exit code {ran.code}, and no answers", _tail(ran), ())
    bad = [row for row in rows if row["answer"] in _UNPROVEN]
    if not bad:
        return Result(GREEN, f"{len(rows)} answers, none of them {' or '.join(_UNPROVEN)}", "", ())
    return Result(TROUBLE, f"{len(bad)} of {len(rows)} answers are bad", "\n".join(map(_answered, bad))[-_TAIL:], ())


def nothing(why: str) -> Result:
    """Return the result of a job that has nothing to run."""
    return Result(GREEN, f"not run: {why}", "", ())


def missing(session: str) -> Result:
    """Return the result of a session that the noxfile does not have."""
    return Result(MISSING, f"noxfile.py has no session {session!r}: it was not run", "", ())


def newest(rows: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], str]:
    """Return the verdicts on each upstream's newest final release, from rows of ``unhang matrix``."""
    from packaging.version import Version  # here: the job that writes issues installs no packages

    found: dict[tuple[str, str], tuple[Version, str]] = {}
    for row in rows:
        version, key = Version(row["version"]), (row["upstream"], row["fix"])
        if not version.is_prerelease and not row["yanked"] and (key not in found or version > found[key][0]):
            found[key] = version, row["verdict"]
    return {key: verdict for key, (_, verdict) in found.items()}


def _document(text: str) -> dict[str, Any] | None:
    """Return the JSON object in a command's output, which may begin with lines of pip and nox."""
    start = 0 if text.startswith("{") else text.find("\n{") + 1
    try:
        document, _ = json.JSONDecoder().raw_decode(text[start:])
    except ValueError:
        return None
    return document if isinstance(document, dict) else None


def _place(row: Mapping[str, Any], place: str) -> str:
    """Return where a row's code is: the branch of a checkout, or else, for the radar's rows, the release."""
    return place or f"release {row['version']}"


def _described(row: Mapping[str, Any], place: str) -> str:
    words: Sequence[str] = (row["upstream"], _place(row, place), row["fix"], row["verdict"], row["function"])
    return f"{' '.join(words)} {row['shape'] or '-'}: {row['detail']}"


def _answered(row: Mapping[str, Any]) -> str:
    words: Sequence[str] = (row["upstream"], row["fix"], row["case"], row["answer"])
    sides = [f"{name} {row[name]['status']}: {row[name]['detail']}" for name in ("untouched", "patched") if row[name]]
    return "; ".join([f"{' '.join(filter(None, words))}: {row['detail']}", *sides])


def _tail(ran: Ran) -> str:
    text = "\n".join(part.strip() for part in (ran.out, ran.err) if part.strip())
    return text if len(text) <= _TAIL else f"[...]\n{text[-_TAIL:]}"
