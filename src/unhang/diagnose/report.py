"""What `unhang diagnose` prints: text for people, JSON for programs, annotations for GitHub. Pure: strings only."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from unhang import __version__
from unhang.diagnose import standing
from unhang.errors import printable
from unhang.records import Request
from unhang.shapes import catalog
from unhang.tell import terminal
from unhang.tell.console import count
from unhang.tell.report import environment_line, escaped, escaped_property

if TYPE_CHECKING:
    from unhang.diagnose.answer import Answer
    from unhang.diagnose.evidence import Job
    from unhang.diagnose.standing import Standing
    from unhang.records import Environment

NEXT = {
    "desync": (
        "next: compare what these ranks ran last: one of them skipped a call, or made one more; where there are dumps, "
        "`torchfrtrace` shows them call by call"
    ),
    "slow": (
        "next: take the stacks again in a minute: a rank that has moved on is at work; one that has not waits for "
        "something other than a collective (a file, a lock, another process)"
    ),
    "not-enough": "to capture more, run: unhang diagnose --capture",
}
"""What to do about an answer without a fix."""
_COLOURS = {"known": "32", "possible": "33", "desync": "31", "slow": "36", "not-enough": "2"}
_KINDS = {"known": "error", "possible": "warning", "desync": "warning"}
_MOST = 8
"""How many runs of ranks the text shows, and how many files with one fault: a large job would fill the screen."""


class Report(NamedTuple):
    """What is reported of a diagnosis."""

    job: Job
    answers: Sequence[Answer]
    environment: Environment | None
    """None if no answer has a fix, or the environment could not be looked at."""
    standings: Mapping[str, tuple[Standing, ...]]
    """By fix, for those of the answers."""
    request: Request


def span(ranks: Collection[int]) -> str:
    """Return ranks as people write them: ``0, 2-5, 8``. Of many runs, the first ones, the last, and their number."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and runs[-1][-1] == rank - 1:
            runs[-1] = [runs[-1][0], rank]
        else:
            runs.append([rank])
    texts = ["-".join(map(str, run)) for run in runs]
    if len(texts) <= _MOST:
        return ", ".join(texts)
    return f"{', '.join(texts[: _MOST - 1])}, ... {texts[-1]} ({len(ranks)} ranks)"


def missing(job: Job) -> list[int]:
    """Return the ranks of the job of which no file says anything."""
    return [] if job.size is None else [rank for rank in range(job.size) if rank not in job.ranks]


def warnings(job: Job) -> list[str]:
    """Return a sentence for each file that could not be read, or whose rank nobody knows; of many alike, for some."""
    files: dict[str, list[str]] = {}
    for item in job.unread:
        files.setdefault(f"{'read in part: ' if item.partly else ''}{item.why}", []).append(item.file)
    if job.unranked:
        files["of which rank is it? Put that into its name, as in rank3.txt"] = list(job.unranked)
    lines = []
    for why, alike in files.items():
        lines += [f"{file}: {why}" for file in alike[:_MOST]]
        if len(alike) > _MOST:
            lines.append(f"{count(len(alike) - _MOST, 'more file')}, which --output-format json names: {why}")
    return lines


def text(report: Report, *, colour: bool, width: int = 0) -> str:
    """Return the answers as text, the best first, wrapped at the width, unless that is 0."""
    lines = [_read(report.job)]
    if report.environment is not None:
        lines.append(environment_line(report.environment))
    lines = [terminal.wrapped(line, width) for line in lines]
    for answer in report.answers:
        first, *rest = _paragraph(answer, report)
        first, word = terminal.wrapped(first, width), answer.answer
        lines += ["", terminal.painted(first, word, _COLOURS[word]) if colour else first]
        lines += [terminal.wrapped(line, width) for line in rest]
    return "\n".join(lines)


def document(report: Report) -> str:
    """Return the answers as JSON, in the stable form that docs/json.md documents."""
    job = report.job
    content = {
        "schema": 1,
        "unhang": __version__,
        "environment": report.environment and report.environment._asdict(),
        "job": {
            "files": job.files,
            "size": job.size,
            "ranks": sorted(job.ranks),
            "unread": [item._asdict() for item in job.unread],
            "unranked": list(job.unranked),
        },
        "answers": [_row(answer, report) for answer in report.answers],
    }
    return json.dumps(content, indent=1)


def github(report: Report) -> str:
    """Return a workflow command for each answer and each warning."""
    lines = []
    for answer in report.answers:
        title, *rest = _paragraph(answer, report)
        place = f"title={escaped_property(f'unhang {title}')}"
        message = "\n".join(rest)
        lines.append(f"::{_KINDS.get(answer.answer, 'notice')} {place}::{escaped(message)}")
    lines += [f"::warning title=unhang::{escaped(line)}" for line in warnings(report.job)]
    return "\n".join(lines)


def _read(job: Job) -> str:
    """Return the line that says what was read."""
    known = count(len(job.ranks), "rank") if job.size is None else f"{len(job.ranks)} of {count(job.size, 'rank')}"
    gone = missing(job)
    return f"read {count(job.files, 'file')}: {known}{f'; nothing of {_who(gone)}' if gone else ''}"


def _paragraph(answer: Answer, report: Report) -> Iterable[str]:
    fix = catalog.fix(answer.fix) if answer.fix else None
    yield f"{answer.answer}: {fix.id} ({fix.grade})" if fix else answer.answer
    if fix:
        yield f"  {fix.title}"
    yield f"  {printable(answer.summary)}"
    for place in answer.places:
        yield f"    {_who(place.ranks)}: {printable(place.doing)}"
        yield from (f"      {printable(line)}" for line in place.evidence)
    yield from (f"    {'not shown' if answer.fix else 'missing'}: {printable(line)}" for line in answer.missing)
    yield from (f"  {printable(line)}" for line in _next(answer, report))


def _next(answer: Answer, report: Report) -> Iterable[str]:
    """Return what to do about an answer."""
    if not answer.fix:
        yield NEXT[answer.answer]
        return
    for place in report.standings.get(answer.fix, ()):
        where = f"{place.upstream} {place.version or '(no version)'} in {place.location}"
        why = f" ({place.detail})" if place.detail else ""
        yield f"{place.verdict} on {where}{why}; {place.hint}"
    if not report.standings.get(answer.fix):
        none = f"there is no {standing.upstreams(answer.fix)} here: " if report.environment is not None else ""
        yield f"{none}in the environment of the job, on every node, run: {_cure(answer.fix, report)}"
    yield f"more about it: unhang explain {answer.fix}"


def _row(answer: Answer, report: Report) -> dict[str, Any]:
    return {
        "answer": answer.answer,
        "fix": answer.fix or None,
        "grade": catalog.fix(answer.fix).grade if answer.fix else None,
        "summary": answer.summary,
        "places": [place._asdict() for place in answer.places],
        "missing": list(answer.missing),
        "command": _cure(answer.fix, report) if answer.fix else None,
        "standings": [place._asdict() for place in report.standings.get(answer.fix, ())],
    }


def _cure(fix: str, report: Report) -> str:
    """Return the command that brings a fix into place: here, or in another environment if this one has no target."""
    return standing.cure(fix, report.request if report.standings.get(fix) else Request())


def _who(ranks: Collection[int]) -> str:
    return f"rank{'' if len(ranks) == 1 else 's'} {span(ranks)}"
