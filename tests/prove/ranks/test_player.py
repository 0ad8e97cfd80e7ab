"""Programs written by hand: which complete, which do not, and what is reported."""

from __future__ import annotations

import time

import pytest

from unhang.prove.ranks.operations import Finding, Operation, Raised, Step, Wait
from unhang.prove.ranks.player import play

ALL = (0, 1, 2, 3)
FLOAT = "1 x float32"


def reduce(
    group: str = "world", ranks: tuple[int, ...] = (0, 1), signature: str = FLOAT, waits: bool = True
) -> Operation:
    return Operation("all_reduce", group, ranks, signature, signature, f"job.py:1 in on_{group}", waits)


def p2p(kind: str, sender: int, receiver: int, waits: bool = True, signature: str = FLOAT) -> Operation:
    pair = sender, receiver
    return Operation(kind, f"{sender}->{receiver}", pair, signature, signature, f"job.py:2 in {kind}", waits)


def exchange(sends: tuple[int, ...], expects: tuple[int, ...]) -> Operation:
    return Operation("all_to_all", "ep", (0, 1), "float32", "", "job.py:3 in exchange", splits=(sends, expects))


def played(*programs: list[Step]) -> list[Finding]:
    return play(dict(enumerate(programs)))


WORLD = reduce(ranks=ALL)
ONE, OTHER = reduce("one"), reduce("other")
EARLY, LATE = (operation._replace(waits=False) for operation in (ONE, OTHER))
LEFT, RIGHT = reduce("left", (0, 1)), reduce("right", (2, 3))
PAIRS = [reduce(f"pair{rank}", tuple(sorted((rank, (rank + 1) % 4)))) for rank in ALL]
SENDS_0, RECEIVES_0 = p2p("send", 0, 1), p2p("recv", 1, 0)
SENDS_1, RECEIVES_1 = p2p("send", 1, 0), p2p("recv", 0, 1)
ISSUED = reduce(waits=False)
LARGE = reduce(signature="8 x float32")
WAITS: list[Step] = [Wait(0, ""), Wait(1, "")]


def issued(*operations: Operation) -> list[Step]:
    """Return a program that issues two operations, and then waits for both."""
    return [*(operation._replace(waits=False) for operation in operations), *WAITS]


@pytest.mark.parametrize(
    "programs",
    [
        pytest.param([[WORLD, WORLD]] * 4, id="all ranks do the same"),
        pytest.param([[LEFT, WORLD]] * 2 + [[RIGHT, WORLD]] * 2, id="groups in one order"),
        pytest.param([[EARLY, OTHER, Wait(0, "")], [OTHER, EARLY, Wait(1, "")]], id="crossed, but not waited for"),
        pytest.param([[EARLY, OTHER], [EARLY, OTHER, Wait(0, "")]], id="waited for late or never"),
        pytest.param([[ISSUED, LARGE, Wait(0, "")]] * 2, id="asynchronous, then synchronous"),
        pytest.param([[ONE, OTHER, ONE]] * 2, id="two groups of the same ranks"),
        pytest.param([issued(SENDS_0, RECEIVES_0), issued(SENDS_1, RECEIVES_1)], id="sends and receives in a batch"),
        pytest.param([[exchange((1, 3), (1, 2))], [exchange((2, 0), (3, 0))]], id="all-to-all"),
    ],
)
def test_a_job_that_completes(programs: list[list[Step]]) -> None:
    assert played(*programs) == []


BLOCKED = ["deadlock"] * 2
UNHEARD = "rank 1 ended without it"
CROSSED = [[EARLY, Wait(0, ""), OTHER], [LATE, Wait(0, ""), ONE]]
FAILED = Raised("ValueError: no", "job.py:9 in step")
SMALLER = p2p("recv", 0, 1, signature="4 x float32")
BOTH_SITES = "on group 0, 1: rank 0 at job.py:2 in send; rank 1 recv (4 x float32) at job.py:2 in recv"
OUT_OF_ORDER = [[ISSUED, LARGE, Wait(0, "")], [LARGE, ISSUED, Wait(1, "")]]


@pytest.mark.parametrize(
    ("programs", "kinds", "named"),
    [
        ([[ONE, OTHER], [OTHER, ONE]], BLOCKED, "waits in all_reduce on group 0, 1 at job.py:1 in on_other"),
        ([[PAIRS[rank], PAIRS[rank - 1]] for rank in ALL], ["deadlock"] * 4, "on_pair"),
        (CROSSED, BLOCKED, "on_o"),
        ([[ONE], [OTHER]], BLOCKED, "on_o"),
        ([[SENDS_0, RECEIVES_0], [SENDS_1, RECEIVES_1]], BLOCKED, "in send"),
        ([[ISSUED], []], ["missing"], UNHEARD),
        ([[SENDS_0], []], ["missing"], UNHEARD),
        ([[LEFT, WORLD], [], [WORLD], [WORLD]], ["missing"] * 2, "on group 0, 1: rank 0 at"),  # the root cause first
        (OUT_OF_ORDER, ["mismatch", "deadlock"], "1 x float32 and 8 x float32"),
        ([[WORLD], [WORLD._replace(kind="broadcast")], [], []], ["mismatch"], "rank 1 broadcast (1 x float32) at job"),
        ([[ONE], [reduce("one", signature="2 x float32")]], ["mismatch"], "1 x float32 and 2 x float32"),
        ([[ONE], [reduce("one", signature="1 x int64")]], ["mismatch"], "1 x float32 and 1 x int64"),
        ([[ONE], [reduce("one", signature="1 x float32, root 1")]], ["mismatch"], "and 1 x float32, root 1"),
        ([[ONE], [reduce("one", (0, 1, 2))], []], ["mismatch"], "a group of 0, 1, and of 0-2: not all ranks make"),
        ([[SENDS_0], [SMALLER]], ["mismatch"], BOTH_SITES),
        (
            [[exchange((1, 3), (1, 2))], [exchange((2, 0), (4, 0))]],
            ["mismatch"],
            "sends 3 elements to rank 1, which expects 4",
        ),
        ([[FAILED], [ONE]], ["raised", "missing"], "raised ValueError: no on rank 0 at job.py:9 in step"),
    ],
)
def test_a_job_that_does_not_complete(programs: list[list[Step]], kinds: list[str], named: str) -> None:
    findings = played(*programs)
    assert [finding.kind for finding in findings] == kinds
    assert named in findings[0].text()


def test_a_missing_rank_is_named_with_the_call_sites_of_both_sides() -> None:
    (finding,) = played([WORLD], [WORLD], [], [WORLD])
    assert (finding.kind, finding.group) == ("missing", ALL)
    assert [rank for rank, _ in finding.entered] == [0, 1, 3]
    assert finding.absent == ((2, "ended without it"),)
    assert "all_reduce (1 x float32) on group 0-3" in finding.text()
    assert "rank 0, 1, 3 at job.py:1 in on_world; rank 2 ended without it" in finding.text()
    *_, waiting = played([FAILED], [ONE])
    assert "rank 0 raised ValueError: no" in waiting.text()


def test_an_all_to_all_of_1024_ranks_is_judged_quickly() -> None:
    ranks = tuple(range(1024))
    even = Operation("all_to_all", "ep", ranks, "float32", "", "job.py:3 in exchange", splits=((1,) * 1024,) * 2)
    odd = even._replace(splits=((1,) * 1023 + (2,), (1,) * 1024))
    begun = time.process_time()
    assert play({rank: [even] for rank in ranks}) == []
    (finding,) = play({rank: [odd if rank == 7 else even] for rank in ranks})
    assert time.process_time() - begun < 10
    assert "rank 7 sends 2 elements to rank 1023, which expects 1" in finding.text()
