"""What the page of a fix says of other packages that run code of their own in place of a target. Pure."""

from __future__ import annotations

from unhang.shapes.catalog import Fix

_ABOUT = (
    "These packages run code of their own in place of what this fix is about, and unhang does not rewrite that. "
    "`unhang check` notes it where they are installed; it imports none of them."
)


def section(fix: Fix) -> str:
    """Return the section as Markdown, with the releases in which that code was read; empty if there is none."""
    rows = fix.manifest.get("instead", ())
    lines = [f"- {row['package']} {row['what']} (read in {row['read']})." for row in rows]
    return "\n".join(["## What runs instead", _ABOUT, "", *lines]) if rows else ""
