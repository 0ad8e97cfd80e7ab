"""A diagnosis says who, then where all ranks are, and last which fixes these places name, and how surely."""

from __future__ import annotations

from pathlib import Path

import pytest

from support import fixes, hung_jobs, needed
from support.hung_jobs import C10D, HungJob, failing, issued, job, rank, without, without_frames
from unhang.diagnose import known
from unhang.diagnose.causes import Cause
from unhang.diagnose.evidence import Frame, Group, Job, Rank, Stack, Statement
from unhang.diagnose.fixes import Place, Signature
from unhang.diagnose.known import Sources
from unhang.diagnose.phrases import ABOUT, FOLLOWS, OWN, WAITS
from unhang.diagnose.statements import before_waiting

EACH = [(fix, hung) for fix, jobs in fixes.of_each("HANGS").items() for hung in jobs]
NAMES = [f"{fix}: {hung.name}" for fix, hung in EACH]
MTP = next(hung.job for fix, hung in EACH if fix == "mtp-cp-deadlock")
PAIR = Group("0", "default_pg", (0, 1))
METRIC, LOGGER = "swift/metrics/utils.py::MeanMetric.compute", "torch/distributed/c10d_logger.py::wrapper"
DISPATCHER = "megatron/core/transformer/moe/token_dispatcher.py"


def told(whole: Job) -> dict[str, str]:
    return needed.words(needed.answers(whole))


def two_types(*at: str) -> Job:
    """Return a job whose two ranks reduce a metric of two types."""
    return job([rank(issued(PAIR, 3, "all_reduce", 2, dtype=dtype, at=at)) for dtype in ("Float", "Double")])


@pytest.mark.parametrize(("fix", "hung"), EACH, ids=NAMES)
def test_a_job_is_known_where_its_fix_is_needed_and_nothing_else_explains_it(fix: str, hung: HungJob) -> None:
    found = told(hung.job)
    assert found.get(fix, "") == hung.sure
    bare = needed.words(known.answers(known.diagnose(hung.job), needed.SIGNATURES, Sources(()), {}))
    assert bare.get(fix, "") == ("possible" if hung.sure else "")
    assert {*bare.values()} <= {"possible"}


@pytest.mark.parametrize(("fix", "hung"), [each for each in EACH if each[1].sure == "known"])
def test_an_error_of_a_rank_s_own_explains_it_first(fix: str, hung: HungJob) -> None:
    lost = [number for number, one in hung.job.ranks.items() if not (one.waiting or one.stacks or one.messages)]
    for number in lost[:1]:
        failed = Rank(number, messages=tuple(failing("ValueError: loss is NaN", "job/train.py::step")))
        found = told(hung.job._replace(ranks={**hung.job.ranks, number: failed}))
        assert found.get(fix, "") != "known"


@pytest.mark.parametrize("whole", needed.SIGNATURES, ids=lambda whole: whole.fix)
def test_each_hang_of_a_signature_is_that_of_a_job(whole: Signature) -> None:
    jobs = [hung.job for fix, hung in EACH if fix == whole.fix and hung.sure == "known"]
    met = {one.summary for each in jobs for one in needed.answers(each) if one.fix == whole.fix}
    assert [hang.summary for hang in whole.hangs if hang.summary not in met] == []


def test_a_rank_of_which_nothing_came_and_an_unknown_number_of_ranks_stop_nothing_but_without_frames() -> None:
    for left in (MTP, MTP._replace(size=None), without(MTP, 3), without(MTP, 2)):
        assert told(left) == {"mtp-cp-deadlock": "known"}
    assert told(without_frames(MTP)) == {}


@pytest.mark.parametrize(
    ("between", "wanted"),
    [
        ((C10D, LOGGER), "known"),
        ((C10D, "typing_extensions.py::wrapper", LOGGER), "known"),
        (("unhang/prove/ranks/shims.py::averaging",), "known"),
        ((C10D, LOGGER, "job/hooks.py::reduce"), None),
    ],
)
def test_a_user_s_code_that_the_function_calls_waits_for_itself(between: tuple[str, ...], wanted: str | None) -> None:
    assert told(two_types(*between, METRIC)).get("mean-metric-dtype") == wanted


@pytest.mark.parametrize(
    ("text", "at", "wanted"),
    [
        ("AssertionError: bad", ("job/train.py::step",), "also"),
        ("RuntimeError: Timed out waiting 5000ms for recv operation", ("job/train.py::step",), "known"),
        ("torch.distributed.elastic.multiprocessing.errors.ChildFailedError:", ("torch/run.py::main",), "known"),
    ],
)
def test_the_own_error_of_a_process_of_unknown_rank_comes_first(text: str, at: tuple[str, ...], wanted: str) -> None:
    (found,) = needed.answers(MTP._replace(strangers=tuple(failing(text, *at))))
    assert (found.fix, found.answer, bool(found.before)) == ("mtp-cp-deadlock", wanted, wanted == "also")


@pytest.mark.parametrize(
    ("cause", "weight", "wanted"),
    [
        ("process-died", ABOUT, "also"),
        ("cuda-error", OWN, "also"),
        ("process-died", FOLLOWS, "known"),
        ("never-arrived", ABOUT, "known"),
    ],
)
def test_a_process_or_a_device_that_is_gone_comes_first(cause: str, weight: str, wanted: str) -> None:
    says = Statement(cause, "Slurm says of rank 1: Killed", "log:3", (1,), weight=weight)
    (found,) = needed.answers(MTP._replace(statements=(says,)))
    assert (found.answer, found.before) == (wanted, (says.words,) if wanted == "also" else ())


def test_where_a_fix_is_known_nobody_looks_for_a_fault_of_the_network() -> None:
    found = known.diagnose(MTP)._replace(causes=(Cause("network", "all wait", "look"), Cause("mismatch", "a", "b")))
    for answer, left in (
        ("known", ["mismatch"]),
        ("also", ["network", "mismatch"]),
        ("possible", ["network", "mismatch"]),
    ):
        answers = [one._replace(answer=answer) for one in needed.answers(MTP)]
        assert [one.code for one in known.explained(found, answers).causes] == left


def test_after_an_error_of_the_fix_it_is_no_surprise_that_a_process_is_gone() -> None:
    at = f"{DISPATCHER}::MoEAllGatherTokenDispatcher.combine_postprocess"
    lines = failing("RuntimeError: shape '[16, 1, 32]' is invalid for input of size 0", at)
    gone = Statement("process-died", "torchrun says that rank 0 ended with code 1", "log:9", (0,), weight=ABOUT)
    failed = job([rank(lines=lines, recorded=False)])._replace(statements=(gone,))
    assert told(failed)["allgather-empty-expert"] == "known"


@pytest.mark.parametrize(("place", "wanted"), [("socket.py::readinto", "also"), ("job/reward.py::fetch", "known")])
def test_a_rank_that_waits_on_its_host_holds_up_the_others(place: str, wanted: str) -> None:
    actor = "verl/workers/actor/dp_actor.py::DataParallelPPOActor"
    waits = rank(at=(f"{actor}.compute_log_prob", "job/worker.py::run"))
    found = needed.answers(job([waits, rank(at=(place, "job/reward.py::score"))]))
    assert [(one.answer, bool(one.before)) for one in found] == [(wanted, wanted == "also")]


def test_what_follows_from_ranks_that_gave_up_or_is_older_by_days_explains_nothing() -> None:
    gave_up = Statement("never-arrived", "rank 0 waits", "a:9", waits=(0,), by=0, at=9e6, weight=WAITS)
    gone = Statement("process-died", "rank 1 is gone", "b:3", (1,), at=9e6 - 600, weight=ABOUT)
    cases = {
        "before": gone,
        "after": gone._replace(at=9e6 + 1),
        "long ago": gone._replace(at=1e6),
        "no time": gone._replace(at=None),
        "above, no time": gone._replace(at=None, source="a:8"),
        "below, no time": gone._replace(at=None, source="a:10"),
    }
    found = {name: bool(before_waiting([gave_up, one])) for name, one in cases.items()}
    assert [name for name, is_before in found.items() if is_before] == ["before", "no time", "above, no time"]


@pytest.mark.parametrize("elements", [(9, 9, 9), (8, 9, 9)])
def test_ranks_of_one_size_do_not_show_a_defect_of_sizes(elements: tuple[int, ...]) -> None:
    moe = "megatron/core/transformer/moe/moe_utils.py"
    at = (C10D, LOGGER, f"{moe}::reduce_aux_losses_tracker_across_ranks", f"{moe}::track_moe_metrics")
    group = Group("7", "PIPELINE_MODEL_PARALLEL_GROUP", ())
    ranks = [rank(issued(group, 1, "all_reduce", it, at=at), recorded=False) for it in elements]
    wanted = "possible" if len({*elements}) == 1 else "known"
    assert told(job(ranks)._replace(size=None))["moe-aux-tracker-hang"] == wanted


@pytest.mark.parametrize(
    ("inner", "wanted"),
    [
        ("verl/model_merger/fsdp_model_merger.py::FSDPModelMerger._load_and_merge_state_dicts.<listcomp>", "known"),
        ("torch/_tensor.py::cat", "known"),
        ("verl/model_merger/fsdp_model_merger.py::FSDPModelMerger._merge_by_placement", None),
        ("job/hooks.py::<lambda>", None),
    ],
)
def test_an_error_is_that_of_the_function_itself(inner: str, wanted: str | None) -> None:
    at = (inner, "verl/model_merger/fsdp_model_merger.py::FSDPModelMerger._load_and_merge_state_dicts")
    lines = failing("RuntimeError: zero-dimensional tensor (at position 0) cannot be concatenated", *at)
    assert told(job([rank(lines=lines, recorded=False)])).get("merger-buffer-copies") == wanted


@pytest.mark.parametrize(
    ("places", "wanted", "lacks"),
    [
        (["_forward_micro_batch"], "known", True),
        (["_forward_micro_batch"] * 2, "possible", True),  # perhaps all, and a GPU or the network stands still
        (["_forward_micro_batch", "_optimizer_step"], "known", True),
        (["_forward_micro_batch", "_forward_micro_batch", None], "known", False),
    ],
)
def test_several_ranks_at_one_place_may_be_all(places: list[str | None], wanted: str, lacks: bool) -> None:
    actor = "verl/workers/actor/dp_actor.py::DataParallelPPOActor"
    outer = (f"{actor}.compute_log_prob", "job/worker.py::run")
    ranks = [rank(at=(C10D, LOGGER, f"{actor}.{it}", *outer) if it else hung_jobs.IDLE) for it in places]
    found = needed.answers(job(ranks)._replace(size=None))
    assert [(one.answer, one.lacks) for one in found if one.fix == "fsdp-dynamic-bsz"] == [(wanted, lacks)]


@pytest.mark.parametrize(
    ("size", "wanted"), [("0", "known"), ("0.", "known"), ("0512", None), ("0.5", None), ("0x40", None), ("10", None)]
)
def test_the_words_of_an_error_are_whole(size: str, wanted: str | None) -> None:
    at = f"{DISPATCHER}::MoEAllGatherTokenDispatcher.combine_postprocess"
    lines = failing(f"RuntimeError: shape '[-1, 512]' is invalid for input of size {size}", at)
    assert told(job([rank(lines=lines, recorded=False)])).get("allgather-empty-expert") == wanted


def test_a_host_that_waits_for_its_device_may_have_left_the_innermost_function() -> None:
    """NCCL's ranks wait where they read what was reduced: in the function that called the one with the reduction."""
    track = hung_jobs.frames("megatron/core/transformer/moe/moe_utils.py::track_moe_metrics", "job/train.py::train")
    stack = Stack("MainThread", track, False, "s")
    whole = job([Rank(0, stacks=(stack,)), Rank(1, stacks=(stack,))])
    assert told(whole)["moe-aux-tracker-hang"] == "known"
    busy = {number: one._replace(stacks=(stack._replace(gil=True),)) for number, one in whole.ranks.items()}
    assert told(whole._replace(ranks=busy)) == {}


FUNCTIONS = """\
@decorated
def f():
    pass


class A:
    def f(self):
        def g():
            pass
        return g


class B:
    async def f(self):
        pass
"""


@pytest.mark.parametrize(
    ("line", "file", "wanted"),
    [
        (10, f"/opt/venv/{DISPATCHER}", "known"),
        (10, "token_dispatcher.py", "known"),  # so py-spy cuts paths
        (15, f"/opt/venv/{DISPATCHER}", None),
        (15, "token_dispatcher.py", None),
        (90, f"/opt/venv/{DISPATCHER}", "possible"),
        (90, "token_dispatcher.py", "possible"),
        (10, "/job/token_dispatcher.py", None),
    ],
)
def test_the_line_tells_which_of_several_classes_it_is(
    line: int, file: str, wanted: str | None, tmp_path: Path
) -> None:
    path = tmp_path / DISPATCHER
    path.parent.mkdir(parents=True)
    source = FUNCTIONS.replace(" f(", " combine_postprocess(").replace("class A", "class MoEAllGatherTokenDispatcher")
    path.write_text(source)
    error = failing("RuntimeError: shape '[2, 4]' is invalid for input of size 0")[0]
    failed = Rank(0, messages=(error._replace(frames=(Frame("combine_postprocess", file, line),)),))
    found = known.diagnose(job([failed]))
    answers = known.answers(found, needed.SIGNATURES, Sources([str(tmp_path)]), needed.NEEDED)
    assert needed.words(answers).get("allgather-empty-expert") == wanted


@pytest.mark.parametrize(
    ("of_all", "answer"),
    [
        *(({"verdict": verdict}, "not-here") for verdict in ("applied", "fixed-upstream", "not-affected")),
        ({"verdict": "drifted"}, "possible"),
        ({"strikes": "strikes"}, "known"),
        ({"strikes": "unknown"}, "known"),
        ({"strikes": "cannot-strike"}, "possible"),
    ],
)
def test_the_verdict_here_and_the_settings_of_the_job_decide(of_all: dict[str, str], answer: str) -> None:
    stands = {"mtp-cp-deadlock": tuple(one._replace(**of_all) for one in needed.NEEDED["mtp-cp-deadlock"])}
    (found,) = known.answers(known.diagnose(MTP), needed.SIGNATURES, needed.Lines(), stands)
    assert (found.fix, found.answer) == ("mtp-cp-deadlock", answer)
    assert found.question.endswith("?") is (answer == "possible")


def test_a_shape_in_which_the_defect_hangs_in_no_such_way_is_not_it() -> None:
    whole = next(hung.job for fix, hung in EACH if fix == "sft-packed-seq-broadcast")
    fix = "sft-packed-seq-broadcast"
    other = {fix: tuple(one._replace(shape="0" * 16) for one in needed.NEEDED[fix])}
    (found,) = known.answers(known.diagnose(whole), needed.SIGNATURES, needed.Lines(), other)
    assert (told(whole), found.answer) == ({fix: "known"}, "not-here")


@pytest.mark.parametrize(
    ("function", "line", "place", "wanted"),
    [
        ("f", 3, "f", True),
        ("f", 10, "A.f", True),
        ("f", 15, "A.f", False),
        ("f", 15, "B.f", True),
        ("B.f", 15, "B.f", True),
        ("A.f.<locals>.g", 9, "A.f.g", True),
        ("g", 10, "A.f.g", None),
        ("f", 99, "A.f", None),
        ("f", 0, "A.f", None),
    ],
)
def test_a_line_tells_the_function(function: str, line: int, place: str, wanted: bool | None, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(FUNCTIONS)
    assert Sources([str(tmp_path)])(Frame(function, "a.py", line), Place("a.py", place)) is wanted


@pytest.mark.parametrize("content", [None, b"def f(:\n", b"\xff\xfe\0", b"(" * 100_000])
def test_a_source_that_cannot_be_read_tells_nothing(content: bytes | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "a.py").write_bytes(content)
    assert Sources([str(tmp_path), "/nowhere"])(Frame("f", "a.py", 1), Place("a.py", "f")) is None
    assert Sources(())(Frame("f", "a.py", 1), Place("a.py", "f")) is None


def test_each_rank_is_in_one_place_and_the_most_come_first() -> None:
    waits = issued(hung_jobs.WORLD, 3, "all_reduce", 2, at=(C10D, "job/train.py::step"))
    failed = rank(lines=failing("ValueError: no", "job/train.py::step"), recorded=False)
    found = known.diagnose(job([failed, rank(waits), rank(waits), rank(at=("job/data.py::read",))]))
    places = {place.ranks: place.doing for place in found.places}
    assert [*places] == [(1, 2), (0,), (3,)]
    assert [*places.values()] == ["waiting in all_reduce 3 of default_pg, [2] Float", "failing", "in read"]


def test_an_answer_has_the_ranks_that_wait_in_the_function_alone() -> None:
    (answer,) = needed.answers(MTP)
    assert [place.ranks for place in answer.places] == [(0, 2)]
    assert (answer.answer, answer.before, answer.question) == ("known", (), "")


def test_where_one_fix_is_known_those_that_something_else_explains_are_left_out() -> None:
    mixed = {**needed.NEEDED, "infer-metric-rank0": ()}
    whole = next(hung.job for hung in fixes.of_each("HANGS")["infer-metric-rank0"] if hung.name == "stacks")
    both, one = (
        needed.words(known.answers(known.diagnose(whole), needed.SIGNATURES, needed.Lines(), stands))
        for stands in ({}, mixed)
    )
    assert both == {"infer-metric-rank0": "possible", "mean-metric-dtype": "possible"}
    assert one == {"mean-metric-dtype": "known"}
