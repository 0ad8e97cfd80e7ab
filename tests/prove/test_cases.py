"""Topologies as text."""

from __future__ import annotations

from unhang.prove.cases import Topology, alike


def test_a_topology_counts_its_ranks_and_shows_its_sizes() -> None:
    assert Topology(tp=2, pp=4, dp=2, ep=2).world == 16
    assert Topology(tp=2, ep=2, dp=2).text() == "TP 2 x DP 2 x EP 2 (4 ranks)"
    assert Topology(pp=2, vpp=3).text() == "PP 2 x VPP 3 (2 ranks)", "chunks add no rank"


def test_where_only_the_number_of_ranks_matters_a_large_job_is_like_a_smaller_one() -> None:
    assert alike(Topology(tp=2, dp=4), 8) == Topology(tp=2, dp=4)
    assert alike(Topology(tp=4, pp=8, vpp=2, dp=16), 8) == Topology(dp=8)
