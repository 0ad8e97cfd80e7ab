"""Whom to suspect first: each rule on a job that it is for, and the order in which they are asked."""

from __future__ import annotations

import io
from collections.abc import Sequence

import pytest

from support.hung_jobs import IDLE, SITE, failing, issued, job, rank
from unhang.diagnose import facts, logs, who
from unhang.diagnose.evidence import Count, Frame, Group, Job, Message, Operation, Rank
from unhang.diagnose.job import Told, merged
from unhang.diagnose.recorder import Dump

WORLD = Group("0", "default_pg", (0, 1, 2, 3))
TENSOR = Group("8", "TENSOR_MODEL_PARALLEL_GROUP", (0, 1, 2, 3))
THREE = Group("9", "PIPELINE_MODEL_PARALLEL_GROUP", (0, 1, 2))
FIVE = Group("0", "default_pg", (0, 1, 2, 3, 4))
FIRST, SECOND = Group("20", "PAIRS", (0, 1)), Group("21", "PAIRS", (2, 3))
CALL, STEP, OTHER = "torch/distributed/distributed_c10d.py::all_reduce", "job/train.py::step", "job/train.py::evaluate"
READ = "torch/utils/data/dataloader.py::_next_data"


def waits(number: int = 3, size: int = 2, group: Group = WORLD, kind: str = "all_reduce", **more: object) -> Rank:
    return rank(issued(group, number, kind, size), **more)  # type: ignore[arg-type]


def logged_in(group: Group, number: int, *, at: tuple[str, ...]) -> Rank:
    """Return a rank of which a log tells in what it waits, and a stack where."""
    found = waits(number, group=group._replace(members=()), recorded=False, at=at)
    return found._replace(waiting=(found.waiting[0]._replace(inputs=None, dtypes=None, elements=2),))


def counted(completed: int, enqueued: int, *, group: Group = TENSOR, kind: str = "all_reduce", **more: bool) -> Rank:
    count = {group.name: Count(enqueued, completed, **more)}
    waiting = [issued(group, completed + 1, kind, 2)] if enqueued > completed else []
    return rank(*waiting)._replace(counts=count)


def sends(number: int, peer: int) -> Rank:
    """Return a rank that waits in a send to another one, or in a receive from it."""
    kind = "send" if number < peer else "recv"
    found = rank(issued(TENSOR, 4, kind, 2)._replace(peer=peer))
    return found._replace(counts={TENSOR.name: Count(0, 0, shared=False)})


def line(text: str, source: str = "log:9", at: float | None = None) -> Message:
    return Message(text, source, (), at)


def failed(*lines: Message) -> Rank:
    return rank(lines=lines, recorded=False)


def spinning(*at: str) -> Rank:
    """Return a rank of which there is a stack alone, on a CPU, as where it waits for its device."""
    found = rank(at=at, recorded=False)
    return found._replace(stacks=tuple(one._replace(idle=False) for one in found.stacks))


def gloo(*operations: Operation) -> Rank:
    """Return a rank of gloo's, whose dump lists the members of no group."""
    done = issued(Group("0", "default_pg"), 3, "all_reduce", 2, done=True)
    counts = {one.group.name: Count(one.sequence or 0, device=False) for one in (done, *operations)}
    return rank(done, *operations)._replace(counts=counts)


def in_group(name: str, kind: str = "all_reduce") -> Rank:
    return gloo(issued(Group(name, ""), 1, kind, 2))


def sent(completed: int) -> Rank:
    """Return a rank that is so far in broadcasts."""
    return counted(completed, 3, group=WORLD, kind="broadcast")


ENDS = "torch/distributed/distributed_c10d.py::destroy_process_group"
SYNC = "torch/cuda/__init__.py::synchronize"
EVEN, ODD, PAIRS = Group("20", "EP", (0, 2)), Group("21", "EP", (1, 3)), Group("11", "TP", (2, 3))
AT_BARRIER = rank(issued(WORLD, 1, "barrier", 1))
AT_EVEN, AT_ODD = (rank(issued(one, 3, "all_to_all", 4)) for one in (EVEN, ODD))
BEFORE_ODD = rank(issued(PAIRS, 2, "all_reduce", 4), *(issued(ODD, at, "all_to_all", 4) for at in (3, 4)))
LATE, DONE = rank(at=(READ,)), rank(issued(WORLD, 2, "all_reduce", 2, done=True))
STACKS = [rank(at=(CALL, STEP), recorded=False)] * 3
BETWEEN, ELSEWHERE = rank(at=IDLE, recorded=False), rank(at=(STEP,), recorded=False)
READS = rank(at=(READ,), recorded=False)
RECEIVES = rank(at=("torch/distributed/distributed_c10d.py::recv", STEP), recorded=False)
REDUCES = rank(at=(READ, CALL), recorded=False)
PAST = rank(recorded=False)._replace(last=(Operation(2, WORLD, 3, "", done=True),))
DOUBLE = rank(issued(WORLD, 3, "all_reduce", 2, dtype="Double"))
BEGUN = counted(5, 9)._replace(waiting=(issued(TENSOR, 6, "all_reduce", 2)._replace(begun=True),))
HELD = sent(1)._replace(waiting=(issued(TENSOR, 9, "all_reduce", 2), *sent(1).waiting))
TWO_SIZES = [waits(3, size, recorded=False) for size in (2, 4)]
BROADCAST_OR_REDUCE = [waits(3, kind=kind, recorded=False) for kind in ("broadcast", "all_reduce")]
LESS, MORE = counted(3, 4, group=WORLD), counted(2, 3, group=WORLD)
LESS = LESS._replace(last=(issued(WORLD, 3, "all_reduce", 1, done=True),))
IN_FIRST = counted(4, 4)._replace(stacks=rank(at=(CALL, STEP)).stacks)
GLOO_CALLS = IN_FIRST._replace(counts=counted(4, 4, device=False).counts)
CUDA = line("Process group watchdog thread terminated with exception: CUDA error: an illegal memory access")
UNCAUGHT = failing("torch.OutOfMemoryError: CUDA out of memory", "job/loss.py::forward", "job/a.py::<module>")
EVALUATES, OVER = rank(at=(CALL, OTHER), recorded=False), rank(at=("threading.py::_shutdown",))
LOGGED, NO = waits(recorded=False)._replace(stacks=spinning(STEP).stacks), line("ValueError: no")
# By name: the ranks, the rule that is to name somebody, and whom. The corpus has the plain case of each rule.
JOBS: dict[str, tuple[Sequence[Rank | None], str, list[int]]] = {
    "the first in time": (
        [failed(line("ValueError: b", at=9.0)), failed(line("ValueError: a", "other:90", at=8.0)), waits(), waits()],
        "failed", [1],
    ),
    "the first of a log": (
        [failed(line("ValueError: b", "log:30")), failed(line("KeyError: a", "log:4")), waits(), waits()],
        "failed", [1],
    ),
    "two, and no time": (
        [failed(line("ValueError: b", "a:30")), failed(line("KeyError: a", "b:4")), waits(), waits()], "failed", [0, 1],
    ),
    "several, for one reason": (
        [failed(line("OSError: shard-7")), failed(line("OSError: shard-9")), failed(line("KeyError: a")), waits()],
        "failed", [0, 1],
    ),
    "the watchdog's abort is not its own": (
        [waits(lines=[line("Fatal Python error: Aborted")])] * 2 + [waits(), LATE], "host", [3],
    ),
    "it went on": ([rank(at=(CALL, STEP), lines=[NO]), *[waits()] * 2, LATE], "host", [3]),
    "it survived an error, and failed later": (
        [waits(lines=[NO._replace(survived=True), UNCAUGHT[0]._replace(uncaught=True)]), waits(), LATE], "failed", [0],
    ),
    "it survived an error, and waits nowhere": ([waits(), rank(lines=[NO._replace(survived=True)])], "failed", [1]),
    "it survived its error": ([waits(lines=[NO._replace(survived=True)]), LATE, *[waits()] * 2], "host", [1]),
    "it ended with its error, and its dump still waits": ([waits(lines=UNCAUGHT), *[waits()] * 2, DONE], "failed", [0]),
    "the launcher says that it ended": (
        [waits(lines=[NO, line("exitcode  : 1")]), *[waits()] * 2, DONE], "failed", [0],
    ),
    "its watchdog says that it was there": (
        [waits(lines=UNCAUGHT)._replace(timed_out=True), *[waits()] * 2, DONE], "host", [3],
    ),
    "a process that it began ended": (
        [waits(lines=[UNCAUGHT[0]._replace(frames=(Frame("<module>", "<string>", 1),))]), *[waits()] * 2, DONE],
        "host", [3],
    ),
    "the others have done all": ([waits(), *[OVER] * 3], "disagrees", [0]),
    "the others have been where it waits": (
        [waits(2), *[rank(issued(WORLD, 2, "all_reduce", 2, done=True), at=("threading.py::_shutdown",))] * 3], "", [],
    ),
    "one has done all": ([*[waits()] * 3, OVER], "host", [3]),
    "half have done all, and nothing tells who is wrong": (
        [*STACKS[:2], *[rank(at=("threading.py::_shutdown",), recorded=False)] * 2], "", [],
    ),
    "it said an error, and waits where all wait": ([waits(lines=[NO]), *[waits()] * 2, DONE], "host", [3]),
    "it said an error of its device, and waits where all wait": (
        [waits(lines=[line("RuntimeError: CUDA error: an illegal memory access")]), *[waits()] * 3], "failed", [0],
    ),
    "it said an error, and waits elsewhere than its peers": (
        [waits(lines=[NO], group=TENSOR), *[waits()] * 3], "failed", [0],
    ),
    "a pair has come, and is not done": ([sends(0, 1), sends(1, 0), *[waits()] * 3], "together", [0, 1]),
    "a send waits for a rank of which nothing came": ([sends(0, 1), None, *[waits()] * 3], "silent", [1]),
    "two devices, and their peers issued more": (
        [counted(5, 8), counted(5, 8), counted(7, 20), counted(7, 20)], "device", [0, 1],
    ),
    "a device has not begun, and nothing came from another": (
        [counted(5, 9), *[BEGUN] * 2], "device", [0],
    ),
    "a device has done nothing of a group": ([counted(0, 1), *[counted(1, 1)] * 3], "device", [0]),
    "gloo has no device": ([counted(5, 9, device=False), *[counted(7, 9, device=False)] * 3], "", []),
    "a device is ahead, and three are at one place": ([counted(7, 9), *[counted(5, 9)] * 3], "disagrees", [0]),
    "two devices are ahead of two": ([counted(7, 9), counted(7, 9), *[counted(5, 9)] * 2], "device", [2, 3]),
    "a broadcast's source does not wait": (
        [counted(7, 9, kind="broadcast"), *[counted(5, 9, kind="broadcast")] * 3], "", [],
    ),
    "sends and receives count by rank": ([counted(5, 9, shared=False), *[counted(7, 9)] * 3], "", []),
    "sizes explain it": (
        [counted(5, 9), *[counted(5, 9)] * 2, rank(issued(TENSOR, 6, "all_reduce", 3, done=True))], "disagrees", [3],
    ),
    "stacks: nothing came": ([None, *STACKS], "silent", [0]),
    "nothing came, and another is late": ([None, DONE, waits(), waits(), waits()], "host", [1]),
    "nothing came, and another is late by its stack": ([None, READS, *[waits()] * 3], "host", [1]),
    "nothing came of most: any of them may be late": ([None, None, None, waits()], "", []),
    "a receive waits for a host that is late": ([DONE, sends(1, 0)], "host", [0]),
    "a host is late, by its count": ([counted(7, 7), *[counted(7, 8)] * 3], "host", [0]),
    "it waits in another collective": ([waits(group=TENSOR, number=9), *[waits()] * 3], "disagrees", [0]),
    "stacks: one is in none": ([READS, *STACKS], "host", [0]),
    "stacks: the dump of one has nothing pending": ([DONE, *STACKS], "host", [0]),
    "stacks: one is in none, and its dump has nothing pending": (
        [rank(issued(WORLD, 2, "all_reduce", 2, done=True), at=(READ,)), *STACKS], "host", [0],
    ),
    "most are at the end, and one has issued more": (
        [rank(issued(WORLD, 2, "all_reduce", 2, done=True), at=(ENDS, STEP))] * 3 + [waits()], "disagrees", [3],
    ),
    "stacks: most are at the end, and one is not": (
        [rank(at=(ENDS, STEP), recorded=False)] * 3 + [spinning(STEP)], "host", [3],
    ),
    "stacks: one waits for its next call": ([BETWEEN, *STACKS], "host", [0]),
    "stacks: one waits for its next call, another is not heard of": ([BETWEEN, *STACKS, None], "silent", [4]),
    "stacks: one waits for its next call, the others are in two": ([BETWEEN, EVALUATES, *STACKS], "", []),
    "stacks: one waits for its next call, another is in none": ([BETWEEN, READS, *STACKS], "host", [1]),
    "stacks: one waits for its next call, and nobody is in a collective": ([BETWEEN, *[ELSEWHERE] * 3], "", []),
    "it waits for its next call, and its group for it": ([BETWEEN, *[waits()] * 3], "host", [0]),
    "another type, where a log tells of one rank and no type": (
        [logged_in(WORLD, 3, at=(CALL, STEP)), waits(), waits(), DOUBLE], "disagrees", [3],
    ),
    "stacks: two may wait for their device": ([ELSEWHERE] * 2 + STACKS, "", []),
    "stacks: all but one wait for their device": ([READS, *[ELSEWHERE] * 3], "host", [0]),
    "stacks: some are where ranks are that wait by their logs": (
        [spinning(READ), spinning(STEP), spinning(STEP), *[LOGGED] * 3], "host", [0],
    ),
    "stacks: one is on no CPU where ranks are that wait by their logs": ([ELSEWHERE, *[LOGGED] * 3], "host", [0]),
    "stacks: some wait for their devices, and logs tell of others": (
        [spinning(READ), *[spinning(SYNC, STEP)] * 2, *[LOGGED] * 3], "host", [0],
    ),
    "stacks: some wait for their devices, and nobody is in a collective": (
        [*[spinning(SYNC, OTHER)] * 2, *[spinning(STEP)] * 3], "", [],
    ),
    "halves": ([waits(size=9), waits(size=9), waits(), waits()], "disagrees", [0, 1, 2, 3]),
    "stacks: another call": ([EVALUATES, *STACKS], "disagrees", [0]),
    "stacks: some wait for the one in another call, and more are past it": (
        [EVALUATES, *[rank(at=(CALL, READ), recorded=False)] * 2, *STACKS], "disagrees", [0],
    ),
    "stacks and logs: another call": (
        [logged_in(TENSOR, 1, at=(CALL, OTHER)), *[logged_in(WORLD, 3, at=(CALL, STEP))] * 3], "disagrees", [0],
    ),
    "stacks and logs: another call of one collective": (
        [logged_in(WORLD, 3, at=(CALL, OTHER)), *[logged_in(WORLD, 3, at=(CALL, STEP))] * 3], "", [],
    ),
    "stacks: another way to one call": (
        [rank(at=(CALL, "job/train.py::reduce", way), recorded=False) for way in (OTHER, STEP, STEP, STEP)],
        "host", [0],
    ),
    "a cycle, and nothing came from another": (
        [*[waits(group=group, number=9) for group in (FIRST, FIRST._replace(name="30"), FIVE, FIVE)], None],
        "disagrees", [0, 1],
    ),
    "gloo: one is in another group than most": (
        [in_group("1"), in_group("1"), in_group("1"), in_group("2")], "disagrees", [3],
    ),
    "gloo: each is in a group of its own": ([in_group("1"), in_group("2")], "disagrees", [0, 1]),
    "gloo: another is in no group": ([in_group("1"), in_group("1"), in_group("2"), gloo()], "host", [3]),
    "gloo: a group of which others are done with another one": (
        [in_group("1"), in_group("1"), *[gloo(issued(Group("2", ""), 1, "all_reduce", 2, done=True))] * 2], "", [],
    ),
    "gloo: a source may wait in another group": ([*[in_group("1", "gather")] * 3, in_group("2", "gather")], "", []),
    "a receiver is behind its fellows": ([sent(2), sent(2), sent(1), sent(2)], "device", [2]),
    "a receiver is behind its fellows, and waits in another group first": (
        [sent(2), sent(2), HELD, sent(2)], "disagrees", [2],
    ),
    "all receivers are behind the source": ([sent(2), *[sent(1)] * 3], "", []),
    "a cycle through one rank": ([AT_EVEN, AT_ODD, AT_BARRIER, BEFORE_ODD], "disagrees", [2]),
    "stacks: one reads, and nothing came from another": ([None, STACKS[0], READS, STACKS[0]], "host", [2]),
    "stacks: one is elsewhere, and nothing came from another": ([None, STACKS[0], ELSEWHERE, STACKS[0]], "host", [2]),
    "a pipeline: one may wait for who is silent": ([ELSEWHERE, None, RECEIVES, RECEIVES], "silent", [1]),
    "a pipeline: one reads, another is silent": ([READS, None, RECEIVES, RECEIVES], "host", [0]),
    "stacks: one of two is in none": ([READS, STACKS[0]], "host", [0]),
    "stacks: two of three are in none": ([READS, READS, STACKS[0]], "", []),
    "stacks: the smaller side": ([REDUCES, *STACKS[:2]], "disagrees", [0]),
    "stacks: the smaller side, and most may be elsewhere": ([REDUCES, *STACKS[:2], None, None, None], "", []),
    "most of a large job is missing": (
        [waits(group=Group("0", "default_pg", tuple(range(32))))] * 8 + [None] * 24, "", [],
    ),
    "a watchdog tells a CUDA error": ([failed(CUDA), *[waits()] * 3], "failed", [0]),
    "a watchdog gave up, and its process ended": (
        [failed(line("watchdog: timeout"), line("exitcode  : 1")), *[waits()] * 3], "", [],
    ),
    "logs: two sizes": (TWO_SIZES, "disagrees", [0, 1]),
    "logs: two sizes, and a third is past: it has the least": ([*TWO_SIZES, PAST], "disagrees", [1]),
    "logs: two calls, and a third is past": ([*BROADCAST_OR_REDUCE, PAST], "", []),
    "who has less goes on": ([LESS, *[MORE] * 3], "disagrees", [0]),
    "one of three is ahead": ([counted(4, 4, group=THREE), *[counted(3, 4, group=THREE)] * 2], "disagrees", [0]),
    "one of two is ahead": ([counted(4, 4, group=FIRST), counted(3, 4, group=FIRST)], "device", [1]),
    "a call that no dump has is the first of its group": ([IN_FIRST, *[counted(4, 5)] * 3], "host", [0]),
    "a call that gloo does not record": ([GLOO_CALLS, *[counted(4, 5, device=False)] * 3], "disagrees", [0]),
}  # fmt: skip


@pytest.mark.parametrize("name", JOBS)
def test_a_rule_names_the_root(name: str) -> None:
    ranks, rule, named = JOBS[name]
    found = who.of(facts.of(job(ranks)))
    assert (found.rule, [*found.why]) == (rule, named)


def test_a_rank_that_has_issued_a_later_operation_is_not_past_an_older_one() -> None:
    found = facts.of(job([AT_EVEN, AT_ODD, None, BEFORE_ODD]))
    assert found.missing == {0: {2}, 1: {3}, 3: {2}}
    assert [*who.of(found).why] == [2]


ALSO = [rank(at=(OTHER,), recorded=False)] * 2 + [rank(at=(STEP,), recorded=False)] * 3


@pytest.mark.parametrize(
    ("whole", "why"),
    [
        (
            job(JOBS["halves"][0]),
            "disagrees on the size of collective 3 of default_pg: 2 against 9 elements; no side has more ranks, so all "
            "are suspect",
        ),
        (
            job(JOBS["stacks: another call"][0]),
            "is in another call than its peers: dumps would tell which of these is wrong",
        ),
        (
            job(JOBS["stacks: one is in none"][0]),
            "its peers are in a collective, and no frame or dump shows it in one: it is in _next_data",
        ),
        (job(ALSO), "its stack differs from that of its peers, in evaluate: dumps would tell which of these only wait"),
        (
            job([DONE] * 3 + [waits()]),
            "has not issued call 3 of default_pg, and waits in no collective: its host is late, or rank 3 issued one "
            "call more",
        ),
    ],
)
def test_a_reason_says_no_more_than_the_files_show(whole: Job, why: str) -> None:
    assert {*who.of(facts.of(whole)).why.values()} == {why}


WATCHDOG = (
    "[rank{0}]:[E1122 09:15:03.1 ProcessGroupNCCL.cpp:685] [PG ID 0 PG GUID 0(default_pg) Rank {0}] Watchdog caught "
    "collective operation timeout: WorkNCCL(SeqNum={1}, OpType=ALLREDUCE, NumelIn=2, NumelOut=2, Timeout(ms)=600000)"
)


def logged(*lines: str) -> Told:
    return Told("log", parts=tuple(logs.read(io.BytesIO("\n".join(lines).encode()), "log")))


SIGNAL = (
    "[rank{0}]:[E1122 09:15:03.1 ProcessGroupNCCL.cpp:1834] [PG ID 0 PG GUID 0(default_pg) Rank {0}] Received a dump "
    "signal due to a collective timeout from this rank and we will try our best to dump the debug info. "
    "Last enqueued NCCL work: {1}, last completed NCCL work: {1}."
)
STUCK = (
    "[rank{0}]:[E1122 09:15:03.1 ProcessGroupNCCL.cpp:1345] [PG ID 0 PG GUID 0(default_pg) Rank {0}] "
    "ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress in monitoring enqueued collectives."
)
STATUS = (
    "[rank{0}]:[E1122 09:15:03.1 ProcessGroupNCCL.cpp:2175] [PG ID 2 PG GUID 8(TENSOR_MODEL_PARALLEL_GROUP) Rank {0}] "
    "failure detected by watchdog at work sequence id: {2} PG status: last enqueued work: 44, last completed work: {1}"
)
TIMED_OUT = [WATCHDOG.format(number, 3) for number in (0, 1, 3)]
BARRIER = "[rank0]: RuntimeError: Rank 2 failed to pass monitoredBarrier in 30000 ms"


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ([*TIMED_OUT, WATCHDOG.format(2, 3)], {}),
        ([*TIMED_OUT, WATCHDOG.format(2, 2)], {2: "completed 1 of default_pg, its peers 2: its device is stuck"}),
        (
            [*TIMED_OUT, SIGNAL.format(2, 2)],
            {
                2: "enqueued 2 of default_pg, its peers 3, and waits in no collective: its host is late, or in the "
                "first call of another group, which its stack alone tells"
            },
        ),
        (
            [*TIMED_OUT, STUCK.format(2)],
            {2: "its watchdog stood still for 480 s, as where a call of CUDA's or the interpreter's lock is held"},
        ),
        (
            [STATUS.format(number, done, done + 1) for number, done in enumerate((40, 42, 42))],
            {0: "completed 40 of TENSOR_MODEL_PARALLEL_GROUP, its peers 42: its device is stuck"},
        ),
    ],
)
def test_the_watchdogs_lines_alone_tell_who_is_behind(lines: list[str], why: dict[int, str]) -> None:
    assert who.of(facts.of(merged([logged(*lines)]))).why == why


def test_whom_a_monitored_barrier_names_stays_named_beside_dumps_that_have_none() -> None:
    said = {2: "rank 0 says that rank 2 did not come to its monitored barrier within 30 s"}
    log = logged(BARRIER, "[rank1]: RuntimeError: Rank 1 successfully reached monitoredBarrier, but received errors")
    dumps = [Told(f"{number}", (Dump(DONE._replace(rank=number), (WORLD,), 0, ""),), (), number) for number in range(4)]
    assert who.of(facts.of(merged([log, *dumps]))).why == said
    assert [*who.of(facts.of(merged([log, Told("rank_3.log", named=3)]))).why] == [2]


def test_a_rank_that_ctrl_c_found_elsewhere_is_late() -> None:
    """The others' watchdogs say where they wait, and a log lists the members of no group."""
    where = [
        f"[rank2]: {line}" for line in ("Traceback (most recent call last):", '  File "/job/data.py", line 7, in load')
    ]
    whole = merged([logged(WATCHDOG.format(0, 3), WATCHDOG.format(1, 3), *where, "[rank2]: KeyboardInterrupt")])
    found = who.of(facts.of(whole))
    assert (found.rule, [*found.why]) == ("host", [2])


def test_an_error_of_ray_s_worker_comes_before_what_its_driver_says_of_it() -> None:
    told = logged(
        "Traceback (most recent call last):",
        '  File "/job/main_ppo.py", line 42, in main',
        "ray.exceptions.RayTaskError(OutOfMemoryError): ray::WorkerDict.update_actor() (pid=4003, ip=10.0.0.1)",
        '  File "/job/dp_actor.py", line 300, in update_policy',
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB.",
    )
    first, _ = facts.of(merged([told])).strangers
    assert (first.text.partition(":")[0], first.frames[0].function) == ("torch.OutOfMemoryError", "update_policy")


def test_a_rank_that_printed_lines_is_not_one_from_which_nothing_came() -> None:
    said = logged("[rank0]: step 7, loss 1.25", *(WATCHDOG.format(number, 3) for number in (1, 2, 3)))
    whole = merged([said])
    assert ([*whole.ranks], [*whole.spoken]) == ([1, 2, 3], [0])
    assert who.of(facts.of(whole)).why == {
        0: "nothing came from it but lines without an error or a collective, and default_pg waits for it"
    }
    assert merged([said, Told("rank_4.log", named=4)]).spoken == {0, 4}


@pytest.mark.parametrize(("world", "named"), [(8, [7]), (4, [])])
def test_what_lacks_in_one_log_is_cut_off_unless_nearly_all_ranks_are_there(world: int, named: list[int]) -> None:
    lines = [WATCHDOG.format(number, 3) for number in range(world - 1)]
    whole = merged([logged(*lines)._replace(size=world)])
    assert [*who.of(facts.of(whole)).why] == named


@pytest.mark.parametrize("group", ["0(default_pg)", "8(TENSOR_MODEL_PARALLEL_GROUP)", "8"])
@pytest.mark.parametrize("place", [READ, STEP])
def test_a_rank_that_is_late_by_its_stack_comes_before_one_of_which_nothing_came(group: str, place: str) -> None:
    """Logs tell of the collective, and not who is in its group."""
    said = logged(*(WATCHDOG.format(number, 3).replace("0(default_pg)", group) for number in (0, 2, 4)))
    late = Told("stack_3", parts=(rank(at=(place,), recorded=False),), named=3)
    assert [*who.of(facts.of(merged([said, late]))).why] == [3]


def test_an_error_comes_with_its_traceback() -> None:
    whole = job([rank(lines=[line("ValueError: no")._replace(frames=STACKS[0].stacks[0].frames)], recorded=False)])
    assert who.of(facts.of(whole)).traceback == (
        "log:9",
        "  /job/train.py:7 in step",
        "  /opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py:7 in all_reduce",
    )


def test_a_process_that_is_gone_or_stopped_is_suspect_and_nobody_is_where_all_move() -> None:
    first, second, third = STACKS
    seen = facts.of(job([first, second._replace(process="stopped"), Rank(-1, process="gone")]))
    assert [why.split(":")[0] for why in who.of(seen).why.values()] == ["its process is stopped", "its process is gone"]
    assert [*who.of(seen).why] == [1, 2]
    moving = third._replace(stacks=tuple(one._replace(moved=True) for one in third.stacks))
    late = READS
    assert [*who.of(facts.of(job([moving, moving, late]))).why] == [2]
    late = late._replace(stacks=tuple(one._replace(moved=True) for one in late.stacks))
    assert not who.of(facts.of(job([moving, moving, late]))).why


@pytest.mark.parametrize("silent", [0, 1, 2])
def test_a_rank_that_says_nothing_is_suspect_whatever_its_number(silent: int) -> None:
    raised = (
        "[rank{0}]: Traceback (most recent call last):",
        f'[rank{{0}}]:   File "{SITE}torch/distributed/distributed_c10d.py", line 5356, in barrier',
        "[rank{0}]: RuntimeError: Connection closed by peer [127.0.0.1]:11425",
    )
    lines = [line.format(number) for number in range(3) if number != silent for line in raised]
    found = who.of(facts.of(merged([logged(*lines), Told(f"rank_{silent}.log", named=silent)])))
    assert (found.rule, [*found.why]) == (who.SILENT, [silent])


def test_of_a_job_whose_processes_are_all_gone_only_an_error_or_what_was_recorded_makes_suspect() -> None:
    late = READS
    gone = [one._replace(process="gone") for one in (*STACKS[:2], late)]
    ended = job(gone)
    assert (facts.of(ended).has_ended, who.of(facts.of(ended)).why) == (True, {})
    assert [*who.of(facts.of(ended._replace(running=frozenset({3})))).why] == [0, 1, 2]
    failed = job([*gone[:2], late._replace(process="gone", messages=(line("ValueError: loss is NaN"),))])
    assert [*who.of(facts.of(failed)).why] == [2]
    recorded = job([one._replace(process="gone") for one in (waits(), waits(), waits(), rank())])
    assert [*who.of(facts.of(recorded)).why] == [3]


SPIED = """Process {pid}: python -u train.py

Thread {pid} (idle): "MainThread"
    {at}
    main (train.py:9)

"""


def test_processes_without_a_rank_are_compared_and_named_as_py_spy_names_them() -> None:
    at = dict.fromkeys(("71", "72", "73"), "all_reduce (torch/distributed/distributed_c10d.py:9)")
    at["74"] = "get (torch/utils/data/dataloader.py:11)"
    text = "".join(SPIED.format(pid=pid, at=where) for pid, where in at.items())
    told = Told("stacks.txt", parts=tuple(logs.read(io.BytesIO(text.encode()), "stacks.txt")))
    whole = merged([told])
    found = who.of(facts.of(whole))
    assert whole.called(found.why) == "pid 74"
    assert whole.called(whole.ranks) == "pid 71, pid 72, pid 73, pid 74"
    hostile = merged([Told("\x1b.txt", parts=(whole.ranks[-2]._replace(rank=-1, name="\x1b[31m"),))])
    assert "\x1b" not in hostile.called(hostile.ranks)
    alone = merged([Told("74.txt", parts=(Rank(-1, stacks=whole.ranks[min(whole.ranks)].stacks),))])
    assert alone.called(who.of(facts.of(alone)).why) == "74.txt"
