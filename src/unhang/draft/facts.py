"""What is on record of a pack's fix: its edits tried on releases, or what its scene shows there. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from unhang.codemods.exact import Exact
from unhang.plugins import parameters
from unhang.rewrite import one_file
from unhang.rewrite.one_file import RewriteError
from unhang.shapes import shape
from unhang.shapes.catalog import Target

if TYPE_CHECKING:
    from unhang.survey.classify import State

Edits = Mapping[Target, Exact]


class Tried(NamedTuple):
    """The edits of a fix, tried on one release."""

    shapes: Mapping[Target, tuple[str, str]]
    """The shape of each target before and after."""
    files: Mapping[str, Mapping[str, str]]
    """By the sha256 of each file before and after, the shapes of its targets."""
    misfits: Mapping[Target, str]
    """Where they do not fit, and why."""
    in_place: Mapping[Target, str] = {}
    """The shapes of the targets, if the release has every name bound as the edits have bound it elsewhere."""


def tried(edits: Edits, read: Callable[[str], bytes | None], results: Mapping[Target, Collection[str]] = {}) -> Tried:
    """Return what the edits do to the files of a release. ``results`` are the shapes that they gave elsewhere."""
    names = {name for target in edits for name in target.parameters}
    with parameters.stood_in(names.difference(parameters.of(names))):
        return _tried(edits, read, results)


def _tried(edits: Edits, read: Callable[[str], bytes | None], results: Mapping[Target, Collection[str]]) -> Tried:
    shapes: dict[Target, tuple[str, str]] = {}
    files: dict[str, dict[str, str]] = {}
    misfits: dict[Target, str] = {}
    for file in dict.fromkeys(target.file for target in edits):
        mine = {target: change for target, change in edits.items() if target.file == file}
        data = read(file)
        if data is None:
            misfits.update(dict.fromkeys(mine, "it does not have this file"))
            continue
        before, done = data, {}
        for target, change in mine.items():
            try:
                here = one_file.shape_of(shape.text(data, file)[1], target, change)
                known = change.shapes[1:] if target.text else results.get(target, ())
                data, was, now = one_file.exactly(data, target, change, here if here in known else None)
                done[target] = was, now
            except (RewriteError, ValueError) as error:
                misfits[target] = str(error)
        shapes.update(done)
        if done.keys() == mine.keys():
            written = [] if any(it.parameters for it in mine) else [data]  # its bytes depend on the values
            for index, content in enumerate((before, *written)):
                row = files.setdefault(hashlib.sha256(content).hexdigest(), {})
                row.update({target.function: pair[index] for target, pair in done.items()})
    in_place = {target: now for target, (was, now) in shapes.items() if was == now}
    return Tried(shapes, files, misfits, in_place if in_place.keys() == edits.keys() else {})


def document(targets: Sequence[Target]) -> dict[str, Any]:
    """Return what is on record of a fix that no release was read for."""
    by_upstream: dict[str, list[str]] = {}
    for target in targets:
        by_upstream.setdefault(target.upstream, []).append(target.place)
    empty: dict[str, Any] = {"pulls": {}, "files": {}, "shapes": {}, "releases": {}, "blocks": {}, "kinds": {}}
    return {"schema": 1, "targets": by_upstream, **empty}


def record(known: dict[str, Any], edits: Edits, found: Tried, version: str) -> None:
    """Add to what is on record that the edits fit this release, or that it has them."""
    for target, change in edits.items():
        release = f"{target.upstream} {version}"
        was, now = found.shapes[target]
        if was == now:  # it is as the edits leave it
            continue
        entry = known["shapes"].setdefault(
            f"{target.function} {was}", {"state": "affected", "result": now, "names": sorted(change.uses)}
        )
        _seen(entry, release)
        known["shapes"].setdefault(f"{target.function} {now}", {"state": "ours"})
    known["files"].update(found.files)
    _record_release(known, {target: pair[0] for target, pair in found.shapes.items()}, version)


def record_states(known: dict[str, Any], states: Mapping[Target, tuple[str, State]], version: str) -> None:
    """Add to what is on record the shape of each target in a release, and the state that its scene gives it."""
    for target, (here, state) in states.items():
        entry = known["shapes"].setdefault(f"{target.function} {here}", {})
        entry["state"] = state.state
        _seen(entry, f"{target.upstream} {version}")
        if state.result is not None:
            entry.update(result=state.result, names=list(state.names))
            known["shapes"].setdefault(f"{target.function} {state.result}", {"state": "ours"})
    _record_release(known, {target: here for target, (here, _) in states.items()}, version)


def _seen(entry: dict[str, Any], release: str) -> None:
    """Let the releases that have a shape begin or end with this one, if it is older or newer."""
    order = version_key(release.partition(" ")[2])
    first, last = (version_key(entry.setdefault(key, release).partition(" ")[2]) for key in ("first", "last"))
    entry["first"] = release if order < first else entry["first"]
    entry["last"] = release if order > last else entry["last"]


def _record_release(known: dict[str, Any], shapes: Mapping[Target, str], version: str) -> None:
    """Add the row of a release: the shape of each target of its upstream."""
    for upstream, row in known["targets"].items():
        by_place = {target.place: here for target, here in shapes.items() if target.upstream == upstream}
        if by_place:
            known["releases"][f"{upstream} {version}"] = [by_place.get(it) for it in row]


def record_fixed(known: dict[str, Any], shapes: Mapping[Target, str], version: str) -> None:
    """Add to what is on record that a release binds every name as the edits would."""
    for target, now in shapes.items():
        release = f"{target.upstream} {version}"
        entry = known["shapes"][f"{target.function} {now}"]
        entry.update(state="fixed", first=entry.get("first", release), last=release)
    _record_release(known, shapes, version)


def version_key(text: str) -> Any:
    """Return a key by which versions are ordered; what is none, such as a tag of another kind, comes first."""
    from packaging.version import InvalidVersion, Version

    try:
        return (1, Version(text))
    except InvalidVersion:
        return (0, text)
