"""sft-packed-seq-broadcast's proof: the cases of each shape, and of a user's job. Runs no torch."""

from __future__ import annotations

import pytest

from support import sources
from unhang.prove.cases import CRASHED, DIFFERS, PASSED, Topology
from unhang.prove.fixes import sft_packed_seq_broadcast as sft

# of get_batch_on_this_tp_rank: core_v0.16.1, core_v0.17.1, and dev since 280d2440d
SHAPE_0_16, SHAPE_0_17, SHAPE_DEV = "5e80042fa2c81f1e", "776cadbb14f4ec15", "2991e1d44541f615"


@pytest.mark.parametrize(
    ("shape", "topology", "untouched"),
    [
        (SHAPE_0_17, Topology(tp=2, pp=2), DIFFERS),
        (SHAPE_0_17, Topology(tp=2), PASSED),
        (SHAPE_0_17, Topology(pp=4), PASSED),
        (SHAPE_0_17, Topology(tp=8, pp=8, dp=8), DIFFERS),
        (SHAPE_0_16, Topology(tp=2), CRASHED),
        (SHAPE_0_16, Topology(pp=2), PASSED),
        (SHAPE_DEV, Topology(pp=4), DIFFERS),
        (SHAPE_DEV, Topology(pp=2), PASSED),
        (SHAPE_DEV, Topology(tp=2, pp=2), DIFFERS),
    ],
)
def test_the_case_of_a_users_job(shape: str, topology: Topology, untouched: str) -> None:
    case = sft.case_for(topology, "megatron-lm", {shape})
    small = topology if topology.world <= 16 else Topology(tp=2, pp=3, dp=2)
    assert (case.untouched, case.topology) == (untouched, small)
    assert bool(case.at) is (untouched != PASSED)
    virtual = sft.case_for(topology._replace(vpp=2), "megatron-lm", {shape})
    assert virtual == case._replace(topology=small._replace(vpp=2), options={"chunks": 2})


def test_the_cases_follow_from_the_shape() -> None:
    """The digests that choose the cases are on record, of untouched and of patched source."""
    rows = [row for row in sources._ROWS if row["fix"] == "sft-packed-seq-broadcast"]
    results = {row["shape"]: row["result"] for row in rows if row["state"] == "affected"}
    sets = {shape: sft.cases_for("megatron-lm", {shape}) for shape in (SHAPE_0_16, SHAPE_0_17, SHAPE_DEV)}
    assert (sets[SHAPE_0_16], sets[SHAPE_0_17]) == (sft.CASES_0_16, sft.CASES)
    assert len({*map(repr, sets.values())}) == len(sets)
    for shape, cases in sets.items():
        assert sft.cases_for("megatron-lm", {results[shape]}) == cases
