"""What a fix is to a job: whom it strikes, over the roles of the job, and whom it would harm."""

from __future__ import annotations

import pytest

from unhang.job.condition import Look
from unhang.job.settings import Setting, Value
from unhang.job.strikes import CANNOT, STRIKES, UNKNOWN, Struck, judged
from unhang.shapes import catalog

FIX = catalog.fix("fsdp-size-one-no-sync")
OURS: dict[str, Value] = {"strategy": "fsdp", "fsdp_size": 1, "ranks": 2}
(SKIPS,) = (each.condition.strip('"') for each in FIX.leave_out)


def role(**told: Value) -> Look:
    known = {"use_legacy_worker_impl": "auto", **told}
    return lambda name: Setting(known[name], "train.sh:1") if name in known else None


def of(*roles: Look) -> Struck:
    return judged(FIX, roles)


def test_one_role_that_is_struck_is_enough() -> None:
    right = role(**{**OURS, "fsdp_size": -1})
    assert of(right, role(**OURS))[:2] == (STRIKES, ("strategy", "fsdp_size", "ranks"))
    assert of(right, role(strategy="fsdp2"))[:2] == (CANNOT, ("fsdp_size", "strategy", "use_legacy_worker_impl"))
    assert of(right, role(ranks=2))[:2] == (UNKNOWN, ("strategy", "fsdp_size"))


def test_the_settings_of_two_roles_are_not_mixed() -> None:
    assert of(role(strategy="fsdp", fsdp_size=-1, ranks=2), role(strategy="fsdp2", fsdp_size=1, ranks=2)).word == CANNOT


def test_a_job_of_which_nothing_is_said_may_be_struck_and_harmed() -> None:
    found = judged(FIX)
    assert (found.word, found.names[-2:]) == (UNKNOWN, ("fsdp_size", "ranks"))
    assert [(harm.leave_out.effect, harm.holds, harm.names) for harm in found.harms] == [("aborts", None, (SKIPS,))]


@pytest.mark.parametrize(("told", "harms"), [(True, [True]), (False, [])])
def test_a_role_that_is_harmed_is_told_and_one_that_is_not_is_not(told: bool, harms: list[bool]) -> None:
    found = of(role(**OURS, **{SKIPS: False}), role(**OURS, **{SKIPS: told}))
    assert [harm.holds for harm in found.harms] == harms


def test_a_job_that_does_not_run_the_code_at_all_is_neither() -> None:
    assert of() == (CANNOT, (), ())
