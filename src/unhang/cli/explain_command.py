"""``unhang explain WORDS``: a fix and its rows of the matrix, a cause, an error and its cure, or a word of a report."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from unhang import __version__, gate
from unhang.cli import list_command, lookup
from unhang.cli.error_codes import causes, codes, words
from unhang.errors import UnhangError, closest, is_near
from unhang.judge import matrix
from unhang.shapes import catalog
from unhang.tell import console, drawing, instead, matrix_text, osv, terminal

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from unhang.shapes.catalog import Fix

_LOG = "`unhang diagnose FILE` reads a log"
"""What says more than a few words do."""


def run(options: argparse.Namespace) -> int:
    """Run ``unhang explain``: print the page of a fix, a cause, an error code or a word, by its name or by any words.

    Where several answer, print which. Raises UnhangError ``unknown-fix``.
    """
    query = " ".join(options.query)
    is_json = options.output_format == "json"
    if page := _named(query, is_json=is_json):
        print(page)
        return 0
    names = [*catalog.fixes(), *causes(), *codes(), *words()]
    is_one = " " not in query.strip()
    if is_one and (fixes := catalog.with_words([query])):  # a function in a stack
        return _listed(fixes, query, options.output_format)
    found = [] if is_one and ("-" in query or is_near(query, names)) else lookup.find(query)
    if not found:
        near = closest(query, names)
        log = "" if is_one else f", and {_LOG}"
        hint = f"{f'did you mean {near}? ' if near else ''}`unhang list` shows all fixes{log}"
        raise UnhangError("unknown-fix", f"there is no fix, cause, error code or word {query!r}", hint=hint)
    if len(found) == 1:
        print(_named(found[0].name, is_json=is_json))
    elif is_json:
        rows = [{"kind": one.kind, "name": one.name, "title": one.title} for one in found]
        print(gate.document({"schema": 1, "unhang": __version__, "found": rows}))
    else:
        width = terminal.width(sys.stdout)
        for one in found:
            print(terminal.wrapped(f"unhang explain {one.name}\n  {one.kind}: {one.title}", width))
    if not is_json and found[0].kind == "cause":
        console.note(_LOG)
    return 0


def _named(name: str, *, is_json: bool) -> str:
    """Return the page, or its JSON, of the fix, cause, error code or word of this name; empty if there is none."""
    width, word = terminal.width(sys.stdout), name.lower()
    if name.startswith("x_"):  # a scanner's name of a fix
        name = next((fix.id for fix in catalog.fixes().values() if osv.identity(fix) == name), name)
    if name in catalog.fixes():
        found = catalog.fix(name)
        return _document("fix", name, page_of(found, 0)) if is_json else page_of(found, width)
    for kind, known in (("error", codes()), ("cause", causes()), ("word", words())):
        key = next((one for one in (word, word.removesuffix("s")) if one in known), None)
        if key:
            page = error_page(key) if kind == "error" else f"# {key}\n\n{known[key]}"
            return _document(kind, key, page) if is_json else terminal.refilled(page, width or matrix_text.WIDTH)
    return ""


def _listed(found: Sequence[Fix], query: str, output_format: str) -> int:
    """Print the page of the one fix that has a word, or the list of several."""
    if len(found) == 1:
        print(_named(found[0].id, is_json=output_format == "json"))
        return 0
    list_command.show(found, output_format)
    if output_format != "json":
        console.note(f"{len(found)} fixes have {query!r} in their symptom; `unhang explain ID` prints the page of one")
    return 0


def error_page(name: str) -> str:
    """Return the cause and the cure of an error code as Markdown."""
    cause, cure = codes()[name]
    return f"# {name}\n\n## Cause\n\n{cause}\n\n## Cure\n\n{cure}"


def page_of(fix: Fix, width: int) -> str:
    """Return the page of a fix, its drawing, and what the matrix has, of this width; 0 is that of the page itself."""
    releases, table = catalog.releases(), catalog.shape_table()
    rows, droppable = matrix.rows([fix], releases, table), matrix.droppable(fix, releases, table)
    wide = width or matrix_text.WIDTH
    when = "\n".join(terminal.folded(f"It strikes {fix.when}.", wide, "")) if fix.when else ""
    head, mark, rest = catalog.page(fix.id).rstrip().partition("\n## Symptom\n")
    text = f"{head}\n{when}\n{mark}{rest}" if when and mark else f"{head}{mark}{rest}"
    if assumes := fix.manifest.get("assumes"):
        text += f"\n\n## What the rewrite assumes\n{assumes}"
    page = _with_drawing(terminal.refilled(text, width), fix, wide)
    beside = [terminal.refilled(section, wide) for section in (matrix_text.effect(fix), instead.section(fix))]
    run = "`unhang diff --unknown --run` shows what an edited copy of these functions does, as it is and rewritten."
    edited = "" if fix.grade == catalog.UNPROVED else terminal.refilled(run, wide)
    parts = (page, *beside, matrix_text.section(fix, rows, droppable, wide), edited)
    return "\n\n".join(filter(None, parts))


def _with_drawing(page: str, fix: Fix, width: int) -> str:
    """Return a page with the drawing of the fix, if it has one, after its first section: the symptom."""
    shown = drawing.of_fix(fix)
    if not shown:
        return page
    drawn = f"What its proof recorded\n{drawing.text(shown, min(width, drawing.WIDTH))}"
    head, *sections = page.split("\n\n## ")
    return "\n\n## ".join((head, *sections[:1], drawn, *sections[1:]))


def _document(kind: str, name: str, page: str) -> str:
    """Return the JSON of a page: of a ``fix``, a ``cause``, an ``error`` or a ``word``."""
    about = list_command.document(catalog.fix(name)) if kind == "fix" else {}
    return gate.document({"schema": 1, "unhang": __version__, "kind": kind, "name": name, **about, "page": page})
