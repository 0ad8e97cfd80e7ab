"""What must hold in the matrix and the manifests, beyond what the JSON Schemas check. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from unhang.compat.upstreams import of_project
from unhang.judge.decide import RIGHT
from unhang.shapes import catalog
from unhang.shapes.catalog import Fix, Target


class Problem(NamedTuple):
    """One thing that is wrong."""

    file: str
    entry: str
    message: str
    """What is wrong, and what to do."""


class Data(NamedTuple):
    """The parsed files, which satisfy their schemas: manifests by folder name, else the rows of each file."""

    manifests: Mapping[str, Mapping[str, Any]]
    shapes: Sequence[Mapping[str, Any]]
    files: Mapping[str, Mapping[str, str | None]]
    releases: Mapping[str, Mapping[str, Any]]
    outlines: Sequence[Mapping[str, Any]]
    wheels: Mapping[str, Sequence[Mapping[str, Any]]]
    upstreams: Mapping[str, Mapping[str, Any]]
    decisions: Sequence[Mapping[str, Any]]
    superseded: Sequence[Mapping[str, Any]]


GENERATED = ("shapes", "files", "releases", "outlines")
SHAPES, RELEASES, WHEELS = "compat/data/shapes.json", "compat/data/releases.json", "compat/wheels.json"
_SWEEP = "run nox -s sweep"


def twice(data: Data) -> Iterator[Problem]:
    """Yield rows that contradict each other."""
    results = {(row["fix"], row["function"], row.get("result")) for row in data.shapes}
    counts = Counter((row["fix"], row["function"], row["shape"]) for row in data.shapes)
    for (fix, function, shape), count in counts.items():
        where = f"{fix} {function} {shape}"
        if count > 1:
            yield Problem(SHAPES, where, f"is listed {count} times; {_SWEEP}")
    for row in data.shapes:
        # a rewrite may be upstream's own fix, word for word
        if row["state"] != "fixed" and (row["fix"], row["function"], row["shape"]) in results:
            message = f"is {row['state']}, but the result of our rewrite; correct the codemod or the decision"
            yield Problem(SHAPES, f"{row['fix']} {row['function']} {row['shape']}", message)
    for (fix, shape), count in Counter((row["fix"], row["shape"]) for row in data.decisions).items():
        if count > 1:
            yield Problem("compat/decisions.json", f"{fix} {shape}", f"is decided {count} times; keep one")
    for fix, manifest in data.manifests.items():
        for upstream, version in manifest["fixed-in"].items():
            affects = _specifier(manifest["affects"].get(upstream, "<0"))
            if version is not None and affects is not None and affects.contains(version, prereleases=True):
                message = f"`affects` and `fixed-in` both cover {upstream} {version}; correct one"
                yield Problem(_manifest(fix), upstream, message)


def dangling(data: Data) -> Iterator[Problem]:
    """Yield names of a fix, function, shape or upstream that does not exist, and targets without a shape."""
    targets = {(fix, one.function) for fix, manifest in data.manifests.items() for one in _functions(fix, manifest)}
    for row in data.shapes:
        if (row["fix"], row["function"]) not in targets:
            yield Problem(SHAPES, _name(row), "no manifest has this target; delete it")
    for fix, manifest in data.manifests.items():
        places = {(target["file"], target["function"]) for target in manifest["targets"]}
        for row in manifest.get("as-written", ()):
            if (row["file"], row["function"]) not in places:
                yield Problem(_manifest(fix), row["ref"], "changes no target of the fix; correct it")
    for fix, function in sorted(targets - {(row["fix"], row["function"]) for row in data.shapes}):
        yield Problem(_manifest(fix), function, f"has no shape on record; {_SWEEP} -- --fix {fix}")
    states = {(row["fix"], row["shape"]): row["state"] for row in data.shapes}
    for row in data.decisions:
        if states.get((row["fix"], row["shape"])) != row["state"]:
            message = f"decides no shape on record; delete it, or {_SWEEP}"
            yield Problem("compat/decisions.json", f"{row['fix']} {row['shape']}", message)
    pristine = {(row["fix"], row["function"], row["shape"]) for row in data.shapes if row["state"] == "affected"}
    for row in data.superseded:
        if (row["fix"], row["function"], row["pristine"]) not in pristine:
            message = f"{row['pristine']} is no affected shape on record"
            yield Problem("compat/superseded.json", row["shape"], message)
    known = {upstream for project in data.upstreams for upstream in of_project(project)}
    for fix, manifest in data.manifests.items():
        if fix != manifest["id"]:
            yield Problem(_manifest(fix), "id", f"is {manifest['id']}, but the folder is {fix}")
        named = {target["upstream"] for target in manifest["targets"]} | {*manifest["affects"], *manifest["fixed-in"]}
        for upstream in sorted(named - known):
            yield Problem(_manifest(fix), upstream, "is not an upstream in compat/upstreams.json")
    for upstream in sorted({*data.releases} - known):
        yield Problem(RELEASES, upstream, "is not an upstream in compat/upstreams.json")


def specifiers(data: Data) -> Iterator[Problem]:
    """Yield specifiers and versions that do not parse."""
    for fix, manifest in data.manifests.items():
        for upstream, text in manifest["affects"].items():
            if _specifier(text) is None:
                yield Problem(_manifest(fix), f"affects {upstream}", f"{text!r} is no PEP 440 specifier")
        for upstream, text in manifest["fixed-in"].items():
            if text is not None and _version(text) is None:
                yield Problem(_manifest(fix), f"fixed-in {upstream}", f"{text!r} is no version")
    for name, entry in data.upstreams.items():
        if _version(entry["floor"]) is None:
            yield Problem("compat/upstreams.json", f"{name} floor", f"{entry['floor']!r} is no version")
    for upstream, entry in data.releases.items():
        for version in entry["versions"]:
            if _version(version) is None:
                yield Problem(RELEASES, f"{upstream} {version}", "is no PEP 440 version")


def verdicts(data: Data) -> Iterator[Problem]:
    """Yield releases whose targets are wrong, or whose shapes have no verdict."""
    known = {(row["function"], row["shape"]) for row in data.shapes}
    targets: dict[str, dict[str, None]] = {}  # several fixes may have the same one
    for fix, manifest in sorted(data.manifests.items()):
        for one in _functions(fix, manifest):
            targets.setdefault(one.upstream, {})[f"{one.file}::{one.function}"] = None
    for upstream, entry in data.releases.items():
        if entry["targets"] != [*targets.get(upstream, ())]:
            yield Problem(RELEASES, upstream, f"its targets are not those of the manifests; {_SWEEP}")
        for version, release in entry["versions"].items():
            if len(release["shapes"]) != len(entry["targets"]):
                yield Problem(RELEASES, f"{upstream} {version}", f"does not have one shape for each target; {_SWEEP}")
            for name, shape in zip(entry["targets"], release["shapes"]):
                if shape is not None and (name.partition("::")[2], shape) not in known:
                    message = f"{name} has shape {shape}, which has no verdict; {_SWEEP}"
                    yield Problem(RELEASES, f"{upstream} {version}", message)


def digests(data: Data) -> Iterator[Problem]:
    """Yield files with a shape that is not on record, shapes without an outline, and outlines without a shape."""
    every = {(row["function"], row["shape"]) for row in data.shapes}
    every |= {(row["function"], row["result"]) for row in data.shapes if "result" in row}
    for digest, shapes in data.files.items():
        for function, shape in shapes.items():
            if shape is not None and (function, shape) not in every:
                yield Problem("compat/data/files.json", digest[:16], f"{function} {shape} is not on record; {_SWEEP}")
    outlined = {(row["function"], row["shape"]) for row in data.outlines}
    older = {(row["function"], row["shape"]) for row in data.shapes if row["state"] == "superseded"}
    for function, shape in sorted(outlined ^ (every - older)):
        message = "has no outline" if (function, shape) in every else "is not on record"
        yield Problem("compat/data/outlines.json", f"{function} {shape}", f"{message}; {_SWEEP}")


def pins(data: Data) -> Iterator[Problem]:
    """Yield releases without a pinned wheel, and pinned wheels without a release."""
    for project, rows in data.wheels.items():
        pinned = {row["version"] for row in rows}
        if len(pinned) != len(rows):
            yield Problem(WHEELS, project, "pins two wheels of one version; keep one")
        listed = {*data.releases.get(project, {}).get("versions", ())}
        for version in sorted(pinned ^ listed):
            file = RELEASES if version in pinned else WHEELS
            yield Problem(file, f"{project} {version}", f"is missing; {_SWEEP}")


def claims(data: Data) -> Iterator[Problem]:
    """Yield versions in a manifest that contradict the shapes of a release."""
    states = {(row["fix"], row["function"], row["shape"]): row["state"] for row in data.shapes}
    for fix, manifest in data.manifests.items():
        for upstream, entry in data.releases.items():
            mine = [target for target in catalog.targets(fix, manifest) if target.upstream == upstream]
            affects, fixed_in = _specifier(manifest["affects"].get(upstream, "<0")), manifest["fixed-in"].get(upstream)
            if not mine or affects is None:
                continue
            since = None if fixed_in is None else _version(fixed_in)
            for version, release in entry["versions"].items():
                found = _states(mine, dict(zip(entry["targets"], release["shapes"])), states)
                needed, fixed = "affected" in found, "fixed" in found
                if needed is not affects.contains(version, prereleases=True):
                    message = f"{version} {'needs it' if needed else 'does not need it'}, but `affects` says otherwise"
                    yield Problem(_manifest(fix), f"affects {upstream}", message)
                if fixed and (since is None or Version(version) < since):
                    yield Problem(_manifest(fix), f"fixed-in {upstream}", f"{version} already has upstream's own fix")
                if needed and since is not None and Version(version) >= since:
                    message = f"{version} needs it, but {fixed_in} is fixed"
                    yield Problem(_manifest(fix), f"fixed-in {upstream}", message)


RULES: Sequence[Callable[[Data], Iterator[Problem]]] = (twice, dangling, specifiers, verdicts, digests, pins, claims)
"""In this order: each one depends on those before it."""


def _states(
    targets: Sequence[Target], shapes: Mapping[str, str | None], states: Mapping[tuple[str, str, str], str]
) -> set[str | None]:
    """Return the states of these targets in a release, without those that depend on a function that is right there."""

    def state(one: Target) -> str | None:
        return states.get((one.fix, one.function, shapes.get(f"{one.file}::{one.function}") or ""))

    return {state(one) for one in targets if one.depends_on is None or state(one.depends_on) != RIGHT}


def _functions(fix: str, manifest: Mapping[str, Any]) -> tuple[Target, ...]:
    """Return the targets of a manifest, and the functions that these depend on."""
    return Fix(fix, "", "", manifest, catalog.targets(fix, manifest), "").functions


def _manifest(fix: str) -> str:
    return f"patches/{fix}/manifest.json"


def _name(row: Mapping[str, Any]) -> str:
    return f"{row['fix']} {row['function']} {row['shape']}"


def _specifier(text: str) -> SpecifierSet | None:
    try:
        return SpecifierSet(text)
    except InvalidSpecifier:
        return None


def _version(text: str) -> Version | None:
    try:
        return Version(text)
    except InvalidVersion:
        return None
