"""The files of the matrix and the manifests, as data, and which keys they have. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple


class Problem(NamedTuple):
    """One thing that does not hold."""

    file: str
    entry: str
    message: str
    """What is wrong, and what to do."""


class Data(NamedTuple):
    """The parsed files: manifests by folder name, the others as they stand."""

    manifests: Mapping[str, Mapping[str, Any]]
    shapes: Sequence[Mapping[str, Any]]
    files: Mapping[str, Mapping[str, str | None]]
    releases: Mapping[str, Mapping[str, Any]]
    outlines: Sequence[Mapping[str, Any]]
    wheels: Mapping[str, Sequence[Mapping[str, Any]]]
    upstreams: Mapping[str, Mapping[str, Any]]
    pulls: Sequence[Mapping[str, Any]]
    decisions: Sequence[Mapping[str, Any]]
    superseded: Sequence[Mapping[str, Any]]


_PLACED = {"fix", "function", "shape", "state", "result", "names", "first", "last", "note"}
_MANIFEST = {
    *("id", "title", "symptom", "cause", "licence", "affects", "fixed-in", "targets", "collectives"),
    *("description", "origin", "bug", "forwarded", "applied-upstream", "last-update"),  # of DEP-3
}
_UPSTREAM = {"distribution", "repository", "refs", "tips", "floor", "version-file", "tree-tags"}
SHAPES, RELEASES = "compat/data/shapes.json", "compat/data/releases.json"
WHEELS, UPSTREAMS = "compat/wheels.json", "compat/upstreams.json"
DECISIONS, SUPERSEDED = "compat/decisions.json", "compat/superseded.json"


# The keys of a whole file besides `schema`; a manifest has none.
WHOLE = {
    **{name: {name} for name in ("shapes", "files", "releases", "wheels", "decisions", "superseded")},
    "outlines": {"kinds", "blocks", "outlines"},
    "upstreams": {"upstreams", "as-written"},
    "generation": {"generation"},
}


def whole(file: str, name: str, told: Mapping[str, Any]) -> Iterator[Problem]:
    """What is wrong with the keys of a whole file of this name, such as ``shapes``."""
    yield from _keys(file, "the file", told, {"schema", *WHOLE[name]}, {"schema", *WHOLE[name]})
    if told.get("schema") != 1:
        yield Problem(file, "schema", f"is {told.get('schema')}, and this reads 1")


def keys(data: Data) -> Iterator[Problem]:
    """Keys that nothing reads, and those that are missing."""
    manifest = {"upstream", "file", "function"}
    for fix, told in data.manifests.items():
        yield from _keys(f"patches/{fix}/manifest.json", fix, told, _MANIFEST, _MANIFEST)
        for target in told.get("targets", ()):
            yield from _keys(f"patches/{fix}/manifest.json", "targets", target, manifest, manifest)
    for row in data.shapes:
        yield from _keys(SHAPES, of_row(row), row, _PLACED, {"fix", "function", "shape", "state"})
    outline = {"function", "shape", "outline", "last"}
    for row in data.outlines:
        yield from _keys("compat/data/outlines.json", of_row(row), row, outline, outline - {"last"})
    for upstream, told in data.releases.items():
        yield from _keys(RELEASES, upstream, told, {"targets", "versions"}, {"targets", "versions"})
        for version, release in told.get("versions", {}).items():
            where = f"{upstream} {version}"
            yield from _keys(RELEASES, where, release, {"shapes", "yanked"}, {"shapes"})
    wheel = {"version", "file", "sha256", "python", "yanked"}
    for project, rows in data.wheels.items():
        for row in rows:
            yield from _keys(WHEELS, f"{project} {row.get('version')}", row, wheel, wheel)
    for name, about in data.upstreams.items():
        yield from _keys(UPSTREAMS, name, about, _UPSTREAM, _UPSTREAM - {"tips", "tree-tags"})
    pull = {"fix", "upstream", "ref", "file", "function", "note"}
    for row in data.pulls:
        yield from _keys(UPSTREAMS, str(row.get("ref")), row, pull, pull)
    for row in data.decisions:
        wanted = {"fix", "shape", "state", "why"}
        yield from _keys(DECISIONS, str(row.get("shape")), row, wanted, wanted)
    for row in data.superseded:
        wanted = {"fix", "function", "shape", "pristine"}
        yield from _keys(SUPERSEDED, str(row.get("shape")), row, wanted, wanted)


def _keys(file: str, entry: str, told: Mapping[str, Any], allowed: set[str], wanted: set[str]) -> Iterator[Problem]:
    for key in sorted(set(told) - allowed):
        yield Problem(file, entry, f"{key!r} is a key that nothing reads; take it out, or correct it")
    for key in sorted(wanted - set(told)):
        yield Problem(file, entry, f"{key!r} is missing")


def of_row(row: Mapping[str, Any]) -> str:
    """A row of shapes.json, or of a pull request, as a problem names it: fix, function, and shape or ref."""
    return f"{row.get('fix')} {row.get('function')} {row.get('shape') or row.get('ref')}"
