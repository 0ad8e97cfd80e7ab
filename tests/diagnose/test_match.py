"""Each fix's hang, as NCCL's dumps have it, meets its own signature and no other's; what looks like it does not."""

from __future__ import annotations

import pytest

from support.hung_jobs import frames, issued, job, rank, without, without_frames
from unhang.diagnose import desync, match, signature
from unhang.diagnose.evidence import Frame, Group, Job, Message, Rank
from unhang.diagnose.signature import Place

WORLD = Group("0", "default_pg", (0, 1, 2, 3))
DP_CP = Group("3", "DATA_PARALLEL_GROUP_WITH_CP", (0, 1, 2, 3))
PIPELINE = Group("7", "PIPELINE_MODEL_PARALLEL_GROUP", (0, 1, 2, 3))
TENSOR = Group("8", "TENSOR_MODEL_PARALLEL_GROUP", (0, 1))
EXPERT = Group("11", "EXPERT_MODEL_PARALLEL_GROUP", (0, 1, 2, 3))
EXPERT_TP = Group("12", "EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP", (0, 1, 2, 3))
EXPERT_DP = Group("13", "EXPERT_DATA_PARALLEL_GROUP", (0, 1, 2, 3))
REPLICAS = Group("14", "mesh_ddp", (0, 2))

MTP = (
    "torch/distributed/distributed_c10d.py::all_reduce",
    "megatron/core/transformer/multi_token_prediction.py::MTPLossLoggingHelper.reduce_loss_in_tracker",
    "verl/utils/megatron_utils.py::get_megatron_mtp_loss",
    "verl/workers/engine/megatron/transformer_impl.py::MegatronEngine.forward_backward_batch",
)
TRACKER = (
    "megatron/core/transformer/moe/moe_utils.py::reduce_aux_losses_tracker_across_ranks",
    "megatron/core/transformer/moe/moe_utils.py::track_moe_metrics",
)
REPORT = (
    "megatron/core/transformer/moe/moe_logging.py::MoEMetricsTracker._sync_metrics",
    "megatron/training/training.py::training_log",
)
METRIC = "swift/metrics/utils.py::MeanMetric.compute"
INFER = (METRIC, "swift/pipelines/infer/infer.py::SwiftInfer._calc_metric")
LOAD = ("verl/utils/fsdp_utils.py::fsdp2_load_full_state_dict",)
ACTOR = "verl/workers/actor/dp_actor.py::DataParallelPPOActor."
FORWARD, CLIP = (
    (ACTOR + "_forward_micro_batch", ACTOR + "update_policy"),
    (ACTOR + "_optimizer_step", ACTOR + "update_policy"),
)
LOG_PROB = (ACTOR + "_forward_micro_batch", ACTOR + "compute_log_prob")
BACKWARD = ("megatron/core/tensor_parallel/mappings.py::_AllToAll.backward",)
DISPATCHER = "megatron/core/transformer/moe/token_dispatcher.py::MoEAllGatherTokenDispatcher."
BATCH = ("megatron/training/utils.py::_broadcast", "megatron/training/utils.py::get_batch_on_this_tp_rank")
SYNC = ("megatron/core/distributed/param_and_grad_buffer.py::_ParamAndGradBucketGroup.start_grad_sync",)
IDLE = ("ray/_private/worker.py::main_loop",)


def mtp(waiting: bool) -> Rank:
    if waiting:
        return rank(issued(DP_CP, 9, "all_reduce", 1, at=MTP))
    return rank(issued(DP_CP, 8, "all_reduce", 64, done=True), issued(WORLD, 4, "all_reduce", 1))


def sizes(group: Group, kind: str, at: tuple[str, ...], *lengths: int, number: int = 1) -> Job:
    return job([rank(issued(group, number, kind, length, at=at)) for length in lengths])


def micro_batches(at: tuple[str, ...], other: Rank) -> Job:
    return job([rank(issued(WORLD, 26, "all_gather", 130, at=at))] * 2 + [other] * 2)


def tokens(rows: int, columns: int) -> Rank:
    return rank(issued(EXPERT, 9, "all_to_all", rows, 8, outputs=(columns, 8), done=True), issued(WORLD, 2, "barrier"))


def combined(other: Rank) -> Job:
    waits = rank(issued(EXPERT_TP, 18, "reduce_scatter", 64, 32, at=(DISPATCHER + "token_combine",)))
    return job([waits, waits, other, other])


def failing(text: str, *at: str) -> list[Message]:
    return [Message(text, "log:9", frames(*at))]


GATHERED = issued(EXPERT_TP, 17, "all_gather", 16, 32, done=True)
CLIPS = rank(issued(WORLD, 26, "all_reduce", 21, at=CLIP))
OVERFLOW = failing("RuntimeError: Storage size calculation overflowed with sizes=[1, 92]", *BATCH)
REFUSED = failing(
    "AssertionError: num_out_tokens",
    "megatron/core/transformer/moe/moe_utils.py::permute",
    DISPATCHER + "dispatch_postprocess",
)
SENDER = rank(issued(TENSOR, 7, "broadcast", 1, dtype="Int", at=BATCH))
RECEIVER = rank(issued(TENSOR, 7, "broadcast", dtype="Long", at=BATCH))
# By fix: jobs with its hang, and how sure of each one can be without frames, stacks and lines.
HANGS: dict[str, list[tuple[Job, str]]] = {
    "mtp-cp-deadlock": [
        (job([mtp(True), mtp(False), mtp(True), mtp(False)]), "known"),
        (job([mtp(True), mtp(False)]), "possible"),
        (job([rank(at=MTP, recorded=False), *[rank(at=IDLE, recorded=False)] * 3]), ""),
    ],
    "moe-aux-tracker-hang": [
        (sizes(PIPELINE, "all_reduce", TRACKER, 61, 62, 62, 62), "known"),
        (sizes(PIPELINE, "all_reduce", TRACKER, 8, 10, 10, 10, number=4), "possible"),
    ],
    "hybrid-aux-tracker-hang": [
        (sizes(PIPELINE, "all_reduce", (*TRACKER, REPORT[1]), 13, 56, 56, 56), "known"),
        (sizes(PIPELINE, "all_reduce", REPORT, 4, 9, 9, 9), "known"),
    ],
    "mean-metric-dtype": [
        (
            job([rank(issued(WORLD, 5, "all_reduce", 2, dtype=it, at=(METRIC,))) for it in ("Double", "Float")] * 2),
            "possible",
        )
    ],
    "infer-metric-rank0": [
        (job([rank(issued(WORLD, 5, "all_reduce", 2, at=INFER)), rank(), rank(), rank()]), "possible"),
        (job([rank(at=INFER, recorded=False), None, None, None]), ""),
    ],
    "fsdp2-buffer-order": [(sizes(WORLD, "broadcast", LOAD, 256, 128, 128, 256, number=300), "possible")],
    "fsdp-dynamic-bsz": [
        (micro_batches(FORWARD, CLIPS), "possible"),
        (micro_batches(LOG_PROB, rank(issued(WORLD, 25, "all_reduce", 1, done=True), at=IDLE)), ""),
        (job([rank(at=FORWARD, recorded=False), rank(at=CLIP, recorded=False)]), ""),
        (job([rank(issued(REPLICAS, 7, "all_reduce", 328, at=FORWARD[1:])), None, rank(at=IDLE), None]), ""),
    ],
    "empty-expert-hang": [
        (
            job([rank(issued(EXPERT, 10, "all_to_all", 64, 8, outputs=(128, 8), at=BACKWARD)), *[tokens(0, 64)] * 3]),
            "known",
        )
    ],
    "allgather-empty-expert": [
        (combined(rank(GATHERED, issued(EXPERT_TP, 18, "reduce_scatter", 0, 32, done=True))), "known"),
        (combined(rank(GATHERED, lines=REFUSED)), "possible"),
        (job([None, rank(lines=REFUSED, recorded=False)]), ""),
    ],
    "sft-packed-seq-broadcast": [
        (job([SENDER, RECEIVER]), "known"),
        (job([SENDER, rank(issued(TENSOR, 7, "all_reduce", 8, 16))]), "known"),
        (job([rank(lines=OVERFLOW, recorded=False)]), ""),
    ],
}
"""expert-dp-warmup is never certain."""


def answers(whole: Job) -> dict[str, str]:
    """Return how sure the matcher is of each fix that it names."""
    found = match.matches(whole, desync.meetings(whole), signature.signatures())
    return {one.fix: "known" if one.is_known else "possible" for one in reversed(found)}


EACH = [(fix, whole, bare) for fix, jobs in HANGS.items() for whole, bare in jobs]
NAMES = [f"{fix}-{number}" for number, (fix, *_) in enumerate(EACH)]


@pytest.mark.parametrize(("fix", "whole", "bare"), EACH, ids=NAMES)
def test_a_hang_is_known_by_its_own_signature_alone(fix: str, whole: Job, bare: str) -> None:
    found = answers(whole)
    assert {one for one, sure in found.items() if sure == "known"} == {fix}
    found = answers(without_frames(whole))
    assert found.get(fix, "") == bare
    assert "known" not in {sure for one, sure in found.items() if one != fix}


@pytest.mark.parametrize(("fix", "whole", "bare"), EACH, ids=NAMES)
def test_with_a_quarter_of_the_ranks_missing_no_other_fix_is_known(fix: str, whole: Job, bare: str) -> None:
    for missing in whole.ranks:
        for left in (without(whole, missing), without_frames(without(whole, missing))):
            assert {one for one, sure in answers(left).items() if sure == "known"} <= {fix}


def test_where_no_dump_lists_the_members_a_missing_file_rules_nothing_out() -> None:
    (whole, _), *_ = HANGS["mtp-cp-deadlock"]
    group = DP_CP._replace(members=())
    ranks = {
        number: one._replace(
            waiting=tuple(it._replace(group=group) if it.group is DP_CP else it for it in one.waiting), last=()
        )
        for number, one in whole.ranks.items()
    }
    unlisted = whole._replace(ranks=ranks, groups={}, size=None)
    assert answers(unlisted) == {"mtp-cp-deadlock": "known"}
    assert answers(without_frames(without(unlisted, 3))) == {"mtp-cp-deadlock": "possible"}


LATE = rank(at=("job/data.py::read",))
# What is no fix's hang, and looks like one's: the job, and the most that may be said.
LOOKALIKES: dict[str, tuple[Job, dict[str, str]]] = {
    "one rank is late for the loss of multi-token prediction": (job([mtp(True), mtp(True), mtp(True), LATE]), {}),
    "its pair is late": (job([mtp(True), rank()]), {"mtp-cp-deadlock": "possible"}),
    "another loss": (without_frames(job([mtp(True), mtp(True), mtp(True), mtp(False)])), {}),
    "late for the auxiliary losses": (job([rank(issued(PIPELINE, 1, "all_reduce", 62, at=TRACKER))] * 3 + [LATE]), {}),
    "other statistics of a pipeline": (
        sizes(PIPELINE, "all_reduce", ("job/stats.py::reduce",), 3, 4, 4, 4, number=2),
        {},
    ),
    "all ranks agree": (sizes(PIPELINE, "all_reduce", TRACKER, 62, 62, 62, 62), {}),
    "an uneven data loader": (micro_batches(("job/train.py::step",), rank(issued(WORLD, 26, "all_reduce", 21))), {}),
    "late for a micro-batch": (micro_batches(LOG_PROB, rank(at=LOG_PROB)), {"fsdp-dynamic-bsz": "possible"}),
    "failed in a micro-batch": (micro_batches(LOG_PROB, rank()), {"fsdp-dynamic-bsz": "possible"}),
    "late with tokens": (
        job([rank(issued(EXPERT, 10, "all_to_all", 64, 8, at=BACKWARD)), *[tokens(16, 64)] * 3]),
        {},
    ),
    "no memory for the tokens": (
        combined(rank(GATHERED, lines=failing("torch.OutOfMemoryError: CUDA out of memory", "job/train.py::step"))),
        {"allgather-empty-expert": "possible"},
    ),
    "no batch of the source": (job([LATE, rank(issued(TENSOR, 5, "broadcast", 1, 4096, dtype="Long", at=BATCH))]), {}),
    "another type": (sizes(WORLD, "all_reduce", ("job/train.py::step",), 2, 2, 2, 2), {}),
    "first gradients": (
        job([rank(issued(EXPERT_DP, 1, "reduce_scatter", 4096, at=SYNC))] * 3 + [rank()]),
        {"expert-dp-warmup": "possible"},
    ),
    "got 4 and 3": (
        job(
            [
                rank(
                    lines=failing("RuntimeError: Tensors must have same number of dimensions: got 4 and 3"),
                    recorded=False,
                )
            ]
        ),
        {"sft-packed-seq-broadcast": "possible"},
    ),
}


@pytest.mark.parametrize("name", LOOKALIKES)
def test_what_looks_like_a_hang_is_not_known(name: str) -> None:
    whole, wanted = LOOKALIKES[name]
    assert answers(whole) == wanted


def test_a_stack_scene_and_a_meeting_name_who_is_inside() -> None:
    (whole, _), *_ = HANGS["mtp-cp-deadlock"]
    first = match.matches(whole, desync.meetings(whole), signature.signatures())[0]
    assert (first.scene.inside, first.scene.rest, first.is_known) == ((0, 2), (1, 3), True)
    assert first.clauses == {
        "groups": True, "operations": True, "elements": True, "dtypes": True, "frames": True, "differ": True,
        "outside": None, "circle": True, "alternating": True,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("function", "file", "wanted"),
    [
        ("C.f", "/x/a/b.py", True),
        ("f", "b.py", True),
        ("C.f.<locals>.g", "/x/a/b.py", False),
        ("m.C.f", "a/b.py", True),
        ("D.f", "/x/a/b.py", False),
        ("f", "/x/b/b.py", False),
        ("xf", "b.py", False),
    ],
)
def test_a_frame_is_of_a_function_where_both_ends_agree(function: str, file: str, wanted: bool) -> None:
    assert match.has_frames([Frame(function, file, 1)], ((Place("a/b.py", "C.f"),),)) is wanted
