"""The radar: what the package index offers now, held against the matrix: `unhang matrix --against-index`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from unhang.compat import index
from unhang.compat.index import Offer
from unhang.compat.sweep import fetch, gather, sources
from unhang.compat.sweep.cache import Cache, default_folder
from unhang.compat.sweep.learnt import Learnt, UnreadableError
from unhang.compat.sweep.sources import Release
from unhang.errors import UnhangError
from unhang.judge.decide import DRIFTED, NOT_AFFECTED, UNLISTED
from unhang.judge.matrix import BY_STATE
from unhang.records import UPSTREAMS
from unhang.shapes import catalog
from unhang.shapes.catalog import Target
from unhang.tell import report
from unhang.tell.matrix_text import retirements


class Finding(NamedTuple):
    """What one target is in a release that is not in the matrix."""

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
    """Where the index and the matrix differ; each release as ``PROJECT VERSION``."""

    offered: Mapping[str, Sequence[str]]
    """The versions that the index offers of each project, from the floor on, in order."""
    unlisted: Sequence[Offer]
    gone: Sequence[str]
    yanked: Sequence[str]
    """Those that are yanked now, and are not so in the matrix."""


def against_index(options: argparse.Namespace) -> int:
    """Compare the matrix with the index, print what differs; 0, or 1 where the index has what the matrix has not.

    ``options`` has ``output_format`` (text, json or markdown), and ``fix`` and ``upstream``, lists that narrow.
    Says also which fix can be dropped from which release on. Raises UnhangError where the index, or a wheel, cannot be
    had, or is not what was pinned.
    """
    fixes = [catalog.fix(name) for name in options.fix or ()] or list(catalog.fixes().values())
    targets = [target for fix in fixes for target in fix.targets if target.upstream in (options.upstream or UPSTREAMS)]
    names = {target.upstream for target in targets}
    upstreams = sources.load("upstreams.json")["upstreams"]
    mine = {name: about for name, about in upstreams.items() if names & {*sources.upstreams_of(name)}}
    pins = [pin for pin in sources.pins() if pin["project"] in mine]
    cache = Cache(default_folder())
    learnt = Learnt(cache)
    with index.client(fetch.CONNECTIONS) as session:
        offered = index.all_offers(session, mine, pins)
        index.hold_against(pins, offered)
        drift = compare(offered, [*mine], catalog.releases())
        found, _ = fetch.releases(session, drift.unlisted, gather.wanted(targets), cache)
    findings = [finding for release in found for finding in judge(release, targets, learnt)]
    learnt.save()
    mine_on_record = {name: told for name, told in catalog.releases().items() if name in names}
    retired = retirements(fixes, mine_on_record, catalog.shape_table())
    print(_RENDER[options.output_format](drift, findings, retired))
    return 1 if drift.unlisted else 0


def compare(
    offered: Sequence[Offer], projects: Sequence[str], known: Mapping[str, Mapping[str, catalog.Release]]
) -> Drift:
    """Where the offers of these projects and the releases on record differ. Pure."""
    now = {(offer.project, offer.version): offer for offer in offered}
    listed = [(project, version) for project in projects for version in known.get(project, ())]
    return Drift(
        {project: [offer.version for offer in offered if offer.project == project] for project in projects},
        [offer for key, offer in now.items() if key not in {*listed}],
        [" ".join(key) for key in listed if key not in now],
        [" ".join(key) for key in listed if key in now and now[key].yanked and not known[key[0]][key[1]].yanked],
    )


def judge(release: Release, targets: Sequence[Target], learnt: Learnt) -> list[Finding]:
    """What each target is in a release: a known shape, or a new one, and whether its rewrite would hold."""
    found = []
    for target in targets:
        if target.upstream == release.upstream:
            shape, verdict, detail = _judged(release, target, learnt)
            where = release.upstream, release.version, release.yanked, target.fix, target.file, target.function
            found.append(Finding(*where, shape, verdict, detail))
    return found


def _judged(release: Release, target: Target, learnt: Learnt) -> tuple[str | None, str, str]:
    content = release.files[target.file]
    if content is None:
        return None, NOT_AFFECTED, "no such file in it"
    try:
        shape = learnt.shape(content, target.function)
    except UnreadableError as error:
        return None, DRIFTED, str(error)
    if shape is None:
        return None, NOT_AFFECTED, "no such function in its file"
    known = catalog.shape_table().shapes.get((target.fix, target.function, shape))
    if known is not None:
        return shape, BY_STATE[known.state], "a known shape"
    state = learnt.state(content, target)
    if state.state in ("fixed", "not-affected"):
        return shape, BY_STATE[state.state], "a new shape, by its post-condition or what it lacks"
    if state.state == "affected":
        return shape, UNLISTED, "a new shape; the rewrite holds: it compiles, has its post-condition, and is stable"
    return shape, UNLISTED, f"a new shape; the rewrite does not hold: {state.why}"


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
            if item.version == offer.version and item.upstream in sources.upstreams_of(offer.project)
        ]
    lines += [f"in the matrix, and no longer on the index: {name}" for name in drift.gone]
    lines += [f"yanked since: {name}" for name in drift.yanked]
    lines += retired
    told = f"{len(drift.unlisted)} not in the matrix; python3 .ci/nox -s sweep brings them in"
    return "\n".join([*lines, told if drift.unlisted else "all of them are in the matrix"])


def _json(drift: Drift, findings: Sequence[Finding], retired: Sequence[str]) -> str:
    told = {
        "schema": 1,
        "newest": {project: versions[-1] if versions else None for project, versions in drift.offered.items()},
        "unlisted": [f"{offer.project} {offer.version}" for offer in drift.unlisted],
        "findings": [item._asdict() for item in findings],
        "gone": [*drift.gone],
        "yanked": [*drift.yanked],
        "retired": [*retired],
    }
    return json.dumps(told, indent=1)


def _markdown(drift: Drift, findings: Sequence[Finding], retired: Sequence[str]) -> str:
    rows = [
        f"| {item.upstream} | {item.version} | `{item.fix}` | {item.verdict} | {item.shape or ''} | {item.detail} |"
        for item in findings
    ]
    head = ["| upstream | version | fix | verdict | shape | |", "|---|---|---|---|---|---|"]
    lines = [*head, *rows] if rows else ["The index offers nothing that the matrix has not."]
    lines += ["", *(f"- no longer on the index: {name}" for name in drift.gone)] if drift.gone else []
    lines += ["", *(f"- yanked since: {name}" for name in drift.yanked)] if drift.yanked else []
    return "\n".join([*lines, "", *(f"- {line}" for line in retired)] if retired else lines)


_RENDER = {"text": _text, "json": _json, "markdown": _markdown}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the radar by itself; gives the exit code, 2 for a failure."""
    parser = argparse.ArgumentParser(prog="python -m unhang.compat.radar")
    parser.add_argument("--output-format", choices=_RENDER, default="text")
    parser.add_argument("--fix", action="append", metavar="ID")
    parser.add_argument("--upstream", action="append", metavar="NAME")
    try:
        return against_index(parser.parse_args(arguments))
    except UnhangError as error:
        print(report.text_error(error), file=sys.stderr)
        return 2


if __name__ == "__main__":
    raise SystemExit(main())
