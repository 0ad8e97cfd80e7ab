"""The topology of a job: what follows from the sizes, and sizes that do not fit."""

from __future__ import annotations

import pytest

from unhang.errors import UnhangError
from unhang.prove import topology
from unhang.prove.cases import Topology


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"tp": 3, "pp": 2, "world_size": 16}, "16 is not divisible by TP x PP x CP = 3 x 2 x 1 = 6"),
        ({"tp": 4, "world_size": 2}, "2 is not divisible"),
        ({"tp": 2, "dp": 4, "world_size": 16}, "TP x PP x CP x DP = 8, but the world size is 16"),
        ({"vpp": 2, "dp": 4}, "VPP = 2 needs PP > 1"),
        ({"ep": 3, "dp": 4}, "4 ranks, which EP = 3 does not divide"),
        ({"ep": 2, "pp": 2}, "1 ranks, which EP = 2 does not divide"),
        ({"tp": 2, "ep": 4, "etp": 2, "dp": 2}, "4 ranks, which EP x ETP = 4 x 2 = 8 does not divide"),
    ],
)
def test_sizes_that_do_not_fit_are_an_error(sizes: dict[str, int], message: str) -> None:
    with pytest.raises(UnhangError) as error:
        topology.from_sizes(**sizes)
    assert error.value.code == "bad-topology"
    assert message in error.value.message


def test_the_data_parallel_size_follows_from_the_world_size() -> None:
    assert topology.from_sizes(tp=4, pp=8, cp=2, ep=8, world_size=1024) == Topology(tp=4, pp=8, cp=2, dp=16, ep=8)
    assert topology.from_sizes(world_size=6, dp=6).world == 6
    assert topology.from_sizes(pp=2, vpp=3) == Topology(pp=2, vpp=3)
    assert topology.from_sizes(cp=2) == Topology(cp=2)
    assert topology.from_sizes(tp=2, ep=2, etp=2, dp=2) == Topology(tp=2, dp=2, ep=2, etp=2)
