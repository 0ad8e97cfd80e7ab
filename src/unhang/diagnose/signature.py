"""The signatures of the fixes: what ranks wait in, and how the others differ, where a fix's defect hangs a job."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

from unhang import packs
from unhang.diagnose.evidence import Frame
from unhang.shapes import catalog

N = TypeVar("N", int, float)
_INSTALLED = re.compile(r"/(?:site|dist)-packages/|/python3\.\d+/")


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
    """The first one, or a helper in its file, raises it."""
    only: bool = False
    """Whether no other defect prints it there."""
    called: bool = False
    """Whether a library raises it, which that calls."""


class Hang(NamedTuple):
    """One way in which a defect shows: ``compat/schemas/manifest.json`` has the words. What is empty says nothing."""

    summary: str
    """What happens, in a sentence."""
    groups: tuple[str, ...]
    operations: tuple[str, ...]
    elements: tuple[int, int] | None
    dtypes: tuple[str, ...]
    first: bool
    step: Chain
    scripts: tuple[str, ...]
    waiting: tuple[int, ...]
    frames: Chain
    differ: tuple[str, ...]
    difference: tuple[int, int] | None
    share: tuple[float, float] | None
    by_place: bool
    by_source: bool
    reordered: bool
    others: Chain
    outside: Chain
    empty: bool
    goes_on: bool
    again: bool
    before: Chain
    met: Chain
    ended: bool
    alternating: bool
    errors: tuple[Error, ...]
    certain: tuple[tuple[str, ...], ...]
    """Clauses that make the fix `known` together, in one or several ways."""
    elsewhere: tuple[str, ...]
    """The shapes on record of the fix's function in which its defect hangs in other ways, and never in this one."""
    open: str
    """What evidence leaves open, where nothing makes it `known`."""


class Signature(NamedTuple):
    """All hangs of one fix."""

    fix: str
    hangs: tuple[Hang, ...]
    asks: str = ""
    """What decides, where a log tells of the operation alone."""
    setting: str = ""
    """What a job must be set to for the defect to show."""


def signatures() -> tuple[Signature, ...]:
    """Return the signatures of all fixes whose defect hangs a job, in alphabetical order."""
    found = []
    for name, fix in catalog.fixes().items():
        data = fix.manifest.get("signature", {})
        rows = data.get("hangs", ())
        shapes = [shape for one in rows for shape in one.get("shapes", ())]
        if hangs := tuple(hang(one, shapes) for one in rows):
            found.append(Signature(name, hangs, data.get("asks", ""), data.get("setting", "")))
    return tuple(found)


def hang(data: Mapping[str, Any], shapes: Sequence[str] = ()) -> Hang:
    """Return a hang as a manifest has it; ``shapes`` are those that the hangs of its fix name."""
    own = data.get("shapes", shapes)
    return Hang(
        data["summary"],
        tuple(data.get("groups", ())),
        tuple(data.get("operations", ())),
        _range(data.get("elements")),
        tuple(data.get("dtypes", ())),
        data.get("first", False),
        _chain(data.get("step", ())),
        tuple(data.get("scripts", ())),
        tuple(data.get("waiting", ())),
        _chain(data.get("frames", ())),
        tuple(data.get("differ", ())),
        _range(data.get("difference")),
        _range(data.get("share")),
        data.get("by-place", False),
        data.get("by-source", False),
        data.get("reordered", False),
        _chain(data.get("others", ())),
        _chain(data.get("outside", ())),
        data.get("empty", False),
        data.get("goes-on", False),
        data.get("again", False),
        _chain(data.get("before", ())),
        _chain(data.get("met", ())),
        data.get("ended", False),
        data.get("alternating", False),
        tuple(
            Error(one["text"], _chain(one.get("frames", ())), one.get("only", False), one.get("called", False))
            for one in data.get("errors", ())
        ),
        tuple(tuple(name.replace("-", "_") for name in names) for names in data.get("certain", ())),
        tuple(one for one in shapes if one not in own),
        data.get("open", ""),
    )


def has_frames(frames: Sequence[Frame], chain: Chain) -> bool:
    """Return whether a stack has one place of each step of a chain."""
    return _has_frames(tuple(frames), chain)


@lru_cache(maxsize=4096)  # the ranks of a job are in few places
def _has_frames(frames: tuple[Frame, ...], chain: Chain) -> bool:
    return all(any(_is_at(frame, place) for frame in frames for place in step) for step in chain)


def may_be_in(frames: Sequence[Frame], chain: Chain) -> bool:
    """Return whether a frame may be in one of these places: the path is the place's own, or the end of it."""
    return any(
        _is_called(frame, place) and f"/{place.file}".endswith("/" + frame.file.rpartition("/")[2])
        for frame in frames
        for step in chain
        for place in step
    )


def may_be_of(frame: Frame, file: str) -> bool:
    """Return whether a frame may be of the package that has a file, or of torch."""
    path, package = f"/{frame.file}".replace("\\", "/"), file.partition("/")[0]
    # py-spy begins a path below a namespace package
    portions = (one.module.rpartition(".")[2] for one in packs.upstreams().values() if one.above == package)
    is_below = path.startswith(tuple(f"/{name}/" for name in portions))
    return is_below or f"/{package}/" in path or "/torch/" in path


def is_of_part(frame: Frame, file: str) -> bool:
    """Return whether a frame is of the part of a package that has a file, such as Megatron's core and not its loop."""
    path, part = f"/{frame.file}".replace("\\", "/"), "/".join([*file.split("/")[:2], ""])
    return f"/{part}" in path or path.startswith(f"/{packs.below_namespace(part)}")


def is_of_user(frame: Frame) -> bool:
    """Return whether a frame is surely of a user's code: of no installed package, and of no framework."""
    if "/" not in frame.file:  # so py-spy names what stands in a folder on the path
        return frame.file.endswith(".py") and frame.file.removesuffix(".py") not in sys.stdlib_module_names
    return frame.file.startswith("/") and not _INSTALLED.search(frame.file) and not is_of_framework(frame)


def is_of_framework(frame: Frame) -> bool:
    """Return whether a frame may be of an upstream's package."""
    return any(may_be_of(frame, one.module.partition(".")[0]) for one in packs.upstreams().values())


def _is_at(frame: Frame, place: Place) -> bool:
    """Return whether a frame is of that function, in that package: a user's module may have the same name.

    Where a folder is no package of its own, py-spy begins a path below it.
    """
    if not _is_called(frame, place):
        return False
    file = frame.file.replace("\\", "/")
    return f"/{file}".endswith(f"/{place.file}") or file == packs.below_namespace(place.file)


def _is_called(frame: Frame, place: Place) -> bool:
    """Return whether a frame has the name of that function; sources leave out classes."""
    if not frame.function.endswith(place.function.rpartition(".")[2]):  # most frames, so first
        return False
    function = f".{frame.function.replace('<locals>.', '')}"
    return function.endswith(f".{place.function}") or f".{place.function}".endswith(function)


def _range(bounds: Sequence[N] | None) -> tuple[N, N] | None:
    return None if bounds is None else (bounds[0], bounds[1])


def _chain(steps: Sequence[Sequence[str]]) -> Chain:
    return tuple(tuple(Place(*place.split("::")) for place in step) for step in steps)
