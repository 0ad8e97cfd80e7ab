"""The fixes (manifests in patches/) and the compat matrix (data in compat/), each read when it is first needed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from unhang.errors import UnhangError, closest

GRADES = (
    "cure: the defect is shown on the real function, and gone after the rewrite; "
    "safeguard: only its cause is shown, or a stand-in takes the place of what fails"
)
"""How a fix is backed, in one line."""
_CLAUSES = ("differ", "certain")
"""The keys of a signature whose words name its own clauses: no user sees them in a stack or a log."""
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class Target(NamedTuple):
    """One function in one file of one upstream that a fix rewrites."""

    fix: str
    upstream: str
    file: str
    """Relative to the folder on the import path: ``megatron/core/parallel_state.py``."""
    function: str
    """Its qualified name: ``TEGroupedMLP.forward``."""
    depends_on: Target | None = None
    """Another function of the upstream: only beside a wrong shape of it is this one wrong."""


class Fix(NamedTuple):
    """A fix, as users name it."""

    id: str
    title: str
    grade: str
    """``cure`` or ``safeguard``: see ``GRADES``."""
    manifest: Mapping[str, Any]
    """Its manifest.json, with DEP-3 fields as keys."""
    targets: tuple[Target, ...]
    folder: str

    @property
    def functions(self) -> tuple[Target, ...]:
        """The targets, and then the functions that these depend on: what the matrix has shapes of."""
        return (*self.targets, *dict.fromkeys(one.depends_on for one in self.targets if one.depends_on is not None))


class Shape(NamedTuple):
    """What the matrix says about one shape of a fix's target."""

    state: str
    """``affected``, ``fixed`` (by upstream), ``not-affected``, ``ours`` (the result of our rewrite), or ``superseded``
    (the result of an older version of it); of a function that targets depend on, ``right`` or ``wrong``."""
    result: str | None
    """The shape after our rewrite of an affected or superseded one."""
    names: tuple[str, ...]
    """The global names that the rewrite uses."""
    note: str
    """What a user should know, such as a pull request that was applied as written; often empty."""


class Release(NamedTuple):
    """One release in the matrix, with the shape of each of ``Fix.functions`` by ``file::function``; None if absent."""

    version: str
    yanked: bool
    shapes: Mapping[str, str | None]


class ShapeTable(NamedTuple):
    """All shapes on record by fix, function and digest, and the shapes in whole files by sha256 and function."""

    shapes: Mapping[tuple[str, str, str], Shape]
    files: Mapping[str, Mapping[str, str | None]]


class OutlineTable(NamedTuple):
    """The outlines of the shapes on record, packed: see ``unhang.compat.sweep.outlines``."""

    kinds: Mapping[str, str]
    """The kind of each statement, by its digest."""
    blocks: Mapping[str, str]
    """The statements that contain others: their own digest, and the names of the nested ones."""
    rows: Mapping[tuple[str, str], tuple[str, str]]
    """By function and shape: the outline's name, and where upstream had it last (empty if it never had it)."""


@cache
def fixes() -> Mapping[str, Fix]:
    """Return all fixes by id, in alphabetical order."""
    found = {}
    patches = _folder("patches")
    for name in sorted(os.listdir(patches)):
        folder = os.path.join(patches, name)
        path = os.path.join(folder, "manifest.json")
        if not os.path.exists(path):
            continue
        with open(path, encoding="utf-8") as file:
            manifest = json.load(file)
        found[name] = Fix(name, manifest["title"], manifest["grade"], manifest, targets(name, manifest), folder)
    return found


def targets(fix: str, manifest: Mapping[str, Any]) -> tuple[Target, ...]:
    """Return the targets that the manifest of a fix lists."""

    def target(item: Mapping[str, Any]) -> Target:
        other = item.get("depends-on")
        depends_on = other and Target(fix, item["upstream"], other["file"], other["function"])
        return Target(fix, item["upstream"], item["file"], item["function"], depends_on)

    return tuple(map(target, manifest["targets"]))


def fix(name: str) -> Fix:
    """Return the fix with this id. Raises UnhangError ``unknown-fix``, with the nearest id in its hint."""
    known = fixes()
    if name not in known:
        near = closest(name, known)
        hint = f"did you mean {near}? " if near else ""
        raise UnhangError("unknown-fix", f"there is no fix {name!r}", hint=f"{hint}`unhang list` shows all of them")
    return known[name]


def with_words(words: Sequence[str]) -> list[Fix]:
    """Return the fixes whose id, title, symptom or signature has all of these words, in any case, also inside others.

    The symptom is the manifest's and the page's. No words choose all fixes.
    """
    if not words:
        return list(fixes().values())
    lowered = [word.lower() for word in words]
    found = []
    for fix in fixes().values():
        symptom = page(fix.id).partition("## Symptom")[2].partition("\n## ")[0]
        parts = fix.id, fix.title, fix.manifest["symptom"], symptom, *_strings(fix.manifest.get("signature"))
        text = " ".join("\n".join(parts).lower().split())
        if all(word in text for word in lowered):
            found.append(fix)
    return found


def _strings(value: Any) -> Iterator[str]:
    """Return the strings in a value of JSON: what a signature says in words, functions and names of groups."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, dict)):
        items = [value[key] for key in value if key not in _CLAUSES] if isinstance(value, dict) else value
        for item in items:
            yield from _strings(item)


@cache
def shape_table() -> ShapeTable:
    """Return the shapes and the file digests on record."""
    shapes: dict[tuple[str, str, str], Shape] = {}
    for row in _data("shapes.json")["shapes"]:
        fix, function, result = row["fix"], row["function"], row.get("result")
        names = tuple(row.get("names", ()))
        shapes[fix, function, row["shape"]] = Shape(row["state"], result, names, row.get("note", ""))
        if result is not None:
            shapes.setdefault((fix, function, result), Shape("ours", None, (), ""))
    return ShapeTable(shapes, _data("files.json")["files"])


def releases() -> Mapping[str, Mapping[str, Release]]:
    """Return the releases in the matrix, by upstream and version."""
    return {upstream: releases_of(upstream) for upstream in _release_data()}


def releases_of(upstream: str) -> Mapping[str, Release]:
    """Return an upstream's releases by version. The first access reads the data: a known shape needs none of it."""
    return _Releases(upstream)


class _Releases(Mapping[str, Release]):
    def __init__(self, upstream: str) -> None:
        self._upstream = upstream

    def _data(self) -> Mapping[str, Any]:
        data: Mapping[str, Any] = _release_data().get(self._upstream, {"targets": (), "versions": {}})
        return data

    def __getitem__(self, version: str) -> Release:
        data = self._data()
        row = data["versions"][version]
        return Release(version, row.get("yanked", False), dict(zip(data["targets"], row["shapes"])))

    def __iter__(self) -> Iterator[str]:
        return iter(self._data()["versions"])

    def __len__(self) -> int:
        return len(self._data()["versions"])


@cache
def _release_data() -> Mapping[str, Any]:
    data: Mapping[str, Any] = _data("releases.json")["releases"]
    return data


@cache
def outlines() -> OutlineTable:
    """Return the outlines on record. They are read only if a shape is unknown."""
    data = _data("outlines.json")
    rows = {(row["function"], row["shape"]): (row["outline"], row.get("last", "")) for row in data["outlines"]}
    return OutlineTable(data["kinds"], data["blocks"], rows)


def page(name: str) -> str:
    """Return the text that ``unhang explain`` prints. Raises UnhangError ``unknown-fix``."""
    with open(os.path.join(fix(name).folder, "page.md"), encoding="utf-8") as file:
        return file.read()


def generation() -> int:
    """Return the generation of the rewrites: it grows by one whenever the result for a known shape changes."""
    with open(os.path.join(_folder("compat"), "generation.json"), encoding="utf-8") as file:
        number: int = json.load(file)["generation"]
    return number


def _data(name: str) -> Any:
    with open(os.path.join(_folder("compat"), "data", name), encoding="utf-8") as file:
        return json.load(file)


def _folder(name: str) -> str:
    """Return a sub-package's folder without importing it: next to this one in a wheel, elsewhere if editable."""
    beside = os.path.join(_PACKAGE, name)
    if os.path.isdir(beside):
        return beside
    import importlib.util

    spec = importlib.util.find_spec(f"unhang.{name}")
    if spec is None or not spec.submodule_search_locations:  # the wheel always contains all three
        raise UnhangError("broken-install", f"unhang's own folder {name} is missing", hint="reinstall unhang")
    return next(iter(spec.submodule_search_locations))
