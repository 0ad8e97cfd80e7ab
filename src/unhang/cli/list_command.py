"""``unhang list``: the fixes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unhang.shapes import catalog

if TYPE_CHECKING:
    import argparse


def run(_options: argparse.Namespace) -> int:
    """Run ``unhang list``: print two lines for each fix."""
    for fix in catalog.fixes().values():
        affects = ", ".join(f"{upstream} {versions}" for upstream, versions in fix.manifest["affects"].items())
        print(f"{fix.id:<25} {fix.title}\n{'':<25} affects {affects}")
    return 0
