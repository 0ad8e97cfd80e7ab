"""The verdict, its code, its detail and its hint, for everything that can be observed of a function."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from support import gates
from support.gates import NAMES, ONE, RUN
from unhang.compat.sweep import outlines
from unhang.judge.decide import BY_STATE, SETTLED, URGENCY, Past, Verdict, codemod, decide
from unhang.judge.observe import Observation, observe_bytes
from unhang.shapes import catalog, shape
from unhang.shapes.catalog import OutlineTable, Release, Shape, ShapeTable
from unhang.shapes.outline import outline

SHAPE = gates.shape_of(ONE)
EDITED = ONE.replace("return x", "return x + 1")


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


def table_of(state: str, note: str = "") -> ShapeTable:
    """A table in which the shape of ONE has this state."""
    return gates.shape_table({(RUN, ONE): Shape(state, None, tuple(NAMES), note)})


def test_the_verdicts_are_ordered_and_every_state_has_one() -> None:
    assert len(set(URGENCY)) == len(URGENCY) == 6
    assert set(URGENCY) > set(BY_STATE.values()) > SETTLED
    assert URGENCY.index("drifted") < URGENCY.index("needed") < URGENCY.index("applied")


# -- what cannot be judged --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("problem", "detail", "hint"),
    [
        ("does-not-parse", "the file does not parse: WHY", "reinstall the package, or repair the file"),
        ("defined-twice", "the function is defined more than once, WHY", "keep one definition"),
        ("not-a-file", "the file is WHY", "reinstall the package"),
        ("too-large", "the file is WHY", "reinstall the package"),
        ("outside", "the file is WHY", "install a copy of the package (uv: --link-mode=copy)"),
    ],
)
def test_what_cannot_be_judged_has_drifted(problem: str, detail: str, hint: str) -> None:
    verdict = verdict_on(Observation("/x", b"", problem=problem, detail="WHY"))
    assert verdict == ("drifted", problem, detail, f"{hint}, then run `unhang check` again", None)


def test_a_link_out_of_an_editable_installation_has_a_hint_of_its_own() -> None:
    verdict = verdict_on(Observation("/x", b"", problem="outside", detail="a link"), kind="editable")
    assert "--source DIR" in verdict.hint
    assert "editable_mode=strict" in verdict.hint


# -- no such function -------------------------------------------------------------------------------------------------


def without_the_function() -> dict[str, Release]:
    return {version: Release(version, False, {"verl/one.py::run": None}) for version in ("1.0", "2.0")}


def test_a_function_that_is_not_there_is_not_affected() -> None:
    releases = without_the_function()
    assert verdict_on(Observation("/x", None), releases=releases) == Verdict(
        "not-affected", detail="the file does not exist"
    )
    assert verdict_on(Observation("/x", b""), releases=releases) == Verdict(
        "not-affected", detail="the file does not define the function"
    )


def test_a_function_that_the_release_has_and_this_copy_lacks_has_drifted() -> None:
    verdict = verdict_on(Observation("/x", b""))
    assert (verdict.verdict, verdict.code) == ("drifted", "function-gone")
    assert verdict.detail == "the file does not define the function, but release 1.0 has it"
    assert "run was moved to" in verdict.hint


@pytest.mark.parametrize(
    ("version", "code"),
    [
        ("2.1", "newer-than-matrix"),
        ("3.0rc1", "newer-than-matrix"),
        ("0.9", "older-than-floor"),
        ("2.0.post1", None),
        ("2.0rc1", None),
        ("1.5", None),
        ("1.0rc1", None),
        ("main", None),
        (None, None),
    ],
)
def test_a_version_outside_the_matrix_is_unlisted(version: str | None, code: str | None) -> None:
    verdict = verdict_on(Observation("/x", b""), version=version)
    assert (verdict.verdict, verdict.code) == ("unlisted" if code else "not-affected", code)
    if code is not None:
        assert f"{version} is {'newer' if 'newer' in code else 'older'} than every release" in verdict.detail
        assert verdict.hint == f"nearest supported version: {'2.0' if 'newer' in code else '1.0'}"


def test_a_file_on_record_is_never_unlisted() -> None:
    assert verdict_on(Observation("/x", b"", on_record=True), version="9.0").verdict == "not-affected"
    assert verdict_on(Observation("/x", b""), version="9.0", releases={}).verdict == "not-affected"


# -- a shape on record ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", BY_STATE)
def test_the_state_of_a_known_shape_gives_the_verdict(state: str) -> None:
    seen = Observation("/x", ONE.encode(), shape=SHAPE, on_record=True)
    verdict = verdict_on(seen, table=table_of(state, "a note"), version="9.0")
    assert (verdict.verdict, verdict.code) == (BY_STATE[state], None), "whatever the version is"
    assert verdict.detail.startswith("a note")
    assert verdict.hint == ("unhang apply" if verdict.verdict == "needed" else "")


def test_an_affected_shape_says_what_earlier_runs_did() -> None:
    past = Past("another sha256", "another shape")
    assert verdict_on(seen_in(ONE)) == Verdict("needed", hint="unhang apply")
    assert verdict_on(seen_in(ONE), past=past).detail == "patched before, and reinstalled or restored since"
    older = "a note; an older version of this rewrite is in place"
    assert verdict_on(seen_in(ONE), table=table_of("superseded", "a note"), past=past).detail == older


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


def test_what_was_rewritten_with_unverified_is_applied() -> None:
    seen = seen_in(gates.gated(EDITED))
    past = Past(seen.sha256, seen.shape or "")
    assert verdict_on(seen, past=past) == Verdict("applied", detail="rewritten with --unverified")
    assert verdict_on(seen, past=past._replace(after="another")).verdict == "drifted"


def test_an_unlisted_shape_with_upstreams_fix_in_it_is_fixed() -> None:
    verdict = verdict_on(seen_in(ONE.replace("    start()\n", "    start()\n    upstream_waits()\n", 1)), version="9.0")
    assert (verdict.verdict, verdict.code) == ("fixed-upstream", None)
    assert "post-condition holds" in verdict.detail


def test_an_unknown_shape_with_the_anchors_can_be_rewritten_all_the_same() -> None:
    verdict = verdict_on(seen_in(EDITED))
    assert (verdict.verdict, verdict.code) == ("drifted", "unknown-shape")
    assert verdict.detail == (
        "a shape nobody has verified; the rewrite's anchors match exactly once each; no known shape is close to it"
    )
    assert verdict.hint.endswith("unhang apply --unverified --fix gate")


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("    start()\n    return", "    return", "not found: start()"),
        ("    start()\n    return", "    start()\n    start()\n    return", "found 2 times, expected once: start()"),
        ("def run", "@cached\ndef run", "not found: run without decorators"),
    ],
)
def test_an_anchor_that_does_not_match_is_named(old: str, new: str, why: str) -> None:
    verdict = verdict_on(seen_in(ONE.replace(old, new)))
    assert (verdict.verdict, verdict.code) == ("drifted", "unknown-shape")
    assert f"the rewrite's anchor is missing or not unique ({why})" in verdict.detail
    assert verdict.hint == "reinstall the package, or change it by hand: unhang explain gate"


def test_an_edit_of_our_rewrite_can_be_kept() -> None:
    verdict = verdict_on(seen_in(gates.gated(EDITED)))
    assert (verdict.verdict, verdict.code) == ("drifted", "unknown-shape")
    assert "our rewrite is in it" in verdict.detail
    assert "keep your edit" in verdict.hint


@pytest.mark.parametrize(
    ("version", "code", "nearest"), [("3.0", "newer-than-matrix", "2.0"), ("0.1", "older-than-floor", "1.0")]
)
def test_an_unknown_shape_of_a_version_outside_the_matrix_is_unlisted(version: str, code: str, nearest: str) -> None:
    verdict = verdict_on(seen_in(EDITED), version=version)
    assert (verdict.verdict, verdict.code) == ("unlisted", code)
    assert f"{version} is " in verdict.detail
    assert verdict.hint.startswith(f"nearest supported version: {nearest}; ")
    assert "--unverified" in verdict.hint


def test_the_closest_known_shape_is_named_and_changes_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    far = verdict_on(seen_in(EDITED))
    (function,) = shape.find(shape.parse(ONE.encode()), "run")
    data = json.loads(outlines.render([outlines.Row("run", SHAPE, "", tuple(outline(function)))]))
    known = OutlineTable(data["kinds"], data["blocks"], {("run", SHAPE): (data["outlines"][0]["outline"], "")})
    monkeypatch.setattr(catalog, "outlines", lambda: known)
    near = verdict_on(seen_in(EDITED))
    assert near.nearest is not None
    assert near.detail == far.detail.replace("no known shape is close to it", near.nearest.sentence())
    assert (near.verdict, near.code, near.hint) == (far.verdict, far.code, far.hint)


def test_a_codemod_is_found_by_the_names_of_its_fix_and_function() -> None:
    assert isinstance(codemod(RUN), gates.Waits)
    with pytest.raises(KeyError):
        codemod(RUN._replace(function="other"))
    with pytest.raises(ModuleNotFoundError):
        codemod(RUN._replace(fix="no-such-fix"))
