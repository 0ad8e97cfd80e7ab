"""sft-packed-seq-broadcast's proof: the cases of each shape, and of a user's job. Runs no torch."""

from __future__ import annotations

import pytest

from support import sources
from unhang.prove.cases import DIFFERS, MISMATCH, PASSED, Topology
from unhang.prove.fixes import sft_packed_seq_broadcast as sft
from unhang.prove.ranks import megatron_lm, schedule, shims

# of get_batch_on_this_tp_rank: core_v0.16.1, core_v0.17.1, and dev since 280d2440d
SHAPE_0_16, SHAPE_0_17, SHAPE_DEV = "5e80042fa2c81f1e", "776cadbb14f4ec15", "2991e1d44541f615"


@pytest.mark.parametrize(
    ("shape", "topology", "untouched"),
    [
        (SHAPE_0_17, Topology(tp=2, pp=2), DIFFERS),
        (SHAPE_0_17, Topology(tp=2), PASSED),
        (SHAPE_0_17, Topology(pp=4), PASSED),
        (SHAPE_0_16, Topology(tp=2), MISMATCH),
        (SHAPE_0_16, Topology(pp=2), PASSED),
        (SHAPE_DEV, Topology(pp=4), DIFFERS),
        (SHAPE_DEV, Topology(pp=2), PASSED),
        (SHAPE_DEV, Topology(tp=2, pp=4), DIFFERS),
    ],
)
def test_the_case_of_a_users_job(shape: str, topology: Topology, untouched: str) -> None:
    case = sft.case_for(topology, "megatron-lm", {shape})
    assert case is not None
    assert (case.untouched, case.topology) == (untouched, topology)
    assert bool(case.at) is (untouched != PASSED)


@pytest.mark.parametrize("shape", [SHAPE_0_16, SHAPE_0_17, SHAPE_DEV])
def test_the_virtual_chunks_of_a_users_job_are_served_too(shape: str) -> None:
    for topology in Topology(tp=2, pp=4, vpp=2), Topology(pp=2, vpp=2):
        with_chunks = sft.case_for(topology, "megatron-lm", {shape})
        without = sft.case_for(topology._replace(vpp=1), "megatron-lm", {shape})
        assert with_chunks is not None
        assert without is not None
        assert with_chunks.options == {**without.options, "chunks": 2}
        assert (with_chunks.untouched, with_chunks.at) == (without.untouched, without.at)


def test_a_job_whose_recording_would_split_a_tensor_parallel_group_has_no_case(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "workers", lambda world: 3)
    assert sft.case_for(Topology(tp=4, dp=32), "megatron-lm", {SHAPE_0_17}) is None


@pytest.mark.parametrize(("device", "received"), [("cpu", [7]), ("cuda", "on cpu")])
def test_a_tensor_that_is_not_on_the_jobs_device_is_not_the_datas(
    device: str, received: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Place(str):
        type = "cpu"

    class Tensor(list[int]):
        device = Place("cpu")

        def reshape(self, _: int) -> Tensor:
            return self

        def tolist(self) -> list[int]:
            return [*self]

    monkeypatch.setattr(shims, "DEVICE", device)
    assert megatron_lm.received(Tensor([7])) == received
    assert megatron_lm.received(None) is None
    assert megatron_lm.received(7) == [7]


def test_the_cases_follow_from_the_shape() -> None:
    """The digests that choose the cases are on record, of untouched and of patched source."""
    rows = [row for row in sources._ROWS if row["fix"] == "sft-packed-seq-broadcast"]
    results = {row["shape"]: row["result"] for row in rows if row["state"] == "affected"}
    sets = {SHAPE_0_16: sft.CASES_0_16, SHAPE_0_17: sft.CASES, SHAPE_DEV: sft.CASES_NULLED}
    assert len({id(cases) for cases in sets.values()}) == len(sets)
    for shape, cases in sets.items():
        assert sft.cases_for("megatron-lm", {shape}) is cases
        assert sft.cases_for("megatron-lm", {results[shape]}) is cases
