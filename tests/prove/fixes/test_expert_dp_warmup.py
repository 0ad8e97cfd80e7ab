"""expert-dp-warmup's proof: the case of a user's job. Runs no torch."""

from __future__ import annotations

import pytest

from unhang.prove.cases import DIFFERS, PASSED, Topology
from unhang.prove.fixes import expert_dp_warmup as proof

CORE = "megatron-core"


@pytest.mark.parametrize(
    ("upstream", "topology", "untouched", "may_pass"),
    [
        (CORE, Topology(ep=4, dp=8), DIFFERS, False),
        (CORE, Topology(tp=2, ep=4, dp=4), DIFFERS, False),
        (CORE, Topology(tp=2, dp=4), PASSED, False),
        # without replicas of experts, the release decides
        (CORE, Topology(tp=2, ep=4, etp=2, dp=4), DIFFERS, True),
        ("ms-swift", Topology(ep=8, dp=8), DIFFERS, True),
    ],
)
def test_the_case_of_a_users_job(upstream: str, topology: Topology, untouched: str, may_pass: bool) -> None:
    case = proof.case_for(topology, upstream, ())
    assert (case.untouched, case.topology) == (untouched, topology)
    assert bool(case.at) is (untouched != PASSED)
    assert case.options.get("through", CORE) == upstream
    assert bool(case.options.get("may_pass")) is may_pass
