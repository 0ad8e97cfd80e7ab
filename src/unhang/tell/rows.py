"""The rows of a report for people: what is wrong, when it strikes, and of a drift the lines that differ. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from unhang import gate
from unhang.errors import joined
from unhang.job.strikes import CANNOT, STRIKES, UNKNOWN
from unhang.judge import untouched
from unhang.judge.decide import (
    ACCEPTED,
    APPLIED,
    BY_SHAPE_CHECK,
    DRIFTED,
    FIXED_UPSTREAM,
    NEEDED,
    NO_REWRITE,
    NOT_AFFECTED,
    UNLISTED,
)
from unhang.judge.findings import Finding
from unhang.shapes import catalog
from unhang.suggest import Hint, Line
from unhang.tell import terminal

WOULD_APPLY = "would apply"
"""What the text says of a function that a dry run would rewrite, in place of its verdict."""
REVERTED = "reverted"
"""What the text says of a function that `revert` took back, in place of its verdict."""
MARKS = {
    DRIFTED: "x",
    UNLISTED: "?",
    NEEDED: "!",
    WOULD_APPLY: "+",
    REVERTED: "<",
    APPLIED: "+",
    ACCEPTED: "+",
    FIXED_UPSTREAM: "=",
    NOT_AFFECTED: "-",
}
"""The sign of each word at the start of a row; the word with the most to do first."""
COLOURS = {
    NEEDED: "33",
    APPLIED: "32",
    WOULD_APPLY: "36",
    ACCEPTED: "32",
    FIXED_UPSTREAM: "32",
    DRIFTED: "31",
    UNLISTED: "31",
    NOT_AFFECTED: "2",
    REVERTED: "36",
}
ABOVE = "its row above says why"
"""What stands for the reason where the report has shown it."""
_GROUPS = ("hangs and aborts", "wrong values", "nobody has said what these do")
_STRIKING = (STRIKES, UNKNOWN, CANNOT)
_LEFT, _WIDE = 26, 72  # the columns of a mark and a fix; and the width from which on what is wrong begins in one
_MOST = 3  # so many lines that differ are shown
_STATES = {
    "affected": ", which needs the fix",
    NO_REWRITE: ", which needs the fix",
    "fixed": ", which has upstream's fix",
    "not-affected": ", not affected",
}


def is_settled(finding: Finding) -> bool:
    """Return whether a report may count a finding instead of showing it: nothing is left to do, or to know."""
    is_sure = finding.verdict.code not in (BY_SHAPE_CHECK, ACCEPTED)
    return finding.settled and is_sure and not finding.notes and not finding.left


def is_ruled_out(finding: Finding) -> bool:
    """Return whether a report may count a finding, since the defect cannot strike the job."""
    return not finding.settled and not finding.left and not finding.along


def ordered(findings: Iterable[Finding]) -> list[tuple[str, list[Finding]]]:
    """Return the findings in groups by what the defect does to a job, what strikes it first."""
    groups: dict[str, list[Finding]] = {}
    for finding in sorted(findings, key=lambda it: _STRIKING.index(it.struck.word if it.struck else UNKNOWN)):
        groups.setdefault(_group(finding), []).append(finding)
    return [(name, groups[name]) for name in _GROUPS if name in groups]


def _group(finding: Finding) -> str:
    kinds = catalog.fix(finding.target.fix).kinds
    is_first = not {*kinds}.isdisjoint(("hang", "abort"))
    return _GROUPS[0 if is_first else 1 if kinds else 2]


def row(finding: Finding, word: str, *, verbose: bool = False, colour: bool = False, width: int = 0) -> list[str]:
    """Return the row of a finding: a line, or, at a terminal's ``width``, a paragraph, and a drift as rustc shows one.

    ``word`` is its verdict, or what was done. With ``verbose`` the row names the file and the function.
    """
    if not width:
        return [_line(finding, word, verbose=verbose, colour=colour)]
    fix = catalog.fix(finding.target.fix)
    head = f"{MARKS[word]} {fix.id}"
    kinds = " ".join(filter(None, (", ".join(fix.kinds), f"({fix.grade})")))
    what, when, numbers = _about(finding, word)
    about = "; ".join(filter(None, (what, kinds, when, numbers)))
    lead = f"{head:<{_LEFT}}  " if width >= _WIDE else f"{head}: "
    lines = terminal.folded(f"  {lead}{about}", width, "    ")
    if colour:
        lines[0] = terminal.painted(lines[0], head, COLOURS[word])
    for text in _more(finding, verbose=verbose):
        lines += terminal.folded(f"    = {text}", width, "      ")
    if _is_open(finding) and word != REVERTED:
        lines += _drift(finding, width, colour=colour)
    for note in finding.notes:
        lines += terminal.folded(f"    = note: {gate.line(note)}", width, "      ")
    return lines


def together(findings: Sequence[Finding], *, colour: bool = False, width: int = 0) -> list[str]:
    """Return one row for several fixes that are unlisted for one reason, as what a lock file pins may be."""
    verdict, names = findings[0].verdict, ", ".join(sorted(finding.target.fix for finding in findings))
    helped = f"help: {gate.line(verdict.hint)}" if verdict.hint else ""
    about = f"{len(findings)} fixes: {gate.line(verdict.detail)}"
    if not width:
        line = "  ".join(filter(None, (f"  {UNLISTED:<14}", about, helped, names)))
        return [terminal.painted(line, UNLISTED, COLOURS[UNLISTED]) if colour else line]
    lines = terminal.folded(f"  {MARKS[UNLISTED]} {about}", width, "    ")
    lines[0] = terminal.painted(lines[0], MARKS[UNLISTED], COLOURS[UNLISTED]) if colour else lines[0]
    lines += _help(verdict.hint, "    = help: ", width)
    return lines + terminal.folded(f"    = {names}", width, "      ")


def counted(words: Iterable[str], width: int = 0) -> str:
    """Return how many rows have each word: ``1 drifted, 17 needed``; at a terminal's ``width``, with their marks."""
    counts = Counter(words)
    return ", ".join(
        f"{f'{mark} ' if width else ''}{counts[word]} {word}" for word, mark in MARKS.items() if counts[word]
    )


def folded_away(findings: Sequence[Finding]) -> str:
    """Return one line that counts settled findings, by verdict; empty for none."""
    words = counted(finding.verdict.verdict for finding in findings)
    return f"  {len(findings)} settled: {words} (-v shows each)" if findings else ""


def ruled_out(findings: Sequence[Finding]) -> str:
    """Return one line that counts what cannot strike the job; empty for nothing."""
    words = counted(finding.verdict.verdict for finding in findings)
    return f"  cannot strike this job: {words} (-v shows each, with the setting that decides)" if findings else ""


def struck(finding: Finding) -> str:
    """Return whether the defect strikes the job, and what decides that; empty if nothing is known of a job."""
    if finding.struck is None or finding.settled:
        return ""
    decides = ", ".join(finding.decides)
    if finding.struck.word == STRIKES:
        return f"strikes this job: {decides}"
    if finding.struck.word == CANNOT:
        return f"cannot strike this job: {decides}"
    return f"may strike this job, depending on {decides}" if decides else ""


def warned(finding: Finding, *, verbose: bool = False) -> list[str]:
    """Return what the fix would do to the job, or may, and what it needs beside it, a clause each."""
    if not (finding.verdict.to_rewrite or finding.result or finding.verdict.verdict == APPLIED):
        return []
    if finding.struck is None and not verbose:  # it may be a job of any kind
        lines = [*dict.fromkeys(it.in_short for it in finding.harms)]
    else:
        lines = [it.sentence if it.holds or verbose else it.words for it in finding.harms]
    lines += [f"needs {name} beside it, which --skip leaves out" for name in finding.lacks]
    comes = finding.along and (finding.not_chosen or (finding.cannot_strike and not finding.settled))
    return lines + ([f"comes along: {' and '.join(finding.along)} needs it here"] if comes else [])


def _line(finding: Finding, word: str, *, verbose: bool, colour: bool) -> str:
    """Return the row as one line, for a log: fields with two spaces between them."""
    fix, verdict = catalog.fix(finding.target.fix), finding.verdict
    parts = [
        f"{word:<14}",
        f"{fix.id:<24}",
        f"{fix.grade:<9}",
        f"{', '.join(fix.kinds) or '-':<12}",
        *_joined(*_about(finding, word)),
    ]
    parts += _more(finding, verbose=verbose)
    if _is_open(finding) and word != REVERTED:
        first = verdict.nearest.differs[0] if verdict.nearest else None
        at = first.line if first else finding.seen.line
        parts.append(f"{finding.seen.path}{f':{at}' if at else ''}")
        parts += [verdict.detail, f"help: {verdict.hint}" if verdict.hint else ""]
    parts += [f"note: {note}" for note in finding.notes]
    line = "  ".join(["", *(gate.line(part) for part in parts if part)])
    return terminal.painted(line, word, COLOURS[word]) if colour else line


def _about(finding: Finding, word: str) -> tuple[str, str, str]:
    """Return what is wrong; when it strikes, where something is to do; and of a cure what it changes, and a release."""
    fix = catalog.fix(finding.target.fix)
    is_due = word in (NEEDED, WOULD_APPLY, APPLIED)
    is_cure = is_due and finding.verdict.code != NO_REWRITE
    changes = fix.changes_numbers and fix.grade != catalog.UNPROVED and is_cure
    later = told_later(finding) if is_due else ""
    when = fix.when if word in (NEEDED, DRIFTED, UNLISTED, WOULD_APPLY) and not struck(finding) else ""
    return fix.what, when, joined("changes numbers" if changes else "", later)


def _joined(what: str, when: str, numbers: str) -> list[str]:
    return [what, joined(when, numbers)] if when else [joined(what, numbers)]


def _more(finding: Finding, *, verbose: bool) -> Iterator[str]:
    """Yield what else a row says: where it is, of a link, and details, unless the lines of a drift have them."""
    target, seen = finding.target, finding.seen
    if told := struck(finding):
        yield gate.line(told)
    if verbose:
        yield f"{target.file}  {target.function}"
    yield from map(gate.line, warned(finding, verbose=verbose))
    if finding.replaced:
        yield f"in place of a link to {gate.line(finding.replaced)}"
    elif seen.link and seen.problem is None:
        yield f"a link to {gate.line(seen.link)}"
    if finding.verdict.detail and not _is_open(finding) and (verbose or not is_settled(finding)):
        yield gate.line(finding.verdict.detail)
    if finding.verdict.code == NO_REWRITE:
        yield f"help: {gate.line(finding.verdict.hint)}"


def fixed_in(finding: Finding) -> str | None:
    """Return the first newer release that is right where a fix is needed here, or was; empty if there is none yet.

    None where no fix is needed, or where the release is not on record.
    """
    place, target = finding.installation, finding.target
    if finding.verdict.verdict not in (NEEDED, APPLIED):
        return None
    version = place.version or ""
    if place.pin:
        from unhang.judge.pinned import on_record  # slow, and what judged a pin has imported it

        version = on_record(target.upstream, version)
    return untouched.fixed_in(catalog.fix(target.fix), target.upstream, version)


def told_later(finding: Finding) -> str:
    """Return the same in words; empty where nothing is known."""
    version = fixed_in(finding)
    if version is None:
        return ""
    return f"fixed in {finding.target.upstream} {version}" if version else "no release yet"


def _is_open(finding: Finding) -> bool:
    """Return whether nobody knows what to do with a function."""
    return finding.verdict.verdict in (DRIFTED, UNLISTED) and not finding.settled


def _drift(finding: Finding, width: int, *, colour: bool) -> list[str]:
    """Return where a function differs from the closest known one, why that matters, and what to do."""
    verdict, seen = finding.verdict, finding.seen
    differs = verdict.nearest.differs[:_MOST] if verdict.nearest else ()
    gutter = max((len(str(one.line)) for one in differs), default=1)
    bar = f"    {'':<{gutter}} |"
    at = differs[0].line if differs else seen.line
    place = f"{seen.path}:{at}" if at else seen.path
    lines = [f"    {'':<{gutter}}--> {gate.line(place)}"]
    lines += [bar] * bool(differs)
    for one in differs:
        code = gate.line(one.text)
        if len(code) > width - len(bar) - 1:
            code = f"{code[: width - len(bar) - 4]}..."
        is_gone = one.how == "missing"  # nearest.MISSING: that module is slow to import
        what = f"a statement is missing before this one ({one.kind})" if is_gone else one.how
        what += " into or out of another statement" if one.how == "moved" else ""
        caret = "^" * (1 if is_gone else len(code))
        beside = f"{bar} {caret} {what}"
        below = (
            [beside]
            if len(beside) <= width
            else [f"{bar} {caret}", *terminal.folded(f"{bar} {what}", width, f"{bar} ")]
        )
        lines.append(f"    {one.line:<{gutter}} | {code}")
        lines += [terminal.painted(below[0], caret, "31") if colour else below[0], *below[1:]]
    if verdict.nearest is not None and (rest := len(verdict.nearest.differs) - len(differs)):
        lines.append(f"{bar} and {rest} more")
    indent = f"    {'':<{gutter}}   "
    texts = [f"{finding.target.function}: {verdict.reason}"]
    if verdict.nearest is not None:
        known = verdict.nearest
        texts.append(f"closest known: {known.where}{_STATES.get(known.state, '')}")
    for text in texts:
        lines += terminal.folded(f"    {'':<{gutter}} = {gate.line(text)}", width, indent)
    return lines + _help(verdict.hint, f"    {'':<{gutter}} = help: ", width)


def _help(hint: str, lead: str, width: int) -> list[str]:
    """Return what to do, with each command on a line of its own."""
    lines: list[str] = []
    indent = " " * len(lead)
    for part in hint.parts if isinstance(hint, Hint) else filter(None, (hint,)):
        if isinstance(part, Line):
            lines += [f"{indent}{gate.line(part)}"] if lines else [lead.rstrip(), f"{indent}{gate.line(part)}"]
        else:
            lines += terminal.folded(f"{indent if lines else lead}{gate.line(str(part)).strip(' ;,')}", width, indent)
    return lines
