"""The plan of a run: a fix goes into an installation whole or not at all, and a blocked one leaves the others."""

import hashlib
from pathlib import Path
from typing import NamedTuple
from unittest.mock import Mock

import pytest

from support import gates
from support.gates import ONE, OTHER_RUN, RUN, STOP, TWO
from unhang.judge.findings import Finding
from unhang.rewrite import one_file
from unhang.rewrite.plan import Original, Plan, paths_to_rewrite, plan

EDITED = ONE.replace("return x", "return x + 1")
NO_ANCHOR = ONE.replace("    start()\n    return", "    return")
BOTH = gates.paused(gates.gated(ONE))


@pytest.fixture(autouse=True)
def _made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    gates.install(monkeypatch)


class Made(NamedTuple):
    """A plan in short: the new text of each file, by its name, and why each blocked fix is blocked."""

    files: dict[str, str]
    blocked: dict[str, str]


def made(root: Path, one: str = ONE, two: str = TWO) -> Made:
    return short(plan(gates.findings(gates.lay_out(root, {"verl/one.py": one, "verl/two.py": two})), {}))


def accepted(findings: list[Finding], result: str) -> list[Finding]:
    """The findings as if a token accepted this result of each rewrite of an unknown shape."""
    return [one._replace(result=result, accepted=True) if one.verdict.triable else one for one in findings]


def only(root: Path, one: str) -> list[Finding]:
    """The findings of an installation with this one.py, and nothing left to do in two.py."""
    return gates.findings(gates.lay_out(root, {"verl/one.py": one, "verl/two.py": gates.gated(TWO)}))


def short(planned: Plan) -> Made:
    files = {Path(file.path).name: file.after.decode() for file in planned.files}
    return Made(files, {item.fix: item.reason for item in planned.blocked})


def original_of(root: Path, patched: str) -> dict[str, Original]:
    """What the receipt keeps of one.py, which is this text with our rewrites."""
    return {str(root / "verl/one.py"): Original(hashlib.sha256(patched.encode()).hexdigest(), ONE.encode())}


def test_all_needed_fixes_go_in_and_nothing_is_written_yet(tmp_path: Path) -> None:
    where = gates.lay_out(tmp_path)
    planned = plan(gates.findings(where), {})
    assert short(planned) == ({"one.py": BOTH, "two.py": gates.gated(TWO)}, {})
    one, two = planned.files
    assert (one.installation, one.path, one.before) == (where, str(tmp_path / "verl/one.py"), ONE.encode())
    assert [(step.target, step.listed) for step in one.steps] == [(RUN, True), (STOP, True)]
    run = one.steps[0]
    assert (run.before, run.after) == (gates.shape_of(ONE), gates.shape_of(gates.gated(ONE)))
    assert [step.target for step in two.steps] == [OTHER_RUN]
    assert {path.name: path.read_text() for path in tmp_path.rglob("*.py")} == {"one.py": ONE, "two.py": TWO}


def test_what_is_settled_is_left_alone(tmp_path: Path) -> None:
    assert made(tmp_path, BOTH, gates.gated(TWO)) == ({}, {})
    assert made(tmp_path, gates.gated(ONE), gates.gated(TWO)) == ({"one.py": BOTH}, {})
    where = gates.lay_out(tmp_path / "none", {"verl/one.py": "x = 1\n"})._replace(version="1.5")
    assert plan(gates.findings(where), {}) == ((), (), ()), "this version has no such function"


def test_linked_files_are_planned_once_by_their_real_path(tmp_path: Path) -> None:
    where = gates.lay_out(tmp_path, {"verl/real.py": ONE, "verl/two.py": TWO})
    (tmp_path / "verl/one.py").symlink_to("real.py")
    found = gates.findings(where)
    assert [Path(file.path).name for file in plan(found, {}).files] == ["real.py", "two.py"]
    assert [Path(path).name for path in paths_to_rewrite(found)] == ["real.py", "two.py"]


# -- whole or not at all ----------------------------------------------------------------------------------------------


def test_a_fix_that_has_drifted_in_one_file_goes_into_none(tmp_path: Path) -> None:
    where = gates.lay_out(tmp_path, {"verl/one.py": EDITED, "verl/two.py": TWO})
    found = gates.findings(where)
    planned = plan(found, {})
    assert short(planned).files == {"one.py": gates.paused(EDITED)}, "the other fix goes in"
    (blocked,) = planned.blocked
    verdict = found[0].verdict
    assert blocked == (where, "gate", RUN, verdict.detail, verdict.hint)


def test_a_fix_is_blocked_in_one_installation_alone_and_only_what_fails_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rewrite = Mock(wraps=one_file.rewrite)
    monkeypatch.setattr(one_file, "rewrite", rewrite)
    good = gates.lay_out(tmp_path / "good")
    # Python imports it, but it is not text
    bad = gates.lay_out(tmp_path / "bad", {"verl/one.py": ONE, "verl/two.py": TWO.encode() + b"# \xff\n"})
    planned = plan([*gates.findings(good), *gates.findings(bad)], {})
    (blocked,) = planned.blocked
    assert blocked[:3] == (bad, "gate", OTHER_RUN)
    assert blocked.reason.startswith("the file is not text in its own encoding")
    assert "unhang explain" in blocked.hint
    assert {file.path: file.after.decode() for file in planned.files} == {
        str(tmp_path / "good/verl/one.py"): BOTH,
        str(tmp_path / "good/verl/two.py"): gates.gated(TWO),
        str(tmp_path / "bad/verl/one.py"): gates.paused(ONE),
    }
    rewrites = [" ".join(step.target.function for step in call.args[1]) for call in rewrite.call_args_list]
    assert rewrites == ["run Loop.stop", "run", "run Loop.stop", "run", "Loop.stop"]


# -- unknown shapes ---------------------------------------------------------------------------------------------------


def test_an_accepted_unknown_shape_is_rewritten_if_the_result_is_the_accepted_one(tmp_path: Path) -> None:
    where = gates.lay_out(tmp_path, {"verl/one.py": EDITED, "verl/two.py": TWO})
    result = gates.shape_of(gates.gated(EDITED))
    for version in "1.0", "9.0":
        found = gates.findings(where._replace(version=version))
        assert plan(found, {}).blocked[0].fix == "gate", "nobody has accepted it"
        for to_find_out in "", result:
            planned = plan(accepted(found, to_find_out), {})
            assert short(planned) == ({"one.py": gates.paused(gates.gated(EDITED)), "two.py": gates.gated(TWO)}, {})
            assert [(step.listed, step.after == result) for step in planned.files[0].steps] == [
                (False, True), (True, False),
            ]  # fmt: skip
        assert short(plan(accepted(found, "0" * 16), {})) == (
            {"one.py": gates.paused(EDITED)}, {"gate": f"the result has shape {result}, but {'0' * 16} is on record"},
        )  # fmt: skip
    names = [[Path(path).name for path in paths_to_rewrite(each)] for each in (found, accepted(found, ""))]
    assert names == [["two.py", "one.py"], ["one.py", "two.py"]], "two.py and the pause in one.py are needed anyway"


@pytest.mark.parametrize(
    ("one", "why"),
    [
        (NO_ANCHOR, "the rewrite's anchor is missing or not unique (not found: start())"),
        (gates.gated(EDITED), "our rewrite is in it, but the function has been edited"),
        (EDITED.replace("start, wait", "start"), "but the file does not define or import wait"),
        (EDITED + "def run(): pass\n", "the function is defined more than once, on lines 4, 13"),
        (EDITED + "(", "the file does not parse: line 13: '(' was never closed"),
    ],
)
def test_what_cannot_be_accepted(one: str, why: str, tmp_path: Path) -> None:
    found = gates.findings(gates.lay_out(tmp_path, {"verl/one.py": one, "verl/two.py": TWO}))
    done = short(plan(accepted(found, ""), {}))
    assert why in done.blocked["gate"]
    assert "two.py" not in done.files


def test_a_file_on_record_with_an_unknown_shape_must_bind_the_names_too(tmp_path: Path) -> None:
    """H3: what is on record of a file is what was checked for its listed shapes."""
    unbound = EDITED.replace("start, wait", "start")
    found = accepted(gates.findings(gates.lay_out(tmp_path, {"verl/one.py": EDITED})), "")[:1]
    seen = found[0].seen._replace(data=unbound.encode(), on_record=True, names=None)
    done = short(plan([found[0]._replace(seen=seen)], {}))
    assert done == ({}, {"gate": "the file does not define or import wait"})


# -- what an earlier run wrote ----------------------------------------------------------------------------------------


def test_a_function_of_ours_that_was_edited_since_blocks_its_file(tmp_path: Path) -> None:
    done = short(plan(only(tmp_path, gates.gated(EDITED)), original_of(tmp_path, gates.gated(ONE))))
    assert done.files == {}
    assert done.blocked["pause"].startswith("a function that we rewrote in this file was edited since")


def test_another_fix_goes_into_a_patched_file(tmp_path: Path) -> None:
    done = short(plan(only(tmp_path, gates.gated(ONE)), original_of(tmp_path, gates.gated(ONE))))
    assert done == ({"one.py": BOTH}, {})
