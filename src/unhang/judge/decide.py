"""The verdicts: a pure function of what was observed, what is on record, and what the receipt says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from unhang.errors import joined
from unhang.judge.observe import Observation
from unhang.records import Installation, Token
from unhang.shapes import catalog
from unhang.shapes.catalog import Release, Shape, ShapeTable, Target

if TYPE_CHECKING:
    from typing import Any

    from unhang.codemods.base import Codemod
    from unhang.judge.nearest import Nearest
    from unhang.shapes.shape import Function

NEEDED, APPLIED, FIXED_UPSTREAM = "needed", "applied", "fixed-upstream"
NOT_AFFECTED, DRIFTED, UNLISTED = "not-affected", "drifted", "unlisted"
URGENCY = (DRIFTED, UNLISTED, NEEDED, APPLIED, FIXED_UPSTREAM, NOT_AFFECTED)
"""The verdicts, the one with the most to do first."""
SETTLED = frozenset({APPLIED, FIXED_UPSTREAM, NOT_AFFECTED})
"""The verdicts with nothing left to do."""
ACCEPTED = "accepted"
"""The code of a rewrite of an unknown shape that a person accepted; a run that names its token has it settled."""
UNVERIFIED = "unverified"
"""The code of one that an unhang from before the tokens wrote."""
BY_SHAPE_CHECK = "by-shape-check"
"""The code of an unlisted shape in which a short check finds upstream's fix; it does not satisfy ``--require``."""
BY_STATE = {
    "affected": NEEDED,
    "superseded": NEEDED,
    "ours": APPLIED,
    "fixed": FIXED_UPSTREAM,
    "not-affected": NOT_AFFECTED,
}
"""The verdict on a function whose shape is on record, by the state of that shape."""
RIGHT, WRONG = "right", "wrong"
"""The states of a shape that no rewrite is for: of a function that targets depend on."""
_MATCHING = "the rewrite's anchors match exactly once each"


class Verdict(NamedTuple):
    """What is true of a fix on an installation now, for one target."""

    verdict: str
    code: str | None = None
    """Why the verdict is ``drifted`` or ``unlisted``, as a stable code."""
    detail: str = ""
    hint: str = ""
    nearest: Nearest | None = None
    """The closest known shape, if this shape is unknown and close to one."""
    triable: bool = False
    """Whether the shape is unknown, the rewrite's anchors match, and the file binds the names that it uses."""


class Past(NamedTuple):
    """What the receipt says of a target's file: what an earlier run did to it."""

    patched: str
    """The sha256 of the file after the rewrite."""
    after: str
    """The shape of the function after the rewrite."""
    accepted: tuple[Token, str] | None = None
    """The token of an accepted rewrite, and the date."""


class _Outside(NamedTuple):
    """How a version is outside the matrix."""

    code: str
    reason: str
    hint: str
    nearest: str
    """The release of the matrix that is closest to it."""


def decide(
    target: Target,
    installation: Installation,
    seen: Observation,
    table: ShapeTable,
    releases: Mapping[str, Release],
    past: Past | None,
) -> Verdict:
    """Return the verdict on one target of one installation. ``releases`` are those of its upstream, by version."""
    if seen.problem is not None:
        return _unjudged(seen, seen.problem, installation)
    if seen.shape is None:
        return _absent(target, installation, seen, releases)
    known = table.shapes.get((target.fix, target.function, seen.shape))
    if known is None and past is not None and past.after == seen.shape:
        return _in_receipt(target.fix, past)
    if known is None:
        return _unknown(target, installation, seen, table, releases)
    if known.state in ("affected", "superseded"):
        return _affected(target, known, seen, past)
    if known.state == "fixed" and past is not None and past.patched == seen.sha256:
        return Verdict(APPLIED)  # our rewrite, although it has the shape of upstream's own fix
    edited = ""
    if known.state == "ours" and not seen.on_record and (past is None or past.patched != seen.sha256):
        edited = "edited since: the rest of the file matches no release"
    return Verdict(BY_STATE[known.state], detail=joined(known.note, edited))


def beside(verdict: str, other: Shape | None) -> str:
    """Return a verdict on a target that depends on another function, given what is on record of that one's shape.

    Beside a right one, nothing is left to do, whatever the target's own shape. Beside an unknown one, no rewrite is
    known to be needed.
    """
    if verdict in SETTLED:
        return verdict
    if other is not None and other.state == RIGHT:
        return NOT_AFFECTED
    return DRIFTED if other is None and verdict == NEEDED else verdict


def depending(
    found: Verdict,
    other: Target,
    installation: Installation,
    seen: Observation,
    table: ShapeTable,
    releases: Mapping[str, Release],
) -> Verdict:
    """Return the verdict on a target that depends on the ``other`` function, which was ``seen``, given its own one."""
    known = table.shapes.get((other.fix, other.function, seen.shape or ""))
    verdict = beside(found.verdict, known)
    what = f"{other.function} in {other.file}"
    if verdict == found.verdict:
        return found
    if verdict == NOT_AFFECTED:
        return Verdict(NOT_AFFECTED, detail=f"it depends on {what}, which is right here")
    if seen.problem is not None:
        why, hint = _problem(seen, seen.problem, installation)
    elif seen.shape is None or seen.data is None:
        why, hint = "it is not there", f"reinstall the package, or see `unhang explain {other.fix}`"
    else:
        near = _near(other, seen.data, table, releases)
        closest = "no known shape is close to it" if near is None else near.sentence()
        why, hint = joined("a shape nobody has verified", closest), _by_hand(other.fix)
    outside = _outside(installation, releases)
    why = f"it depends on {what}: {joined(why, outside.reason if outside else '')}"
    return Verdict(UNLISTED if outside else DRIFTED, "depends-on-unknown", why, hint)


def codemod(target: Target) -> Codemod:
    """Return the rewrite of a target, from the module that is named after the fix. Does not import LibCST."""
    found: Codemod = codemods(target.fix).CODEMODS[target.function]
    return found


def codemods(fix: str) -> Any:
    """Return the module of a fix's rewrites. Does not import LibCST."""
    import importlib

    return importlib.import_module(f"unhang.codemods.{fix.replace('-', '_')}")


def _affected(target: Target, known: Shape, seen: Observation, past: Past | None) -> Verdict:
    missing = [] if seen.names is None else sorted(set(known.names) - seen.names)
    if missing:
        return Verdict(
            DRIFTED,
            "name-not-bound",
            f"the rewrite uses {', '.join(missing)}, which this file does not define or import",
            f"restore the import in {target.file}, then run `unhang check` again",
        )
    before = ""
    if known.state == "superseded":
        before = "an older version of this rewrite is in place"
    elif past is not None:
        before = "patched before, and reinstalled or restored since"
    return Verdict(NEEDED, detail=joined(known.note, before), hint="unhang apply")


def _in_receipt(fix: str, past: Past) -> Verdict:
    """Return the verdict on an unknown shape that an earlier run wrote.

    The receipt is no evidence that the rewrite is right, nor that a person accepted it: a checkout may bring one.
    """
    undo = f"take it back: `unhang revert --fix {fix}`"
    if past.accepted is None:
        hint = f"compare it with `unhang explain {fix}`, or {undo}"
        return Verdict(DRIFTED, UNVERIFIED, "rewritten with --unverified, as the receipt says", hint)
    token, date = past.accepted
    detail = f"accepted by a person on {date}"
    if token.generation != catalog.generation():
        return Verdict(DRIFTED, ACCEPTED, f"{detail}, and the rewrites have changed since", f"{undo}, and look again")
    hint = f"to settle it, name its token: `unhang check --accept {token}`; or {undo}"
    return Verdict(DRIFTED, ACCEPTED, detail, hint)


def _unjudged(seen: Observation, problem: str, installation: Installation) -> Verdict:
    """Return the verdict on a function that was observed with a problem."""
    return Verdict(DRIFTED, problem, *_problem(seen, problem, installation))


def _problem(seen: Observation, problem: str, installation: Installation) -> tuple[str, str]:
    """Return why a function cannot be judged, and what to do."""
    detail, hint = {
        "does-not-parse": (f"the file does not parse: {seen.detail}", "reinstall the package, or repair the file"),
        "defined-twice": (f"the function is defined more than once, {seen.detail}", "keep one definition"),
        "not-a-file": (f"the file is {seen.detail}", "reinstall the package"),
        "too-large": (f"the file is {seen.detail}", "reinstall the package"),
        "outside": (f"the file is {seen.detail}", "install a copy of the package (uv: --link-mode=copy)"),
    }[problem]
    if problem == "outside" and installation.kind == "editable":  # setuptools' strict mode makes such links
        hint = "patch the source tree that the link points to (--source DIR), or reinstall without editable_mode=strict"
    return detail, f"{hint}, then run `unhang check` again"


def _absent(target: Target, installation: Installation, seen: Observation, releases: Mapping[str, Release]) -> Verdict:
    what = "the file does not exist" if seen.data is None else "the file does not define the function"
    release, place = releases.get(installation.version or ""), f"{target.file}::{target.function}"
    if release is not None and release.shapes.get(place) is not None:
        return Verdict(
            DRIFTED,
            "function-gone",
            f"{what}, but release {installation.version} has it",
            f"find out where {target.function} was moved to, or reinstall the package",
        )
    outside = None if seen.on_record or release is not None else _outside(installation, releases)
    if outside is None:
        return Verdict(NOT_AFFECTED, detail=what)
    if outside.code == "newer-than-matrix" and releases[outside.nearest].shapes.get(place) is None:
        return Verdict(NOT_AFFECTED, detail=f"{what}, as in release {outside.nearest}")
    return Verdict(UNLISTED, outside.code, joined(what, outside.reason), outside.hint)


def _unknown(
    target: Target, installation: Installation, seen: Observation, table: ShapeTable, releases: Mapping[str, Release]
) -> Verdict:
    """Return the verdict on an unknown shape: fixed upstream if a short check says so, else drifted or unlisted."""
    from unhang.shapes import shape as shapes  # it imports ast, which a known shape does not need

    assert seen.data is not None
    (function,) = shapes.find(shapes.parse(seen.data), target.function)
    rewrite = codemod(target)
    if rewrite.fixed_upstream(function):
        return Verdict(
            FIXED_UPSTREAM,
            BY_SHAPE_CHECK,
            "an unlisted shape, but a short check finds upstream's own fix in it",
            f"compare it with `unhang explain {target.fix}`, and do not require it",
        )
    outside = _outside(installation, releases)
    tried, hint = _tried(rewrite, function, target.fix, seen)
    triable = tried == _MATCHING
    # The nearest shape never softens the verdict: an edit far from the rewrite can still change what the rewrite does.
    near = _near(target, seen.data, table, releases)
    closest = "no known shape is close to it" if near is None else near.sentence()
    unverified = "a shape nobody has verified"
    if outside is None:
        return Verdict(DRIFTED, "unknown-shape", joined(unverified, tried, closest), hint, near, triable)
    detail = joined(unverified, outside.reason, tried, closest)
    return Verdict(UNLISTED, outside.code, detail, joined(outside.hint, hint), near, triable)


def _near(target: Target, data: bytes, table: ShapeTable, releases: Mapping[str, Release]) -> Nearest | None:
    """Return the known shape that is closest to the unknown one in these bytes."""
    from unhang.judge.nearest import nearest  # these import ast and difflib
    from unhang.shapes import shape as shapes

    (function,) = shapes.find(shapes.parse(data), target.function)
    return nearest(target, function, data, table, catalog.outlines(), releases)


def refused(verdict: Verdict, fix: str, reason: str) -> Verdict:
    """Return the verdict on an unknown shape that is triable, but whose rewrite is refused for this reason."""
    detail, hint = f"{_MATCHING}, but {reason}", verdict.hint.replace(_look(fix), _by_hand(fix))
    return verdict._replace(detail=verdict.detail.replace(_MATCHING, detail, 1), hint=hint, triable=False)


def _look(fix: str) -> str:
    return f"to see what a rewrite would do, and its token: `unhang diff --unknown --fix {fix}`"


def _by_hand(fix: str) -> str:
    return f"reinstall the package, or change it by hand: `unhang explain {fix}`"


def _tried(rewrite: Codemod, function: Function, fix: str, seen: Observation) -> tuple[str, str]:
    """Return whether the rewrite can be tried on an unknown shape, and the hint that follows."""
    from unhang.codemods.base import AnchorError

    try:
        rewrite.plan(function)
    except AnchorError as error:
        if _is_marked(function, fix, seen.data or b""):
            hint = f"reinstall the package and run `unhang apply`, or keep your edit: `unhang explain {fix}`"
            return "our rewrite is in it, but the function has been edited", hint
        return f"the rewrite's anchor is missing or not unique ({error})", _by_hand(fix)
    missing = [] if seen.names is None else sorted(rewrite.names(function) - seen.names)
    if missing:
        return f"{_MATCHING}, but the file does not define or import {', '.join(missing)}", _by_hand(fix)
    return _MATCHING, _look(fix)


def _is_marked(function: Function, fix: str, data: bytes) -> bool:
    """Return whether a comment of the fix's rewrite stands in the function's lines."""
    lines = data.splitlines()[function.lineno - 1 : function.end_lineno]
    return any(f"# unhang {fix}:".encode() in line for line in lines)


def _outside(installation: Installation, releases: Mapping[str, Release]) -> _Outside | None:
    """Return how a version is newer or older than every release in the matrix; None if it is neither."""
    from packaging.version import InvalidVersion, Version

    if installation.version is None or not releases:
        return None
    try:
        version = Version(installation.version)
    except InvalidVersion:
        return None
    ordered = sorted(releases, key=Version)
    oldest, newest = ordered[0], ordered[-1]
    if version.release > Version(newest).release:
        reason = f"{version} is newer than every release in the matrix"
        return _Outside("newer-than-matrix", reason, f"nearest supported version: {newest}", newest)
    if version < Version(oldest) and version.release < Version(oldest).release:
        reason = f"{version} is older than every release in the matrix"
        return _Outside("older-than-floor", reason, f"nearest supported version: {oldest}", oldest)
    return None
