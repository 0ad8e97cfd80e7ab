"""Each hang is diagnosed from what its own ranks leave, and no other job as one of ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import pytest

from hangs import cases, foreign, inputs, recorded
from proofs import suite
from unhang.diagnose import diagnosis, intake, signature
from unhang.diagnose.answer import ANSWERS, Answer
from unhang.prove import host
from unhang.prove.cases import Case
from unhang.tell.progress import silent

HANGS = [
    pytest.param(fix, case, id=f"{fix}-{case.name}", marks=pytest.mark.xdist_group(fix))
    for fix, every in cases.chosen().items()
    for case in every
]
PATCHED = [one for one in HANGS if isinstance(case := one.values[1], Case) and case.topology.world == cases.FEW]
FIXES = [pytest.param(fix, marks=pytest.mark.xdist_group(fix)) for fix in cases.chosen()]
LATE = [pytest.param(late, id=late.fix, marks=pytest.mark.xdist_group(late.fix)) for late in cases.LATE]
FOREIGN = [pytest.param(name, marks=pytest.mark.xdist_group("foreign")) for name in cases.chosen_foreign()]
not_core = pytest.mark.skipif(not suite.everything(), reason="UNHANG_PROOFS=all runs these")


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of all recordings."""
    return tmp_path_factory.mktemp("hangs")


@cache
def hung(fix: str, base: Path) -> Mapping[str, Path]:
    """Record the hangs of a fix."""
    return recorded.fix(cases.proof(fix), host.UNTOUCHED, cases.chosen()[fix], base / fix)


@cache
def patched(fix: str, base: Path) -> Mapping[str, Path]:
    """Record the same jobs of four ranks, patched."""
    few = [case for case in cases.chosen()[fix] if case.topology.world == cases.FEW]
    return recorded.fix(cases.proof(fix), host.PATCHED, few, base / fix)


@cache
def run(base: Path) -> Mapping[str, Path]:
    """Record the foreign jobs."""
    return recorded.foreign(cases.chosen_foreign(), base / "foreign")


def answers(out: Path, into: Path) -> dict[str, tuple[Answer, ...]]:
    """Return the answers to each input of a recorded job, the best first."""
    return {name: diagnosed(path) for name, path in inputs.made(out, into).items()}


def diagnosed(path: Path) -> tuple[Answer, ...]:
    """Return the answers to the files in a folder, matched against the signatures of all fixes."""
    return diagnosis.diagnose(intake.read([str(path)], silent), signature.signatures()).answers


def best(found: Mapping[str, Sequence[Answer]]) -> dict[str, str]:
    """Return the best answer to each input, and its fix."""
    return {name: f"{first.answer} {first.fix}".strip() for name, (first, *_) in found.items()}


@pytest.mark.parametrize(("fix", "case"), HANGS)
def test_a_hang_is_known_from_its_own_dumps(fix: str, case: Case, base: Path, tmp_path: Path) -> None:
    found = answers(hung(fix, base)[case.name], tmp_path)
    wrong = {name: one for name, one in best(found).items() if one not in cases.right(fix, case.name, name)}
    assert not wrong
    known = {one.fix for several in found.values() for one in several if one.answer == "known"}
    assert known == {fix} or (not known and inputs.ALL not in found)  # dumps alone may leave it open
    assert {one.fix for name in inputs.of(inputs.WHOLE) & found.keys() for one in found[name]} <= {fix, ""}
    # what is not known for certain leaves open which of two like defects it is
    assert {one.fix for name in inputs.of(inputs.UNSIZED) for one in found[name]} <= {fix, "", cases.LIKE.get(fix, "")}


@not_core
@pytest.mark.parametrize(("fix", "case"), PATCHED)
def test_a_patched_job_is_no_hang_of_a_fix(fix: str, case: Case, base: Path, tmp_path: Path) -> None:
    found = answers(patched(fix, base)[case.name], tmp_path)
    assert {one.fix for several in found.values() for one in several} == {""}


@not_core
@pytest.mark.parametrize("late", LATE)
def test_a_patched_job_with_a_late_rank_is_no_known_hang(late: cases.Late, base: Path, tmp_path: Path) -> None:
    (case,) = (one for one in cases.HANGS[late.fix] if one.name == late.case)
    environ = {"UNHANG_HANGS_LATE": f"{late.rank} {late.function}"}
    out = recorded.fix(cases.proof(late.fix), host.PATCHED, [case], base / "late" / late.fix, **environ)
    found = answers(out[late.case], tmp_path)
    assert "known" not in {one.answer for several in found.values() for one in several}


@pytest.mark.parametrize("name", FOREIGN)
def test_a_foreign_job_is_no_known_hang(name: str, base: Path, tmp_path: Path) -> None:
    found = answers(run(base)[name], tmp_path)
    assert "known" not in {one.answer for several in found.values() for one in several}
    assert best(found)[inputs.ALL if inputs.ALL in found else "gloo"] in foreign.JOBS[name].answers


@not_core
@pytest.mark.parametrize("fix", FIXES)
def test_gloo_s_own_errors_name_no_other_fix(fix: str, base: Path, tmp_path: Path) -> None:
    case = cases.chosen()[fix][0]
    out = recorded.fix(cases.proof(fix), host.UNTOUCHED, [case], base / "timed" / fix, UNHANG_HANGS_TIMEOUT_S="20")
    inputs.launched(out[case.name], tmp_path)
    found = {"stderr": diagnosed(tmp_path)}
    assert {one.fix for one in found["stderr"] if one.answer == "known"} <= {fix}
    assert best(found)["stderr"] in cases.right(fix, case.name, "stderr")


@pytest.mark.parametrize(("fix", "case"), HANGS)
def test_more_evidence_never_lowers_the_answer(fix: str, case: Case, base: Path, tmp_path: Path) -> None:
    for pool in inputs.POOLS:
        told = inputs.told(hung(fix, base)[case.name], tmp_path, pool)
        found: dict[frozenset[inputs.Piece], Answer] = {}
        for pair in inputs.pairs(sorted(told)):
            for pieces in pair:
                if pieces not in found:
                    job = intake.merged([told[piece] for piece in sorted(pieces)])
                    found[pieces] = diagnosis.diagnose(job, signature.signatures()).answers[0]
            smaller, larger = (found[pieces] for pieces in pair)
            lost = (sorted(pair[0]), sorted(pair[1] - pair[0]), smaller, larger)
            assert ANSWERS.index(larger.answer) <= ANSWERS.index(smaller.answer), lost
            assert smaller.answer != "known" or larger.fix == smaller.fix, lost
