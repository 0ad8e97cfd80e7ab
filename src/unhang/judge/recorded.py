"""Whether the codemods of packs are those that gave what is on record. They are read, and never imported."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable

from unhang import packs
from unhang.shapes import catalog


def path(fix: str) -> str:
    """Return the file of a fix's codemod in its pack."""
    above = os.path.join(packs.part(catalog.pack_of(fix), "codemods"), fix.replace("-", "_"))
    return os.path.join(above, "__init__.py") if os.path.isdir(above) else f"{above}.py"


def blamed(fix: str) -> packs.Blamed:
    """Return what blames a fix's codemod for an error."""
    return packs.Blamed(catalog.pack_of(fix), path(fix))


def digests(data: bytes, file: str) -> str:
    """Return what is on record of a codemod: the digests of its bytes, and of its code, however that is laid out.

    Raises UnhangError ``bad-pack`` if it does not parse.
    """
    return f"{_plain(data)} {_code(data, file)}"


def is_edited(fix: str, known: str | None) -> bool:
    """Return whether the codemod of a fix is another than the ``known`` one. Raises UnhangError ``bad-pack``."""
    file = path(fix)
    with blamed(fix):
        data = packs.read(file)
    plain, _, code = (known or _plain(data)).partition(" ")
    return plain != _plain(data) and code != _code(data, file)


def refuse_edited(fixes: Iterable[str]) -> None:
    """Raise UnhangError ``bad-pack`` where the codemod of a pack's fix is missing, or edited since its results were."""
    for fix in dict.fromkeys(fixes) if packs.others() else ():
        if catalog.pack_of(fix).folder and is_edited(fix, catalog.facts(fix).get("codemod")):
            why = "it was edited since its results were recorded: undo that, or record them with `unhang sweep`"
            raise packs.bad(path(fix), why)


def _plain(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def _code(data: bytes, file: str) -> str:
    from unhang.shapes import shape  # it imports ast

    try:
        return shape.digest(shape.parse(data))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise packs.bad(file, f"it does not parse: {error}") from error
