"""Each hang shown on the untouched source and gone on the patched one: a test for each case of each proof."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from proofs import judging, suite
from proofs.others import AS_WRITTEN, need_pull_request
from unhang.prove import host
from unhang.prove.cases import PASSED, Case, as_it_may
from unhang.shapes import catalog

Tell = Callable[..., None]
# all cases of a proof are run at once, by the first test that asks: `--dist loadgroup` gives them to one worker
CASES = [
    pytest.param(
        proof,
        case,
        id=f"{proof.name} {case.name}".replace(" ", "-"),
        marks=pytest.mark.xdist_group(proof.name),
    )
    for proof in suite.proofs()
    for case in proof.cases()
]
VARIANTS = [
    pytest.param(proof, name, id=f"{proof.name} {name}".replace(" ", "-"), marks=pytest.mark.xdist_group(proof.name))
    for proof in suite.proofs()
    for name in proof.variants
]


@pytest.mark.torch
@pytest.mark.parametrize(("proof", "case"), CASES)
def test_the_untouched_source_shows_the_defect_and_the_patched_one_does_not(
    proof: suite.Proof, case: Case, tell: Tell
) -> None:
    outcomes = suite.answer(proof).outcomes
    untouched, patched = outcomes[host.UNTOUCHED][case.name], outcomes[host.PATCHED][case.name]
    case = as_it_may(case, untouched)
    wrong = judging.verdict(case, untouched, patched)
    pair = {"untouched": untouched._asdict(), "patched": patched._asdict()}
    tell(**_line(proof, case, wrong), outcomes=pair)
    assert not wrong


@pytest.mark.torch
@pytest.mark.parametrize(("proof", "name"), VARIANTS)
def test_half_a_patch_fails(proof: suite.Proof, name: str, tell: Tell) -> None:
    known = {case.name: case for case in proof.cases()}
    if name == AS_WRITTEN:
        need_pull_request(proof.fix)
    other, outcomes = proof.variants[name], suite.answer(proof).outcomes[name]
    assert outcomes
    assert outcomes.keys() == set(other.fails)
    wrong = judging.survivors(outcomes, other.ends)
    for case, outcome in outcomes.items():
        tell(**_line(proof, known[case], wrong), outcomes={name: outcome._asdict()})
    assert not wrong


def test_each_fix_has_its_turn_within_four_days(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "everything", lambda: False)
    functions = [pytest.param(f"{fix} {of}", id=f"{fix} {of}") for fix in "abcdef" for of in (1, 2)]
    run = []
    for day in range(20_000, 20_004):
        monkeypatch.setattr(suite, "_day", lambda day=day: day)
        run += [it.id for it in suite.in_turn(functions, lambda value: value[0]) if not it.marks]
    assert sorted(run) == [f"{fix} 2" for fix in "abcdef"]


def test_what_is_left_out_exists() -> None:
    """With a wrong name, something else would be left out, or nothing."""
    for proof in suite.every_proof():
        cases = {case.name: case for case in suite.module(proof.fix).CASES}
        assert cases.keys() | proof.of.others.keys() >= proof.release.lacking.keys()
        assert cases.keys() >= proof.release.otherwise.keys()
        passes = {name for name, (ends, _) in proof.release.otherwise.items() if ends == PASSED}
        assert not [name for name in passes if cases[name].options.get("may_pass")], "the scene says that already"
        versions = {release.version for release in proof.of.releases}
        assert versions >= {version for other in proof.of.others.values() for version in other.only}


@pytest.mark.parametrize("proof", suite.proofs(), ids=lambda proof: proof.name.replace(" ", "-"))
def test_each_proof_has_a_control_and_a_defect(proof: suite.Proof) -> None:
    assert {case.is_control for case in proof.cases()} == {True, False}


def test_each_fix_has_a_core_proof_or_no_proof_and_a_reason() -> None:
    proven = {proof.fix for proof in suite.every_proof() if proof.release.core}
    assert {fix for fix in catalog.fixes() if "No proof: " not in catalog.page(fix)} == proven


def _line(proof: suite.Proof, case: Case, wrong: str) -> dict[str, Any]:
    about = {"proof": proof.name, "fix": proof.fix, "topology": case.topology.text()}
    return {**about, "case": case.name, "control": case.is_control, "wrong": wrong}
