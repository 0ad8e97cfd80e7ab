"""Each hang is diagnosed from what its own ranks leave, and no other job as one of ours.

The environment needs every fix: whether a job is known is seen from its ranks alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest

from hangs import cases, foreign, inputs, recorded
from proofs import suite
from support import needed
from unhang.diagnose import intake
from unhang.diagnose.known import diagnose
from unhang.prove import host
from unhang.prove.cases import Case
from unhang.tell.progress import silent

HANGS = [
    pytest.param(fix, case, id=f"{fix}-{case.name}", marks=pytest.mark.xdist_group(fix))
    for fix, every in cases.chosen().items()
    for case in every
]
PATCHED = [one for one in HANGS if isinstance(case := one.values[1], Case) and case.topology.world == cases.FEW]
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


def known(out: Path, into: Path) -> dict[str, set[str]]:
    """Return the fixes that each input of a recorded job makes known."""
    jobs = {name: intake.read([str(path)], silent) for name, path in inputs.made(out, into).items()}
    return {name: {one.fix for one in needed.answers(job) if one.answer == "known"} for name, job in jobs.items()}


@pytest.mark.parametrize(("fix", "case"), HANGS)
def test_a_hang_is_known_by_dumps_alone_by_stacks_alone_and_together(
    fix: str, case: Case, base: Path, tmp_path: Path
) -> None:
    found = known(hung(fix, base)[case.name], tmp_path)
    told = {name: fixes for name, fixes in found.items() if inputs.INPUTS[name][0] != inputs.PART}
    assert {name: fixes for name, fixes in told.items() if fix not in fixes} == {}


@not_core
@pytest.mark.parametrize(("fix", "case"), PATCHED)
def test_a_patched_job_is_no_hang_of_a_fix(fix: str, case: Case, base: Path, tmp_path: Path) -> None:
    assert set().union(*known(patched(fix, base)[case.name], tmp_path).values()) == set()


@pytest.mark.parametrize("name", FOREIGN)
def test_a_foreign_job_is_no_known_hang_and_its_culprits_are_named(name: str, base: Path, tmp_path: Path) -> None:
    out = run(base)[name]
    assert set().union(*known(out, tmp_path).values()) == set()
    folder = inputs.made(out, tmp_path / "again").get(inputs.ALL)
    if folder is not None:
        assert {*diagnose(intake.read([str(folder)], silent)).who.why} == {*foreign.JOBS[name].culprits}


@not_core
@pytest.mark.parametrize("fix", [pytest.param(fix, marks=pytest.mark.xdist_group(fix)) for fix in cases.chosen()])
def test_gloo_s_own_errors_name_no_other_fix(fix: str, base: Path, tmp_path: Path) -> None:
    case = cases.chosen()[fix][0]
    out = recorded.fix(cases.proof(fix), host.UNTOUCHED, [case], base / "timed" / fix, UNHANG_HANGS_TIMEOUT_S="20")
    inputs.launched(out[case.name], tmp_path)
    answers = needed.answers(intake.read([str(tmp_path)], silent))
    assert {one.fix for one in answers if one.answer == "known"} <= {fix, cases.LIKE.get(fix, "")}
