"""What must hold in the matrix and the manifests, beyond what the JSON Schemas check. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from packaging.version import InvalidVersion, Version

from unhang.compat.upstreams import of_project
from unhang.judge.decide import DRIFTED, OURS
from unhang.shapes import catalog
from unhang.shapes.catalog import Fix, Target


class Problem(NamedTuple):
    """One thing that is wrong."""

    file: str
    entry: str
    message: str
    """What is wrong, and what to do."""


class Data(NamedTuple):
    """The parsed files, which satisfy their schemas: manifests by folder name, a fix's facts by its id."""

    manifests: Mapping[str, Mapping[str, Any]]
    facts: Mapping[str, Mapping[str, Any]]
    releases: Mapping[str, Mapping[str, Any]]
    wheels: Mapping[str, Sequence[Mapping[str, Any]]]
    upstreams: Mapping[str, Mapping[str, Any]]


Rule = Callable[[Data], Iterator[Problem]]
RELEASES, WHEELS = "compat/releases.json", "compat/wheels.json"
_SWEEP = "run nox -s sweep"


def dangling(data: Data) -> Iterator[Problem]:
    """Yield what is there without a manifest, or without facts; names of what does not exist."""
    for fix in sorted(data.manifests.keys() ^ data.facts.keys()):
        if fix in data.facts:
            yield Problem(file_of(fix), fix, "no manifest has this id; delete the file")
        else:
            yield Problem(_manifest(fix), fix, f"has no shape on record; {_SWEEP} -- --fix {fix}")
    known = {upstream for project in data.upstreams for upstream in of_project(project)}
    for fix, manifest in data.manifests.items():
        if fix != manifest["id"]:
            yield Problem(_manifest(fix), "id", f"is {manifest['id']}, but the folder is {fix}")
        functions = [one for it in manifest["targets"] for one in (it, it.get("depends-on", it))]
        places = {(one["file"], one["function"]) for one in functions}
        for row in manifest.get("as-written", ()):
            if (row["file"], row["function"]) not in places:
                yield Problem(_manifest(fix), row["ref"], "changes no target of the fix; correct it")
        for upstream in sorted({target["upstream"] for target in manifest["targets"]} - known):
            yield Problem(_manifest(fix), upstream, "has no file in upstreams/")
    for upstream in sorted({name.split()[0] for name in data.releases} - known):
        yield Problem(RELEASES, upstream, "has no file in upstreams/")


def versions(data: Data) -> Iterator[Problem]:
    """Yield versions that do not parse."""
    for name, entry in data.upstreams.items():
        if _version(entry["floor"]) is None:
            yield Problem(f"upstreams/{name}.json", "floor", f"{entry['floor']!r} is no version")
    for name in data.releases:
        if _version(name.partition(" ")[2]) is None:
            yield Problem(RELEASES, name, "is no PEP 440 version")


def decided(data: Data) -> Iterator[Problem]:
    """Yield decisions of people that decide nothing, or twice, and rewrites that contradict them."""
    for fix, known in data.facts.items():
        states = {key.partition(" ")[2]: row["state"] for key, row in known["shapes"].items()}
        rows = data.manifests[fix].get("decisions", ())
        for shape, count in Counter(row["shape"] for row in rows).items():
            if count > 1:
                yield Problem(_manifest(fix), shape, f"is decided {count} times; keep one")
        for row in rows:
            if row["state"] not in (DRIFTED, states.get(row["shape"])):
                message = f"decides no shape on record; delete it, or {_SWEEP} -- --fix {fix}"
                yield Problem(_manifest(fix), row["shape"], message)
        for key, row in known["shapes"].items():
            result = known["shapes"].get(f"{key.partition(' ')[0]} {row.get('result')}", {"state": OURS})
            if result["state"] not in (OURS, "fixed"):  # a rewrite may be upstream's own fix, word for word
                message = f"is {result['state']}, but the result of our rewrite; correct the codemod or the decision"
                yield Problem(file_of(fix), key, message)


_UNUSED = "no shape is `not-affected`: delete that, or let the scene's `has_feature` be False for those shapes"


def reasons(data: Data) -> Iterator[Problem]:
    """Yield functions that are called not affected, and of which no manifest says why; reasons that nothing needs."""
    for fix, known in data.facts.items():
        manifest = data.manifests[fix]
        by_person = {row["shape"] for row in manifest.get("decisions", ())}
        absent = [key.split() for key, row in known["shapes"].items() if row["state"] == "not-affected"]
        right = {key.split()[0] for key, row in known["shapes"].items() if row["state"] == "right"}
        without = {function for function, shape in absent if shape not in by_person}
        told = {item["function"] for item in manifest["targets"] if "not-affected" in item}
        for item in manifest["targets"]:
            depends = item.get("depends-on", {}).get("function") in right
            needs = item["function"] in without or "only-with" in item or depends
            if needs and item["function"] not in told:
                yield Problem(_manifest(fix), item["function"], "say in `not-affected` why a copy has not the defect")
            if not needs and "not-affected" in item:
                yield Problem(_manifest(fix), item["function"], _UNUSED)


def functions(data: Data) -> Iterator[Problem]:
    """Yield releases and functions that a fix's facts lack, or have and should not, and shapes without a verdict."""
    for fix, known in data.facts.items():
        sweep, targets = f"{_SWEEP} -- --fix {fix}", _functions(fix, data.manifests[fix])
        places = {(target.upstream, target.place): None for target in targets}
        if {upstream: {*names} for upstream, names in known["targets"].items()} != {
            upstream: {place for name, place in places if name == upstream} for upstream, _ in places
        }:
            yield Problem(file_of(fix), "targets", f"they are not those of the manifest; {sweep}")
            continue
        for function in sorted({target.function for target in targets} - {key.split()[0] for key in known["shapes"]}):
            yield Problem(_manifest(fix), function, f"has no shape on record; {sweep}")
        listed = {name for name in data.releases if name.split()[0] in known["targets"]}
        for name in sorted(listed ^ known["releases"].keys()):
            where = file_of(fix) if name in listed else RELEASES
            yield Problem(where, name, f"is missing; {sweep if name in listed else _SWEEP}")
        for name, shapes in known["releases"].items():
            names = known["targets"][name.split()[0]]
            if len(shapes) != len(names):
                yield Problem(file_of(fix), name, f"does not have one shape for each target; {sweep}")
            for place, shape in zip(names, shapes):
                if shape is not None and f"{place.partition('::')[2]} {shape}" not in known["shapes"]:
                    yield Problem(file_of(fix), name, f"{place} has shape {shape}, which has no verdict; {sweep}")


def sets(data: Data) -> Iterator[Problem]:
    """Yield sets of targets that are no alternative to another, and releases that have half of one."""
    for fix, known in data.facts.items():
        found: dict[str, dict[str, set[str]]] = {}
        for one in catalog.targets(fix, data.manifests[fix]):
            if one.set is not None:
                found.setdefault(one.upstream, {}).setdefault(one.set, set()).add(one.place)
        for upstream, named in found.items():
            if len(named) == 1:
                yield Problem(_manifest(fix), next(iter(named)), "is the only set; leave `set` out")
            for release, shapes in known["releases"].items():
                names = known["targets"][release.split()[0]]
                there = {name for name, shape in zip(names, shapes) if shape is not None}
                for name, places in named.items():
                    if release.split()[0] == upstream and places & there and not places <= there:
                        yield Problem(_manifest(fix), name, f"{release} has only a part of this set")


def together(data: Data) -> Iterator[Problem]:
    """Yield releases with two functions, of which one depends on the other, whose shapes are not on record together.

    What a fix makes of the other one counts as well: whoever applies both has that beside it.
    """
    for fix, known in data.facts.items():
        made = made_elsewhere(fix, data.facts)
        for target in catalog.targets(fix, data.manifests[fix]):
            names, other = known["targets"][target.upstream], target.depends_on
            for release, shapes in known["releases"].items():
                if other is None or release.split()[0] != target.upstream:
                    continue
                mine, there = (shapes[names.index(one.place)] for one in (target, other))
                row = known["shapes"].get(f"{target.function} {mine}", {"state": "not-affected"})
                for beside in (there, *sorted(made.get(f"{other.function} {there}", ()))):
                    if row["state"] != "not-affected" and beside not in row.get("beside", ()):
                        message = f"{release} has it beside {beside}, and its `beside` has not; {_SWEEP} -- --fix {fix}"
                        yield Problem(file_of(fix), f"{target.function} {mine}", message)


def made_elsewhere(fix: str, facts: Mapping[str, Mapping[str, Any]]) -> dict[str, set[str]]:
    """Return what other fixes than this one make of each function, by its name and its shape before: ``run 0123...``.

    ``facts`` are those of all fixes, by id.
    """
    found: dict[str, set[str]] = {}
    for other, known in facts.items():
        for key, row in known.get("shapes", {}).items() if other != fix else ():
            if "result" in row:
                found.setdefault(key, set()).add(row["result"])
    return found


def digests(data: Data) -> Iterator[Problem]:
    """Yield files with a shape that is not on record, and shapes of theirs without an outline."""
    for fix, known in data.facts.items():
        pairs = {f"{function} {shape}" for row in known["files"].values() for function, shape in row.items() if shape}
        for key in sorted(pairs | {key for key, row in known["shapes"].items() if "outline" in row}):
            outlined = "outline" in known["shapes"].get(key, {})
            if key not in known["shapes"] or outlined != (key in pairs):
                message = "has no outline" if key in known["shapes"] and key in pairs else "is not on record"
                yield Problem(file_of(fix), key, f"{message}; {_SWEEP} -- --fix {fix}")


def pins(data: Data) -> Iterator[Problem]:
    """Yield releases without a pinned wheel, and pinned wheels without a release."""
    for project, rows in data.wheels.items():
        pinned = {f"{project} {row['version']}" for row in rows}
        if len(pinned) != len(rows):
            yield Problem(WHEELS, project, "pins two wheels of one version; keep one")
        for name in sorted(pinned ^ {name for name in data.releases if name.split()[0] == project}):
            yield Problem(RELEASES if name in pinned else WHEELS, name, f"is missing; {_SWEEP}")


RULES: Sequence[Rule] = (dangling, versions, decided, functions, reasons, sets, together, digests, pins)
"""In this order: each one depends on those before it."""


def file_of(fix: str) -> str:
    """Return the file of a fix's facts."""
    return f"compat/data/{fix}.json"


def _functions(fix: str, manifest: Mapping[str, Any]) -> tuple[Target, ...]:
    """Return the targets of a manifest, and the functions that these depend on."""
    return Fix(fix, "", "", manifest, catalog.targets(fix, manifest), "").functions


def _manifest(fix: str) -> str:
    return f"patches/{fix}/manifest.json"


def _version(text: str) -> Version | None:
    try:
        return Version(text)
    except InvalidVersion:
        return None
