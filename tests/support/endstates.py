"""The end states of upstream's functions, run as the session does."""

from __future__ import annotations

import json
from typing import Any

from support.checkout import COMPAT
from support.sources import Source as Upstream
from unhang.compat.endstates import sandbox
from unhang.compat.endstates.compare import Row
from unhang.compat.endstates.endstate import Source

ROWS: dict[tuple[str, str, str], dict[str, Any]] = {
    (row.pop("fix"), row.pop("function"), row.pop("shape")): row
    for row in json.loads((COMPAT / "endstates.json").read_bytes())["endstates"]
}


def row(upstream: Upstream, after: Source | None = None, text: str | None = None) -> Row:
    """Run an upstream function, or a changed ``text`` of its file, and our rewrite of it, or another one."""
    name = upstream.target.function
    if after is None and text is None and upstream.known.state == "affected":
        after = Source(upstream.rewritten.data.decode(), name)
    as_written = text is None and upstream.known.note.startswith("pull request")
    return sandbox.run(upstream.target.fix, Source(text or upstream.data.decode(), name), after, as_written)


def row_of(upstream: Upstream) -> Row:
    """Return the row on record."""
    return Row(**ROWS[upstream.target.fix, upstream.target.function, upstream.digest], problems=[])
