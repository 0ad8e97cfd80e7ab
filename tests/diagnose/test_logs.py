"""Logs of all launchers, torches and sizes say who waits in what, and who died of what."""

from __future__ import annotations

import gzip
import io
import json
import tracemalloc
from collections.abc import Iterator
from itertools import islice

import pytest

from unhang.diagnose import logs
from unhang.diagnose.evidence import Frame, Group, Message, Operation, Rank
from unhang.diagnose.stacks import NOBODY

GLOG = "E1218 20:27:21.426415540 ProcessGroupNCCL.cpp:629"
WORK = "WorkNCCL(SeqNum=808, OpType=ALLREDUCE, NumelIn=9801523, NumelOut=9801523, Timeout(ms)=600000)"
OLD, NEW = "ProcessGroupNCCL.cpp:474", f"[rank3]:[{GLOG}]"
EDP = "[PG ID 4 PG GUID 12(EXPERT_DATA_PARALLEL_GROUP) Rank 1]"
CAUGHT = f"Watchdog caught collective operation timeout: {WORK} ran for 600020 milliseconds before timing out."
TRACEBACK = """\
Traceback (most recent call last):
  File "/a/train.py", line 12, in <module>
    main()
  File "/a/metric.py", line 3, in compute
    dist.all_reduce(x)
    ^^^^^^^^^^^^^^^^^^
"""
FRAMES = (Frame("compute", "/a/metric.py", 3), Frame("<module>", "/a/train.py", 12))


def read(text: str | bytes) -> dict[int, Rank]:
    stream = io.BytesIO(text if isinstance(text, bytes) else text.encode())
    found = [one for one in logs.read(stream, "log") if not one.statements]
    assert len({rank.rank for rank in found}) == len(found)
    return {rank.rank: rank for rank in found}


def waiting(rank: int, group: Group = Group("", ""), line: int = 1) -> Operation:  # noqa: B008
    return Operation(rank, group, 808, "all_reduce", elements=9801523, source=f"log:{line}")


NO_GROUP, ALL, DP = Group("", ""), Group("0", "default_pg"), Group("12", "EXPERT_DATA_PARALLEL_GROUP")
OF_ALL = "[PG ID 0 PG GUID 0(default_pg) Rank 3]"
AT_WORK, COMPLETED = "detected by watchdog at work", "last completed NCCL work: 807."
ENQUEUED, NEWER = "last enqueued NCCL work: 811", "sequence id: 808 PG status: last enqueued work: 811"
WORDINGS = {
    "2.1": ([f"[E {OLD}] [Rank 3] {CAUGHT}"], NO_GROUP, 0),
    "2.2": (
        [
            f"[E {OLD}] [Rank 3] {CAUGHT}",
            f"[E {OLD}] [Rank 3] NCCL watchdog thread terminated with exception: [Rank 3] {CAUGHT}",
        ],
        NO_GROUP, 0,
    ),
    "2.3": (
        [
            f"[rank3]:[E {OLD}] [Rank 3] {CAUGHT}",
            f"[rank3]:[E {OLD}] [PG 0 Rank 3] Timeout at NCCL work: 808, {ENQUEUED}, {COMPLETED}",
        ],
        Group("0", ""), 807,
    ),
    "2.4, 2.5": (
        [
            f"{NEW} [Rank 1] {CAUGHT}",
            f"{NEW} {EDP} Exception (either an error or timeout) {AT_WORK}: 808, {ENQUEUED}, {COMPLETED}",
            f"[rank3]: what():  {EDP} Process group watchdog thread terminated with exception: [Rank 1] {CAUGHT}",
        ],
        DP, 807,
    ),
    "2.6 and later": (
        [
            f"{NEW} [Rank 1] {CAUGHT}",
            f"{NEW} {EDP}  failure {AT_WORK} {NEWER}, last started work: 808 (ALLREDUCE), last completed work: 807",
        ],
        DP, 807,
    ),
    "the same, where nothing was ever completed, behind a progress bar, in colour": (
        [
            f"Epoch 0:  1%|#  | 1/9\rEpoch 0: 6%|## | 2/9\x1b[0m{NEW} [Rank 3] {CAUGHT}",
            f"{NEW} {OF_ALL}  failure {AT_WORK} {NEWER}, last completed work: -1",
        ],
        ALL, 0,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("lines", "group", "completed"), WORDINGS.values(), ids=WORDINGS)
def test_every_wording_of_the_watchdog(lines: list[str], group: Group, completed: int) -> None:
    (rank,) = read("\n".join(lines)).values()
    assert (rank.rank, rank.waiting) == (3, (waiting(3, group),))
    assert rank.last == ((Operation(3, group, completed, "", done=True, source="log:2"),) if completed else ())
    assert not rank.messages
    assert not rank.recorded


@pytest.mark.parametrize(
    ("said", "kind", "elements"),
    [
        ("SeqNum=1, OpType=_ALLGATHER_BASE, NumelIn=7, NumelOut=56", "all_gather", 7),
        ("SeqNum=1, OpType=_REDUCE_SCATTER_BASE, NumelIn=0, NumelOut=0", "reduce_scatter", 0),
        ("SeqNum=1, OpType=ALLTOALL_BASE, Timeout(ms)=1", "all_to_all", None),
        ("SeqNum=1, OpType=COALESCED, NumelIn=1, NumelOut=1", "coalesced", 1),
        ("SeqNum=1, OpType=NEW_ONE, NumelIn=1, NumelOut=1", "new_one", 1),
    ],
)
def test_kinds_and_sizes(said: str, kind: str, elements: int | None) -> None:
    (operation,) = read(f"[rank0]:[{GLOG}] [Rank 0] Watchdog caught ...: WorkNCCL({said}, x)")[0].waiting
    assert (operation.kind, operation.elements, operation.sequence) == (kind, elements, 1)


@pytest.mark.parametrize(
    ("prefix", "rank"),
    [
        ("[default3]:", 3), ("[rank3]: ", 3), ("3: ", 3), ("[3] ", 3), ("2026-11-22T09:15:00 3: ", 3), ("", NOBODY),
        ("(pid=77) ", NOBODY),
        ("Wed Nov 25 10:00:04 2026[1,3]<stderr>:", 3), ("\x1b[36m(WorkerDict pid=3490362)\x1b[0m [rank7]:", 7),
        *((f"{pod} ", NOBODY) for pod in ("trainer-worker-3 pytorch", "trainer-worker-3 pytorch \u203a")),
        ("team trainer-worker-3 pytorch ", NOBODY),
    ],
)  # fmt: skip
def test_a_traceback_under_a_prefix(prefix: str, rank: int) -> None:
    text = TRACEBACK + "RuntimeError: Timed out waiting 1800000ms for recv operation to complete\nready\n"
    found = read("".join(prefix + line for line in text.splitlines(keepends=True)))
    assert list(found) == [rank]
    assert [(stack.thread, stack.frames, stack.idle) for stack in found[rank].stacks] == [("MainThread", FRAMES, None)]
    # what torch's hook prints nobody caught
    assert [(message.text[:28], message.frames, message.uncaught) for message in found[rank].messages] == [
        ("RuntimeError: Timed out wait", FRAMES, "[rank" in prefix)
    ]


def test_interleaved_lines_of_several_ranks_come_apart() -> None:
    texts = [[f"[default{rank}]:{line}" for line in f"{TRACEBACK}ValueError: {rank}".splitlines()] for rank in range(4)]
    found = read("\n".join(line for lines in zip(*texts, strict=True) for line in lines))
    assert {rank: told.messages[0].text for rank, told in found.items()} == {
        rank: f"ValueError: {rank}" for rank in range(4)
    }
    assert {told.messages[0].frames for told in found.values()} == {FRAMES}


def test_what_torch_calls_a_process_holds_for_its_other_lines_and_against_the_launcher() -> None:
    # Ray: the pid is rank 5. srun: 0 and 1 are nodes, since other ranks speak there; so nobody knows rank 1's error.
    ray = f"(Worker pid=77) [rank5]:[{GLOG}] [Rank 5] {CAUGHT}\n(Worker pid=77) ValueError: no\n"
    found = read(f"{ray}(Worker pid=78) KeyError: 'x'")
    assert (found[5].messages[0].text, found[-1].messages[0].text) == ("ValueError: no", "KeyError: 'x'")
    srun = f"0: [rank3]:[{GLOG}] [Rank 3] {CAUGHT}\n0: ValueError: no\n1: KeyError: 'x'"
    assert {rank: len(told.messages) for rank, told in read(srun).items()} == {3: 0, -1: 2}


def test_who_speaks_is_learnt_from_lines_that_say_nothing_else() -> None:
    calm = "".join(f"(Worker pid={70 + rank}) [rank{rank}]: step {step}\n" for step in range(50) for rank in range(4))
    assert read(f"{calm}(Worker pid=72) KeyError: 'x'")[2].messages[0].text == "KeyError: 'x'"


def test_of_lines_that_say_only_the_rank_few_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_PIECE", 4096)
    taken: list[str] = []
    monkeypatch.setattr(logs._Log, "line", lambda _log, line, _source: taken.append(line))
    calm = "".join(f"[default{rank}]:[rank{rank}]: step {step}\n" for step in range(5000) for rank in range(4))
    assert list(logs.read(io.BytesIO(calm.encode()), "log")) == []
    assert 4 <= len(taken) < 400


def test_the_stack_of_the_collective_that_the_watchdog_prints() -> None:
    text = f"""\
[rank3]:[{GLOG}] [Rank 3] {CAUGHT}
[rank3]:[{GLOG}] Stack trace of the failed collective: {""}
#0 all_reduce from /site/torch/distributed/distributed_c10d.py:3174
#1 reduce from here from /a b/metric.py:83
#3 lost from /a/x.py:1
#2 _run_code from <frozen runpy>:88
"""
    frames = read(text)[3].waiting[0].frames
    assert frames == (
        Frame("all_reduce", "/site/torch/distributed/distributed_c10d.py", 3174),
        Frame("reduce from here", "/a b/metric.py", 83),
        Frame("_run_code", "<frozen runpy>", 88),
    )


def test_the_stack_of_a_collective_is_of_the_rank_above_it() -> None:
    said, above = "[rank{0}]:[{1}] [Rank {0}] {2}", "[rank{0}]:[{1}] Stack trace of the failed collective: "
    lines = [said.format(2, GLOG, CAUGHT), said.format(3, GLOG, CAUGHT)]
    lines += [above.format(3, GLOG), "#0 step from /a/x.py:1", above.format(2, GLOG), "#0 evaluate from /a/x.py:2"]
    found = {number: told.waiting[0].frames[0].function for number, told in read("\n".join(lines)).items()}
    assert found == {2: "evaluate", 3: "step"}


def test_a_rank_that_did_not_time_out_says_what_it_completed_last() -> None:
    group = "[PG ID 0 PG GUID 0(default_pg) Rank 2]"
    signal = "Received a dump signal due to a collective timeout from  rank 0 and we will try our best to dump"
    (told,) = read(
        f"[rank2]:[{GLOG}] {group} {signal} the info. Last enqueued NCCL work: 41, last completed NCCL work: 41.This"
    ).values()
    assert (told.rank, told.waiting, told.last[0][1:4]) == (2, (), (Group("0", "default_pg"), 41, ""))
    assert signal in told.messages[0].text


def test_who_was_killed_is_told_by_torchrun_and_who_was_stopped_is_not() -> None:
    summary = "".join(
        f"[{rank}]:\n  host      : a\n  rank      : {rank} (local_rank: {rank % 8})\n  exitcode  : {code} (pid: 77)\n"
        for rank, code in ((17, -9), (18, -15), (19, 1))
    )
    assert {rank: told.messages[0].text for rank, told in read(summary).items()} == {
        17: "exitcode  : -9 (SIGKILL)",
        19: "exitcode  : 1",
    }


RAY_ENDED = "The actor is dead because its worker process has died. Worker exit type:"


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        ("torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", True),
        ("terminate called after throwing an instance of 'gloo::EnforceNotMet'", True),
        ("what(): [enforce fail at gloo/transport/tcp/pair.cc:490] op.preamble.length <= op.nbytes. 8 vs 4", True),
        ("[W] [gloo/pair.cc:1] Connection reset by peer", True),
        ("[Rank 0]: Rank 1 failed to pass monitoredBarrier in 2000 ms of gloo", True),
        ("ray.exceptions.RayTaskError(ValueError): ray::f()", True),
        ("KeyboardInterrupt", True),
        ("Fatal Python error: Aborted", True),
        ("slurmstepd: error: Detected 1 oom_kill event", True),
        ("srun: error: node1: task 1: Out Of Memory", True),
        ("train.sh: line 9: 4242 Segmentation fault      (core dumped) python train.py", True),
        ("[node1:1234 :0:1234] Caught signal 7 (Bus error: nonexistent physical address)", True),
        ("\t     [0, 1] finished collective #3, but didn't join collective #4 (count from 1)", True),
        (f"{RAY_ENDED} NODE_OUT_OF_MEMORY Worker exit", True),
        (f"{RAY_ENDED} INTENDED_USER_EXIT Worker exit", False),
        ("errors: 0, val_error=0.25", False),
        ("FutureWarning: this will be an Error: soon", False),
        ("Error: Failed to find python version from target process", False),
        ("INFO:root:retrying after TimeoutError", False),
        ("UserWarning: CUDA out of memory is caught", False),
        ("2026-11-22 09:00:00 WARNING cache: out of memory, retrying", False),
    ],
)
def test_which_lines_are_messages(line: str, kept: bool) -> None:
    found = read(f"step 1\n{line}\nstep 2\n")
    assert [(message.text, message.source) for rank in found.values() for message in rank.messages] == (
        [(line, "log:2")] if kept else []
    )


@pytest.mark.parametrize(
    ("lines", "hour"),
    [
        (["[rank3]: 2026-11-22 09:00:00 INFO starts", "[rank3]: Traceback (most recent call last):"], 9),
        (["[rank3]: 2026-11-22 09:00:00 INFO starts", "step 7", "[rank3]: Traceback (most recent call last):"], None),
        (["2026-11-22 10:00:00 ERROR job: failed", "[rank3]: Traceback (most recent call last):"], 10),
        (["[rank2]: 2026-11-22 10:00:00 ERROR job: failed", "[rank3]: Traceback (most recent call last):"], None),
    ],
)
def test_a_time_that_does_not_stand_right_above_an_error_tells_nothing(lines: list[str], hour: int | None) -> None:
    whole = [*lines, '[rank3]:   File "/a/train.py", line 12, in main', "[rank3]: ValueError: no"]
    ((message,),) = (told.messages for told in read("\n".join(whole)).values() if told.rank == 3)
    assert message.at == (None if hour is None else ((11 * 31 + 22) * 24 + hour) * 3600)


def test_numbers_do_not_make_a_message_another_and_few_are_kept() -> None:
    text = "".join(f"ValueError: {number} of {word * 300}\n" for word in "abc" for number in range(1000))
    (told,) = read(text).values()
    assert [len(message.text) for message in told.messages] == [317] * 3
    many = "".join(f"ValueError: {'ab'[i % 2] * i}\n" for i in range(1000))
    assert len(read(many)[-1].messages) == 40


def test_more_speakers_than_any_job_has_hide_no_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_SPEAKERS", 10)
    numbered = "".join(f"[{number}] [rank{number % 4}]: ValueError: x\n" for number in range(1000))
    found = read(f"{numbered}[1000] {NEW} [Rank 3] {CAUGHT}\n")
    assert list(found) == [0, 1, 2, 3]
    assert found[3].waiting == (waiting(3, line=1001),)


class Endless(io.BufferedIOBase):
    """A stream of the same bytes again and again."""

    def __init__(self, piece: bytes, size: int, end: bytes = b"") -> None:
        self.pieces: Iterator[bytes] = iter([*[piece] * (size // len(piece)), end])
        self.rest = b""

    def read1(self, size: int = -1) -> bytes:
        while len(self.rest) < size and (piece := next(self.pieces, b"")):
            self.rest += piece
        result, self.rest = self.rest[:size], self.rest[size:]
        return result


@pytest.mark.slow
@pytest.mark.parametrize(
    ("piece", "between"),
    [
        (b"iteration 12 | lm loss: 1.2\n" * 10, b""),
        (b"(Worker pid=7) an error of 0.1 in [rank2]: step 7\n" * 10, b""),
        (b"50%|#### | 1/2 error\r" * 10, b"\n"),
        (b"x" * 100, b"\n"),
    ],
)
def test_a_log_is_never_in_memory_and_its_end_is_read(
    piece: bytes, between: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "_PIECE", 4096)
    monkeypatch.setattr(logs, "_LONGEST", 512)
    size, tail = 400_000, between + f"[rank3]:[{GLOG}] [Rank 3] {CAUGHT}\n".encode()
    peaks = []
    for _ in range(2):  # the first may fill what Python keeps between calls
        stream = Endless(piece, size, tail)
        tracemalloc.start()
        found = [one for one in logs.read(stream, "log") if not one.statements]
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert min(peaks) < 100_000
    lines = size // len(piece) * piece.count(b"\n") + between.count(b"\n") + 1
    (operation,) = [one for rank in found for one in rank.waiting]
    assert operation == waiting(3, line=lines)


def test_lines_that_span_pieces_stacks_too(monkeypatch: pytest.MonkeyPatch) -> None:
    text = b"iteration 12 | lm loss: 1.2\n" * 50 + TRACEBACK.encode() + b"ValueError: no\n" + b"calm\n" * 50
    for size in range(60, 300):
        monkeypatch.setattr(logs, "_PIECE", size)
        (told,) = read(text).values()
        assert told.messages == (Message("ValueError: no", "log:57", FRAMES),)


def test_what_is_no_text_and_what_breaks_off() -> None:
    with pytest.raises(ValueError, match="not text"):
        read(b"\x7fELF\0\0\0")

    cut = gzip.compress(f"[rank3]:[{GLOG}] [Rank 3] {CAUGHT}\n".encode())[:-8]
    found = logs.read(gzip.GzipFile(fileobj=io.BytesIO(cut)), "log")
    assert [one.waiting for one in islice(found, 2)] == [(waiting(3),), ()]
    with pytest.raises(EOFError):
        next(found)
    hostile = b"[rank1]: \xff\xfe\x1b]0;title\x07 ValueError\n\xffValueError: x\nKeyError: \xff\n"
    assert [message.text for message in read(hostile)[-1].messages] == ["KeyError: \ufffd"]


def test_hostile_lines_are_passed_over() -> None:
    digits = "1" * 9000
    lines = [
        f"[default{digits}]: ValueError: a",
        f"[rank{digits}]: ValueError: b",
        f"{digits}: ValueError: c",
        f"[rank1]: WorkNCCL(SeqNum={digits}, OpType=ALLREDUCE, NumelIn={digits}, NumelOut=1",
        f"[rank1]: last enqueued work: 1, last completed work: {digits} NCCL",
        f'[rank1]:   File "/a/b.py", line {digits}, in f',
        f"[rank1]: [PG ID {digits} PG GUID (x(((({digits}",
        f"[rank1]: Thread {digits} (idle)",
        f"[rank1]:     f (a.py:{digits})",
        "[rank1]:     f" + " (:1" * 2000,
        f"[rank1]: #0 {' from ' * 1400}",
    ]
    assert [rank for rank in read("\n".join(lines) + "\n").values() if rank.waiting or rank.last or rank.stacks] == []


DEBUG = """\
=== Rank 0: 10.0.0.1:34567 ===
Thread 0x00007f01 (most recent call first):
  File "/a/pool.py", line 9 in idle
Current thread 0x00007f02 (most recent call first):
  File "/a/train.py", line 12 in step
=== Rank 1: 10.0.0.2:34567 ===
Process 77: python train.py
Thread 77 (active): "MainThread"
    read (/a/data.py:4)
"""


def test_the_debug_server_s_stacks_are_of_the_rank_above_them() -> None:
    found = read(DEBUG.encode())
    first, second = ([frame.function for frame in found[rank].stacks[0].frames] for rank in (0, 1))
    assert (first, second) == (["step"], ["read"]), "the current thread comes first"


@pytest.mark.parametrize(
    "heading",
    [
        "==> stacks/rank_{}.txt <==", "=== Rank {}: host:1 ===", "=== rank {} ===", "--- RANK {} ---", "rank {}:",
        "[rank {}]", "## global rank={} (node-7), pid 70",
    ],
)  # fmt: skip
def test_a_heading_says_the_rank(heading: str) -> None:
    block = 'Process 7: python\nThread 7 (idle): "MainThread"\n    f (x.py:3)\n\n'
    assert [*read("".join(f"{heading.format(rank)}\n{block}" for rank in (5, 6)))] == [5, 6]
    assert [*read(f"step {heading.format(5)}\n{block}")] == [NOBODY], "it begins with that"
    for line in ("rank 3 is slow", "Rank 1 -- GPU 0 managed by process 6 on node h", "rank 3: step 7 of 9"):
        assert NOBODY in read(f"{line}\n{block}"), "a sentence is no heading"


def test_lines_within_json_are_each_of_who_says_them() -> None:
    text = "".join(
        json.dumps({"labels": {"pod": "a-3"}, "line": line}) + "\n" for line in f"{TRACEBACK}ValueError: x".splitlines()
    )
    assert read(text.encode())[NOBODY].messages[0].frames == FRAMES
    lines = "".join(f"[rank{rank}]: {line}\n" for line in f"{TRACEBACK}ValueError: x".splitlines() for rank in (1, 2))
    found = read(json.dumps({"message": lines, "podName": "w-0"}))
    assert {rank: one.messages[0].frames for rank, one in found.items()} == {1: FRAMES, 2: FRAMES}


WARNED = f"2026-11-22 09:15:03 WARNING data: once more\n{TRACEBACK}ValueError: x\n"


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (f"{WARNED}2026-11-22 09:15:05 INFO step 4\n", []),
        (f"{WARNED}\nDuring handling of the above exception, another exception occurred:\n\n{TRACEBACK}KeyError: 'y'\n"
         "2026-11-22 09:15:05 INFO step 4\n", []),
        (f"{WARNED}2026-11-22 09:15:05 INFO step 4\n{TRACEBACK}IndexError: y\n", ["IndexError: y"]),
        (WARNED, ["ValueError: x"]),
        (f"{WARNED}wandb: View run\n", ["ValueError: x"]),
        (f"{WARNED}[W1122 09:15:05.5 ProcessGroupNCCL.cpp:1] Warning: WARNING: not destroyed\n", ["ValueError: x"]),
        (f"{WARNED.replace('WARNING', 'INFO')}2026-11-22 09:15:05 INFO bye\n", ["ValueError: x"]),
    ],
)  # fmt: skip
def test_an_error_that_was_caught_and_logged_is_none_where_the_process_goes_on(text: str, kept: list[str]) -> None:
    assert [one.text for rank in read(text).values() for one in rank.messages] == kept


RAISED, STEPS = f"{TRACEBACK}ValueError: x\n", " iteration  3/ 9 | lm loss: 1.0\n iteration  4/ 9 | lm loss: 1.0\n"


@pytest.mark.parametrize(
    ("text", "survived"),
    [
        (f"{RAISED}{STEPS}", True),
        (f"{RAISED}some line\nstep 7 loss 1.0\n{STEPS}", True),
        (f"Exception ignored in: <function Pool.__del__ at 0x7f>\n{RAISED}", True),
        (RAISED, False),
        (f"{STEPS}{RAISED}", False),
        (f"{RAISED}train/epoch 0.35\ntrain/global_step 300\n", False),  # as wandb says at the end
        (f"{RAISED}saving at iteration 12\nthe newest is iteration 10\n", False),
        (f"{RAISED}{STEPS}{RAISED}", False),  # the second time it is fatal
        (RAISED + "wandb: waiting\n" * 200 + STEPS, False),
        ("".join(f"[rank0]: {line}\n" for line in f"{RAISED}{STEPS}".splitlines()), False),
    ],
)
def test_a_training_that_goes_on_has_survived_its_error(text: str, survived: bool) -> None:
    (message,) = [message for one in read(text).values() for message in one.messages]
    assert (message.text, message.survived) == ("ValueError: x", survived)


def test_what_ranks_said_before_torchrun_began_them_anew_is_not_of_this_job() -> None:
    again = "W1129 21:20:00 100 api.py:900] [default] Worker group FAILED. 2/3 attempts left; will restart worker group"
    before = f"[rank1]: {GLOG}\n{RAISED}[rank1]:[{GLOG}] [Rank 1] {CAUGHT}\n"
    after = f"{again}\n[rank0]:[{GLOG}] [Rank 0] {CAUGHT}\n"
    assert [*read(before)] == [1, NOBODY]
    found = read(f"{before}{after}")
    assert ([*found], len(found[0].waiting), found[0].messages) == ([0], 1, ())
    assert [*read(f"{again}\n{before}{again}\n")] == [1, NOBODY], "another node's launcher tells the same"
    assert [*read(f"{before}see '{again}' in the manual\n")] == [1, NOBODY]
    xid = "NVRM: Xid (PCI:0000:1a:00): 79, pid=1, GPU has fallen off the bus."
    stated = [
        one for rank in logs.read(io.BytesIO(f"{xid}\n{before}{again}\n".encode()), "log") for one in rank.statements
    ]
    assert {one.cause for one in stated} == {"cuda-error"}


def test_what_a_process_says_at_its_end_is_told() -> None:
    ended = read("[rank1]: [INFO:swift] End time of running main: 2026-11-25 10:03:00.5\n[rank0]: [INFO:swift] x\n")
    assert {number: one.ended for number, one in ended.items()} == {0: False, 1: True}
