"""``unhang list``: the fixes."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from unhang import __version__, gate
from unhang.errors import UnhangError
from unhang.judge import matrix
from unhang.shapes import catalog
from unhang.tell import terminal
from unhang.tell.matrix_text import needed_by
from unhang.tell.report import about

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable
    from typing import Any

    from unhang.shapes.catalog import Fix


def run(options: argparse.Namespace) -> int:
    """Run ``unhang list``: print the fixes, or those with the words. Raises UnhangError ``unknown-fix`` for none."""
    found = catalog.with_words(options.words)
    if not found:
        message = f"no fix has {' '.join(options.words)!r} in its symptom"
        raise UnhangError("unknown-fix", message, hint="`unhang list` shows all of them")
    show(found, options.output_format)
    return 0


def show(fixes: Iterable[Fix], output_format: str) -> None:
    """Print some lines for each fix, and what the grades mean; or the JSON document of all."""
    if output_format == "json":
        rows = [{"fix": fix.id, **document(fix)} for fix in fixes]
        print(gate.document({"schema": 1, "unhang": __version__, "fixes": rows}))
        return
    width = terminal.width(sys.stdout)
    indent = " " * (4 if 0 < width < terminal.NARROW else 26)
    for fix in fixes:
        lines = (
            f"{fix.id:<24}  {fix.title}" + (f" ({fix.pack})" if fix.pack.folder else ""),
            f"  {fix.grade:<22}  {fix.effect}; affects {_needed(fix) or 'no release on record'}",
        )
        print("\n".join(line for text in lines for line in terminal.folded(text, width, indent)))
    print(terminal.wrapped(f"\n{catalog.GRADES}", width))


def document(fix: Fix) -> dict[str, Any]:
    """Return what JSON has of a fix beside its id."""
    manifest = fix.manifest
    return {
        "title": fix.title,
        "when": fix.when or None,
        **about(fix.id),
        "symptom": manifest.get("symptom"),
        "cause": manifest.get("cause"),
        "upstreams": list(dict.fromkeys(target.upstream for target in fix.targets)),
        "affects": _needed(fix),
        "links": [link for key in ("bug", "forwarded") if (link := manifest.get(key)) and link != "no"],
    }


def _needed(fix: Fix) -> str:
    return needed_by(matrix.rows([fix], catalog.releases(), catalog.shape_table()), fix)
