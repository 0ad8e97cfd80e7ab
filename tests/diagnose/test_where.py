"""Where ranks are, in words."""

from __future__ import annotations

import pytest

from support.hung_jobs import frames, issued, job, rank
from unhang.diagnose import where
from unhang.diagnose.evidence import Frame, Group, Message, Operation, Rank, Stack
from unhang.diagnose.where import Place

WORLD, UNNAMED = Group("0", "default_pg"), Group("", "")
CALL, STEP = "torch/distributed/distributed_c10d.py::all_reduce", "job/train.py::step"
WAITS = issued(WORLD, 12, "all_reduce", 2, at=(CALL, STEP))


def one(*operations: Operation, **more: object) -> Rank:
    return job([rank(*operations, **more)]).ranks[0]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("operation", "wanted"),
    [
        (WAITS, "all_reduce 12 of default_pg, [2] Float"),
        (issued(WORLD, 3, "broadcast"), "broadcast 3 of default_pg, [] Float"),
        (WAITS._replace(inputs=((2,), (3, 4), (5,))), "all_reduce 12 of default_pg, [2], [3, 4], ... Float"),
        (WAITS._replace(inputs=None, elements=9), "all_reduce 12 of default_pg, 9 elements"),
        (WAITS._replace(inputs=None, elements=1), "all_reduce 12 of default_pg, 1 element"),
        (WAITS._replace(kind="barrier", inputs=(), elements=0), "barrier 12 of default_pg"),
        (WAITS._replace(group=UNNAMED, sequence=None), "all_reduce, [2] Float"),
        (WAITS._replace(group=Group("7", "")), "all_reduce 12 of group 7, [2] Float"),
    ],
)
def test_an_operation_in_words(operation: Operation, wanted: str) -> None:
    assert where.elsewhere(one(operation)).doing == f"waiting in {wanted}"
    assert where.issued(one(), operation).doing == f"waiting in {wanted}"


@pytest.mark.parametrize(
    ("whose", "doing", "line"),
    [
        (one(WAITS), "waiting in all_reduce 12 of default_pg, [2] Float", "dump: entry 1: step (/job/train.py:7)"),
        (one(at=(CALL, STEP)), "in all_reduce, called by step", "stack: step (/job/train.py:7)"),
        (one(at=(STEP,)), "in step", "stack: step (/job/train.py:7)"),
        (
            one(WAITS._replace(done=True)),
            "waiting in no collective",
            "dump: entry 1: last all_reduce 12 of default_pg, [2] Float",
        ),
        (one(), "waiting in no collective, and none is recorded", ""),
        (one(recorded=False), "in no collective that a file shows", ""),
    ],
)
def test_where_a_rank_is(whose: Rank, doing: str, line: str) -> None:
    assert where.elsewhere(whose) == Place((0,), doing, (line,) if line else ())


def test_the_innermost_frames_outside_of_torch_are_shown_and_paths_are_short() -> None:
    deep = [Frame(f"f{number}", f"/home/me/work/job/part{number}.py", number) for number in range(5)]
    shown = where.issued(one(), WAITS._replace(frames=(*frames(CALL), *deep)))
    assert shown.evidence == (
        "dump: entry 1: f0 (work/job/part0.py:0) < f1 (work/job/part1.py:1) < f2 (work/job/part2.py:2)",
    )


@pytest.mark.parametrize(
    ("file", "is_user"),
    [
        ("/job/train.py", True),
        ("train.py", True),
        ("queue.py", False),
        ("/usr/lib/python3.12/queue.py", False),
        ("/opt/venv/lib/python3.12/site-packages/einops/layers.py", False),
        ("/src/Megatron-LM/megatron/core/utils.py", False),
        ("transformers/trainer.py", False),
        ("<string>", False),
    ],
)
def test_a_frame_is_of_a_user_s_code_if_it_is_of_no_package(file: str, is_user: bool) -> None:
    assert where.is_of_user(Frame("step", file, 3)) is is_user


def test_a_rank_may_wait_by_its_stack_unless_it_holds_the_interpreter_or_waits_on_the_host() -> None:
    """A call that waits for a device lets go of the interpreter, and py-spy calls its thread active."""
    there = Stack("MainThread", frames(STEP), False, "s")
    for stack, wanted in (
        (there, True),
        (there._replace(gil=True), False),
        (there._replace(idle=True), False),
        (there._replace(moved=True), False),
        (there._replace(idle=True, frames=frames(CALL, STEP)), True),
        (there._replace(frames=frames("threading.py::wait", STEP)), False),
    ):
        assert where.waits_by_stack(Rank(3, stacks=(stack,))) is wanted


def test_an_entry_without_frames_has_those_of_the_stack() -> None:
    whole = one(WAITS._replace(frames=()), at=(STEP,))
    assert where.elsewhere(whole).evidence == ("dump: entry 1", "stack: step (/job/train.py:7)")


def test_a_thread_in_a_collective_is_told_before_another() -> None:
    stacks = (
        Stack("logger", frames("job/log.py::write"), True, "a"),
        Stack("pt_autograd_0", frames(CALL, STEP), None, "b"),
    )
    assert where.elsewhere(Rank(3, stacks=stacks)).doing == "in all_reduce, called by step"
    assert where.call(Rank(3, stacks=stacks)) == "step (train.py:7)"
    assert where.call(Rank(3, stacks=stacks[:1])) == ""


@pytest.mark.parametrize(
    ("idle", "cpu", "doing"),
    [
        (False, None, "on a CPU"),
        (True, None, "does not move"),
        # py-spy calls every thread of another container active, and may find a loop in its nap twice
        (False, 0.0016, "does not move"),
        (True, 0.27, "on a CPU"),
    ],
)
def test_what_a_rank_has_used_of_a_cpu_counts_more_than_what_py_spy_says(
    idle: bool, cpu: float | None, doing: str
) -> None:
    stack = Stack("MainThread", frames(STEP), idle, "s", moved=False)
    there = Rank(3, stacks=(stack,), cpu=cpu)
    assert doing in where.elsewhere(there).doing
    assert where.is_busy(there) is (doing == "on a CPU")
    other = there._replace(stacks=(stack._replace(thread="loader"),))
    assert ("on a CPU" in where.elsewhere(other).doing) is not idle, "it was measured of the main thread"


def test_ranks_that_do_the_same_are_one_place_with_a_few_lines() -> None:
    places = [Place((number,), "waiting", (f"line {number}",)) for number in (5, 1, 3)]
    assert where.merged([*places, Place((2,), "past", ())]) == (
        Place((1, 3, 5), "waiting", ("line 5", "line 1")),
        Place((2,), "past", ()),
    )


@pytest.mark.parametrize(
    ("text", "at", "fails"),
    [
        ("requests.exceptions.ReadTimeout: Read timed out", STEP, True),
        ("ValueError: timeout must be positive", STEP, True),
        ("ValueError: timeout must be positive", CALL, False),
        ("RuntimeError: NCCL communicator was aborted on rank 1: watchdog", STEP, False),
        ("torch.distributed.DistNetworkError: connection reset by peer", STEP, False),
        ("BrokenPipeError: [Errno 32] Broken pipe", STEP, False),
        ("ValueError: loss is NaN", "", True),
        ("torch.OutOfMemoryError: CUDA out of memory", "", True),
        ("terminate called after throwing an instance of 'std::bad_alloc'", "", True),
        ("exitcode  : -9", "", True),
        ("exitcode  : -6", "", False),
        ("RuntimeError: Timed out waiting 5000ms for recv operation to complete", "", False),
        ("RuntimeError: DataLoader timed out after 60 seconds", "", True),
        ("[enforce fail at pair.cc:456] op.preamble.length <= op.nbytes. 36 vs 32", "", False),
        ("RuntimeError: Detected mismatch between collectives on ranks.", "", False),
    ],
)
def test_a_line_tells_a_failure_or_follows_from_one(text: str, at: str, fails: bool) -> None:
    """An error of Python's own is no consequence, whatever its words."""
    said = one(lines=[Message(text, "log:9", frames(*filter(None, [at])))])
    assert bool(where.failures(said)) is fails
    assert where.failing(4, said.messages) == Place((4,), "failing", (f"log:9: {text}",))
