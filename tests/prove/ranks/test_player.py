"""Programs written by hand: which complete, which do not, and what is reported."""

from __future__ import annotations

import time

import pytest

from unhang.prove.ranks.operations import Operation, Raised, Step, Wait
from unhang.prove.ranks.player import play

ALL = (0, 1, 2, 3)
FLOAT = "1 x float32"


def reduce(group: str = "world", ranks: tuple[int, ...] = ALL, signature: str = FLOAT, waits: bool = True) -> Operation:
    return Operation("all_reduce", group, ranks, signature, signature, f"job.py:1 in on_{group}", waits)


def p2p(kind: str, sender: int, receiver: int, waits: bool = True, signature: str = FLOAT) -> Operation:
    pair = sender, receiver
    return Operation(kind, f"{sender}->{receiver}", pair, signature, signature, f"job.py:2 in {kind}", waits)


def kinds(programs: dict[int, list[Step]]) -> list[str]:
    return [finding.kind for finding in play(programs)]


def test_a_job_whose_ranks_all_do_the_same_completes() -> None:
    assert play({rank: [reduce(), reduce()] for rank in ALL}) == []


def test_groups_used_in_one_order_by_all_complete() -> None:
    left, right = reduce("left", (0, 1)), reduce("right", (2, 3))
    assert play({0: [left, reduce()], 1: [left, reduce()], 2: [right, reduce()], 3: [right, reduce()]}) == []


def test_a_missing_rank_is_named_with_the_call_sites_of_both_sides() -> None:
    (finding,) = play({0: [reduce()], 1: [reduce()], 2: [], 3: [reduce()]})
    assert finding.kind == "missing"
    assert finding.group == ALL
    assert [rank for rank, _ in finding.entered] == [0, 1, 3]
    assert finding.absent == ((2, "ended without it"),)
    text = finding.text()
    assert "all_reduce (1 x float32) on group 0-3" in text
    assert "rank 0, 1, 3 at job.py:1 in on_world" in text
    assert "rank 2 ended without it" in text


def test_two_groups_entered_in_crossed_order_are_a_deadlock() -> None:
    one, other = reduce("one", (0, 1)), reduce("other", (0, 1))
    findings = play({0: [one, other], 1: [other, one]})
    assert {finding.kind for finding in findings} == {"deadlock"}
    assert "waits in all_reduce on group 0, 1 at job.py:1 in on_other" in findings[0].text()


def test_a_ring_of_groups_is_a_deadlock() -> None:
    pairs = {rank: reduce(f"pair{rank}", tuple(sorted((rank, (rank + 1) % 4)))) for rank in ALL}
    assert set(kinds({rank: [pairs[rank], pairs[(rank - 1) % 4]] for rank in ALL})) == {"deadlock"}


@pytest.mark.parametrize("other", ["2 x float32", "1 x int64", "1 x float32, root 1"])
def test_another_size_type_or_root_is_a_mismatch(other: str) -> None:
    (finding,) = play({0: [reduce(ranks=(0, 1))], 1: [reduce(ranks=(0, 1), signature=other)]})
    assert finding.kind == "mismatch"
    assert other in finding.text()
    assert "1 x float32" in finding.text()


def test_another_kind_is_a_mismatch_before_all_ranks_have_issued_it() -> None:
    other = reduce()._replace(kind="broadcast")
    findings = play({0: [reduce()], 1: [other], 2: [], 3: []})
    assert [finding.kind for finding in findings] == ["mismatch"]
    assert "rank 1 broadcast (1 x float32) at job.py:1" in findings[0].text()


def test_the_root_of_several_findings_comes_first() -> None:
    left = reduce("left", (0, 1))
    findings = play({0: [left, reduce()], 1: [], 2: [reduce()], 3: [reduce()]})
    assert findings[0].group == (0, 1)
    assert findings[0].kind == "missing"


def test_an_asynchronous_operation_lets_its_rank_go_on() -> None:
    one, other = reduce("one", (0, 1), waits=False), reduce("other", (0, 1))
    assert play({0: [one, other, Wait(0, "")], 1: [other, one, Wait(1, "")]}) == []


def test_waiting_for_asynchronous_operations_in_crossed_order_is_a_deadlock() -> None:
    one, other = reduce("one", (0, 1), waits=False), reduce("other", (0, 1), waits=False)
    assert "deadlock" in kinds({0: [one, Wait(0, ""), other], 1: [other, Wait(0, ""), one]})


def test_waiting_late_or_never_is_not_a_hang_where_all_ranks_issue_the_operation() -> None:
    one, other = reduce(ranks=(0, 1), waits=False), reduce("other", (0, 1))
    assert play({0: [one, other], 1: [one, other, Wait(0, "")]}) == []


def test_asynchronous_and_synchronous_operations_keep_one_order_on_a_group() -> None:
    early, late = reduce(ranks=(0, 1), waits=False), reduce(ranks=(0, 1), signature="8 x float32")
    assert play({rank: [early, late, Wait(0, "")] for rank in (0, 1)}) == []
    findings = play({0: [early, late, Wait(0, "")], 1: [late, early, Wait(1, "")]})
    assert findings[0].kind == "mismatch"
    assert "1 x float32 and 8 x float32" in findings[0].text()


def test_two_groups_of_the_same_ranks_are_not_one() -> None:
    one, other = reduce("one", (0, 1)), reduce("other", (0, 1))
    assert play({rank: [one, other, one] for rank in (0, 1)}) == []
    findings = play({0: [one], 1: [other]})
    assert {finding.kind for finding in findings} == {"deadlock"}
    assert len(findings) == 2


def test_a_group_that_has_other_members_elsewhere_is_a_mismatch() -> None:
    (finding,) = play({0: [reduce("group 1", (0, 1))], 1: [reduce("group 1", (0, 1, 2))], 2: []})
    assert finding.kind == "mismatch"
    assert "a group of 0, 1, and of 0-2" in finding.text()
    assert "rank 0 at job.py:1 in on_group 1; rank 1 all_reduce" in finding.text()


def test_an_operation_that_no_rank_waits_for_and_a_peer_never_issues_is_missing() -> None:
    assert kinds({0: [reduce(ranks=(0, 1), waits=False)], 1: []}) == ["missing"]


def test_sends_on_both_sides_before_the_receives_are_a_deadlock() -> None:
    programs: dict[int, list[Step]] = {0: [p2p("send", 0, 1), p2p("recv", 1, 0)]}
    programs[1] = [p2p("send", 1, 0), p2p("recv", 0, 1)]
    assert kinds(programs) == ["deadlock"] * 2


def test_sends_issued_without_waiting_and_then_waited_for_complete() -> None:
    def rank(me: int, peer: int) -> list[Step]:
        return [p2p("send", me, peer, False), p2p("recv", peer, me, False), Wait(0, ""), Wait(1, "")]

    assert play({0: rank(0, 1), 1: rank(1, 0)}) == []


def test_a_receive_of_another_size_is_a_mismatch() -> None:
    (finding,) = play({0: [p2p("send", 0, 1)], 1: [p2p("recv", 0, 1, signature="4 x float32")]})
    assert finding.kind == "mismatch"
    assert "on group 0, 1: rank 0 at job.py:2 in send; rank 1 recv (4 x float32) at job.py:2 in recv" in finding.text()


def test_a_send_that_nobody_receives_is_missing_its_peer() -> None:
    assert kinds({0: [p2p("send", 0, 1)], 1: []}) == ["missing"]


def test_an_all_to_all_must_send_what_is_expected() -> None:
    def exchange(sends: tuple[int, ...], expects: tuple[int, ...]) -> Operation:
        return Operation("all_to_all", "ep", (0, 1), "float32", "", "job.py:3 in exchange", splits=(sends, expects))

    assert play({0: [exchange((1, 3), (1, 2))], 1: [exchange((2, 0), (3, 0))]}) == []
    (finding,) = play({0: [exchange((1, 3), (1, 2))], 1: [exchange((2, 0), (4, 0))]})
    assert "rank 0 sends 3 elements to rank 1, which expects 4" in finding.text()


def test_an_all_to_all_of_1024_ranks_is_judged_quickly() -> None:
    ranks = tuple(range(1024))
    even = Operation("all_to_all", "ep", ranks, "float32", "", "job.py:3 in exchange", splits=((1,) * 1024,) * 2)
    odd = even._replace(splits=((1,) * 1023 + (2,), even.splits[1])) if even.splits else even
    begun = time.process_time()
    assert play({rank: [even] for rank in ranks}) == []
    (finding,) = play({rank: [odd if rank == 7 else even] for rank in ranks})
    assert time.process_time() - begun < 10
    assert "rank 7 sends 2 elements to rank 1023, which expects 1" in finding.text()


def test_a_rank_that_raises_comes_before_the_ranks_that_wait_for_it() -> None:
    findings = play({0: [Raised("ValueError: no", "job.py:9 in step")], 1: [reduce(ranks=(0, 1))]})
    assert [finding.kind for finding in findings] == ["raised", "missing"]
    assert "raised ValueError: no on rank 0 at job.py:9 in step" in findings[0].text()
    assert "rank 0 raised ValueError: no" in findings[1].text()
