"""The verdicts: a pure function of what was observed, what is on record, and what the receipt says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from unhang.judge.observe import Observation
from unhang.records import Installation
from unhang.shapes import catalog
from unhang.shapes.catalog import Release, Shape, ShapeTable, Target

if TYPE_CHECKING:
    from unhang.codemods.base import Codemod
    from unhang.judge.nearest import Nearest

NEEDED, APPLIED, FIXED_UPSTREAM = "needed", "applied", "fixed-upstream"
NOT_AFFECTED, DRIFTED, UNLISTED = "not-affected", "drifted", "unlisted"
VERDICTS = (NEEDED, APPLIED, FIXED_UPSTREAM, NOT_AFFECTED, DRIFTED, UNLISTED)
URGENCY = (DRIFTED, UNLISTED, NEEDED, APPLIED, FIXED_UPSTREAM, NOT_AFFECTED)
"""The verdicts, the one with the most to do first."""
SETTLED = frozenset({APPLIED, FIXED_UPSTREAM, NOT_AFFECTED})
_BY_STATE = {"ours": APPLIED, "fixed": FIXED_UPSTREAM, "not-affected": NOT_AFFECTED}


class Verdict(NamedTuple):
    """What is true of a fix on an installation now, for one target."""

    verdict: str
    code: str | None
    """A stable code where the verdict is ``drifted`` or ``unlisted``: why."""
    detail: str
    hint: str
    nearest: Nearest | None = None
    """The closest known shape, where this one is unknown and close to any."""


class Past(NamedTuple):
    """What the receipt says of this target's file: what an earlier run of ours did to it."""

    patched: str
    """The sha256 that our rewrite gave the file."""
    after: str
    """The shape that our rewrite gave the function."""


def decide(
    target: Target,
    installation: Installation,
    seen: Observation,
    table: ShapeTable,
    releases: Mapping[str, Release],
    past: Past | None,
) -> Verdict:
    """The verdict for one target of one installation. ``releases`` are those of its upstream."""
    if seen.problem is not None:
        return _unjudged(seen, installation)
    if seen.shape is None:
        return _absent(target, installation, seen, releases)
    known = table.shapes.get((target.fix, target.function, seen.shape))
    if known is None and past is not None and past.after == seen.shape:
        known = Shape("ours", None, (), "rewritten with --unverified")
    if known is None:
        return _unknown(target, installation, seen, table, releases)
    if known.state in ("affected", "superseded"):
        return _affected(target, known, seen, past)
    if known.state == "ours" and not seen.on_record and (past is None or past.patched != seen.sha256):
        edited = "edited since: the rest of the file is not as any release has it"
        return Verdict(APPLIED, None, "; ".join(filter(None, (known.note, edited))), "")
    return Verdict(_BY_STATE[known.state], None, known.note, "")


def codemod(target: Target) -> Codemod:
    """The rewrite of a target: the fix's own module, named after it. Imports no LibCST."""
    import importlib

    module = importlib.import_module(f"unhang.codemods.{target.fix.replace('-', '_')}")
    found: Codemod = module.CODEMODS[target.function]
    return found


def _affected(target: Target, known: Shape, seen: Observation, past: Past | None) -> Verdict:
    missing = [] if seen.names is None else sorted(set(known.names) - seen.names)
    if missing:
        return Verdict(
            DRIFTED,
            "name-not-bound",
            f"the rewrite uses {', '.join(missing)}, which this file does not define or import",
            f"restore the import in {target.file}, then run `unhang check` again",
        )
    if known.state == "superseded":
        again = "an older version of this rewrite is in place"
    else:
        again = "patched before, and reinstalled or restored since" if past is not None else ""
    return Verdict(NEEDED, None, "; ".join(filter(None, (known.note, again))), "unhang apply")


def _unjudged(seen: Observation, installation: Installation) -> Verdict:
    assert seen.problem is not None
    told = {
        "does-not-parse": (f"the file does not parse: {seen.detail}", "reinstall the package, or repair the file"),
        "defined-twice": (f"the function is defined more than once, {seen.detail}", "keep one definition"),
        "not-a-file": (f"it is {seen.detail}", "reinstall the package"),
        "too-large": (f"the file is {seen.detail}", "reinstall the package"),
        "outside": (f"the file is {seen.detail}", "install a copy of the package (uv: --link-mode=copy)"),
    }
    detail, hint = told[seen.problem]
    if seen.problem == "outside" and installation.kind == "editable":  # such as setuptools' strict mode makes
        hint = "patch the source tree that it leads to (--source DIR), or install that without editable_mode=strict"
    return Verdict(DRIFTED, seen.problem, detail, f"{hint}, then run `unhang check` again")


def _absent(target: Target, installation: Installation, seen: Observation, releases: Mapping[str, Release]) -> Verdict:
    what = "no such file here" if seen.data is None else "no such function in this file"
    release = releases.get(installation.version or "")
    listed = None if release is None else release.shapes.get(f"{target.file}::{target.function}")
    if listed is not None:
        return Verdict(
            DRIFTED,
            "function-gone",
            f"{what}, though release {installation.version} has it",
            f"look for {target.function} where it was moved to, or reinstall the package",
        )
    outside = None if seen.on_record or release is not None else _outside(installation, releases)
    if outside:
        return Verdict(UNLISTED, outside[0], f"{what}; {outside[1]}", outside[2])
    return Verdict(NOT_AFFECTED, None, what, "")


def _unknown(
    target: Target, installation: Installation, seen: Observation, table: ShapeTable, releases: Mapping[str, Release]
) -> Verdict:
    """A shape that nobody has verified: upstream's own fix if its post-condition holds, else drifted or unlisted."""
    from unhang.codemods.base import AnchorError
    from unhang.judge.nearest import nearest
    from unhang.shapes import shape as shapes  # here: a listed shape needs neither of these, nor the `ast` they import

    assert seen.data is not None
    (function,) = shapes.find(shapes.parse(seen.data), target.function)
    rewrite = codemod(target)
    if rewrite.holds_upstream(function):
        return Verdict(FIXED_UPSTREAM, None, "an unlisted shape, in which upstream's post-condition holds", "")
    outside = _outside(installation, releases)
    verdict, code, why, supported = (UNLISTED, *outside) if outside else (DRIFTED, "unknown-shape", "", "")
    why = "; ".join(filter(None, ("a shape nobody has verified", why)))
    if rewrite.holds(function):
        why += "; our rewrite's post-condition holds in it, but the function has been edited"
        hint = "reinstall the package and apply, or keep it as it is: `unhang explain`"
    else:
        try:
            rewrite.edits(function)
            why += "; the rewrite's anchors match once each"
            hint = f"to rewrite it all the same: unhang apply --unverified --fix {target.fix}"
        except AnchorError as error:
            why += f"; the rewrite's anchor is missing ({error})"
            hint = f"reinstall the package, or change it by hand: unhang explain {target.fix}"
    # where the two part never softens the verdict: what is far from the rewrite may still change what it means
    near = nearest(target, function, seen.data, table, catalog.outlines(), releases)
    why += f"; {near.sentence() if near is not None else 'no known shape is close to it'}"
    return Verdict(verdict, code, why, "; ".join(filter(None, (supported, hint))), near)


def _outside(installation: Installation, releases: Mapping[str, Release]) -> tuple[str, str, str] | None:
    """Code, reason and hint where the version is newer than the matrix or older than its floor; else None."""
    from packaging.version import InvalidVersion, Version

    if installation.version is None or not releases:
        return None
    try:
        version = Version(installation.version)
    except InvalidVersion:
        return None
    ordered = sorted(map(Version, releases))
    lowest, highest = ordered[0], ordered[-1]
    if version.release > highest.release:
        return "newer-than-matrix", f"{version} is newer than the matrix", f"nearest supported version: {highest}"
    if version < lowest and version.release < lowest.release:
        return "older-than-floor", f"{version} is older than the matrix's floor", f"nearest supported version: {lowest}"
    return None
