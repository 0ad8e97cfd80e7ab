"""What `unhang diagnose` prints: text for people, JSON for programs, annotations for GitHub. Pure: strings only."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from unhang import __version__, gate
from unhang.diagnose import fixes, statements
from unhang.diagnose.evidence import Job, Statement
from unhang.diagnose.fixes import Standing
from unhang.diagnose.known import Answer, Diagnosis
from unhang.diagnose.one_job import SAME
from unhang.diagnose.phrases import FOLLOWS, NOTE, WAITS
from unhang.diagnose.where import Place
from unhang.diagnose.who import traceback
from unhang.records import Environment, Request
from unhang.shapes import catalog
from unhang.suggest import explain
from unhang.tell import terminal
from unhang.tell.console import count
from unhang.tell.report import about, environment_line

_SET = "`unhang explain never-arrived` says what to set before the next job"
MORE = f"next: collect more with `unhang diagnose --live` while the job hangs; {_SET}"
ALL = f"next: {_SET}"
"""After `--live` itself, which has collected what there was."""
_COLOURS = {"known": "32", "also": "33", "possible": "33", "not-here": "2"}
_KINDS = {"known": "error", "also": "warning", "possible": "warning", "not-here": "notice"}
_NOBODY = "no rank is suspect: the files show none that holds up the others"
_ENDED = "no rank is suspect: all processes that were seen have ended meanwhile"
_NOTHING = (
    "no file tells of a rank: it reads logs, dumps of torch's recorder, stacks (py-spy, faulthandler, gdb, ray stack) "
    "and answers of NCCL's RAS"
)
_NAMELESS = "no file says which rank it tells of: put the rank into its name, as in rank3.txt"
_UNRANKED = (
    "it does not say its rank. Put the rank into its name, as in rank3.txt, or above what each process says, as in "
    "`rank 3:`"
)
_FEW, _OPEN = 3, ("never-arrived", "mismatch")
"""How many causes are shown; and those of which more files would say who it is, where nobody is suspect."""
_MOST = 8
"""How many runs of ranks the text shows, and how many files with one fault: a large job would fill the screen."""


class Report(NamedTuple):
    """What is reported of a diagnosis."""

    diagnosis: Diagnosis
    answers: tuple[Answer, ...]  # the best first; none where no rank waits or fails in a function of a fix
    environment: Environment | None  # None if there are no answers, or the environment could not be looked at
    standings: Mapping[str, tuple[Standing, ...]]  # by fix, for those of the answers
    request: Request


def warnings(job: Job) -> list[str]:
    """Return a sentence for each file that could not be read, or whose rank nobody knows; of many alike, for some.

    Those that tell of a rank what other files tell, as in several formats, have one together.
    """
    files: dict[str, list[str]] = defaultdict(list)
    twice = [item for item in job.unread if SAME in item.why]
    for item in (item for item in job.unread if len(twice) < 2 or SAME not in item.why):
        files[f"{'read in part: ' if item.partly else ''}{item.why}"].append(item.file)
    for file in job.unranked:
        files[_UNRANKED].append(file)
    lines = [f"{len(twice)} files, such as {twice[0].file}: {twice[0].why}"] if len(twice) > 1 else []
    for why, alike in files.items():
        lines += [f"{file}: {why}" for file in alike[:_MOST]]
        lines += [f"{more}: {why}" for more in _more(len(alike), "file")]
    return lines


def _more(number: int, noun: str) -> list[str]:
    return [f"{count(number - _MOST, f'more {noun}')}, which --output-format json names"] if number > _MOST else []


def text(report: Report, *, colour: bool, width: int = 0, more: str = MORE) -> str:
    """Return the suspects, the causes, where the ranks are, and the answers as text, wrapped at the width, unless 0.

    ``more`` says how more is collected, for where the files name no cause.
    """
    found, job = report.diagnosis, report.diagnosis.facts.job
    lines = [*_suspects(found), *_causes(found), *_notes(job)]
    lines += [*([""] if lines else []), _read(job)]
    if report.environment is not None:
        lines.append(environment_line(report.environment))
    lines += _places(found.places, job, "")
    for answer in report.answers:
        first, *rest = _paragraph(answer, report)
        word = answer.answer
        lines += ["", terminal.painted(first, word, _COLOURS[word]) if colour else first, *rest]
    is_open = not found.who.why and all(one.code in _OPEN for one in found.causes[:1])
    if is_open and all(one.answer in ("possible", "not-here") for one in report.answers):
        lines += ["", _next(found, more)]
    return "\n".join(terminal.wrapped(line, width) for line in lines)


def document(report: Report) -> str:
    """Return the answers as JSON, in the stable form that docs/json.md documents."""
    job, suspects = report.diagnosis.facts.job, report.diagnosis.who
    content = {
        "schema": 2,
        "unhang": __version__,
        "suspects": [rank for rank in sorted(suspects.why) if rank not in job.names],
        "why": {job.names.get(rank, str(rank)): why for rank, why in sorted(suspects.why.items())},
        "processes": processes(report.diagnosis),
        "causes": [one._asdict() for one in report.diagnosis.causes],
        "environment": report.environment and report.environment.told,
        "job": {
            "files": job.files,
            "size": job.size,
            "ranks": sorted(job.ranks.keys() - job.names),
            "unread": [item._asdict() for item in job.unread],
            "unranked": list(job.unranked),
            "errors": [{"text": one.text, "source": one.source} for one in report.diagnosis.facts.strangers],
        },
        "where": [_place(place, job) for place in report.diagnosis.places],
        "answers": [_row(answer, report) for answer in report.answers],
    }
    return gate.document(content)


def github(report: Report) -> str:
    """Return a workflow command for the suspects, each answer and each warning."""
    found, lines = report.diagnosis, []
    if found.who.why or found.facts.strangers:
        lines.append(gate.command("error", "\n".join(_suspects(found)), title="unhang suspects"))
    for answer in report.answers:
        title, *rest = _paragraph(answer, report)
        kind = _KINDS[answer.answer]
        lines.append(gate.command(kind, "\n".join(rest), title=f"unhang {title}"))
    lines += [gate.command("warning", line, title="unhang") for line in warnings(report.diagnosis.facts.job)]
    return "\n".join(lines)


def _suspects(found: Diagnosis) -> list[str]:
    """Return a line for each reason, with its ranks, and the tracebacks of the first errors."""
    suspects, job, strangers = found.who, found.facts.job, found.facts.strangers
    ranks: dict[str, list[int]] = defaultdict(list)
    for rank, why in suspects.why.items():
        ranks[why].append(rank)
    reasons = [*ranks.items()]
    lines = [
        f"{'each of ' if len(same) > 1 else ''}{job.called(same)}: {gate.line(why)}" for why, same in reasons[:_MOST]
    ]
    left = sum(len(same) for _, same in reasons[_MOST:])
    lines += [f"and {more}" for more in _more(left + _MOST, "rank")]
    lines += [f"  {gate.line(line)}" for line in suspects.traceback]
    for rank, (caught, *_) in list(found.facts.caught.items())[:_MOST]:
        what = f"it logged an error, and went on to wait: {gate.line(caught.text)} ({caught.source})"
        lines.append(f"{job.called([rank])}: {what}")
    blamed = _blamed(found)
    told: dict[str, dict[str, None]] = defaultdict(dict)
    for one in blamed:
        for name in one.processes:
            told[name][gate.line(one.words.removeprefix(f"{one.speaker or statements.NOBODY}: "))] = None
    if not suspects.why:
        lines += [f"{name}: {'; '.join(words)}" for name, words in [*told.items()][:_MOST]]
    follows = {one.source for one in statements.weighed(job.statements) if one.weight == FOLLOWS}
    if others := [one for one in strangers if one.source not in follows]:
        first, *rest = others
        if not lines or all(one.source != first.source for one in blamed):
            more = f" (and {count(len(rest), 'more error')})" if rest else ""
            what = f"it failed by itself: {gate.line(first.text)}{more}"
            lines.append(f"a process of which no file says the rank: {what}")
        lines += [f"  {gate.line(line)}" for line in traceback(first)]
    if suspects.why or strangers or told or (found.causes and not (job.ranks or job.spoken)):
        return lines
    nothing = _NAMELESS if job.unranked else _NOTHING
    nobody = _ENDED if found.facts.has_ended else _NOBODY
    return [nobody if job.ranks or job.spoken or _notes(job) else nothing, *lines]


def processes(found: Diagnosis) -> list[str]:
    """Return the suspects of which nobody knows the rank: by their stacks, and those that lines blame."""
    job = found.facts.job
    spied = [job.names[number] for number in sorted(found.who.why, reverse=True) if number in job.names]
    return [*dict.fromkeys([*spied, *(name for one in _blamed(found) for name in one.processes)])]


def _blamed(found: Diagnosis) -> list[Statement]:
    """Return the statements that name whom to look at, or else who has gone first."""
    said = found.facts.job.statements
    # that a peer has gone may be the end of these only where nobody gave up first
    is_open = not (found.who.why or found.facts.strangers or any(one.weight == WAITS for one in said))
    return statements.blamed(said) or [one for one in said if is_open and one.weight == FOLLOWS and one.processes]


def _causes(found: Diagnosis) -> Iterable[str]:
    """Yield the causes, the best one with what to do."""
    known = {part for why in found.who.why.values() for part in why.split("; ")}
    known |= {part for one in _blamed(found) if one.processes for part in one.words.split("; ")}
    for number, one in enumerate(found.causes[:_FEW]):
        why = gate.line("; ".join(part for part in one.why.split("; ") if part not in known))
        yield f"{'also' if number else 'cause'}: {one.code}{f': {why}' if why else ''}"
        if not number:
            yield f"  what to do: {gate.line(one.do)}; more about it: `unhang explain {one.code}`"


def _notes(job: Job) -> list[str]:
    notes = {one.words: one.source for one in reversed(job.statements) if one.weight == NOTE}
    return [f"note: {gate.line(words)} ({source})" for words, source in reversed(notes.items())][:_FEW]


def _read(job: Job) -> str:
    """Return the line that says what was read."""
    number = len(job.ranks) - len(job.names)
    known = count(number, "rank") if job.size is None else f"{number} of {count(job.size, 'rank')}"
    if job.names:
        nameless = f"{len(job.names)} process{'' if len(job.names) == 1 else 'es'} of unknown rank"
        known = f"{known}, and {nameless}" if number else nameless
    gone = {*range(job.size or 0)} - {*job.ranks, *job.spoken}
    lacks = f"; nothing of {job.called(gone)}" if gone else ""
    lacks += f"; of {job.called(job.spoken)} only lines without an error or a collective" if job.spoken else ""
    return f"read {count(job.files, 'file')}: {known}{lacks}"


def _places(places: Sequence[Place], job: Job, margin: str) -> Iterable[str]:
    """Yield where ranks are, those at the same place together."""
    if places and not margin:
        yield from ("", "where the ranks are:")
    for place in places[:_MOST]:
        yield f"{margin}  {job.called(place.ranks)}: {gate.line(place.doing)}"
        yield from (f"{margin}    {gate.line(line)}" for line in place.evidence)
    yield from (f"{margin}  and {more}" for more in _more(len(places), "place"))


def _paragraph(answer: Answer, report: Report) -> Iterable[str]:
    fix = catalog.fix(answer.fix)
    stands = report.standings.get(answer.fix, ())
    if answer.answer == "not-here":
        verdicts = "; ".join(f"{one.verdict} on {one.upstream} {one.version} in {one.location}" for one in stands)
        yield f"not {fix.id}, whose function is on the ranks' way: {verdicts}; {stands[0].hint}"
        return
    yield f"{answer.answer}: {fix.id} ({fix.grade})"
    yield f"  {fix.title}"
    yield f"  {gate.line(answer.summary)}"
    if answer.answer == "also":
        yield "  The code here has this defect too, but something else explains the hang first:"
    yield from (f"    {gate.line(line)}" for line in answer.before[:_MOST])
    yield from _places(answer.places, report.diagnosis.facts.job, "  ")
    job, unseen = report.diagnosis.facts.job, report.diagnosis.facts.unseen
    if unseen:
        yield f"    nothing came from {job.called(unseen)}: this is so if these do not wait there too"
    elif job.size is None:
        yield f"    this is so if {'other ranks are elsewhere' if answer.lacks else 'these are all ranks'}"
    yield f"  more about it: {explain(answer.fix)}"
    for place in stands:
        why = f" ({place.detail})" if place.detail else ""
        copy = f"{place.upstream} {place.version or '(no version)'} in {place.location}"
        yield f"  {place.verdict} on {copy}{why}; {place.hint}"
    if not stands:
        names = " or ".join(dict.fromkeys(target.upstream for target in fix.targets))
        none = f"there is no {names} here: " if report.environment is not None else ""
        yield f"  {none}in the job's environment, run: unhang check --fix {answer.fix}"
    if answer.question:
        yield f"  what decides: {answer.question} It takes {fix.manifest['signature']['setting']}."
    if answer.answer == "known" and fixes.is_curable(stands):
        yield "  then start the job again"


def _next(found: Diagnosis, more: str) -> str:
    """Return what to do where the files name no cause: more is to be collected only where it would decide."""
    facts = found.facts
    if facts.has_ended:
        return "next: see in its logs whether it has failed: add them, and `unhang diagnose` names who failed first"
    if facts.goes_on:
        return "next: nothing: every rank has moved between its two stacks, so the job goes on"
    if facts.unseen and not facts.is_over:
        return f"next: take the stacks of {facts.job.called(facts.unseen)} too: nothing came from there"
    return more


def _place(place: Place, job: Job) -> dict[str, Any]:
    names = [job.names[number] for number in sorted(place.ranks, reverse=True) if number in job.names]
    ranks = [number for number in place.ranks if number >= 0]
    return {"ranks": ranks, "processes": names, "doing": place.doing, "evidence": list(place.evidence)}


def _row(answer: Answer, report: Report) -> dict[str, Any]:
    stands = report.standings.get(answer.fix, ())
    is_curable = answer.answer in ("known", "also") and fixes.is_curable(stands)
    return {
        "answer": answer.answer,
        "fix": answer.fix,
        **about(answer.fix),
        "summary": answer.summary,
        "places": [_place(place, report.diagnosis.facts.job) for place in answer.places],
        "before": list(answer.before),
        "question": answer.question or None,
        "command": fixes.cure(answer.fix, report.request) if is_curable else None,
        "standings": [place._asdict() for place in stands],
    }
