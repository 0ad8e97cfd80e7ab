"""``unhang list``: the fixes."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from unhang.shapes import catalog
from unhang.tell import terminal

if TYPE_CHECKING:
    import argparse


def run(_options: argparse.Namespace) -> int:
    """Run ``unhang list``: print two lines for each fix, and what the grades mean."""
    width = terminal.width(sys.stdout)
    indent = " " * (4 if 0 < width < terminal.NARROW else 26)
    for fix in catalog.fixes().values():
        affects = ", ".join(f"{upstream} {versions}" for upstream, versions in fix.manifest["affects"].items())
        rows = f"{fix.id:<24}  {fix.title}", f"  {fix.grade:<22}  affects {affects}"
        print("\n".join(line for row in rows for line in terminal.folded(row, width, indent)))
    print(terminal.wrapped(f"\n{catalog.GRADES}", width))
    return 0
