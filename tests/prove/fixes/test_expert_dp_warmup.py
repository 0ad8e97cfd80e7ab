"""expert-dp-warmup's scene: a user's job. Runs no torch."""

from __future__ import annotations

import pytest

from unhang.prove.cases import DIFFERS, PASSED, Topology
from unhang.prove.fixes import expert_dp_warmup as proof


@pytest.mark.parametrize("upstream", ["megatron-core", "ms-swift"])
def test_the_case_of_a_users_job(upstream: str) -> None:
    large, small = Topology(tp=4, pp=8, ep=8, dp=32), Topology(tp=2, pp=3, ep=2, dp=2)
    dense, unreplicated = Topology(tp=2, dp=4), Topology(ep=8, dp=8)  # of the last, the release decides
    for job, runs in ((large, small), (small, small), (dense, dense), (unreplicated, unreplicated)):
        case = proof.case_for(job, upstream, ())
        assert (case.topology, case.untouched) == (runs, PASSED if job == dense else DIFFERS)
        assert bool(case.options.get("may_pass")) is (job == unreplicated)
        assert ("function" in case.options) is (upstream == "ms-swift")
