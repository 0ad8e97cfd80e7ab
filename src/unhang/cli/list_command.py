"""``unhang list``: the fixes."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from unhang.errors import UnhangError
from unhang.judge import matrix
from unhang.shapes import catalog
from unhang.tell import terminal
from unhang.tell.matrix_text import needed_by

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable

    from unhang.shapes.catalog import Fix


def run(options: argparse.Namespace) -> int:
    """Run ``unhang list``: print the fixes, or those with the words. Raises UnhangError ``unknown-fix`` for none."""
    found = catalog.with_words(options.words)
    if not found:
        message = f"no fix has {' '.join(options.words)!r} in its symptom"
        raise UnhangError("unknown-fix", message, hint="`unhang list` shows all of them")
    show(found)
    return 0


def show(fixes: Iterable[Fix]) -> None:
    """Print two lines for each fix, and what the grades mean."""
    width = terminal.width(sys.stdout)
    indent = " " * (4 if 0 < width < terminal.NARROW else 26)
    for fix in fixes:
        needed = needed_by(matrix.rows([fix], catalog.releases(), catalog.shape_table()), fix)
        rows = (
            f"{fix.id:<24}  {fix.title}" + (f" ({fix.pack})" if fix.pack.folder else ""),
            f"  {fix.grade:<22}  {fix.effect}; affects {needed or 'no release on record'}",
        )
        print("\n".join(line for row in rows for line in terminal.folded(row, width, indent)))
    print(terminal.wrapped(f"\n{catalog.GRADES}", width))
