"""``unhang explain FIX``: its page, and its rows of the matrix."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from unhang.judge import matrix
from unhang.shapes import catalog
from unhang.tell import matrix_text, terminal

if TYPE_CHECKING:
    import argparse


def run(options: argparse.Namespace) -> int:
    """Run ``unhang explain``: print the page, and what the matrix has. Raises UnhangError ``unknown-fix``."""
    fix, releases, table = catalog.fix(options.fix_id), catalog.releases(), catalog.shape_table()
    rows, droppable = matrix.rows([fix], releases, table), matrix.droppable(fix, releases, table)
    width = terminal.width(sys.stdout)
    page = terminal.refilled(catalog.page(fix.id).rstrip(), width)
    print(page, matrix_text.section(fix, rows, droppable, width or matrix_text.WIDTH), sep="\n\n")
    return 0
