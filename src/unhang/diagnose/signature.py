"""The signatures of the fixes: the functions in which ranks wait or fail where a fix's defect hangs a job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from unhang.shapes import catalog


class Place(NamedTuple):
    """A function in a file."""

    file: str
    function: str
    """Its qualified name."""


Chain = tuple[tuple[Place, ...], ...]
"""Of each of these tuples, one place must be in a stack. The innermost comes first."""


class Error(NamedTuple):
    """A line of a log that no other defect prints, and where it was raised."""

    text: str
    """A part of the line."""
    frames: Chain
    called: bool = False
    """Whether a library raises it, which the first of these functions calls. Else that function does, or a helper in
    its file."""


class Hang(NamedTuple):
    """One way in which a defect shows: ``compat/schemas/manifest.json`` has the words. What is empty says nothing."""

    summary: str
    """What happens, in a sentence."""
    waits: Chain
    """Where ranks wait."""
    peers: Chain | None
    """Where the others wait, of which one place is enough; they have ended if it is empty. None if it may be
    anywhere else."""
    differ: str
    """What must differ among the ranks: ``size``, ``order`` of sizes, ``empty``, or nothing of these."""
    types: tuple[str, ...]
    """The two types that meet."""
    first: bool
    """Whether it shows the first time that the function runs."""
    few: bool
    """Whether at most half of the ranks wait."""
    errors: tuple[Error, ...]
    shapes: tuple[str, ...]
    """The shapes of the fix's function in which its defect shows so. Empty if it is all of them."""


class Signature(NamedTuple):
    """All hangs of one fix."""

    fix: str
    hangs: tuple[Hang, ...]
    asks: str
    """What decides, where the files leave it open."""
    setting: str
    """What a job must be set to for the defect to show."""


def signatures() -> tuple[Signature, ...]:
    """Return the signatures of all fixes whose defect hangs a job, in alphabetical order."""
    found = []
    for name, fix in catalog.fixes().items():
        data = fix.manifest.get("signature", {})
        if hangs := tuple(map(hang, data.get("hangs", ()))):
            found.append(Signature(name, hangs, data["asks"], data["setting"]))
    return tuple(found)


def hang(data: Mapping[str, Any]) -> Hang:
    """Return a hang as a manifest has it."""
    errors = (Error(one["text"], _chain(one["frames"]), one.get("called", False)) for one in data.get("errors", ()))
    return Hang(
        data["summary"],
        _chain(data.get("waits", ())),
        _chain([data["peers"]] if data["peers"] else []) if "peers" in data else None,
        data.get("differ", ""),
        tuple(data.get("types", ())),
        data.get("first", False),
        data.get("few", False),
        tuple(errors),
        tuple(data.get("shapes", ())),
    )


def _chain(steps: Sequence[Sequence[str]]) -> Chain:
    return tuple(tuple(Place(*place.split("::")) for place in step) for step in steps)
