"""The verdict, its code, its detail and its hint, for everything that can be observed of a function."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from support import gates
from support.gates import NAMES, ONE, RUN
from unhang.compat.sweep.outlines import Packed
from unhang.judge.decide import BY_STATE, SETTLED, URGENCY, Past, Verdict, codemod, decide
from unhang.judge.observe import Observation, observe_bytes
from unhang.records import Token
from unhang.shapes import catalog, shape
from unhang.shapes.catalog import OutlineTable, Release, Shape, ShapeTable
from unhang.shapes.outline import outline

SHAPE = gates.shape_of(ONE)
EDITED = ONE.replace("return x", "return x + 1")
EXPLAIN, DAY = "`unhang explain gate`", "accepted by a person on 2026-11-22"
LOOK = "to see the rewrite and its token (--run tries it too): `unhang diff --unknown --fix gate`"


@pytest.fixture(autouse=True)
def _made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    gates.install(monkeypatch)


def verdict_on(
    seen: Observation, *, version: str | None = "1.0", kind: str = "wheel", table: ShapeTable | None = None,
    releases: Mapping[str, Release] | None = None, past: Past | None = None,
) -> Verdict:  # fmt: skip
    where = gates.installation(Path("/site"), version, kind)
    known = gates.releases() if releases is None else releases
    return decide(RUN, where, seen, table or gates.shape_table(), known, past)


def seen_in(code: str) -> Observation:
    return observe_bytes("/site/verl/one.py", code.encode(), "run", {})


def test_the_verdicts_are_ordered_and_every_state_has_one() -> None:
    assert len(set(URGENCY)) == len(URGENCY) == 6
    assert set(URGENCY) > set(BY_STATE.values()) > SETTLED
    assert URGENCY.index("drifted") < URGENCY.index("needed") < URGENCY.index("applied")


@pytest.mark.parametrize(
    ("problem", "detail", "hint"),
    [
        ("does-not-parse", "the file does not parse: WHY", "reinstall the package, or repair the file"),
        ("defined-twice", "the function is defined more than once, WHY", "keep one definition"),
        ("not-a-file", "the file is WHY", "reinstall the package"),
        ("too-large", "the file is WHY", "reinstall the package"),
        ("shadowed", "an import may run WHY in place of the file", "delete it, or reinstall the package"),
        ("outside", "the file is WHY", "install a copy of the package (uv: --link-mode=copy)"),
    ],
)
def test_what_cannot_be_judged_has_drifted(problem: str, detail: str, hint: str) -> None:
    seen = Observation("/x", b"", problem=problem, detail="WHY")
    assert verdict_on(seen) == Verdict("drifted", problem, detail, f"{hint}, then run `unhang check` again")
    editable = verdict_on(seen, kind="editable").hint
    assert ("--source DIR" in editable, "editable_mode=strict" in editable) == (problem == "outside",) * 2


# -- no such function -------------------------------------------------------------------------------------------------


def test_a_function_that_is_not_there_is_not_affected_unless_the_release_has_it() -> None:
    releases = {"1.0": Release("1.0", False, {"verl/one.py::run": None})}
    for data, detail in (None, "the file does not exist"), (b"", "the file does not define the function"):
        verdict = verdict_on(Observation("/x", data), releases=releases)
        assert verdict == Verdict("not-affected", detail=detail)
        verdict = verdict_on(Observation("/x", data))
        assert verdict[:3] == ("drifted", "function-gone", f"{detail}, but release 1.0 has it")
        assert "run was moved to" in verdict.hint


NEWER = ("newer-than-matrix", "newer than every release in the matrix", "nearest supported version: 2.0")
OLDER = ("older-than-floor", "older than every release in the matrix", "nearest supported version: 1.0")


@pytest.mark.parametrize(("version", "how"), [("2.1", NEWER), ("3.0rc1", NEWER), ("0.9", OLDER)])
def test_a_version_outside_the_matrix_is_unlisted(version: str, how: tuple[str, str, str]) -> None:
    code, reason, nearest = how
    verdict = verdict_on(Observation("/x", b""), version=version)
    detail = f"the file does not define the function; {version} is {reason}"
    absent = Verdict("not-affected", detail="the file does not define the function")
    assert verdict == (absent if how == OLDER else Verdict("unlisted", code, detail, nearest))
    verdict = verdict_on(seen_in(EDITED), version=version)
    assert (verdict.verdict, verdict.code) == ("unlisted", code)
    assert f"{version} is {reason}" in verdict.detail
    assert verdict.hint.startswith(f"{nearest}; ")
    assert (verdict.hint.removeprefix(f"{nearest}; "), verdict.triable) == (LOOK, True)
    assert verdict_on(Observation("/x", b"", on_record=True), version=version).verdict == "not-affected"
    assert verdict_on(Observation("/x", b""), version=version, releases={}).verdict == "not-affected"


def test_a_function_that_the_newest_release_lacks_is_not_missed_in_a_newer_one() -> None:
    has, lacks = ({"verl/one.py::run": shape} for shape in (SHAPE, None))
    releases = {version: Release(version, False, shapes) for version, shapes in (("1.9", has), ("1.10", lacks))}
    for data, what in (None, "the file does not exist"), (b"", "the file does not define the function"):
        verdict = verdict_on(Observation("/x", data), version="2.1", releases=releases)
        assert verdict == Verdict("not-affected", detail=f"{what}, as in release 1.10")
    assert verdict_on(seen_in(EDITED), version="2.1", releases=releases).verdict == "unlisted"
    assert verdict_on(Observation("/x", None), version="1.9", releases=releases).code == "function-gone"


@pytest.mark.parametrize("version", ["2.0.post1", "2.0rc1", "1.5", "1.0rc1", "main", None])
def test_a_version_inside_the_matrix_is_not_unlisted(version: str | None) -> None:
    assert verdict_on(Observation("/x", b""), version=version).verdict == "not-affected"


def test_a_local_label_makes_no_number_of_its_own() -> None:
    verdict = verdict_on(Observation("/x", b""), version="1.0+acme.3")
    assert verdict.code == "function-gone"
    assert verdict.detail.endswith(", but release 1.0 has it")


# -- a shape on record ------------------------------------------------------------------------------------------------


def test_the_state_of_a_known_shape_gives_the_verdict() -> None:
    past = Past("another sha256", "another shape")
    seen = Observation("/x", ONE.encode(), shape=SHAPE, on_record=True)
    table = gates.shape_table({(RUN, ONE): Shape("affected", None, tuple(NAMES), "a note")})
    before = "a note; patched before, and reverted, reinstalled or restored since"
    assert verdict_on(seen, table=table, past=past) == Verdict("needed", None, before, "unhang apply")
    for state in set(BY_STATE) - {"affected", "no-rewrite"}:
        table = gates.shape_table({(RUN, ONE): Shape(state, None, (), "a note")})
        verdict = verdict_on(seen, table=table, version="9.0")
        assert verdict == Verdict(BY_STATE[state], detail="a note"), "whatever the version is"
    assert verdict_on(seen_in(ONE)) == Verdict("needed", hint="unhang apply")


def test_a_defect_that_no_rewrite_is_for_is_needed_and_says_what_else_to_do() -> None:
    table = gates.shape_table({(RUN, ONE): Shape("no-rewrite", None, (), "a note")})
    where = gates.installation(Path("/site"))
    for target in RUN, RUN._replace(workaround="upgrade"):
        found = decide(target, where, seen_in(ONE), table, gates.releases(), None)
        detail = "the defect is here, and there is no rewrite for this function; a note"
        assert found == Verdict("needed", "no-rewrite", detail, target.workaround)
        assert not found.to_rewrite
    assert verdict_on(seen_in(ONE)).to_rewrite


def test_our_rewrite_that_has_the_shape_of_upstreams_own_fix_is_told_by_the_receipt() -> None:
    seen = Observation("/x", ONE.encode(), shape=SHAPE, on_record=True)
    table = gates.shape_table({(RUN, ONE): Shape("fixed", None, (), "")})
    assert verdict_on(seen, table=table, past=Past(seen.sha256, SHAPE)) == Verdict("applied")
    edited = seen._replace(data=b"# unhang gate: why\n" + ONE.encode())
    assert verdict_on(edited, table=table, past=Past("another sha256", SHAPE)) == Verdict("applied")
    assert verdict_on(seen, table=table, past=Past("another sha256", SHAPE)) == Verdict("fixed-upstream")
    assert verdict_on(seen, table=table) == Verdict("fixed-upstream")


def test_a_name_that_the_file_does_not_bind_has_drifted() -> None:
    verdict = verdict_on(seen_in(ONE.replace("start, wait", "start")))
    assert (verdict.verdict, verdict.code) == ("drifted", "name-not-bound")
    assert verdict.detail == "the rewrite uses wait, which this file does not define or import"
    assert "restore the import in verl/one.py" in verdict.hint
    unparsed = Observation("/x", b"", shape=SHAPE, on_record=True)
    assert verdict_on(unparsed).verdict == "needed", "a file on record was checked when it was recorded"


def test_our_rewrite_in_a_file_that_no_release_has_was_edited_since() -> None:
    seen = seen_in(gates.gated(ONE) + "ours = 1\n")
    edited = Verdict("applied", detail="edited since: the rest of the file matches no release")
    assert verdict_on(seen) == edited
    assert verdict_on(seen, past=Past("another sha256", "")) == edited
    assert verdict_on(seen, past=Past(seen.sha256, "")) == Verdict("applied")
    assert verdict_on(seen._replace(on_record=True)) == Verdict("applied")


# -- an unknown shape -------------------------------------------------------------------------------------------------


def test_what_the_receipt_says_was_accepted_has_drifted() -> None:
    """A receipt is no evidence: a checkout may bring one."""
    seen = seen_in(gates.gated(EDITED))
    now, undo = catalog.generation(), "take it back: `unhang revert --fix gate`"
    token = Token("0" * 16, now, "1" * 16)
    for generation, detail, hint in (
        (now, DAY, f"it counts as settled if you name its token: `unhang check --accept {token}`; or {undo}"),
        (now - 1, f"{DAY}, and the rewrites have changed since", f"{undo}, and look again"),
    ):  # fmt: skip
        past = Past(seen.sha256, seen.shape or "", (token._replace(generation=generation), "2026-11-22"))
        assert verdict_on(seen, past=past) == Verdict("drifted", "accepted", detail, hint)
        for other in past._replace(after="another"), past._replace(accepted=None):
            assert verdict_on(seen, past=other).code == "unknown-shape"


FIXED = ONE.replace("    start()\n", "    start()\n    upstream_waits()\n", 1)


@pytest.mark.parametrize(("version", "verdict"), [("9.0", "unlisted"), ("0.9", "unlisted"), ("1.5", "drifted")])
def test_an_unlisted_shape_in_which_upstreams_fix_seems_to_be_is_a_persons_to_accept(
    version: str, verdict: str
) -> None:
    found = verdict_on(seen_in(FIXED), version=version)
    assert (found.verdict, found.triable, found.as_is) == (verdict, False, True)
    assert "; upstream's own fix seems to be there; " in found.detail
    assert found.hint.endswith("to see its token: `unhang diff --unknown --fix gate`")
    ours = FIXED.replace("upstream_waits()", "upstream_waits()  # unhang gate: why")
    assert not verdict_on(seen_in(ours), version=version).as_is, "our own rewrite, or what is left of it"


SEE = "`unhang diff --unknown --run --fix gate`"
BY_HAND = f"reinstall the package, or change it by hand: {EXPLAIN}; to see what it does: {SEE}"
KEEP = f"reinstall the package and run `unhang apply`; to see first what your edit does: {SEE}"
MATCH = "the rewrite's anchors match exactly once each"
ONCE = "expected once: start())"
NO_ANCHOR = "the rewrite's anchor is missing or not unique"


@pytest.mark.parametrize(
    ("code", "tried", "hint"),
    [
        (EDITED, MATCH, LOOK),
        (EDITED.replace("def run", "# unhang gate: once\ndef run"), MATCH, LOOK),
        (EDITED.replace("start, wait", "start"), f"{MATCH}, but the file does not define or import wait", BY_HAND),
        (EDITED.replace("start()", "1", 1), f"{NO_ANCHOR} (not found: start())", BY_HAND),
        (EDITED.replace("start()", "start()\n    start()", 1), f"{NO_ANCHOR} (found 2 times, {ONCE}", BY_HAND),
        (gates.gated(EDITED), "our rewrite is in it, but the function has been edited", KEEP),
        (
            gates.gated(EDITED).replace("# unhang gate: why", ""),
            f"{NO_ANCHOR} (not found: run without our wait)",
            BY_HAND,
        ),
    ],
)
def test_an_unknown_shape_says_whether_the_rewrite_would_work(code: str, tried: str, hint: str) -> None:
    detail = f"a shape nobody has verified; {tried}; no known shape is close to it"
    assert verdict_on(seen_in(code)) == Verdict("drifted", "unknown-shape", detail, hint, None, hint == LOOK)


def test_the_closest_known_shape_is_named_and_changes_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    far = verdict_on(seen_in(EDITED))
    (function,) = shape.find(shape.parse(ONE.encode()), "run")
    packed = Packed()
    known = OutlineTable(packed.kinds, packed.blocks, {("run", SHAPE): (packed.add(outline(function)), "")})
    monkeypatch.setattr(catalog, "outlines", lambda fix: known)
    near = verdict_on(seen_in(EDITED))
    assert near.nearest is not None
    assert near.detail == far.detail.replace("no known shape is close to it", near.nearest.sentence())
    assert (near.verdict, near.code, near.hint) == (far.verdict, far.code, far.hint)


def test_a_codemod_is_found_by_the_names_of_its_fix_and_function() -> None:
    assert isinstance(codemod(RUN), gates.Waits)
    with pytest.raises(KeyError):
        codemod(RUN._replace(function="other"))
