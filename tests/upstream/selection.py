"""Which test files run on a tree, and in which environment: reads releases.json and the data beside each fix."""

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from packaging.specifiers import SpecifierSet

from unhang.errors import UnhangError

HERE = Path(__file__).parent
PATCHES = HERE.parents[1] / "patches"
SCHEMA = 1


class Chosen(NamedTuple):
    """A test file."""

    file: str
    covers: tuple[str, ...]
    """The fixes whose rewritten functions it calls, also indirectly; empty where it covers none."""


class Selection(NamedTuple):
    """The test files to run on a tree."""

    files: tuple[Chosen, ...]
    absent: tuple[str, ...]
    """Patterns of the data that match no file of this tree."""
    disputed: Mapping[str, str]
    """Why the assertions of tests are wrong, by the start of their ids."""
    notes: Mapping[str, str]
    """Why tests fail on both sides, by the start of their ids."""
    ranks: int = 1
    """On how many ranks these files reach the most of what they cover."""


def upstream(name: str) -> dict[str, Any]:
    """Return an upstream's entry in releases.json. Raises UnhangError ``unknown-upstream``."""
    known: dict[str, dict[str, Any]] = _read(HERE / "releases.json")["upstreams"]
    if name not in known:
        raise UnhangError("unknown-upstream", f"there is no upstream {name!r}", hint=f"one of {', '.join(known)}")
    return known[name]


def environment(about: Mapping[str, Any], version: str) -> dict[str, Any]:
    """Return the environment of a version; that of ``main`` where the data lists none."""
    for entry in about["environments"]:
        if _within(version, entry["versions"]):
            return dict(entry)
    return dict(about["main"])


def select(name: str, version: str, tree: Path, fixes: Collection[str], patches: Path = PATCHES) -> Selection:
    """Return the test files for these fixes in a tree, those that cover a rewrite first.

    Raises UnhangError ``no-tests`` where the data lists none.
    """
    found: dict[str, Chosen] = {}
    absent: list[str] = []
    disputed: dict[str, str] = {}
    notes: dict[str, str] = {}
    ranks = [1]
    for fix in sorted(fixes):
        path = patches / fix / "upstream_tests.json"
        data = _read(path) if path.exists() else {}
        for entry in _of(data.get("tests", ()), name, version):
            ranks.append(entry["ranks"])
            for pattern in entry["files"]:
                matched = sorted(str(one.relative_to(tree)) for one in tree.glob(pattern))
                absent += [] if matched else [pattern]
                for file in matched:
                    covers = found[file].covers if file in found else ()
                    new = (fix,) if entry["covers"] and fix not in covers else ()
                    found[file] = Chosen(file, (*covers, *new))
        disputed |= {entry["test"]: entry["reason"] for entry in _of(data.get("disputed", ()), name, version)}
        notes |= {entry["test"]: entry["reason"] for entry in _of(data.get("notes", ()), name, version)}
    if not found:
        hint = f"add {name} {version} to patches/*/upstream_tests.json, or give --all"
        raise UnhangError("no-tests", f"no test file is listed for {', '.join(sorted(fixes))}", hint=hint)
    files = sorted(found.values(), key=lambda one: (not one.covers, one.file))
    return Selection(tuple(files), tuple(sorted({*absent})), disputed, notes, max(ranks))


def every(patterns: Sequence[str], tree: Path, chosen: Selection | None) -> Selection:
    """Return all test files of a tree, with the data of ``chosen``. Raises UnhangError ``no-tests``."""
    known = {one.file: one for one in chosen.files} if chosen else {}
    files = sorted({str(one.relative_to(tree)) for pattern in patterns for one in tree.glob(pattern)} | {*known})
    if not files:
        raise UnhangError("no-tests", f"no file matches {', '.join(patterns)}", path=str(tree))
    rows = tuple(known.get(file, Chosen(file, ())) for file in files)
    return chosen._replace(files=rows, absent=()) if chosen else Selection(rows, (), {}, {})


def _of(entries: Sequence[Mapping[str, Any]], name: str, version: str) -> list[Mapping[str, Any]]:
    return [entry for entry in entries if entry["upstream"] == name and _within(version, entry["versions"])]


def _within(version: str, versions: str) -> bool:
    return SpecifierSet(versions).contains(version, prereleases=True)


def _read(path: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if data["schema"] != SCHEMA:
        raise UnhangError("wrong-schema", f"schema {data['schema']} is not {SCHEMA}", path=str(path))
    return data
