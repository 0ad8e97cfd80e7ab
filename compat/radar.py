"""Compares the matrix with what the package index offers now: ``unhang matrix --against-index``."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from unhang.compat import index, upstreams
from unhang.compat.index import Offer, Wheel
from unhang.judge.decide import BY_STATE, DRIFTED, UNLISTED, beside, decide
from unhang.judge.matrix import Releases
from unhang.judge.observe import Observation, observe_bytes
from unhang.records import Installation
from unhang.shapes import catalog
from unhang.shapes.catalog import Fix, Shape, Target
from unhang.tell import progress
from unhang.tell.matrix_text import retirements


class Finding(NamedTuple):
    """One target in a release that the matrix does not list."""

    upstream: str
    version: str
    yanked: bool
    fix: str
    file: str
    function: str
    shape: str | None
    verdict: str
    detail: str


class Drift(NamedTuple):
    """How the index and the matrix differ."""

    offered: Mapping[str, Sequence[str]]
    """The versions that the index offers of each project, in order."""
    unlisted: Sequence[Offer]
    gone: Sequence[str]
    """Releases that only the matrix has, each as ``PROJECT VERSION``."""
    yanked: Sequence[str]
    """Releases that are yanked now but not in the matrix, in the same form."""


def against_index(fixes: Sequence[Fix], names: Sequence[str], output_format: str) -> int:
    """Print how the index and the matrix differ for these fixes, and from which release on a fix can be dropped.

    ``names`` limits this to some upstreams, unless it is empty; ``output_format`` is text, json or markdown. Return 1
    if the index has a release that the matrix does not list, else 0. Raises UnhangError as ``unhang.compat.index``
    does.
    """
    targets = [target for fix in fixes for target in fix.targets if not names or target.upstream in names]
    wanted = {target.upstream for target in targets}
    projects = {
        project: entry
        for project, entry in upstreams.projects().items()
        if not wanted.isdisjoint(upstreams.of_project(project))
    }
    releases = catalog.releases()
    with index.client() as client, progress.shown() as step:
        step("reading the package index")
        drift = compare(index.all_offers(client, projects), [*projects], releases)
        findings: list[Finding] = []
        for number, offer in enumerate(drift.unlisted, 1):
            step(f"fetching {offer.file} ({number} of {len(drift.unlisted)})")
            with tempfile.TemporaryDirectory(prefix="unhang-") as folder:
                path = os.path.join(folder, offer.file)
                index.download(client, offer, path)
                wheel = index.read_wheel(path, {one.file for fix in fixes for one in fix.functions})
            findings += judged(offer, wheel, targets)
    listed = {name: versions for name, versions in releases.items() if name in wanted}
    retired = retirements(fixes, listed, catalog.shape_table())
    print(_RENDER[output_format](drift, findings, retired))
    return 1 if drift.unlisted else 0


def compare(offered: Sequence[Offer], projects: Sequence[str], known: Releases) -> Drift:
    """Return how the offers of these projects differ from the releases in the matrix. Pure."""
    now = {(offer.project, offer.version): offer for offer in offered}
    listed = [(project, version) for project in projects for version in known.get(project, ())]
    return Drift(
        {project: [offer.version for offer in offered if offer.project == project] for project in projects},
        [offer for key, offer in now.items() if key not in {*listed}],
        [" ".join(key) for key in listed if key not in now],
        [" ".join(key) for key in listed if key in now and now[key].yanked and not known[key[0]][key[1]].yanked],
    )


def judged(offer: Offer, wheel: Wheel, targets: Iterable[Target]) -> Iterator[Finding]:
    """Yield what each target of the wheel's upstreams is in a release. Pure."""
    held = upstreams.of_project(offer.project, wheel.held)
    for target in targets:
        if target.upstream in held:
            shape, verdict, detail = _verdict(target, offer.version, wheel.files[target.file])
            other = target.depends_on
            if other is not None and shape is not None:
                mine = catalog.shape_table().shapes.get((target.fix, target.function, shape))
                verdict = beside(verdict, mine, *_known(other, wheel.files[other.file]))
                detail = f"{detail}; it depends on {other.function} in {other.file}"
            where = target.upstream, offer.version, offer.yanked, target.fix, target.file, target.function
            yield Finding(*where, shape, verdict, detail)


def _verdict(target: Target, version: str, data: bytes | None) -> tuple[str | None, str, str]:
    """Return the shape, the verdict and its reason for a target in a release, given its file's bytes."""
    table = catalog.shape_table()
    seen = Observation(target.file, None)
    if data is not None:
        seen = observe_bytes(target.file, data, target.function, table.of_files(target.fix))
    if seen.problem is not None:
        return None, DRIFTED, f"{seen.problem}: {seen.detail}"
    if seen.shape is None:  # above the matrix it may have a new name
        where = Installation(target.upstream, version, "", "", "", "wheel", None, ())
        found = decide(target, where, seen, table, catalog.releases_of(target.fix, target.upstream), None)
        return None, found.verdict, found.detail
    known = table.shapes.get((target.fix, target.function, seen.shape))
    if known is None:
        return seen.shape, UNLISTED, "a new shape"
    return seen.shape, BY_STATE[known.state], "a known shape"


def _known(other: Target, data: bytes | None) -> tuple[Shape | None, str | None]:
    """Return what is on record of a function that targets depend on, given its file's bytes, and its shape."""
    table = catalog.shape_table()
    seen = observe_bytes(other.file, data or b"", other.function, table.of_files(other.fix))
    return table.shapes.get((other.fix, other.function, seen.shape or "")), seen.shape


def _text(drift: Drift, findings: Sequence[Finding], retired: Sequence[str]) -> str:
    lines = [
        f"{project}: {len(versions)} releases on the index, the newest is {versions[-1] if versions else 'none'}"
        for project, versions in drift.offered.items()
    ]
    for offer in drift.unlisted:
        lines.append(f"not in the matrix: {offer.project} {offer.version}{' (yanked)' if offer.yanked else ''}")
        lines += [
            f"  {item.fix}: {item.verdict}; {item.file} {item.function} {item.shape or '-'}: {item.detail}"
            for item in findings
            if item.version == offer.version and item.upstream in upstreams.of_project(offer.project)
        ]
    lines += [f"in the matrix, and no longer on the index: {name}" for name in drift.gone]
    lines += [f"yanked since: {name}" for name in drift.yanked]
    lines += retired
    summary = f"{len(drift.unlisted)} not in the matrix; python3 .ci/nox -s sweep brings them in"
    return "\n".join([*lines, summary if drift.unlisted else "all of them are in the matrix"])


def _json(drift: Drift, findings: Sequence[Finding], retired: Sequence[str]) -> str:
    document = {
        "schema": 1,
        "newest": {project: versions[-1] if versions else None for project, versions in drift.offered.items()},
        "unlisted": [f"{offer.project} {offer.version}" for offer in drift.unlisted],
        "findings": [item._asdict() for item in findings],
        "gone": [*drift.gone],
        "yanked": [*drift.yanked],
        "retired": [*retired],
    }
    return json.dumps(document, indent=1)


def _markdown(drift: Drift, findings: Sequence[Finding], retired: Sequence[str]) -> str:
    rows = [
        f"| {item.upstream} | {item.version} | `{item.fix}` | {item.verdict} | {item.shape or ''} | {item.detail} |"
        for item in findings
    ]
    head = ["| upstream | version | fix | verdict | shape | |", "|---|---|---|---|---|---|"]
    lines = [*head, *rows] if rows else ["The matrix lists every release on the index."]
    lines += ["", *(f"- no longer on the index: {name}" for name in drift.gone)] if drift.gone else []
    lines += ["", *(f"- yanked since: {name}" for name in drift.yanked)] if drift.yanked else []
    return "\n".join([*lines, "", *(f"- {line}" for line in retired)] if retired else lines)


_RENDER = {"text": _text, "json": _json, "markdown": _markdown}
