"""``unhang explain NAME``: the page of a fix and its rows of the matrix, or the cause and the cure of an error."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from unhang.cli import list_command
from unhang.cli.error_codes import codes
from unhang.errors import UnhangError, closest
from unhang.judge import matrix
from unhang.shapes import catalog
from unhang.tell import console, drawing, instead, matrix_text, terminal

if TYPE_CHECKING:
    import argparse

    from unhang.shapes.catalog import Fix


def run(options: argparse.Namespace) -> int:
    """Run ``unhang explain``: print the page of a fix, by its id or words of its symptom, or of an error code.

    Of several with the words, print the list. Raises UnhangError ``unknown-fix``.
    """
    name, fixes = options.name, catalog.fixes()
    if name in codes():
        print(terminal.refilled(error_page(name), terminal.width(sys.stdout) or matrix_text.WIDTH))
        return 0
    found = [fixes[name]] if name in fixes else catalog.with_words(name.split())
    if len(found) > 1:
        list_command.show(found)
        console.note(f"{len(found)} fixes have {name!r} in their symptom; `unhang explain ID` prints the page of one")
        return 0
    if not found:
        near = closest(name, [*fixes, *codes()])
        hint = f"{f'did you mean {near}? ' if near else ''}`unhang list` shows all fixes"
        raise UnhangError("unknown-fix", f"there is no fix and no error code {name!r}", hint=hint)
    explain(found[0])
    return 0


def error_page(name: str) -> str:
    """Return the cause and the cure of an error code as Markdown."""
    cause, cure = codes()[name]
    return f"# {name}\n\n## Cause\n\n{cause}\n\n## Cure\n\n{cure}"


def explain(fix: Fix) -> None:
    """Print the page of a fix, its drawing, and what the matrix has."""
    releases, table = catalog.releases(), catalog.shape_table()
    rows, droppable = matrix.rows([fix], releases, table), matrix.droppable(fix, releases, table)
    width = terminal.width(sys.stdout)
    wide = width or matrix_text.WIDTH
    text = catalog.page(fix.id).rstrip()
    if assumes := fix.manifest.get("assumes"):
        text += f"\n\n## What the rewrite assumes\n{assumes}"
    page = terminal.refilled(text, width)
    if shown := drawing.of_fix(fix):  # after the symptom
        drawn = f"What its proof recorded\n{drawing.text(shown, min(wide, drawing.WIDTH))}"
        head, *rest = page.split("\n\n## ")
        page = "\n\n## ".join((head, *rest[:1], drawn, *rest[1:]))
    beside = [terminal.refilled(section, wide) for section in (matrix_text.effect(fix), instead.section(fix))]
    run = "`unhang diff --unknown --run` shows what an edited copy of these functions does, as it is and rewritten."
    edited = "" if fix.grade == catalog.UNPROVED else terminal.refilled(run, wide)
    print(*filter(None, (page, *beside, matrix_text.section(fix, rows, droppable, wide), edited)), sep="\n\n")
