"""What the manifests say of whom a fix strikes and harms, held against the settings of the scenes."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
from packaging.specifiers import SpecifierSet

from unhang.job import condition
from unhang.job.settings import Setting
from unhang.prove.cases import PASSED, Case
from unhang.shapes import catalog
from unhang.shapes.catalog import Fix

FIXES = {name: fix for name, fix in catalog.fixes().items() if fix.strikes}


def scene(fix: Fix) -> Any:
    return importlib.import_module(f"unhang.prove.fixes.{fix.id.replace('-', '_')}")


def cases(fix: Fix) -> list[Case]:
    """Return the cases of a scene; of its grid, those that are a job's: to the others, ``settings`` gives None."""
    module = scene(fix)
    grid = [case for case in getattr(module, "GRID", ()) if module.settings(case) is not None]
    return [*getattr(module, "CASES", ()), *grid]


def holds(fix: Fix, text: str, case: Case) -> bool | None:
    """Return whether a condition holds for the job of a case: ``settings`` of the scene says what its user sets."""
    known = scene(fix).settings(case)
    return condition.answer(text, lambda name: Setting(known[name], case.name) if name in known else None).holds


@pytest.mark.parametrize("fix", FIXES.values(), ids=FIXES)
def test_the_words_of_when_are_those_of_strikes(fix: Fix) -> None:
    words = condition.words(fix.strikes)
    assert fix.when == f"only {words}" if words.startswith("without ") else f"only with {words}"


@pytest.mark.parametrize("fix", FIXES.values(), ids=FIXES)
def test_the_settings_that_are_wrong_untouched_are_those_that_it_strikes(fix: Fix) -> None:
    # `may_pass`, `may_refuse`: it depends on the release whether such a setting is wrong, or is there at all
    wrong = []
    for case in cases(fix):
        struck = holds(fix, fix.strikes, case)
        if struck is None or (struck is (case.untouched == PASSED) and not case.options.get("may_pass")):
            wrong.append((case.name, case.untouched, struck, dict(scene(fix).settings(case))))
    assert not wrong
    assert {case.untouched == PASSED for case in cases(fix)} == {True, False}


@pytest.mark.parametrize("fix", FIXES.values(), ids=FIXES)
def test_each_job_to_leave_out_and_each_companion_is_shown_by_a_case(fix: Fix) -> None:
    # the option `without` names the fix that is missing in a case
    lacking = [case for case in cases(fix) if "without" in case.options]
    assert {case.options["without"] for case in lacking} == {each.fix for each in fix.companions}
    assert all(case.patched != PASSED for case in lacking)
    harmed = [case for case in cases(fix) if case.patched != PASSED and case not in lacking]
    shown = {each.condition for each in fix.leave_out if any(holds(fix, each.condition, case) for case in harmed)}
    assert shown == {each.condition for each in fix.leave_out}
    for case in harmed:
        assert any(holds(fix, each.condition, case) for each in fix.leave_out), case.name


def test_a_companion_is_a_fix_of_the_upstream_whose_releases_need_it() -> None:
    for fix in FIXES.values():
        for each in fix.companions:
            SpecifierSet(each.releases)
            assert each.upstream in {target.upstream for target in catalog.fix(each.fix).targets}
