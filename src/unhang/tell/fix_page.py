"""What ``unhang explain`` prints of a fix: what a reader in need must know, or the whole page with its evidence."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from unhang import gate, suggest
from unhang.job import condition
from unhang.judge import matrix
from unhang.plugins import packs
from unhang.shapes import catalog
from unhang.shapes.catalog import Companion, Fix, LeaveOut
from unhang.tell import drawing, instead, matrix_text, terminal

LINES = 25
"""So many lines a short page has at most, at 80 columns."""
FRONT = ("Symptom", "Who is hit", "Danger", "Workaround")
"""The sections with which a page begins. The first paragraph of each is for the short page too."""
_EFFECTS = {"aborts": "aborts", "hangs": "hangs", "worse-values": "gets worse values", "slower": "gets slower"}
_EDITED = (
    "`unhang diff --unknown --run` shows what an edited copy of these functions does, without the fix and with it."
)


def short(fix: Fix, width: int = 0) -> str:
    """Return what is to be known of a fix before it is applied, in at most ``LINES`` lines; 0 is 80 columns.

    Jobs to leave it out of that do not fit are counted. A page without these sections is returned as it is.
    """
    if not catalog.section(fix.id, FRONT[0]):
        return whole(fix, width)
    for number in range(len(fix.leave_out), -1, -1):
        if _short(fix, number, matrix_text.WIDTH).count("\n") < LINES:
            break
    return _short(fix, number, width or matrix_text.WIDTH)


def _short(fix: Fix, number: int, width: int) -> str:
    """Return the short page with the first ``number`` of the jobs to leave the fix out of."""
    symptom, _, danger, workaround = (_first(catalog.section(fix.id, name)) for name in FRONT)
    releases, table = catalog.releases(), catalog.shape_table()
    needed = matrix_text.needed_by(matrix.rows([fix], releases, table), fix)
    later = matrix_text.fixed_in(matrix.droppable(fix, releases, table))
    hit = ". ".join(filter(None, (_sentence(fix.when), needed and f"Needed by {needed}. {_sentence(later)}")))
    rows = {
        "Symptom": symptom,
        "Who is hit": hit and f"{hit}.",
        "Danger": danger or f"{fix.effect}.",
        "Leave it out if": _left_out(fix, number),
        "Needs beside it": "; ".join(map(_beside, fix.companions)) + "." * bool(fix.companions),
        "Workaround": workaround,
        "Grade": f"{fix.grade}{f'; kind: {fix.effect}' if fix.kinds else ''}.",
    }
    lines = [f"# {fix.id}", *terminal.folded(fix.title, width, ""), ""]
    for label, text in rows.items():
        lines += terminal.folded(f"{label}: {text}", width, "  ") if text else []
    return "\n".join([*lines, "", *(f"  {line}  # {why}" for line, why in (*commands(fix), _more(fix)))])


def _left_out(fix: Fix, number: int) -> str:
    """Return a sentence on the jobs to leave a fix out of: the first ``number`` of them, and how many more."""
    if not fix.leave_out:
        return ""
    told = [f"{_said(it)} ({it.effect})" for it in fix.leave_out[:number]]
    more = len(fix.leave_out) - number
    counted = [f"{more} {'other kinds' if told else 'kinds'} of jobs, which -v names"] if more else []
    return f"{'; '.join([*told, *counted])}: `--skip {fix.id}`."


def whole(fix: Fix, width: int = 0) -> str:
    """Return the page of a fix with its drawing, and what manifest and matrix have; 0 is the page's own width."""
    releases, table = catalog.releases(), catalog.shape_table()
    rows, droppable = matrix.rows([fix], releases, table), matrix.droppable(fix, releases, table)
    wide = width or matrix_text.WIDTH
    text = with_facts(fix)
    if assumes := fix.manifest.get("assumes"):
        text += f"\n\n## What the rewrite assumes\n{assumes}"
    page = _with_drawing(terminal.refilled(text, width), fix, wide)
    effect = "" if catalog.section(fix.id, "Danger") else matrix_text.effect(fix)
    beside = [terminal.refilled(section, wide) for section in (effect, instead.section(fix))]
    edited = "" if fix.grade == catalog.UNPROVED else terminal.refilled(_EDITED, wide)
    return "\n\n".join(filter(None, (page, *beside, matrix_text.section(fix, rows, droppable, wide), edited)))


def with_facts(fix: Fix) -> str:
    """Return the page with the commands, and with what its manifest says of whom it strikes and whom it harms."""
    page = catalog.page(fix.id).rstrip()
    when = f"{_sentence(fix.when)}." if fix.when else ""
    harms = [f"- {_harm(it)}" for it in fix.leave_out]
    harms = [f"Leave it out of these jobs, with `--skip {fix.id}`:", *harms] if harms else []
    needs = [f"- {_beside(it)}." for it in fix.companions]
    needs = ["It needs other fixes beside it:", *needs] if needs else []
    page = _begun(page, FRONT[1], when)
    page = _begun(page, "Danger", f"Kind: {fix.effect}." if fix.kinds else "")
    page = _ended(page, "Danger", "\n".join([*harms, *needs]))
    listed = "\n".join(f"- `{line}`: {why}" for line, why in commands(fix))
    return _ended(page, "Workaround", f"\n## Commands\n{listed}", apart=False)


def _begun(page: str, section: str, text: str) -> str:
    """Return a page with a paragraph at the start of a section, if it has that."""
    folded = "\n".join(terminal.folded(text, matrix_text.WIDTH, ""))
    return page.replace(f"\n## {section}\n", f"\n## {section}\n{folded}\n\n", 1) if text else page


def _ended(page: str, section: str, text: str, *, apart: bool = True) -> str:
    """Return a page with a text at the end of a section, if it has that."""
    head, mark, rest = page.partition(f"\n## {section}\n")
    mine, after, others = rest.partition("\n\n## ")
    refilled = terminal.refilled(text, matrix_text.WIDTH)
    gap = "\n\n" if apart else "\n"
    return f"{head}{mark}{mine}{gap}{refilled}{after}{others}" if mark and text else page


def commands(fix: Fix) -> Sequence[tuple[str, str]]:
    """Return the commands that judge and cure, each with what it is for."""
    check, apply = (suggest.line("unhang", name, "--fix", fix.id, *packs.words()) for name in ("check", "apply"))
    return (check, "is it needed here?"), (apply, "on every node; restart the job")


def _more(fix: Fix) -> tuple[str, str]:
    return suggest.line("unhang", "explain", "-v", fix.id, *packs.words()), "cause, evidence, limits"


def _harm(it: LeaveOut) -> str:
    return f"{_said(it)}: the job {_EFFECTS[it.effect]}. {_sentence(gate.line(it.why))}."


def _said(it: LeaveOut) -> str:
    """Return the condition in words; as a pack has written it, if it is none."""
    with suppress(condition.BadConditionError):
        return gate.line(condition.words(it.condition))
    return gate.line(it.condition)


def _beside(it: Companion) -> str:
    return f"{it.fix} ({' '.join(filter(None, (it.upstream, it.releases)))}): {gate.line(it.why)}"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _first(section: str) -> str:
    """Return the first paragraph of a section, on one line."""
    return " ".join(section.partition("\n\n")[0].split())


def _with_drawing(page: str, fix: Fix, width: int) -> str:
    """Return a page with the drawing of the fix, if it has one, before its evidence; else before its last section."""
    shown = drawing.of_fix(fix)
    if not shown:
        return page
    drawn = f"\n\n## What its proof recorded\n{drawing.text(shown, min(width, drawing.WIDTH))}"
    head, mark, rest = page.partition("\n\n## Evidence\n")
    return f"{head}{drawn}{mark}{rest}"
