"""Which outcomes prove a case, and which let a variant survive."""

from __future__ import annotations

from proofs import judging
from unhang.prove.cases import BROKEN, CRASHED, HUNG, PASSED, Case, Outcome, Topology, as_it_may

CASE = Case("cp2", Topology(cp=2), HUNG, "all_reduce")
CONTROL = CASE._replace(untouched=PASSED)
GOOD = Outcome(PASSED, "")


def test_the_untouched_source_must_fail_where_the_case_says() -> None:
    assert judging.verdict(CASE, Outcome(HUNG, "rank 0 waits in all_reduce"), GOOD) == ""
    assert judging.verdict(CONTROL, GOOD, GOOD) == ""
    assert "expected hung" in judging.verdict(CASE, GOOD, GOOD)
    assert "but not at all_reduce" in judging.verdict(CASE, Outcome(HUNG, "rank 0 waits in store"), GOOD)
    assert judging.verdict(CASE, Outcome(BROKEN, "all_reduce"), GOOD)
    assert judging.verdict(CASE, Outcome(CRASHED, "all_reduce"), GOOD)
    assert "patched source hung" in judging.verdict(CASE, Outcome(HUNG, "all_reduce"), Outcome(HUNG, ""))
    assert judging.verdict(CONTROL, GOOD, Outcome(CRASHED, ""))


def test_a_case_that_may_pass_is_a_control_where_the_untouched_source_does() -> None:
    may, hung = CASE._replace(options={"may_pass": True}), Outcome(HUNG, "rank 0 waits in all_reduce")
    assert judging.verdict(as_it_may(may, GOOD), GOOD, GOOD) == ""
    assert judging.verdict(as_it_may(may, hung), hung, GOOD) == ""
    assert (as_it_may(may, GOOD).is_control, as_it_may(may, hung).is_control) == (True, False)
    assert "but not at all_reduce" in judging.verdict(as_it_may(may, hung), Outcome(HUNG, "in store"), GOOD)
    assert as_it_may(CASE, GOOD) == CASE


def test_a_broken_proof_does_not_count_as_a_failure_of_a_variant() -> None:
    assert judging.survivors({"a": Outcome(HUNG, ""), "b": Outcome(CRASHED, "")}) == ""
    assert "b passed" in judging.survivors({"a": Outcome(HUNG, ""), "b": GOOD})
    assert "a broken" in judging.survivors({"a": Outcome(BROKEN, "")})
    assert judging.survivors({"a": Outcome(HUNG, "in b")}, "hung: in") == ""
    assert "a hung: in b" in judging.survivors({"a": Outcome(HUNG, "in b")}, "in c")
