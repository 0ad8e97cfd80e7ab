"""``unhang explain NAME``: a fix and its rows of the matrix, the cause and cure of an error, or a word of a report."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from unhang import __version__, gate
from unhang.cli import list_command
from unhang.cli.error_codes import codes, words
from unhang.errors import UnhangError, closest
from unhang.judge import matrix
from unhang.shapes import catalog
from unhang.tell import console, drawing, instead, matrix_text, terminal

if TYPE_CHECKING:
    import argparse

    from unhang.shapes.catalog import Fix


def run(options: argparse.Namespace) -> int:
    """Run ``unhang explain``: print the page of a fix, by its id or words of its symptom, of an error code or a word.

    Of several with the words, print the list. Raises UnhangError ``unknown-fix``.
    """
    name, fixes = options.name, catalog.fixes()
    is_json = options.output_format == "json"
    width = terminal.width(sys.stdout)
    word = name.lower()
    if name not in fixes and (word in codes() or word in words()):
        page = error_page(word) if word in codes() else f"# {word}\n\n{words()[word]}"
        kind = "error" if word in codes() else "word"
        print(_document(kind, word, page) if is_json else terminal.refilled(page, width or matrix_text.WIDTH))
        return 0
    found = [fixes[name]] if name in fixes else catalog.with_words(name.split())
    if not found:
        near = closest(name, [*fixes, *codes(), *words()])
        log = ", and `unhang diagnose FILE` reads a log" if " " in name else ""
        hint = f"{f'did you mean {near}? ' if near else ''}`unhang list` shows all fixes{log}"
        raise UnhangError("unknown-fix", f"there is no fix, error code or word {name!r}", hint=hint)
    if len(found) > 1:
        list_command.show(found, options.output_format)
        if not is_json:
            console.note(
                f"{len(found)} fixes have {name!r} in their symptom; `unhang explain ID` prints the page of one"
            )
        return 0
    print(_document("fix", found[0].id, page_of(found[0], 0)) if is_json else page_of(found[0], width))
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
    """Return the JSON of a page: of a ``fix``, an ``error`` or a ``word``."""
    about = list_command.document(catalog.fix(name)) if kind == "fix" else {}
    return gate.document({"schema": 1, "unhang": __version__, "kind": kind, "name": name, **about, "page": page})
