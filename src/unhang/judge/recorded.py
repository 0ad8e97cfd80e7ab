"""Whether the codemods of packs are those that gave what is on record. They are read, and never imported."""

from __future__ import annotations

import os
from collections.abc import Iterable

from unhang import packs
from unhang.shapes import catalog


def path(fix: str) -> str:
    """Return the file of a fix's codemod in its pack."""
    above = os.path.join(packs.part(catalog.pack_of(fix), "codemods"), fix.replace("-", "_"))
    return os.path.join(above, "__init__.py") if os.path.isdir(above) else f"{above}.py"


def digest(file: str) -> str:
    """Return the digest of a codemod: that of its code. Raises UnhangError ``bad-pack`` if it is none."""
    from unhang.shapes import shape  # it imports ast

    try:
        return shape.digest(shape.parse(packs.read(file)))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
        why = error.strerror if isinstance(error, OSError) else f"it does not parse: {error}"
        raise packs.bad(file, str(why)) from error


def refuse_edited(fixes: Iterable[str]) -> None:
    """Raise UnhangError ``bad-pack`` where the codemod of a pack's fix is missing, or edited since its results were."""
    for fix in dict.fromkeys(fixes) if packs.others() else ():
        if catalog.pack_of(fix).folder:
            file = path(fix)
            now = digest(file)
            if catalog.facts(fix).get("codemod", now) != now:
                why = (
                    "it was edited since its results were recorded: take that back, or record them with `unhang sweep`"
                )
                raise packs.bad(file, why)
