"""Topologies as text, and the case of a user's own."""

from __future__ import annotations

import importlib

import pytest

from unhang.prove import cases
from unhang.prove.cases import CRASHED, DIFFERS, HUNG, Case, Topology, alike, reduced

LARGE, FEW = Topology(tp=4, pp=8, vpp=2, dp=16, ep=4), Topology(dp=8)
SMALL = Topology(tp=2, pp=3, vpp=2, dp=2, ep=2)


def test_a_topology_counts_its_ranks_and_shows_its_sizes() -> None:
    assert Topology(tp=2, pp=4, dp=2, ep=2).world == 16
    assert Topology(tp=2, ep=2, dp=2).text() == "TP 2 x DP 2 x EP 2 (4 ranks)"
    assert Topology(pp=2, vpp=3).text() == "PP 2 x VPP 3 (2 ranks)", "chunks add no rank"


def test_where_only_the_number_of_ranks_matters_a_large_job_is_like_a_smaller_one() -> None:
    assert alike(Topology(tp=2, dp=4)) == Topology(tp=2, dp=4)
    assert alike(LARGE) == FEW


@pytest.mark.parametrize(
    ("topology", "small"),
    [
        (Topology(tp=4, pp=4), Topology(tp=4, pp=4)),
        (LARGE, SMALL),
        (Topology(pp=2, dp=16), Topology(pp=2, dp=2)),
        (Topology(tp=2, pp=8, cp=2, dp=2), Topology(tp=2, pp=2, cp=2, dp=2)),
        (Topology(dp=32, ep=4, etp=4), Topology(dp=4, ep=2, etp=2)),
    ],
)
def test_a_large_job_becomes_the_smallest_that_has_its_dimensions(topology: Topology, small: Topology) -> None:
    assert reduced(topology) == small


@pytest.mark.parametrize(
    ("fix", "topology", "ends", "impossible", "why"),
    [
        (
            "allgather_empty_expert",
            Topology(dp=2, ep=2),
            CRASHED,
            LARGE._replace(ep=1),
            "with EP 1 every rank",
        ),
        ("critic_microbatch_scale", FEW, DIFFERS, LARGE, ""),  # one rank has micro-batches too
        ("empty_expert_hang", Topology(dp=2, ep=2), HUNG, LARGE._replace(ep=1), "with EP 1 every"),
        (
            "expert_grad_norm",
            Topology(tp=2, ep=2),
            DIFFERS,
            LARGE._replace(tp=1),
            "with TP 1 no other rank has",
        ),
        ("fsdp2_buffer_order", FEW, DIFFERS, Topology(), "one rank broadcasts to no other"),
        ("fsdp_reduce_order", FEW, DIFFERS, Topology(), "one rank has no other to reduce gradients with"),
        ("gdn_out_norm_tp", Topology(tp=2), DIFFERS, LARGE._replace(tp=1), "with TP 1 one rank has all heads"),
        ("hybrid_aux_tracker_hang", SMALL, CRASHED, LARGE._replace(pp=1), "with PP 1 there is one stage"),
        ("infer_metric_rank0", FEW, HUNG, Topology(), "one process has no other to wait for"),
        ("mcore_save_barrier", FEW, HUNG, Topology(), "one process waits for no other"),
        ("mean_metric_dtype", FEW, DIFFERS, Topology(), "one process has no other to disagree with"),
        ("moe_aux_tracker_hang", SMALL, CRASHED, LARGE._replace(pp=1), "with PP 1 there is one stage"),
        (
            "reduce_noncontiguous",
            Topology(tp=2),
            DIFFERS,
            LARGE._replace(tp=1),
            "with TP 1 there is nothing to sum",
        ),
    ],
)
def test_the_case_of_a_users_job(fix: str, topology: Topology, ends: str, impossible: Topology, why: str) -> None:
    proof = importlib.import_module(f"unhang.prove.fixes.{fix}")
    case = cases.yours(proof, LARGE, "", ())
    assert case is not None
    assert (case.topology, case.untouched) == (topology, ends)
    assert not cases.ruled_out(proof, LARGE)
    assert cases.ruled_out(proof, impossible).startswith(why)


@pytest.mark.parametrize(
    ("fix", "topology", "ends"),
    [
        ("merged_lora_stale_sync", FEW, DIFFERS),
    ],
)
def test_the_case_of_a_users_job_where_one_rank_has_the_defect_too(fix: str, topology: Topology, ends: str) -> None:
    proof = importlib.import_module(f"unhang.prove.fixes.{fix}")
    case = cases.yours(proof, LARGE, "", ())
    assert case is not None
    assert (case.topology, case.untouched) == (topology, ends)
    assert not any(cases.ruled_out(proof, each) for each in (LARGE, FEW, Topology()))


@pytest.mark.parametrize(
    ("topology", "few", "may_pass"),
    [
        (LARGE, Topology(tp=2), False),
        (Topology(cp=8, dp=2), Topology(cp=2), False),
        # one defect of router-token-scale needs no second rank, and not every release has it
        (Topology(dp=8), Topology(), True),
    ],
)
def test_the_case_of_a_job_that_no_size_rules_out(topology: Topology, few: Topology, may_pass: bool) -> None:
    proof = importlib.import_module("unhang.prove.fixes.router_token_scale")
    case = cases.yours(proof, topology, "megatron-core", ())
    assert case is not None
    assert (case.topology, case.untouched) == (few, DIFFERS)
    assert case.options["may_pass"] is may_pass
    assert not cases.ruled_out(proof, topology)


def test_a_case_that_is_slow_where_many_share_a_gpu_has_no_place_there() -> None:
    case = Case("any", Topology(dp=2), HUNG, "somewhere")
    assert cases.on_gpu(None, case) == case._replace(at="")
    assert cases.on_gpu(None, case._replace(options={"on_gpu": False})) is None
