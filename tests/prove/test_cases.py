"""Topologies as text."""

from __future__ import annotations

from unhang.prove.cases import Topology


def test_a_topology_counts_its_ranks_and_shows_its_sizes() -> None:
    assert Topology(tp=2, pp=4, dp=2, ep=2).world == 16
    assert Topology(tp=2, ep=2, dp=2).text() == "TP 2 x DP 2 x EP 2 (4 ranks)"
