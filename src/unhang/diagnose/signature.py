"""The signatures of the fixes: what ranks wait in, and how the others differ, where a fix's defect hangs a job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from unhang.shapes import catalog


class Place(NamedTuple):
    """A function in a file, of which frames are told."""

    file: str
    function: str
    """Its qualified name."""


Chain = tuple[tuple[Place, ...], ...]
"""Of each of these tuples, one place must be in a stack."""


class Error(NamedTuple):
    """A line of a log, and where it was raised."""

    text: str
    """A part of the line."""
    frames: Chain


class Hang(NamedTuple):
    """One way in which a defect shows: ``compat/schemas/manifest.json`` has the words. What is empty says nothing."""

    summary: str
    """What happens, in a sentence."""
    groups: tuple[str, ...]
    operations: tuple[str, ...]
    elements: tuple[int, int] | None
    dtypes: tuple[str, ...]
    first: bool
    waiting: tuple[int, ...]
    frames: Chain
    differ: tuple[str, ...]
    difference: tuple[int, int] | None
    others: Chain
    outside: Chain
    empty: bool
    circle: bool
    alternating: bool
    errors: tuple[Error, ...]
    certain: tuple[tuple[str, ...], ...]
    """Clauses that make the fix `known` together, in one or several ways."""
    open: str
    """What evidence leaves open, where nothing makes it `known`."""


class Signature(NamedTuple):
    """All hangs of one fix."""

    fix: str
    hangs: tuple[Hang, ...]


def signatures() -> tuple[Signature, ...]:
    """Return the signatures of all fixes whose defect hangs a job, in alphabetical order."""
    found = {name: fix.manifest.get("signature", {}).get("hangs", ()) for name, fix in catalog.fixes().items()}
    return tuple(Signature(name, tuple(map(hang, hangs))) for name, hangs in found.items() if hangs)


def hang(data: Mapping[str, Any]) -> Hang:
    """Return a hang as a manifest has it."""
    return Hang(
        data["summary"],
        tuple(data.get("groups", ())),
        tuple(data.get("operations", ())),
        _range(data.get("elements")),
        tuple(data.get("dtypes", ())),
        data.get("first", False),
        tuple(data.get("waiting", ())),
        _chain(data.get("frames", ())),
        tuple(data.get("differ", ())),
        _range(data.get("difference")),
        _chain(data.get("others", ())),
        _chain(data.get("outside", ())),
        data.get("empty", False),
        data.get("circle", False),
        data.get("alternating", False),
        tuple(Error(one["text"], _chain(one.get("frames", ()))) for one in data.get("errors", ())),
        tuple(map(tuple, data.get("certain", ()))),
        data.get("open", ""),
    )


def _range(bounds: Sequence[int] | None) -> tuple[int, int] | None:
    return None if bounds is None else (bounds[0], bounds[1])


def _chain(steps: Sequence[Sequence[str]]) -> Chain:
    return tuple(tuple(Place(*place.split("::")) for place in step) for step in steps)
