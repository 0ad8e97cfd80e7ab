"""The codemods of fixes, and whether those of packs are still the ones that produced what is on record."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from unhang.plugins import packs
from unhang.shapes import catalog
from unhang.shapes.catalog import Target

if TYPE_CHECKING:
    from typing import Any, TypeVar

    from unhang.codemods.exact import Exact

    _Entry = TypeVar("_Entry")


def path(fix: str) -> str:
    """Return the file of a fix's codemod in its pack."""
    above = os.path.join(packs.part(catalog.pack_of(fix), "codemods"), fix.replace("-", "_"))
    return os.path.join(above, "__init__.py") if os.path.isdir(above) else f"{above}.py"


def blamed(fix: str) -> packs.Blamed:
    """Return what blames a fix's codemod for an error."""
    return packs.Blamed(catalog.pack_of(fix), path(fix))


def edits(target: Target) -> Exact:
    """Return the edits of a target of an unproved fix."""
    from unhang.codemods.exact import Exact

    return entry(target, Exact)


def entry(target: Target, kind: type[_Entry]) -> _Entry:
    """Return what the module of a fix has for a target, which is of this kind."""
    module = codemods(target.fix)
    with blamed(target.fix):
        every = module.CODEMODS
        found = every[target.place] if target.place in every else every[target.function]
        if not isinstance(found, kind):
            raise TypeError(f"{target.function} has no {kind.__name__}")
    return found


def codemods(fix: str) -> Any:
    """Return the module of a fix's rewrites. Does not import LibCST. Raises UnhangError ``bad-pack`` for another's."""
    import importlib

    with blamed(fix):
        return importlib.import_module(packs.module(catalog.pack_of(fix), "codemods", fix))


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
            why = "it was edited since its results were recorded: undo that, or record them with `unhang pack sweep`"
            raise packs.bad(path(fix), why)


def _plain(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def _code(data: bytes, file: str) -> str:
    from unhang.shapes import shape  # it imports ast

    try:
        return shape.digest(shape.parse(data))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise packs.bad(file, f"it does not parse: {error}") from error
