"""The verdicts: a pure function of what was observed, what is on record, and what the receipt says."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from unhang.errors import joined
from unhang.judge import recorded
from unhang.judge.observe import Observation
from unhang.plugins import parameters
from unhang.records import Installation, Token, paired
from unhang.shapes import catalog
from unhang.shapes.catalog import Fix, Release, Shape, ShapeTable, Target
from unhang.suggest import Command, Hint, explain

if TYPE_CHECKING:
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
BY_SHAPE_CHECK = "by-shape-check"
"""The code of an unlisted shape in a new release, in which a short check finds upstream's fix; ``--require`` is not
satisfied by it."""
STALE = "stale-bytecode"
"""The code of a function whose source is as it should be, while an import runs bytecode of other code."""
NO_VALUE = "no-value"
"""The code of a fix whose parameter has no value."""
NOT_READ = "release-not-read"
"""The code of lines that are no function, in a release that nobody has read: alone they are no evidence."""
INCOMPLETE = "incomplete"
"""The code of a fix that has its diff in part alone."""
OURS = "ours"
"""The state of a shape that our rewrite gives, and upstream never had."""
NO_REWRITE = "no-rewrite"
"""The state of a shape that has the defect, and that no rewrite is for; and the code of what is needed there."""
BY_STATE = {
    "affected": NEEDED,
    NO_REWRITE: NEEDED,
    OURS: APPLIED,
    "fixed": FIXED_UPSTREAM,
    "not-affected": NOT_AFFECTED,
}
"""The verdict on a function whose shape is on record, by the state of that shape."""
REPAIRED, RIGHT, WRONG = "repaired", "right", "wrong"
"""The states of a function that targets depend on: it has upstream's own fix, never had the defect, has it."""
_BESIDE = {REPAIRED: FIXED_UPSTREAM, RIGHT: NOT_AFFECTED}
"""The verdict on a target that is wrong only beside a wrong function, by the state of that one."""
MARK = b"# unhang "
"""How the comments begin that every rewrite writes: the RECORD's row of a file that has one is ours."""
_OLDER = "older-than-floor"
GONE = "function-gone"
_MATCHING = "the rewrite's anchors match exactly once each"
_SEEMS_FIXED = "upstream's own fix seems to be there"


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
    """Whether the shape, or that of the function it depends on, is unknown, the rewrite's anchors match, and the file
    binds the names that it uses."""
    as_is: bool = False
    """Whether the shape is unknown, and a short check finds upstream's own fix: a person may accept it as it is."""

    @property
    def to_rewrite(self) -> bool:
        """Whether the fix is needed, and there is a rewrite for it."""
        return self.verdict == NEEDED and self.code != NO_REWRITE

    @property
    def reason(self) -> str:
        """The detail without the sentence on the closest known shape, for a reader who sees the lines that differ."""
        return self.detail if self.nearest is None else self.detail.replace(f"; {self.nearest.sentence()}", "")


class Past(NamedTuple):
    """What the receipt says of a target's file: what an earlier run did to it."""

    patched: str
    """The sha256 of the file after the rewrite."""
    after: str
    """The shape of the function after the rewrite."""
    accepted: tuple[Token, str] | None = None
    """The token of an accepted rewrite, and the date."""
    link: str = ""
    """The text of the link that the rewritten file has replaced; empty if there was none."""


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
        return Verdict(DRIFTED, seen.problem, *_problem(seen, seen.problem, installation))
    known = table.shapes.get((target.fix, target.function, seen.shape or ""))
    if target.parameters and (known is None or known.state == "affected") and (lacks := _lacking_values(target)):
        return Verdict(DRIFTED, NO_VALUE, *lacks)
    if seen.shape is None and not (target.text and seen.data is not None):
        return _absent(target, installation, seen, releases)
    if known is None and past is not None and past.accepted is not None and past.after == seen.shape:
        return _accepted(target.fix, *past.accepted)
    if known is None:
        return _unknown(target, installation, seen, table, releases)
    if known.state == "affected":
        if target.exact and not seen.on_record:
            return _affected_elsewhere(target, installation, known, seen, releases, past)
        return _affected(target, known, seen, past)
    if known.state == NO_REWRITE:
        why = joined("the defect is here, and there is no rewrite for this function", known.note)
        return Verdict(NEEDED, NO_REWRITE, why, target.workaround)
    is_marked = f"# unhang {target.fix}:".encode() in (seen.data or b"")
    is_ours = past is not None and (past.patched == seen.sha256 or is_marked)
    if known.state == "fixed" and is_ours:
        return Verdict(APPLIED)  # our rewrite, although it has the shape of upstream's own fix
    if known.state == OURS and target.exact and not (is_ours or is_marked):
        return Verdict(FIXED_UPSTREAM)  # upstream has made the diff's own change
    edited = ""
    if known.state == OURS and not seen.on_record and (past is None or past.patched != seen.sha256):
        edited = "edited since: the rest of the file matches no release"
    verdict = BY_STATE[known.state]
    why = known.note or (target.unaffected if verdict == NOT_AFFECTED else "")
    return Verdict(verdict, detail=joined(why, edited))


def _lacking_values(target: Target) -> tuple[str, Hint] | None:
    """Return what is said of a fix some of whose parameters have no value, and what to do; None if all have one."""
    missing = [name for name in target.parameters if name not in parameters.of(target.parameters)]
    if not missing:
        return None
    told = catalog.fix(target.fix).manifest["parameters"]
    words = tuple(word for name in missing for word in ("--set", f"{name}=VALUE"))
    why = f"it takes a value from you: {'; '.join(f'{name}, {told[name]}' for name in missing)}"
    return why, Hint("give it, here and in `check`: ", Command("apply", words), f" (or in {parameters.VARIABLE})")


def is_pair(mine: Shape | None, other: Shape | None, digest: str | None) -> bool:
    """Return whether upstream has had a target's shape beside one of the function that it depends on.

    ``mine`` and ``other`` are what is on record of the two, ``digest`` is the shape of the other one.
    """
    return mine is not None and other is not None and digest in mine.beside


def beside(verdict: str, mine: Shape | None, other: Shape | None, digest: str | None) -> str:
    """Return the verdict on a target that depends on another function, given its own one, and both as in ``is_pair``.

    Only a pair on record settles anything. In one whose other function lacks the defect nothing is left to do. A
    target without the feature has none of the defect, whatever is beside it.
    """
    if mine is None or verdict == NOT_AFFECTED:
        return verdict
    if other is None or not is_pair(mine, other, digest):
        return DRIFTED
    return verdict if verdict in SETTLED else _BESIDE.get(other.state, verdict)


def depending(
    found: Verdict,
    target: Target,
    installation: Installation,
    seen: tuple[Observation, Observation],
    table: ShapeTable,
    releases: Mapping[str, Release],
    past: Past | None,
) -> Verdict:
    """Return the verdict on a target that depends on another function, given its own one. Both were ``seen``.

    ``past`` is what the receipt says of the target, if that has left the shape that is here.
    """
    (own, there), other = seen, target.depends_on
    assert other is not None
    mine = table.shapes.get((target.fix, target.function, own.shape or ""))
    known = table.shapes.get((other.fix, other.function, there.shape or ""))
    verdict = beside(found.verdict, mine, known, there.shape)
    what = f"{other.function} in {other.file}"
    if known is not None and verdict in SETTLED and verdict != found.verdict:
        why = known.note or (target.unaffected if verdict == NOT_AFFECTED else "")
        return Verdict(verdict, detail=joined(f"it depends on {what}, which is right here", why))
    if found.verdict == NOT_AFFECTED or is_pair(mine, known, there.shape):
        return found
    if past is not None and past.accepted is not None:
        accepted, (token, _) = _accepted(other.fix, *past.accepted), past.accepted
        if token.result == paired(past.after, there.shape):
            return accepted
        detail = f"{accepted.detail}, beside another shape of {what}"
        return accepted._replace(detail=detail, hint=Hint(_undo(other.fix), ", and look again"))
    if mine is None and known is not None:
        return found
    why, hint = _why_unknown(other, known, installation, there, table, releases)
    why = f"it depends on {what}: {why}"
    if mine is None or verdict == found.verdict:
        return found._replace(detail=joined(found.detail, why), triable=found.triable and there.shape is not None)
    outside = _outside(installation, releases)
    why = joined(why, outside.reason if outside else "")
    if found.verdict == APPLIED:
        why, hint = f"our rewrite is in place, but {why}", Hint(_undo(other.fix), "; ", hint)
    elif found.verdict == FIXED_UPSTREAM:
        why, hint = f"upstream's own fix is in this function, but {why}", _reinstall(other.fix)
    is_triable = found.to_rewrite and there.shape is not None
    return Verdict(UNLISTED if outside else DRIFTED, "depends-on-unknown", why, hint, triable=is_triable)


def _why_unknown(
    other: Target,
    known: Shape | None,
    installation: Installation,
    seen: Observation,
    table: ShapeTable,
    releases: Mapping[str, Release],
) -> tuple[str, str]:
    """Return why nobody knows what a target does beside this function, and what to do."""
    if known is not None:
        return "no release or commit on record has this shape of it beside this function", _look(other.fix)
    if seen.problem is not None:
        return _problem(seen, seen.problem, installation)
    if seen.shape is None or seen.data is None:
        return "it is not there", _reinstall(other.fix)
    close = near(other, seen.data, table, releases)
    closest = "no known shape is close to it" if close is None else close.sentence()
    return joined("a shape nobody has verified", closest), _look(other.fix)


def _reinstall(fix: str) -> str:
    return f"reinstall the package, or see `{explain(fix)}`"


def lacking(
    target: Target,
    found: Verdict,
    is_here: bool,
    others: Mapping[Target, Observation],
    installation: Installation,
    releases: Mapping[str, Release],
) -> Verdict:
    """Return the verdict on a ``target`` that is wrong only with one of the ``others``, as they were seen.

    Where none of them is there, and none is gone, nothing is left to do. The target is absent, or its shape on record.
    If it ``is_here``, a file that has lost such a function has another in its place, which nobody has examined.
    """
    for other, seen in others.items():
        is_there = seen.shape is not None or seen.problem is not None or (is_here and seen.data is not None)
        if is_there or _absent(other, installation, seen, releases).verdict != NOT_AFFECTED:
            return found
    names = " or ".join(dict.fromkeys(other.function for other in others))
    return Verdict(NOT_AFFECTED, detail=joined(f"it is wrong only with {names}, which is not here", target.unaffected))


def codemod(target: Target) -> Codemod:
    """Return the rewrite of a target, from the module that is named after the fix. Does not import LibCST."""
    from unhang.codemods.base import Codemod

    return recorded.entry(target, Codemod)


def _affected_elsewhere(
    target: Target,
    installation: Installation,
    known: Shape,
    seen: Observation,
    releases: Mapping[str, Release],
    past: Past | None,
) -> Verdict:
    """Return the verdict on what the edits of a diff are for, in a file that is not on record."""
    tried, hint = _tried_exactly(target, seen)
    if tried != _MATCHING:
        return Verdict(DRIFTED, "unknown-shape", tried, hint)
    if target.text and not target.anywhere and on_record(installation, releases) is None:
        why = "the lines that the fix changes are here, but nobody has read this release, and alone they say little"
        return Verdict(UNLISTED, NOT_READ, why, Hint("see whether it fits, and record it: ", _sweep(target.fix)))
    return _affected(target, known, seen, past)


def _affected(target: Target, known: Shape, seen: Observation, past: Past | None) -> Verdict:
    missing = [] if seen.names is None else sorted(set(known.names) - seen.names)
    if missing:
        return Verdict(
            DRIFTED,
            "name-not-bound",
            f"the rewrite uses {', '.join(missing)}, which this file does not define or import",
            Hint(f"restore the import in {target.file}, then run ", Command("check"), " again"),
        )
    before = "" if past is None else "patched before, and reverted, reinstalled or restored since"
    return Verdict(NEEDED, detail=joined(known.note, before), hint=Hint(Command("apply")))


def _accepted(fix: str, token: Token, date: str) -> Verdict:
    """Return the verdict on an unknown shape that an earlier run wrote.

    The receipt is no evidence that the rewrite is right, nor that a person accepted it: a checkout may bring one.
    """
    undo = _undo(fix)
    detail = by_a_person(token.seen_right, f" on {date}")
    if token.generation != catalog.generation():
        return Verdict(
            DRIFTED, ACCEPTED, f"{detail}, and the rewrites have changed since", Hint(undo, ", and look again")
        )
    hint = Hint(
        "it counts as settled if you name its token: ", Command("check", ("--accept", str(token))), "; or ", undo
    )
    return Verdict(DRIFTED, ACCEPTED, detail, hint)


def by_a_person(seen_right: bool, when: str = "") -> str:
    """Return who accepted a rewrite, and what was seen of it before."""
    return f"accepted by a person{when}{', and seen right by `diff --unknown --run`' if seen_right else ''}"


def _problem(seen: Observation, problem: str, installation: Installation) -> tuple[str, str]:
    """Return why a function cannot be judged, and what to do."""
    detail, hint = {
        "does-not-parse": (f"the file does not parse: {seen.detail}", "reinstall the package, or repair the file"),
        "defined-twice": (f"the function is defined more than once, {seen.detail}", "keep one definition"),
        "rebound": (
            f"the file binds the function's name again, {seen.detail}: something else may run in its place",
            "remove that, or reinstall the package",
        ),
        "rebound-unknown": (
            f"the file runs code that may bind the function's name again, {seen.detail}: nobody can tell what runs",
            "remove that code, or reinstall the package",
        ),
        "not-a-file": (f"the file is {seen.detail}", "reinstall the package"),
        "too-large": (f"the file is {seen.detail}", "reinstall the package"),
        "only-bytecode": (f"an import runs {seen.detail}", "delete it, or install a copy of the package with sources"),
        "shadowed": (f"an import may run {seen.detail} in place of the file", "delete it, or reinstall the package"),
        "outside": (f"the file is {seen.detail}", "install a copy of the package (uv: --link-mode=copy)"),
    }[problem]
    if problem == "outside" and installation.kind == "editable":  # setuptools' strict mode makes such links
        hint = "patch the source tree that the link points to (--source DIR), or reinstall without editable_mode=strict"
    return detail, Hint(hint, ", then run ", Command("check"), " again")


def _absent(target: Target, installation: Installation, seen: Observation, releases: Mapping[str, Release]) -> Verdict:
    """Return the verdict on a function that is not there.

    Only the release that has it shows that it is gone, and only a version above the matrix hides where it went. Below
    the floor, in a release that lacks it, and under a number that no release has, as of a fork, nothing is missing,
    unless the file binds the name to something else.
    """
    what = "the file does not exist" if seen.data is None else "the file does not define the function"
    if target.exact:
        return gone(target, what)
    release, place = on_record(installation, releases), target.place
    if release is not None and release.shapes.get(place) is not None:
        return gone(target, f"{what}, but release {release.version} has it")
    outside = None if seen.on_record or release is not None else _outside(installation, releases)
    if seen.detail and (outside is None or outside.code == _OLDER):
        return gone(target, f"{what}, but {seen.detail}")
    if outside is None or outside.code == _OLDER:
        return Verdict(NOT_AFFECTED, detail=what)
    if releases[outside.nearest].shapes.get(place) is None and not seen.detail:
        return Verdict(NOT_AFFECTED, detail=f"{what}, as in release {outside.nearest}")
    return Verdict(UNLISTED, outside.code, joined(what, seen.detail, outside.reason), outside.hint)


def gone(target: Target, why: str) -> Verdict:
    """Return the verdict on a function that is missing."""
    hint = f"find out where {target.function} was moved to, or reinstall the package"
    return Verdict(DRIFTED, GONE, why, hint)


def incomplete(fix: Fix, found: str) -> Verdict:
    """Return the verdict on a target of a fix that has its diff in part alone, in place of ``found``.

    A fix goes in whole or not at all, and what else is to be done nobody can judge: so it is never ``applied``.
    """
    manifest = os.path.join(fix.folder, "manifest.json")
    here = "this is in place" if found == APPLIED else "nothing of it is written"
    detail = f"the fix has its diff in part, and {here}; left to you: {'; '.join(fix.left)}"
    return Verdict(
        DRIFTED, INCOMPLETE, detail, f"do what is left in another way, then remove it from `left` in {manifest}"
    )


def _unknown(
    target: Target, installation: Installation, seen: Observation, table: ShapeTable, releases: Mapping[str, Release]
) -> Verdict:
    """Return the verdict on an unknown shape: drifted, or unlisted outside the matrix."""
    from unhang.shapes import shape as shapes  # it imports ast, which a known shape does not need

    assert seen.data is not None
    outside = _outside(installation, releases)
    with recorded.blamed(target.fix):
        if target.exact:
            tried, hint = _tried_exactly(target, seen)
        else:
            (function,) = shapes.find(shapes.parse(seen.data), target.function)
            tried, hint = _tried(codemod(target), function, target.fix, seen)
    triable, as_is = tried == _MATCHING and seen.shape is not None, tried == _SEEMS_FIXED
    # The nearest shape never softens the verdict: an edit far from the rewrite can still change what the rewrite does.
    close = near(target, seen.data, table, releases)
    closest = close.sentence() if close else "" if target.exact else "no known shape is close to it"
    unverified = "a shape nobody has verified"
    if outside is None:
        return Verdict(DRIFTED, "unknown-shape", joined(unverified, tried, closest), hint, close, triable, as_is)
    detail = joined(unverified, outside.reason, tried, closest)
    return Verdict(UNLISTED, outside.code, detail, Hint(outside.hint, "; ", hint), close, triable, as_is)


def near(target: Target, data: bytes, table: ShapeTable, releases: Mapping[str, Release]) -> Nearest | None:
    """Return the known shape that is closest to the unknown one in these bytes."""
    if target.text:
        return None
    from unhang.judge.nearest import nearest  # these import ast and difflib
    from unhang.shapes import shape as shapes

    found = shapes.find(shapes.parse(data), target.function)
    (function,) = found
    return nearest(target, function, data, table, catalog.outlines(target.fix), releases)


def refused(verdict: Verdict, fix: str, reason: str) -> Verdict:
    """Return the verdict on an unknown shape that is triable, but whose rewrite is refused for this reason."""
    matching = _MATCHING if _MATCHING in verdict.detail else verdict.detail
    detail = verdict.detail.replace(matching, f"{matching}, but {reason}", 1)
    before = verdict.hint.parts[: -len(_look(fix).parts)] if isinstance(verdict.hint, Hint) else ()
    return verdict._replace(detail=detail, hint=Hint(*before, _by_hand(fix)), triable=False)


def _undo(fix: str) -> Hint:
    return Hint("take it back: ", Command("revert", ("--fix", fix)))


def believed(fix: str) -> Verdict:
    """Return the verdict on an unknown shape in a new release, in which a short check finds upstream's own fix."""
    return Verdict(
        FIXED_UPSTREAM,
        BY_SHAPE_CHECK,
        "an unlisted shape, but a short check finds upstream's own fix in it",
        f"compare it with `{explain(fix)}`, and do not require it",
    )


def doubted(verdict: Verdict, doubt: str) -> Verdict:
    """Return the verdict on an unknown shape that seems to have upstream's own fix, with the reason for a doubt."""
    return verdict._replace(detail=verdict.detail.replace(_SEEMS_FIXED, f"{_SEEMS_FIXED}, but {doubt}", 1))


def edited(verdict: Verdict, fix: str, version: str) -> Verdict:
    """Return the verdict on an unknown shape in a copy of a release on record: no check of its code settles it."""
    why = f"an edit: release {version} has another shape"
    return verdict._replace(detail=verdict.detail.replace(_SEEMS_FIXED, why, 1), hint=_by_hand(fix), as_is=False)


def _is_unproved(fix: str) -> bool:
    known = catalog.fixes().get(fix)
    return known is not None and known.grade == catalog.UNPROVED


def _look(fix: str) -> Hint:
    if _is_unproved(fix):
        look = "to see what the edits would do, and their token: ", _diff(fix)
        return Hint(*look, "; if a release was shipped so, this records it in the pack: ", _sweep(fix))
    return Hint("to see the rewrite and its token (--run tries it too): ", _diff(fix))


def _diff(fix: str, *more: str) -> Command:
    return Command("diff", ("--unknown", *more, "--fix", fix))


def _sweep(fix: str) -> Command:
    return Command("pack sweep", ("--fix", fix))


def _by_hand(fix: str) -> Hint:
    if _is_unproved(fix):  # no scene shows anything of it
        again = "reinstall the package; or, if that release should have the fix, begin the fix again in its pack, with "
        return Hint(f"{again}`unhang pack new` and a diff made on this release")
    by_hand = f"reinstall the package, or change it by hand: `{explain(fix)}`; to see what it does: "
    return Hint(by_hand, _diff(fix, "--run"))


def _tried(rewrite: Codemod, function: Function, fix: str, seen: Observation) -> tuple[str, str]:
    """Return whether the rewrite can be tried on an unknown shape, and the hint that follows."""
    from unhang.codemods.base import AnchorError

    is_ours = _is_marked(function, fix, seen.data or b"")
    try:
        seems_fixed = not is_ours and rewrite.fixed_upstream(function)
    except AnchorError:
        seems_fixed = False
    if seems_fixed:
        return _SEEMS_FIXED, Hint("to see its token: ", _diff(fix))
    try:
        rewrite.plan(function)
    except AnchorError as error:
        if is_ours:
            hint = Hint(
                "reinstall the package and run ", Command("apply"), "; to see first what your edit does: ",
                _diff(fix, "--run"),
            )  # fmt: skip
            return "our rewrite is in it, but the function has been edited", hint
        return f"the rewrite's anchor is missing or not unique ({error})", _by_hand(fix)
    missing = [] if seen.names is None else sorted(rewrite.names(function) - seen.names)
    if missing:
        return f"{_MATCHING}, but the file does not define or import {', '.join(missing)}", _by_hand(fix)
    return _MATCHING, _look(fix)


def _tried_exactly(target: Target, seen: Observation) -> tuple[str, str]:
    """Return as ``_tried`` for the edits of a diff: nothing tells upstream's own fix."""
    from unhang.codemods.base import AnchorError
    from unhang.codemods.exact import Text
    from unhang.shapes import shape

    rewrite = recorded.edits(target)
    try:
        Text(shape.text(seen.data or b"", target.file)[1]).spots(rewrite.swaps)
    except (AnchorError, ValueError) as error:  # ValueError: a file that its text would not give
        return f"the diff's lines are missing or not unique ({target.function}: {error})", _by_hand(target.fix)
    missing = [] if seen.names is None else sorted(rewrite.uses - seen.names)
    if missing:
        return f"{_MATCHING}, but the file does not define or import {', '.join(missing)}", _by_hand(target.fix)
    return _MATCHING, _look(target.fix)


def _is_marked(function: Function, fix: str, data: bytes) -> bool:
    """Return whether a comment of the fix's rewrite stands in the function's lines."""
    lines = data.splitlines()[function.lineno - 1 : function.end_lineno]
    return any(f"# unhang {fix}:".encode() in line for line in lines)


def on_record(installation: Installation, releases: Mapping[str, Release]) -> Release | None:
    """Return the release of an installation's version, whatever its local label (``0.17.1+acme``); None if unknown."""
    return releases.get((installation.version or "").partition("+")[0])


def is_new(installation: Installation, releases: Mapping[str, Release]) -> bool:
    """Return whether a version is one that the matrix does not have yet: above its floor, and none of its releases."""
    from packaging.version import InvalidVersion, Version

    try:
        version = Version(installation.version or "")
    except InvalidVersion:
        return False
    known = sorted(map(Version, releases))
    return bool(known) and version > known[0] and version not in known


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
    if version < Version(oldest):
        reason = f"{version} is older than every release in the matrix"
        return _Outside(_OLDER, reason, f"nearest supported version: {oldest}", oldest)
    return None
