"""expert-dp-warmup's proof: the case of a user's job. Runs no torch."""

from __future__ import annotations

import pytest

from unhang.prove.cases import DIFFERS, PASSED, Topology
from unhang.prove.fixes import expert_dp_warmup as proof


@pytest.mark.parametrize(
    ("upstream", "topology", "untouched"),
    [
        ("megatron-core", Topology(ep=2, dp=4), DIFFERS),
        ("megatron-core", Topology(tp=2, dp=4), PASSED),
        ("ms-swift", Topology(ep=8, dp=8), DIFFERS),
    ],
)
def test_the_case_of_a_users_job(upstream: str, topology: Topology, untouched: str) -> None:
    case = proof.case_for(topology, upstream, ())
    assert (case.untouched, case.topology) == (untouched, topology)
    assert bool(case.at) is (untouched != PASSED)
    assert case.options.get("through", "megatron-core") == upstream


@pytest.mark.parametrize(
    ("topology", "may_pass"),
    [
        (Topology(ep=8, dp=8), True),
        (Topology(ep=4, dp=8), False),
        (Topology(tp=2, ep=4, etp=2, dp=4), True),
        (Topology(tp=2, ep=4, dp=4), False),
    ],
)
def test_without_replicas_of_experts_the_release_decides(topology: Topology, may_pass: bool) -> None:
    assert bool(proof.case_for(topology, "megatron-core", ()).options.get("may_pass")) is may_pass
