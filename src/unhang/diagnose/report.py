"""What `unhang diagnose` prints: text for people, JSON for programs, annotations for GitHub. Pure: strings only."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from unhang import __version__, gate
from unhang.diagnose import capture, standing, statements, table, whereabouts
from unhang.diagnose.suspects import FAILED, traceback
from unhang.records import Request
from unhang.shapes import catalog
from unhang.suggest import explain
from unhang.tell import terminal
from unhang.tell.console import count
from unhang.tell.report import about, environment_line

if TYPE_CHECKING:
    from unhang.diagnose.answer import Answer
    from unhang.diagnose.diagnosis import Diagnosis
    from unhang.diagnose.evidence import Job
    from unhang.diagnose.facts import Facts
    from unhang.diagnose.signature import Signature
    from unhang.diagnose.standing import Standing
    from unhang.diagnose.table import Table
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
    "works": "next: see in its stack what takes so long: a rank that is in no collective is at work",
    "stands": (
        "next: see in its stack what it waits for, such as a file, a lock or another process: it is in no collective, "
        "and it does not move"
    ),
    "ended": "next: see in its logs whether it has failed: add them, and `unhang diagnose` names who failed first",
    "idle": (
        "next: see the log and the stack of the driver: it has given no further call to the actors of Ray's that are "
        "between two calls, as where their last one has failed"
    ),
    "not-enough": (
        "next: collect more with `unhang diagnose --live` while the job hangs; `unhang diagnose --capture` says what "
        "to set before the next job"
    ),
}
"""What to do about an answer without a fix."""
TABLE = "completed, or completed/enqueued, by rank (* suspect) and group:"
"""How the table of ranks and groups begins."""
_COLOURS = {"known": "32", "possible": "33", "desync": "31", "slow": "36", "not-enough": "2"}
_KINDS = {"known": "error", "possible": "warning", "desync": "warning"}
_NOBODY = "no rank is suspect: the files show none that holds up the others"
_ENDED = "no rank is suspect: all processes that were seen have ended meanwhile"
_NOTHING = (
    "no file tells of a rank: give the recorder's dumps, stacks of py-spy, or the logs of the ranks, as in rank3.log"
)
_NAMELESS = "no file says which rank it tells of: put the rank into its name, as in rank3.txt"
_WIDTH = 100
_FEW, _OPEN = 3, ("never-arrived", "mismatch")
"""How many causes are shown; and those of which more files would say who it is, where nobody is suspect."""
_MOST = 8
"""How many runs of ranks the text shows, and how many files with one fault: a large job would fill the screen."""


class Report(NamedTuple):
    """What is reported of a diagnosis."""

    diagnosis: Diagnosis
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
    return [] if job.size is None else [rank for rank in range(job.size) if rank not in {*job.ranks, *job.spoken}]


def warnings(job: Job) -> list[str]:
    """Return a sentence for each file that could not be read, or whose rank nobody knows; of many alike, for some."""
    files: dict[str, list[str]] = {}
    for item in job.unread:
        files.setdefault(f"{'read in part: ' if item.partly else ''}{item.why}", []).append(item.file)
    if job.unranked:
        where = "into its name, as in rank3.txt, or above what each process says, as in `rank 3:`"
        files[f"it does not say its rank. Put the rank {where}"] = list(job.unranked)
    lines = []
    for why, alike in files.items():
        lines += [f"{file}: {why}" for file in alike[:_MOST]]
        if len(alike) > _MOST:
            lines.append(f"{count(len(alike) - _MOST, 'more file')}, which --output-format json names: {why}")
    return lines


def text(report: Report, *, colour: bool, width: int = 0) -> str:
    """Return the suspects, the table of ranks and groups, and the answers as text, wrapped at the width, unless 0."""
    suspects, job = report.diagnosis.suspects, report.diagnosis.facts.job
    lines = [terminal.wrapped(line, width) for line in _suspects(report.diagnosis)]
    lines += [terminal.wrapped(line, width) for line in _causes(report.diagnosis)]
    lines += [*([""] if lines else []), terminal.wrapped(_read(job), width)]
    if report.environment is not None:
        lines.append(terminal.wrapped(environment_line(report.environment), width))
    lines += _table(table.of(report.diagnosis.facts, suspects.why), suspects.why)
    lines += [terminal.wrapped(line, width) for line in _open(report.diagnosis.open)]
    for answer in report.diagnosis.answers:
        first, *rest = _paragraph(answer, report)
        first, word = terminal.wrapped(first, width), answer.answer
        lines += ["", terminal.painted(first, word, _COLOURS[word]) if colour else first]
        lines += [terminal.wrapped(line, width) for line in rest]
    return "\n".join(lines)


def document(report: Report) -> str:
    """Return the answers as JSON, in the stable form that docs/json.md documents."""
    job, suspects = report.diagnosis.facts.job, report.diagnosis.suspects
    content = {
        "schema": 1,
        "unhang": __version__,
        "suspects": sorted(suspects.why),
        "why": {str(rank): why for rank, why in sorted(suspects.why.items())},
        "processes": processes(job),
        "causes": [one._asdict() for one in report.diagnosis.causes],
        "environment": report.environment and report.environment._asdict(),
        "job": {
            "files": job.files,
            "size": job.size,
            "ranks": sorted(job.ranks),
            "unread": [item._asdict() for item in job.unread],
            "unranked": list(job.unranked),
            "errors": [{"text": one.text, "source": one.source} for one in report.diagnosis.facts.strangers],
        },
        "answers": [_row(answer, report) for answer in report.diagnosis.answers],
        "not-excluded": [
            {"fix": one.fix, "question": one.asks, "setting": one.setting} for one in report.diagnosis.open
        ],
    }
    return gate.document(content)


def github(report: Report) -> str:
    """Return a workflow command for the suspects, each answer and each warning."""
    found, lines = report.diagnosis, []
    if found.suspects.why or found.facts.strangers:
        lines.append(gate.command("error", "\n".join(_suspects(found)), title="unhang suspects"))
    for answer in report.diagnosis.answers:
        title, *rest = _paragraph(answer, report)
        kind = _KINDS.get(answer.answer, "notice")
        lines.append(gate.command(kind, "\n".join(rest), title=f"unhang {title}"))
    lines += [gate.command("warning", line, title="unhang") for line in warnings(report.diagnosis.facts.job)]
    return "\n".join(lines)


def _suspects(found: Diagnosis) -> list[str]:
    """Return a line for each reason, with its ranks, and the tracebacks of the first errors."""
    suspects = found.suspects
    ranks: dict[str, list[int]] = {}
    for rank, why in suspects.why.items():
        ranks.setdefault(why, []).append(rank)
    lines = [
        f"{'each of ' if len(same) > 1 else ''}{who(same)}: {gate.line(why)}"
        for why, same in list(ranks.items())[:_MOST]
    ]
    if left := list(ranks.values())[_MOST:]:
        lines.append(f"and {count(sum(map(len, left)), 'more rank')}, which --output-format json names")
    lines += [f"  {gate.line(line)}" for line in suspects.traceback]
    for rank, (caught, *_) in list(found.facts.caught.items())[:_MOST]:
        lines.append(
            f"rank {rank}: it logged an error, and went on to wait: {gate.line(caught.text)} ({caught.source})"
        )
    if found.facts.strangers:
        first, *rest = found.facts.strangers
        more = f" (and {count(len(rest), 'more error')})" if rest else ""
        lines.append(f"a process of which no file says the rank: it failed by itself: {gate.line(first.text)}{more}")
        lines += [f"  {gate.line(line)}" for line in traceback(first)]
    job = found.facts.job
    blamed = [] if suspects.why else statements.blamed(job.statements)[:_MOST]
    told = [f"{name}: {gate.line(one.words.removeprefix(f'{name}: '))}" for one in blamed for name in one.processes]
    lines += told
    if suspects.why or found.facts.strangers or told or (found.causes and job.ranks.keys() | job.spoken == set()):
        return lines
    nothing = _NAMELESS if job.unranked else _NOTHING
    nobody = _ENDED if found.facts.has_ended else _NOBODY
    return [nobody if job.ranks or job.spoken else nothing, *lines]


def processes(job: Job) -> list[str]:
    """Return the processes that lines blame, of which nobody knows the rank."""
    return [*dict.fromkeys(name for one in statements.blamed(job.statements) for name in one.processes)]


def _causes(found: Diagnosis) -> Iterable[str]:
    """Yield the causes, the best one with what to do."""
    known = {gate.line(why) for why in found.suspects.why.values()}
    for number, one in enumerate(found.causes[:_FEW]):
        why = gate.line(one.why)
        yield f"{'also' if number else 'cause'}: {one.code}{'' if why in known else f': {why}'}"
        if not number:
            yield f"  what to do: {gate.line(one.do)}; more about it: `unhang explain {one.code}`"


def _open(left: Sequence[Signature]) -> Iterable[str]:
    """Yield the fixes that a log does not exclude, with what decides."""
    if left:
        yield ""
        yield "the code here needs these fixes, which this log alone does not exclude:"
    for one in left:
        yield f"  {one.fix}: {one.asks} Only with {one.setting}"


def _table(folded: Table, suspected: Collection[int]) -> list[str]:
    """Return the lines of a table: of each group, what is completed, and of how many that are enqueued."""
    if not folded.rows:
        return []
    columns = ["ranks", *folded.groups]
    rows = [
        [f"{'* ' if set(row.ranks) & set(suspected) else '  '}{span(row.ranks)}", *row.cells] for row in folded.rows
    ]
    widths = [max(len(one[at]) for one in [columns, *rows]) for at in range(len(columns))]
    # a name of a group is longer than its numbers: it stands above them, one name a line
    numbers = [max(len(one[at]) for one in rows) for at in range(len(columns))]
    lines = ["", TABLE]
    if sum(widths) + 2 * len(widths) > _WIDTH:
        lines += [f"  {at}: {gate.line(name)}" for at, name in enumerate(folded.groups, 1)]
        columns = ["ranks", *map(str, range(1, len(columns)))]
        widths = [max(*pair) for pair in zip(numbers, map(len, columns))]
    lines += ["  ".join(cell.ljust(wide) for cell, wide in zip(row, widths)).rstrip() for row in [columns, *rows]]
    if folded.left_out:
        lines.append(f"  and {count(folded.left_out, 'more rank')}")
    return lines


def _read(job: Job) -> str:
    """Return the line that says what was read."""
    known = count(len(job.ranks), "rank") if job.size is None else f"{len(job.ranks)} of {count(job.size, 'rank')}"
    lacks = f"; nothing of {who(gone)}" if (gone := missing(job)) else ""
    lacks += f"; of {who(job.spoken)} only lines that tell of no error and no collective" if job.spoken else ""
    return f"read {count(job.files, 'file')}: {known}{lacks}"


def _paragraph(answer: Answer, report: Report) -> Iterable[str]:
    fix = catalog.fix(answer.fix) if answer.fix else None
    yield f"{answer.answer}: {fix.id} ({fix.grade})" if fix else answer.answer
    if fix:
        yield f"  {fix.title}"
    yield f"  {gate.line(answer.summary)}"
    for place in answer.places:
        yield f"    {who(place.ranks)}: {gate.line(place.doing)}"
        yield from (f"      {gate.line(line)}" for line in place.evidence)
    yield from (f"    {'not shown' if answer.fix else 'missing'}: {gate.line(line)}" for line in answer.missing)
    yield from (f"  {gate.line(line)}" for line in _next(answer, report))


def _next(answer: Answer, report: Report) -> Iterable[str]:
    """Return what to do about an answer."""
    if not answer.fix:
        if report.diagnosis.suspects.rule == FAILED:
            yield "next: begin with the error at the top; the other ranks only wait"
            return
        facts = report.diagnosis.facts
        if facts.job.statements and (report.diagnosis.suspects.why or report.diagnosis.causes[0].code not in _OPEN):
            return  # what to do about the cause stands above, and more files would not change it
        if facts.has_ended and not report.diagnosis.suspects.why:
            yield NEXT["ended"]
            return
        if any(rank.process for rank in facts.job.ranks.values()) and not facts.has_ended:
            yield "next: see why that process is stopped or gone; the other ranks only wait"
            return
        is_over = facts.is_over and answer.answer != "desync"
        yield from capture.before_the_next_run() if is_over else (_after(answer.answer, facts),)
        return
    yield f"more about it: {explain(answer.fix)}"
    stands = report.standings.get(answer.fix, ())
    for place in stands:
        where = f"{place.upstream} {place.version or '(no version)'} in {place.location}"
        why = f" ({place.detail})" if place.detail else ""
        yield f"{place.verdict} on {where}{why}; {place.hint}"
    none = f"there is no {standing.upstreams(answer.fix)} here: " if report.environment is not None else ""
    if answer.answer != "known":
        if not stands:
            yield f"{none}run `unhang check` in the job's environment to see whether its code has the defect"
        return
    if not stands:
        yield f"{none}in the environment of the job, on every node, run: {_cure(answer.fix, report)}"
    yield "then start the job again"


def _after(answer: str, facts: Facts) -> str:
    """Return what to do about an answer without a fix; two stacks of a rank say whether it is at work."""
    free = [facts.job.ranks[number] for number, call in facts.calls.items() if not call]
    if answer == "not-enough" and facts.job.running and facts.unseen:
        how = "with `--live`, or with `--capture` on their nodes; warnings say what has kept a node from it"
        return f"next: take the stacks of {who(facts.unseen)} too, {how}"
    if answer == "slow" and free and all(map(whereabouts.is_idle, free)):
        return NEXT["idle"]
    if answer != "slow" or all(whereabouts.moved(rank) is None for rank in free):
        return NEXT[answer]
    return NEXT["works"] if any(map(whereabouts.is_busy, free)) else NEXT["stands"]


def _row(answer: Answer, report: Report) -> dict[str, Any]:
    stands = report.standings.get(answer.fix, ())
    is_curable = answer.answer == "known" and standing.is_curable(stands)
    return {
        "answer": answer.answer,
        "fix": answer.fix or None,
        **(about(answer.fix) if answer.fix else dict.fromkeys(("grade", "kinds", "changes_numbers"))),
        "summary": answer.summary,
        "places": [place._asdict() for place in answer.places],
        "missing": list(answer.missing),
        "command": _cure(answer.fix, report) if is_curable else None,
        "standings": [place._asdict() for place in stands],
    }


def _cure(fix: str, report: Report) -> str:
    """Return the command that brings a fix into place: here, or in another environment if this one has no target."""
    return standing.cure(fix, report.request if report.standings.get(fix) else Request())


def who(ranks: Collection[int]) -> str:
    """Return ranks as the subject of a sentence."""
    return f"rank{'' if len(ranks) == 1 else 's'} {span(ranks)}"
