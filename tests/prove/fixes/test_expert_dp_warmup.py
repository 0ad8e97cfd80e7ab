"""expert-dp-warmup's proof: the case of a user's job, the communicators that it needs, the faults. Runs no torch."""

from __future__ import annotations

import re
from typing import Any

import pytest

from unhang.prove.cases import DIFFERS, PASSED, Case, Topology
from unhang.prove.fixes import expert_dp_warmup as proof
from unhang.prove.fixes.expert_dp_warmup import Seen
from unhang.prove.ranks.communicators import Use

CORE = "megatron-core"


@pytest.mark.parametrize(
    ("upstream", "topology", "harness", "untouched", "may_pass"),
    [
        (CORE, Topology(ep=4, dp=8), "ranks", DIFFERS, False),
        (CORE, Topology(tp=2, ep=4, dp=4), "ranks", DIFFERS, False),
        (CORE, Topology(tp=2, ep=4, dp=8), "schedule", DIFFERS, False),
        (CORE, Topology(tp=2, dp=4), "ranks", PASSED, False),
        # without replicas of experts, the release decides
        (CORE, Topology(tp=2, ep=4, etp=2, dp=4), "ranks", DIFFERS, True),
        ("ms-swift", Topology(ep=8, dp=8), "ranks", DIFFERS, True),
    ],
)
def test_the_case_of_a_users_job(
    upstream: str, topology: Topology, harness: str, untouched: str, may_pass: bool
) -> None:
    case = proof.case_for(topology, upstream, ())
    assert (case.untouched, case.topology, case.harness) == (untouched, topology, harness)
    assert bool(case.at) is (untouched != PASSED)
    assert case.options.get("through", CORE) == upstream
    assert bool(case.options.get("may_pass")) is may_pass


@pytest.mark.parametrize(
    ("topology", "order", "rank", "groups"),
    [
        (Topology(dp=8, ep=2), "", 3, [(1, 3, 5, 7), tuple(range(8))]),
        (Topology(tp=2, pp=2, dp=4, ep=2, etp=2), "", 5, [(1, 5), tuple(range(16))]),
        (Topology(tp=2, cp=2, dp=2, ep=4), "", 6, [(2, 6), tuple(range(8))]),
        (Topology(tp=2, pp=2, dp=2, ep=2), "", 6, [(4, 6), tuple(range(8))]),
        (Topology(tp=2, pp=2, dp=2, ep=2), "tp-cp-ep-pp-dp", 6, [(2, 6), tuple(range(8))]),
        (Topology(dp=8, ep=8), "", 3, [tuple(range(8))]),
        (Topology(dp=8, ep=2, instances=2), "", 5, [(1, 3, 5, 7), (1, 5), (5, 7), (4, 5, 6, 7)]),
        (Topology(pp=2, dp=4, ep=2, instances=2), "", 7, [(5, 7), (5, 7), (2, 3, 6, 7)]),
    ],
)
def test_the_communicators_follow_from_the_topology(
    topology: Topology, order: str, rank: int, groups: list[tuple[int, ...]]
) -> None:
    case = Case("made up", topology, "ranks", DIFFERS, options={"order": order} if order else {})
    assert proof._needed(case, has_instances=True)[rank] == groups
    if topology.instances == 1:
        assert proof._needed(case, has_instances=False)[rank] == groups[:-1]


CASE = Case("made up", Topology(dp=4, ep=2), "ranks", DIFFERS)
WORLD = (0, 1, 2, 3)


def use(name: str, ranks: tuple[int, ...], **given: Any) -> Use:
    return Use(name, ranks, "allreduce_", 1, True)._replace(**given)


def warm(rank: int) -> Seen:
    """Return what a rank of CASE does that has no fault."""
    own = use(f"group {1 + rank % 2}", (rank % 2, rank % 2 + 2))
    every = use("group 3", WORLD)
    return Seen((own, every), ((0, 2), (1, 3), WORLD), False, (own._replace(elements=16), every, use("", WORLD)))


def first_fault(case: Case = CASE, backend: str = "nccl", **changed: Any) -> str:
    """Return the first fault of a job in which rank 1 is other than it should be."""
    seen = {rank: warm(rank)._replace(**(changed if rank == 1 else {})) for rank in WORLD}
    return next(proof._faults(case, seen, proof._needed(CASE, has_instances=True), backend), "")


OWN, EVERY, _ = warm(1).in_step
START = warm(1).at_start


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({}, "^$"),
        ({"at_start": ()}, "rank 1: 0 collectives at initialization, expected 2; rank 1 does not use its group 1, 3"),
        ({"at_start": START[:1]}, "rank 1 does not use its group 0-3"),
        ({"at_start": (*START, START[0])}, "rank 1 uses the groups"),
        ({"at_start": (*START, use("group 9", (0, 1)))}, "rank 1 uses the groups"),
        ({"at_start": (use("group 9", (1, 3)), START[1])}, "another communicator of 1, 3 at initialization"),
        ({"at_start": (START[0], use("", WORLD))}, "another communicator of 0-3 at initialization"),
        ({"at_start": START[::-1]}, "not all ranks use their groups in one order"),
        ({"at_start": (START[0]._replace(kind="broadcast_"), START[1])}, "another collective .*broadcast_"),
        ({"at_start": (START[0]._replace(elements=2), START[1])}, "another collective .*elements=2"),
        ({"at_start": (START[0]._replace(on_device=False), START[1])}, "another collective .*on_device=False"),
        ({"is_waiting": True}, "rank 1 does not wait for its device"),
        ({"made": ((0, 2), (1, 3), WORLD, (0, 1))}, "not all ranks make the same groups"),
    ],
)
def test_each_fault_is_told(changed: dict[str, Any], fault: str) -> None:
    assert re.search(fault, first_fault(**changed))


def test_a_job_that_nccl_does_not_serve_must_warm_up_nothing() -> None:
    for backend in ("gloo", "cpu:gloo", "undefined"):
        assert "uses the groups" in first_fault(backend=backend)
    assert first_fault(backend="cpu:gloo,npu:hccl") == ""
    nothing = {rank: warm(rank)._replace(at_start=()) for rank in WORLD}
    assert list(proof._faults(CASE, nothing, proof._needed(CASE, has_instances=True), "gloo")) == []


@pytest.mark.parametrize("in_step", [(), (OWN,), (OWN, EVERY, use("group 4", (0, 1)))])
def test_a_step_that_uses_other_communicators_than_the_topology_has_is_no_proof(in_step: tuple[Use, ...]) -> None:
    with pytest.raises(AssertionError, match="the first step of rank 1 uses"):
        first_fault(in_step=in_step)
