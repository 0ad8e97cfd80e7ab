"""The jobs in the fixes' test modules: each meets its own signature and no other's; what looks like it does not."""

from __future__ import annotations

import pytest

from support import fixes, hung_jobs
from support.hung_jobs import HungJob, failing, issued, job, rank, without, without_frames
from unhang.diagnose import facts, match, signature, suspects
from unhang.diagnose.evidence import Frame, Group, Job, Rank
from unhang.diagnose.signature import Place

EACH = [(fix, hung) for fix, jobs in fixes.of_each("HANGS").items() for hung in jobs]
NAMES = [f"{fix}: {hung.name}" for fix, hung in EACH]
MTP = next(hung.job for fix, hung in EACH if fix == "mtp-cp-deadlock")


def matched(whole: Job) -> tuple[match.Match, ...]:
    known = facts.of(whole)
    return match.matches(known, suspects.of(known), signature.signatures())


def answers(whole: Job) -> dict[str, str]:
    """Return how sure the matcher is of each fix that it names."""
    found = matched(whole)
    return {one.fix: "known" if one.is_known else "possible" for one in reversed(found)}


@pytest.mark.parametrize(("fix", "hung"), EACH, ids=NAMES)
def test_a_job_is_known_by_its_own_signature_alone(fix: str, hung: HungJob) -> None:
    found = answers(hung.job)
    assert found.pop(fix, "") == hung.sure
    assert "known" not in found.values()
    assert hung.sure == "known" or not found
    found = answers(without_frames(hung.job))
    assert hung.bare is None or found.get(fix, "") == hung.bare
    assert "known" not in {sure for name, sure in found.items() if name != fix}


@pytest.mark.parametrize(("fix", "hung"), EACH, ids=NAMES)
def test_with_a_quarter_of_the_ranks_missing_no_other_fix_is_known(fix: str, hung: HungJob) -> None:
    for missing in hung.job.ranks:
        for left in (without(hung.job, missing), without_frames(without(hung.job, missing))):
            assert {name for name, sure in answers(left).items() if sure == "known"} <= {fix}


@pytest.mark.parametrize("whole", signature.signatures(), ids=lambda whole: whole.fix)
def test_each_hang_of_a_signature_is_that_of_a_job(whole: signature.Signature) -> None:
    """A hang with a group or a frame that is nowhere explains no job."""
    jobs = [(hung.job, hung.sure == "known") for fix, hung in EACH if fix == whole.fix and hung.sure]
    met = {one.hang for job, sure in jobs for one in matched(job) if (one.fix, one.is_known) == (whole.fix, sure)}
    assert [hang.summary for hang in whole.hangs if hang not in met] == []


def test_where_no_dump_lists_the_members_all_of_the_job_must_have_left_one() -> None:
    group = MTP.ranks[0].waiting[0].group._replace(members=())
    ranks = {
        number: one._replace(
            waiting=tuple(it._replace(group=group) if it.group.name == group.name else it for it in one.waiting),
            last=(),
        )
        for number, one in MTP.ranks.items()
    }
    unlisted = MTP._replace(ranks=ranks, groups={}, size=len(ranks))
    assert answers(unlisted) == {"mtp-cp-deadlock": "known"}
    assert answers(unlisted._replace(size=None)) == {"mtp-cp-deadlock": "possible"}
    assert answers(unlisted._replace(size=len(ranks) + 1)) == {"mtp-cp-deadlock": "possible"}
    assert answers(without_frames(without(unlisted, 3))) == {"mtp-cp-deadlock": "possible"}


@pytest.mark.parametrize(
    ("text", "at", "wanted"),
    [
        ("AssertionError: bad", ("job/train.py::step",), "possible"),
        ("train.sh: line 9: 4242 Segmentation fault (core dumped) python train.py", (), "possible"),
        ("ValueError: logged, and gone on", (), "known"),
        ("torch.distributed.elastic.multiprocessing.errors.ChildFailedError:", ("torch/run.py::main",), "known"),
        ("RuntimeError: Timed out waiting 5000ms for recv operation", ("job/train.py::step",), "known"),
    ],
)
def test_the_own_error_of_a_process_of_unknown_rank_leaves_nothing_known(
    text: str, at: tuple[str, ...], wanted: str
) -> None:
    assert answers(MTP._replace(strangers=tuple(failing(text, *at)))) == {"mtp-cp-deadlock": wanted}


@pytest.mark.parametrize(
    ("size", "wanted"), [("0", "known"), ("0.", "known"), ("0512", ""), ("0.5", ""), ("0x40", ""), ("10", "")]
)
def test_the_words_of_an_error_are_whole(size: str, wanted: str) -> None:
    at = "megatron/core/transformer/moe/token_dispatcher.py::MoEAllGatherTokenDispatcher.combine_postprocess"
    lines = failing(f"RuntimeError: shape '[-1, 512]' is invalid for input of size {size}", at)
    whole = job([rank(lines=lines, recorded=False)])
    assert answers(whole).get("allgather-empty-expert", "") == wanted


def test_each_tensor_parallel_pair_must_be_held_up_or_wait_for_another_stage() -> None:
    """All sources run the same code, so one pair alone that disagrees is no hang of it."""
    at = ("megatron/training/utils.py::get_batch_on_this_tp_rank",)
    pair, next_pair = (
        Group(name, "TENSOR_MODEL_PARALLEL_GROUP", members) for name, members in (("8", (0, 1)), ("9", (2, 3)))
    )
    pipeline = Group("10", "PIPELINE_MODEL_PARALLEL_GROUP", (0, 2))
    shown = [rank(issued(pair, 7, "broadcast", 1, dtype=dtype, at=at)) for dtype in ("Int", "Long")]
    alike = [rank(issued(next_pair, 7, "broadcast", 1, dtype=dtype, at=at)) for dtype in ("Int", "Long")]
    of_listed = issued(next_pair, 8, "all_reduce", 64, at=("job/train.py::step",))
    past = rank(of_listed)
    stage = rank(of_listed._replace(done=True), issued(pipeline, 1, "recv", 64))
    failed = rank(lines=failing("KeyError: 'labels'", "job/data.py::read"), recorded=False)
    fix = "sft-packed-seq-broadcast"
    assert answers(job(shown)) == {fix: "known"}
    assert answers(job(shown, size=8)) == {fix: "possible"}
    assert answers(job([*shown, *alike])) == {fix: "known"}
    assert answers(job([*shown, stage, stage])) == {fix: "known"}
    for others in ([past, past], [past, failed], [past, None]):
        assert answers(job([*shown, *others])) == {fix: "possible"}
    assert answers(job([shown[0], None, past, past])).get(fix) != "known"


def test_a_defect_that_shows_at_once_is_none_where_its_function_went_well_before() -> None:
    """The newest operation of the group is another one: what counts is the newest of each kind."""
    wait = MTP.ranks[0].waiting[0]._replace(sequence=9)
    before = wait._replace(sequence=4, done=True)
    for done, wanted in ((before._replace(frames=hung_jobs.frames("job/train.py::step")), "known"), (before, None)):
        ranks = {
            number: one._replace(waiting=(wait._replace(rank=number),), earlier=(done._replace(rank=number),))
            if number in (0, 2)
            else one._replace(earlier=(done._replace(rank=number),))
            for number, one in MTP.ranks.items()
        }
        assert answers(MTP._replace(ranks=ranks)).get("mtp-cp-deadlock") == wanted


def test_the_stack_of_a_rank_that_has_gone_on_lowers_nothing() -> None:
    """gloo ends an all-reduce of two types on some ranks. These go on, and wait in the next one. Where it issued that,
    its dump must tell, unless no dump lists the ranks.
    """
    pair = Group("0", "default_pg", (0, 1))
    inside, ahead = (hung_jobs.C10D, "swift/metrics/utils.py::MeanMetric.compute"), (hung_jobs.C10D, "job.py::step")
    through = issued(pair, 3, "all_reduce", 2, dtype="Double", done=True)
    late = rank(issued(pair, 3, "all_reduce", 2, at=inside), at=inside)
    for at in ((), ahead):
        for frames, wanted in ((hung_jobs.frames(*inside), "known"), ((), "possible")):
            past = through._replace(frames=frames)
            gone_on = rank(past, issued(pair, 4, "all_reduce", 2), at=at)
            assert answers(job([gone_on, late])) == {"mean-metric-dtype": wanted}
            enqueued = rank(past._replace(done=False), issued(pair, 4, "all_reduce", 2), at=at)  # as NCCL's ranks do
            assert answers(job([enqueued, late])) == {"mean-metric-dtype": wanted}
    not_through = rank(through._replace(done=False), at=ahead)
    assert answers(job([not_through, late])) == {"mean-metric-dtype": "possible"}


def test_a_stack_or_a_log_of_another_time_than_the_dump_leaves_it_possible() -> None:
    load = (hung_jobs.C10D, "verl/utils/fsdp_utils.py::fsdp2_load_full_state_dict", "train.py::<module>")
    pair = Group("0", "default_pg", (0, 1))
    ends = [issued(pair, 10, "broadcast", size, at=load) for size in (64, 32)]
    first, second = (
        rank(issued(pair, 9, "broadcast", size, at=load), end, at=load) for size, end in zip((32, 64), ends)
    )
    assert answers(job([first, second])) == {"fsdp2-buffer-order": "known"}
    train = rank(at=(hung_jobs.C10D, "train.py::mean", "train.py::<module>")).stacks
    for later in (first._replace(stacks=train), first._replace(is_mixed=True)):
        assert answers(job([later, second])) == {"fsdp2-buffer-order": "possible"}
    waits_for_a_tensor = rank(at=("torch/distributed/_functional_collectives.py::wait_tensor", "model.py::forward"))
    assert answers(job([first._replace(stacks=waits_for_a_tensor.stacks), second])) == {"fsdp2-buffer-order": "known"}


def test_each_rank_of_the_job_must_show_its_part() -> None:
    inside = (
        hung_jobs.C10D,
        "swift/metrics/utils.py::MeanMetric.compute",
        "swift/pipelines/infer/infer.py::SwiftInfer._calc_metric",
    )
    alone = rank(at=inside, recorded=False)
    done = rank(at=("unhang/prove/ranks/gloo.py::_rank",), recorded=False)
    fix = "infer-metric-rank0"
    assert answers(job([alone, done, done, done]))[fix] == "known"
    gone = done._replace(stacks=(), process="gone")
    for several in ([alone, None, None, None], [alone, done, done, None], [alone, done, done, gone]):
        assert answers(job(several))[fix] == "possible"
    assert answers(job([alone, done])._replace(size=None))[fix] == "possible"  # of how many ranks?


def test_it_is_the_framework_s_own_code_that_must_wait() -> None:
    """A decorator of torch's is no code of a user's; a hook is, and so is a rank's own call below the same function."""
    group = Group("0", "default_pg", (0, 1))
    at = "swift/metrics/utils.py::MeanMetric.compute"
    logger = "torch/distributed/c10d_logger.py::wrapper"
    for between, wanted in (
        ((hung_jobs.C10D, logger), "known"),
        ((hung_jobs.C10D, "typing_extensions.py::wrapper", logger), "known"),
        (("unhang/prove/ranks/shims.py::averaging",), "known"),
        ((hung_jobs.C10D, logger, "job/hooks.py::reduce"), "possible"),
    ):
        several = [
            rank(issued(group, 3, "all_reduce", 2, dtype=dtype, at=(*between, at))) for dtype in ("Float", "Double")
        ]
        assert answers(job(several)).get("mean-metric-dtype") == wanted


def test_what_ranks_disagree_on_beside_a_hang_leaves_it_possible() -> None:
    tensor = hung_jobs.group("8", "TENSOR_MODEL_PARALLEL_GROUP", 1, 3)
    odd = {rank: issued(tensor, 4, "all_reduce", size)._replace(rank=rank) for rank, size in ((1, 64), (3, 65))}
    ranks = {
        number: one._replace(waiting=(*one.waiting, odd[number])) if number in odd else one
        for number, one in MTP.ranks.items()
    }
    assert answers(MTP._replace(ranks=ranks)) == {"mtp-cp-deadlock": "possible"}
    even = {
        number: one._replace(waiting=(*MTP.ranks[number].waiting, odd[1]._replace(rank=number)))
        for number, one in ranks.items()
        if number in odd
    }
    assert answers(MTP._replace(ranks={**ranks, **even})) == {"mtp-cp-deadlock": "known"}


def test_a_rank_in_the_same_collective_is_not_elsewhere() -> None:
    """By its stack it is in a user's function; by its dump, it has come to what the others wait in."""
    wait = MTP.ranks[0]
    inside = rank(
        *wait.waiting,
        at=[f"{frame.file.partition('site-packages/')[2]}::{frame.function}" for frame in wait.waiting[0].frames],
    )
    mine = rank(wait.waiting[0]._replace(frames=()), at=("job/loss.py::share",))
    past = MTP.ranks[1]
    assert answers(job([inside, past, inside, past])) == {"mtp-cp-deadlock": "known"}
    assert answers(job([inside, mine, inside, past])).get("mtp-cp-deadlock") != "known"


def test_an_error_that_was_caught_is_none() -> None:
    at = "megatron/core/transformer/moe/token_dispatcher.py::MoEAllGatherTokenDispatcher.combine_postprocess"
    lines = failing("RuntimeError: shape '[-1, 512]' is invalid for input of size 0", at, "job/train.py::step")
    fix = "allgather-empty-expert"
    whole = job([rank(at=("job/data.py::read", "job/train.py::step"), lines=lines, recorded=False)])
    failed = whole.ranks[0]._replace(stacks=())
    gone_on = whole.ranks[0]._replace(stacks=tuple(one._replace(idle=True) for one in whole.ranks[0].stacks))
    for one, wanted in ((failed, "known"), (whole.ranks[0], "known"), (gone_on, None)):
        assert answers(whole._replace(ranks={0: one})).get(fix) == wanted
    other = rank(issued(hung_jobs.WORLD, 3, "barrier"))
    assert answers(job([rank(lines=lines), other, other, other])) == {fix: "possible"}


def test_an_error_of_this_defect_alone_is_none_where_its_rank_or_a_peer_shows_that_it_went_on() -> None:
    at = "megatron/training/utils.py::get_batch_on_this_tp_rank"
    tensor = hung_jobs.group("8", "TENSOR_MODEL_PARALLEL_GROUP", 0, 1)
    lines = failing("RuntimeError: Storage size calculation overflowed with sizes=[1, 92]", at)
    failed = rank(lines=lines, recorded=False)
    clips = issued(hung_jobs.WORLD, 3, "all_reduce", 1)
    source = rank(issued(tensor, 7, "broadcast", 1, dtype="Long", at=(at,)))
    known, fix = {"sft-packed-seq-broadcast": "known"}, "sft-packed-seq-broadcast"
    assert answers(job([source, failed])) == known
    assert answers(job([source, failed._replace(waiting=(clips._replace(rank=1),))])).get(fix) == "possible"
    gone_on = issued(tensor, 8, "all_reduce", 8)
    assert answers(job([rank(gone_on), failed, None])).get(fix) == "possible"
    late = rank(at=("job/data.py::read",), recorded=False)
    assert answers(job([source, failed, late])).get(fix) == "possible"


def test_each_type_must_be_told_and_the_calls_to_the_function_be_one() -> None:
    at, ways = "swift/metrics/utils.py::MeanMetric.compute", ("job/train.py::log", "job/evaluate.py::log")
    group = Group("0", "default_pg", (0, 1, 2))
    shown = [
        rank(issued(group, 3, "all_reduce", 2, dtype=dtype, at=(at, ways[0]))) for dtype in ("Float", "Double", "Float")
    ]
    fix = "mean-metric-dtype"
    assert answers(job(shown)) == {fix: "known"}
    logged = rank(issued(group, 3, "all_reduce", 2)._replace(dtypes=None), at=(at, ways[0]), recorded=False)
    assert answers(job([*shown[:2], logged])) == {fix: "possible"}
    other = rank(issued(group, 3, "all_reduce", 2, dtype="Float", at=(at, ways[1])))
    assert answers(job([*shown[:2], other])) == {fix: "possible"}


@pytest.mark.parametrize(
    ("sizes", "wanted"),
    [
        ((8, 9), {"moe-aux-tracker-hang": "known", "hybrid-aux-tracker-hang": "possible"}),
        ((8, 12), {"moe-aux-tracker-hang": "known", "hybrid-aux-tracker-hang": "possible"}),
        ((26, 52), {"hybrid-aux-tracker-hang": "known"}),
        ((3, 5), {"moe-aux-tracker-hang": "possible", "hybrid-aux-tracker-hang": "possible"}),
    ],
)
def test_half_of_a_hybrid_s_layers_have_experts_at_most(sizes: tuple[int, int], wanted: dict[str, str]) -> None:
    at = [f"megatron/core/transformer/moe/moe_utils.py::{name}" for name in (
        "reduce_aux_losses_tracker_across_ranks", "track_moe_metrics",
    )]  # fmt: skip
    group = Group("9", "PIPELINE_MODEL_PARALLEL_GROUP", (0, 1))
    stack = (*at, "megatron/training/training.py::training_log")
    assert answers(job([rank(issued(group, 1, "all_reduce", size, at=stack)) for size in sizes])) == wanted


def test_a_stage_whose_twin_has_gone_on_with_another_size_is_not_what_all_stages_compute() -> None:
    whole = next(hung.job for fix, hung in EACH if fix == "hybrid-aux-tracker-hang" and hung.sure == "known")
    assert answers(whole) == {"hybrid-aux-tracker-hang": "known"}
    first = whole.ranks[0].waiting[0]
    count = len(first.group.members)
    twin = hung_jobs.group("twin", first.group.description, *range(count, 2 * count))
    for size, expected in ((first.inputs, {"hybrid-aux-tracker-hang": "known"}), (((999,),), {})):
        more = {}
        for number, one in whole.ranks.items():
            inputs = one.waiting[0].inputs if number else size
            done = first._replace(rank=count + number, group=twin, inputs=inputs, elements=None, done=True)
            more[done.rank] = Rank(done.rank, last=(done,), recorded=True)
        assert answers(whole._replace(ranks={**whole.ranks, **more}, size=2 * count)) == expected


def test_an_actor_of_ray_s_that_waits_for_its_next_call_may_have_failed_in_its_last_one() -> None:
    """Its error went to the driver, which waits for the others first."""
    alone = rank(at=(hung_jobs.C10D, "swift/metrics/utils.py::MeanMetric.compute"), recorded=False)
    for name in ("main_loop", "Worker.main_loop"):
        idle = alone._replace(
            stacks=tuple(one._replace(frames=(Frame(name, "ray/_private/worker.py", 7),)) for one in alone.stacks)
        )
        (found,) = matched(job([alone, idle]))
        assert found.doubts == ("rank 1 waits for its next call: only its driver knows whether one failed",)


def test_a_rank_that_is_stopped_before_its_peers_collective_explains_the_hang_as_well() -> None:
    mesh = next(hung.job for fix, hung in EACH if fix == "fsdp-dynamic-bsz" and "mesh" in hung.name)
    absent = without(mesh, 3)
    stopped = absent._replace(ranks={**absent.ranks, 3: Rank(3, process="stopped")})
    assert answers(mesh) == {"fsdp-dynamic-bsz": "known"}
    assert answers(absent) == answers(stopped) == {"fsdp-dynamic-bsz": "possible"}


def test_a_stack_scene_and_a_meeting_name_who_is_inside() -> None:
    first = matched(MTP)[0]
    assert (first.scene.inside, first.scene.rest, first.is_known) == ((0, 2), (1, 3), True)
    assert first.clauses == {
        "groups": True, "operations": True, "elements": True, "dtypes": True, "first": None, "frames": True,
        "differ": True, "outside": True, "alternating": True, "parts": True,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("function", "file", "wanted"),
    [
        ("C.f", "/x/a/b.py", True),
        ("f", "b.py", False),
        ("C.f.<locals>.g", "/x/a/b.py", False),
        ("m.C.f", "a/b.py", True),
        ("D.f", "/x/a/b.py", False),
        ("f", "/x/b/b.py", False),
        ("xf", "b.py", False),
    ],
)
def test_a_frame_is_of_a_function_of_that_package(function: str, file: str, wanted: bool) -> None:
    assert signature.has_frames([Frame(function, file, 1)], ((Place("a/b.py", "C.f"),),)) is wanted


def test_a_rank_that_is_late_and_has_no_part_in_a_hang_leaves_it_possible() -> None:
    """Its peers in another group may wait for it, and all others for these."""
    first = max(MTP.ranks) + 1
    groups = {
        name: one._replace(members=(*one.members, first)) if one.description == "default_pg" else one
        for name, one in MTP.groups.items()
    }
    own = Group("late", "TENSOR_MODEL_PARALLEL_GROUP", (first, first + 1))
    waits = issued(own, 1, "all_reduce", 4)
    late = {
        first: rank(at=hung_jobs.IDLE)._replace(rank=first),
        first + 1: rank(waits._replace(rank=first + 1))._replace(rank=first + 1),
    }
    beside = Job({**MTP.ranks, **late}, {**groups, "late": own}, first + 2, MTP.files)
    found = matched(beside)[0]
    assert (found.fix, found.is_known) == ("mtp-cp-deadlock", False)
    assert [one for one in found.doubts if one.startswith(f"rank {first} ")]
    assert matched(MTP)[0].is_known


def test_where_the_peer_failed_and_nothing_differs_its_error_explains_the_wait_with_frames_and_without() -> None:
    pipeline = Group("10", "PIPELINE_MODEL_PARALLEL_GROUP", (0, 1))
    calls = ("reduce_aux_losses_tracker_across_ranks", "track_moe_metrics")
    track = [f"megatron/core/transformer/moe/moe_utils.py::{name}" for name in calls]
    waits = rank(issued(pipeline, 1, "all_reduce", 8, at=track))
    failed = rank(lines=failing("torch.OutOfMemoryError: CUDA out of memory.", "job/model.py::step"), recorded=False)
    assert answers(job([waits, None]))["moe-aux-tracker-hang"] == "possible"
    bare = waits._replace(waiting=tuple(one._replace(frames=()) for one in waits.waiting))
    assert [answers(job([one, failed])) for one in (waits, bare)] == [{}, {}]
