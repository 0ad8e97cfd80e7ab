"""``unhang explain FIX``: its page, and its rows of the matrix."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from unhang.cli import list_command
from unhang.judge import matrix
from unhang.shapes import catalog
from unhang.tell import console, matrix_text, terminal

if TYPE_CHECKING:
    import argparse

    from unhang.shapes.catalog import Fix


def run(options: argparse.Namespace) -> int:
    """Run ``unhang explain``: print the page of the fix with this id, or with these words in its symptom.

    Of several with the words, print the list. Raises UnhangError ``unknown-fix``.
    """
    name = options.fix_id
    found = [] if name in catalog.fixes() else catalog.with_words(name.split())
    if len(found) > 1:
        list_command.show(found)
        console.note(f"{len(found)} fixes have {name!r} in their symptom; `unhang explain ID` prints the page of one")
        return 0
    explain(found[0] if found else catalog.fix(name))
    return 0


def explain(fix: Fix) -> None:
    """Print the page of a fix, and what the matrix has."""
    releases, table = catalog.releases(), catalog.shape_table()
    rows, droppable = matrix.rows([fix], releases, table), matrix.droppable(fix, releases, table)
    width = terminal.width(sys.stdout)
    page = terminal.refilled(catalog.page(fix.id).rstrip(), width)
    print(page, matrix_text.section(fix, rows, droppable, width or matrix_text.WIDTH), sep="\n\n")
