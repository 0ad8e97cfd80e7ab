"""What the scenes show of upstream's functions, and of edits of them."""

from typing import Any

from support import sources
from support.sources import Source as Upstream
from unhang.compat.sweep import trees
from unhang.judge import rows
from unhang.judge.rows import Row, Source

ROWS: dict[tuple[str, str, str], dict[str, Any]] = {
    (row["fix"], row["function"], row["shape"]): row["endstate"] for row in sources._ROWS if "endstate" in row
}


def row(upstream: Upstream, after: Source, text: str) -> Row:
    """Play a changed ``text`` of an upstream function's file, and a rewrite of that, in the function's own tree."""
    name, fix = upstream.target.function, upstream.target.fix
    return rows.run(fix, Source(text, name), after, trees.closest(fix, Source(upstream.data.decode(), name)))


def row_of(upstream: Upstream) -> Row:
    """Return the row on record of an upstream function."""
    return Row(**ROWS[upstream.target.fix, upstream.target.function, upstream.digest], problems=[])
