"""The fixes as OSV advisories: for each, which releases of which distribution have the defect, by the matrix. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any
from urllib.parse import quote

from packaging.utils import canonicalize_name

from unhang import gate
from unhang.judge.decide import NEEDED, SETTLED, URGENCY
from unhang.judge.matrix import Row, is_nightly, parsed, right_from
from unhang.judge.pinned import held
from unhang.plugins import packs
from unhang.shapes.catalog import GRADES, Fix

_SCHEMA = "1.7.5"
_UNDATED = "1970-01-01"  # a fix from a diff alone has no date, and the schema demands one


def advisories(rows: Iterable[Row], fixes: Iterable[Fix]) -> dict[str, str]:
    """Return the advisory of each fix that a release of the matrix needs, as a JSON document by its id.

    ``rows`` are those of whole upstreams. The same rows give the same bytes: its date is that of the fix.
    """
    by_fix: dict[str, list[Row]] = {}
    for row in rows:
        by_fix.setdefault(row.fix, []).append(row)
    affected = [(fix, [*_affected(fix, by_fix.get(fix.id, ()))]) for fix in fixes]
    return {identity(fix): gate.document(_advisory(fix, packages)) + "\n" for fix, packages in affected if packages}


def identity(fix: Fix) -> str:
    """Return the id of a fix's advisory. OSV keeps ``x_`` for a database that is not registered there."""
    return f"x_{fix.pack.name.replace('-', '_')}-{fix.id}"


def dated(fixes: Iterable[Fix]) -> str:
    """Return the date of the last change of these fixes, as RFC 3339 has it."""
    return f"{max((fix.manifest.get('last-update', _UNDATED) for fix in fixes), default=_UNDATED)}T00:00:00Z"


def purl(upstream: str, version: str = "") -> str:
    """Return the package URL of an upstream's distribution, or of one version of it."""
    return f"pkg:pypi/{_distribution(upstream)}" + (f"@{quote(version)}" if version else "")


def _distribution(upstream: str) -> str:
    return canonicalize_name(packs.upstreams()[upstream].distribution)


def _advisory(fix: Fix, affected: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        "schema_version": _SCHEMA,
        "id": identity(fix),
        "modified": dated([fix]),
        "aliases": [],
        "summary": fix.title,
        "details": _details(fix, affected),
        "affected": affected,
        "references": _references(fix),
        "database_specific": {
            "kinds": list(fix.kinds),
            "grade": fix.grade,
            "when": fix.when,
            "changes_numbers": fix.changes_numbers,
            "cure": f"unhang apply --fix {fix.id}",
        },
    }


def _affected(fix: Fix, rows: Iterable[Row]) -> Iterator[dict[str, Any]]:
    """Yield each distribution that has the defect in some release; several upstreams may be in one.

    Between the releases that a pack has read are others, so those of its fixes are in no range.
    """
    found: dict[str, dict[str, list[str]]] = {}
    yanked = set()
    for row in rows:
        if row.upstream not in held(_distribution(row.upstream), row.version):
            continue  # that release is a tag alone: the wheel of this version has none of this upstream's code
        found.setdefault(purl(row.upstream), {}).setdefault(row.version, []).append(row.verdict)
        yanked |= {row.version} if row.yanked else set()
    for package, versions in sorted(found.items()):
        every = sorted(versions.items(), key=lambda it: parsed(it[0]))
        verdicts = {it: NEEDED if NEEDED in all_ else min(all_, key=URGENCY.index) for it, all_ in every}
        if needed := [version for version, verdict in verdicts.items() if verdict == NEEDED]:
            ranges = [] if fix.pack.folder else _ranges(verdicts)
            yield {
                "package": {"ecosystem": "PyPI", "name": package.rpartition("/")[2], "purl": package},
                "ranges": [{"type": "ECOSYSTEM", "events": events} for events in ranges],
                "versions": needed,
                "database_specific": {"fixed_in": right_from(verdicts, yanked) or ""},
            }


def _ranges(verdicts: Mapping[str, str]) -> list[list[dict[str, str]]]:
    """Return the events of each range: from a release to a later one, with nothing in between that is not needed.

    A range ends before the next release, if that is settled; else with its last one: nobody knows what comes after the
    matrix, and a nightly's number says nothing of its code. All that end in the first way are one range, because
    pip-audit reads the fixed versions of the first range alone. Each other one is a range of its own: OSV allows no
    other way.
    """
    fixed: list[dict[str, str]] = []
    open_: list[list[dict[str, str]]] = []
    runs = [(verdict, [*run]) for verdict, run in groupby(verdicts, key=verdicts.__getitem__)]
    for (verdict, run), (after, following) in zip(runs, [*runs[1:], ("", [""])], strict=True):
        releases = [version for version in run if not is_nightly(version)]
        if verdict != NEEDED or not releases:
            continue
        introduced = {"introduced": releases[0]}
        if after in SETTLED and not is_nightly(run[-1]) and not is_nightly(following[0]):
            fixed += [introduced, {"fixed": following[0]}]
        else:
            open_.append([introduced, {"last_affected": releases[-1]}])
    return [*filter(None, [fixed]), *open_]


def _details(fix: Fix, affected: Sequence[Mapping[str, Any]]) -> str:
    manifest = fix.manifest
    later = {it["package"]["name"]: it["database_specific"]["fixed_in"] for it in affected}
    names = " or ".join(f"`unhang wheel {name}==VERSION -o wheels/`" for name in later)
    without = dict.fromkeys(target["workaround"] for target in manifest["targets"] if "workaround" in target)
    grades = dict(grade.split(": ", 1) for grade in GRADES.split("; "))
    paragraphs = [
        " ".join(manifest[key] for key in ("symptom", "cause") if key in manifest) or f"{fix.title}.",
        f"It strikes {fix.when}." if fix.when else "",
        f"Cure: `unhang apply --fix {fix.id}` rewrites the function where it is installed, and {names} makes a wheel "
        f"to pin in place of the published one. `unhang explain {fix.id}` says what the rewrite changes, and which "
        "releases do not need it.",
        *(f"{name}: fixed in {version or 'no release yet'}." for name, version in later.items()),
        f"It is a fix of the pack {fix.pack.name}, which must be in effect." if fix.pack.folder else "",
        *(f"Where unhang has no rewrite for a release: {sentence}." for sentence in without),
        f"Grade: {fix.grade} ({grades[fix.grade]}).",
        "This goes by version, and is about an untouched copy. A copy may be rewritten already, or edited by somebody "
        "else: `unhang check` reads its code and decides. It is a defect, not a security vulnerability. Ids that begin "
        "with x_ are of no database that OSV has registered.",
    ]
    return "\n\n".join(filter(None, paragraphs))


def _references(fix: Fix) -> list[dict[str, str]]:
    """Return the links of a fix: the report of the defect, where the fix comes from or went to, and the repositories.

    One is of the type WEB in any case: uv prints it, and else a page of osv.dev that does not exist.
    """
    how, _, origin = fix.manifest["origin"].partition(", ")
    links = [
        ("REPORT", fix.manifest.get("bug") or ""),
        ("FIX" if how == "backport" else "WEB", origin),
        ("FIX", fix.manifest.get("forwarded", "")),
    ]
    for upstream in (packs.upstreams()[target.upstream] for target in fix.targets):
        about = packs.upstreams()[upstream.within or upstream.name].about
        links += [("PACKAGE", f"https://github.com/{about['repository']}")] if "repository" in about else []
    found: dict[str, str] = {}
    for kind, text in links:
        for url in re.findall(r"https://[^\s,;)]+", text):
            found.setdefault(url, kind)
    web = [*found][:1] if "WEB" not in found.values() else []
    return [*({"type": kind, "url": url} for url, kind in found.items()), *({"type": "WEB", "url": url} for url in web)]
