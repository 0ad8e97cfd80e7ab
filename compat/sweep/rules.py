"""What must hold of the matrix and the manifests: pure checks over their data, each giving what does not. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from unhang.compat.sweep.schema import (
    DECISIONS,
    RELEASES,
    SHAPES,
    SUPERSEDED,
    UPSTREAMS,
    WHEELS,
    Data,
    Problem,
    keys,
    of_row,
)
from unhang.compat.sweep.sources import upstreams_of

STATES = {"affected", "fixed", "not-affected", "superseded"}
_WITH_RESULT = {"affected", "superseded"}
_SWEEP = "run nox -s sweep"


def twice(data: Data) -> Iterator[Problem]:
    """Two rules that both match."""
    results = {(row["fix"], row["function"], row.get("result")) for row in data.shapes}
    counts = Counter((row["fix"], row["function"], row["shape"]) for row in data.shapes)
    for (fix, function, shape), count in counts.items():
        where = f"{fix} {function} {shape}"
        if count > 1:
            yield Problem(SHAPES, where, f"stands there {count} times; {_SWEEP}")
        if (fix, function, shape) in results:
            message = "is a shape of upstream's and the result of a rewrite of ours: the rewrite changed nothing"
            yield Problem(SHAPES, where, message)
    for (fix, shape), count in Counter((row["fix"], row["shape"]) for row in data.decisions).items():
        if count > 1:
            yield Problem(DECISIONS, f"{fix} {shape}", f"is decided {count} times; keep one")
    for fix, told in data.manifests.items():
        for upstream, version in told["fixed-in"].items():
            affects = _specifier(told["affects"].get(upstream, "<0"))
            if version is not None and affects is not None and affects.contains(version, prereleases=True):
                message = f"`affects` and `fixed-in` both cover {upstream} {version}; correct one"
                yield Problem(f"patches/{fix}/manifest.json", upstream, message)


def dangling(data: Data) -> Iterator[Problem]:
    """What names a fix, a function or an upstream that is not there; a target, or a decision, without a shape."""
    targets = {(fix, target["function"]) for fix, told in data.manifests.items() for target in told["targets"]}
    for file, rows in (("data/shapes.json", data.shapes), ("upstreams.json", data.pulls)):
        for row in rows:
            if (row["fix"], row["function"]) not in targets:
                yield Problem(f"compat/{file}", of_row(row), "is of no target in any manifest; take it out")
    here = {(row["fix"], row["function"]) for row in data.shapes}
    for fix, function in sorted(targets - here):
        yield Problem(f"patches/{fix}/manifest.json", function, f"no shape of it is on record; {_SWEEP}")
    states = {(row["fix"], row["shape"]): row["state"] for row in data.shapes}
    for row in data.decisions:
        if states.get((row["fix"], row["shape"])) != row["state"]:
            message = f"no shape on record is {row['state']} by it; take it out, or {_SWEEP}"
            yield Problem(DECISIONS, f"{row['fix']} {row['shape']}", message)
    pristine = {(row["fix"], row["function"], row["shape"]) for row in data.shapes if row["state"] == "affected"}
    for row in data.superseded:
        if (row["fix"], row["function"], row["pristine"]) not in pristine:
            yield Problem(SUPERSEDED, row["shape"], f"{row['pristine']} is no affected shape on record")
    known = {upstream for name in data.upstreams for upstream in upstreams_of(name)}
    for fix, told in data.manifests.items():
        if fix != told["id"]:
            yield Problem(f"patches/{fix}/manifest.json", "id", f"is {told['id']}, and its folder {fix}")
        named = {target["upstream"] for target in told["targets"]} | {*told["affects"]} | {*told["fixed-in"]}
        for upstream in sorted(named - known):
            yield Problem(f"patches/{fix}/manifest.json", upstream, "is no upstream; see compat/upstreams.json")
    for upstream in sorted({*data.releases} - known):
        yield Problem(RELEASES, upstream, "is no upstream; see compat/upstreams.json")


def specifiers(data: Data) -> Iterator[Problem]:
    """Specifiers and versions that do not parse."""
    for fix, told in data.manifests.items():
        for upstream, text in told["affects"].items():
            if _specifier(text) is None:
                message = f"{text!r} is no PEP 440 specifier"
                yield Problem(f"patches/{fix}/manifest.json", f"affects {upstream}", message)
        for upstream, text in told["fixed-in"].items():
            if text is not None and _version(text) is None:
                yield Problem(f"patches/{fix}/manifest.json", f"fixed-in {upstream}", f"{text!r} is no version")
    for name, about in data.upstreams.items():
        if _version(about["floor"]) is None:
            yield Problem(UPSTREAMS, f"{name} floor", f"{about['floor']!r} is no version")
    for upstream, told in data.releases.items():
        for version in told["versions"]:
            if _version(version) is None:
                yield Problem(RELEASES, f"{upstream} {version}", "is no PEP 440 version")


def verdicts(data: Data) -> Iterator[Problem]:
    """A verdict without what belongs to it, and a release without a verdict."""
    for row in data.shapes:
        if row["state"] not in STATES:
            yield Problem(SHAPES, of_row(row), f"{row['state']!r} is no state of a shape; {_SWEEP}")
        if ("result" in row) is not (row["state"] in _WITH_RESULT) or ("names" in row) is not ("result" in row):
            message = f"{row['state']} goes {'with' if row['state'] in _WITH_RESULT else 'without'} result and names"
            yield Problem(SHAPES, of_row(row), f"{message}; {_SWEEP}")
        if not {"first", "note"} & set(row):
            yield Problem(SHAPES, of_row(row), f"does not say where it was seen, or whose change it is; {_SWEEP}")
    known, targets = _known(data), _targets(data)
    for upstream, told in data.releases.items():
        if told["targets"] != targets.get(upstream, []):
            yield Problem(RELEASES, upstream, f"its targets are not those of the manifests; {_SWEEP}")
        for version, release in told["versions"].items():
            if len(release["shapes"]) != len(told["targets"]):
                yield Problem(RELEASES, f"{upstream} {version}", f"has not one shape for each target; {_SWEEP}")
            for name, shape in zip(told["targets"], release["shapes"]):
                if shape is not None and (name.partition("::")[2], shape) not in known:
                    message = f"{name} has shape {shape}, of which no verdict is on record; {_SWEEP}"
                    yield Problem(RELEASES, f"{upstream} {version}", message)


def digests(data: Data) -> Iterator[Problem]:
    """Digests of files that lead to no shape on record; shapes without an outline, and outlines without a shape."""
    every = _known(data) | {(row["function"], row["result"]) for row in data.shapes if "result" in row}
    for digest, shapes in data.files.items():
        for function, shape in shapes.items():
            if shape is not None and (function, shape) not in every:
                yield Problem("compat/data/files.json", digest[:16], f"{function} {shape} is not on record; {_SWEEP}")
    outlined = {(row["function"], row["shape"]) for row in data.outlines}
    older = {(row["function"], row["shape"]) for row in data.shapes if row["state"] == "superseded"}
    for function, shape in sorted(outlined ^ (every - older)):
        where = "no outline of it is there" if (function, shape) in every else "it is not on record"
        yield Problem("compat/data/outlines.json", f"{function} {shape}", f"{where}; {_SWEEP}")


def pins(data: Data) -> Iterator[Problem]:
    """Releases without a pinned wheel, and pinned wheels without a release."""
    for project, rows in data.wheels.items():
        pinned = {row["version"] for row in rows}
        if len(pinned) != len(rows):
            yield Problem(WHEELS, project, "pins two wheels of one version; keep one")
        listed = {*data.releases.get(project, {}).get("versions", ())}
        for version in sorted(pinned ^ listed):
            where = "data/releases.json" if version in pinned else "wheels.json"
            yield Problem(f"compat/{where}", f"{project} {version}", f"is missing; {_SWEEP}")


def claims(data: Data) -> Iterator[Problem]:
    """What a manifest says of versions, held against what the data says of every release."""
    states = {(row["fix"], row["function"], row["shape"]): row["state"] for row in data.shapes}
    for fix, told in data.manifests.items():
        file = f"patches/{fix}/manifest.json"
        for upstream, about in data.releases.items():
            mine = [f"{row['file']}::{row['function']}" for row in told["targets"] if row["upstream"] == upstream]
            affects, fixed_in = _specifier(told["affects"].get(upstream, "<0")), told["fixed-in"].get(upstream)
            if not mine or affects is None:
                continue
            since = None if fixed_in is None else _version(fixed_in)
            for version, release in about["versions"].items():
                held = dict(zip(about["targets"], release["shapes"]))
                found = {states.get((fix, name.partition("::")[2], held.get(name) or "")) for name in mine}
                needed, fixed = "affected" in found, "fixed" in found
                if needed is not affects.contains(version, prereleases=True):
                    message = f"{version} {'needs it' if needed else 'does not need it'}, and `affects` says otherwise"
                    yield Problem(file, f"affects {upstream}", message)
                if fixed and (since is None or Version(version) < since):
                    yield Problem(file, f"fixed-in {upstream}", f"{version} has upstream's own fix already")
                if needed and since is not None and Version(version) >= since:
                    yield Problem(file, f"fixed-in {upstream}", f"{version} needs it, though {fixed_in} is fixed")


RULES: Sequence[Callable[[Data], Iterator[Problem]]] = (
    *(keys, specifiers, twice, dangling, verdicts, digests, pins, claims),
)
"""In this order: each rests on those before it."""


def _known(data: Data) -> set[tuple[str, str]]:
    return {(row["function"], row["shape"]) for row in data.shapes}


def _targets(data: Data) -> dict[str, list[str]]:
    """The targets of each upstream, in the order of the manifests, as releases.json names them."""
    found: dict[str, list[str]] = {}
    for _, told in sorted(data.manifests.items()):
        for target in told["targets"]:
            found.setdefault(target["upstream"], []).append(f"{target['file']}::{target['function']}")
    return found


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
