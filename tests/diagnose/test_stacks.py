"""Stacks are read from what py-spy, faulthandler and Python print, in part where a part is there."""

from __future__ import annotations

import faulthandler
import gzip
import io
import json
import re
import subprocess
import sys
import tempfile
import textwrap
import threading
from typing import Any

import pytest

from unhang.diagnose import logs, stacks, where
from unhang.diagnose.evidence import Frame, Rank, Stack

PY_SPY = """\
Process 3266: /usr/bin/python -u train.py --tp 2
Python v3.11.7 (/usr/bin/python3.11)
{parent}
Thread 3266 ({state}): "MainThread"
    0x7f6d2fca3f16 (libc.so.6)
    c10d::Work::wait (libtorch_cpu.so)
    wait (torch/csrc/work.cpp:12)
    all_reduce (torch/distributed/distributed_c10d.py:3252)
        Arguments:
            tensor: <Tensor at 0x7f6d0fba1450>
        Locals:
            work: <torch._C._distributed_c10d.Work at 0x7f6d0feeb270>
    MeanMetric.compute (swift/metrics/utils.py:81)
    <module> (<string>:1)
Thread 3305 (idle): "pin memory"
    Thread._bootstrap (threading.py:1002)
Thread 0x7F0012 (active)
    run (a.py:1)
"""
MAIN = (
    Frame("all_reduce", "torch/distributed/distributed_c10d.py", 3252),
    Frame("MeanMetric.compute", "swift/metrics/utils.py", 81),
    Frame("<module>", "<string>", 1),
)


def of_text(text: str) -> list[Rank]:
    return [one for one in logs.read(io.BytesIO(text.encode()), "dump.txt") if not one.statements]


def thread(pid: int, name: str | None, **changes: Any) -> dict[str, Any]:
    """Return a thread as py-spy 0.4 prints it."""
    frame = {"module": None, "short_filename": "f.py", "locals": None, "is_entry": True, "is_shim_entry": False}
    frames = [
        {"name": "wait", "filename": "libc.so.6", "line": 0, **frame},
        {"name": "MeanMetric.compute", "filename": "/site/swift/metrics/utils.py", "line": 81, **frame},
    ]
    state = {"thread_id": 14, "os_thread_id": pid, "active": False, "owns_gil": False, "process_info": None}
    return {"pid": pid, "thread_name": name, **state, "frames": frames, **changes}


@pytest.mark.parametrize(("state", "idle"), [("idle", True), ("active", False), ("active+gil", False)])
def test_text_of_py_spy_without_locals_and_native_frames(state: str, idle: bool) -> None:
    (rank,) = of_text(PY_SPY.format(state=state, parent=""))
    main, pin, unnamed = rank.stacks
    assert (rank.rank, main.thread, main.frames, main.idle) == (stacks.NOBODY, "MainThread", MAIN, idle)
    assert (main.source, pin.thread, pin.idle) == ("dump.txt:4", "pin memory", True)
    assert (unnamed.thread, unnamed.idle, unnamed.frames) == ("thread 0x7F0012", False, (Frame("run", "a.py", 1),))


def test_each_process_of_a_text_is_a_rank_and_helpers_are_none() -> None:
    other = PY_SPY.replace("3266", "3267").replace("MeanMetric", "Other")
    worker = """Process 99: python
Thread 99 (idle): "MainThread"
    _worker_loop (torch/utils/data/_utils/worker.py:1)
"""
    text = PY_SPY + "-" * 80 + "\n" + other + worker
    found = of_text(text.format(state="idle", parent="Parent Process 12: bash"))
    told = [(rank.rank, rank.stacks[0].frames[1].function) for rank in found]
    assert told == [(stacks.NOBODY, "MeanMetric.compute"), (stacks.NOBODY, "Other.compute")]
    assert len(of_text((PY_SPY + worker).format(state="idle", parent=""))) == 1
    assert of_text('Process 5: x\nThread 6 (idle): "watch"\n    wait (a.py:1)\n    _bootstrap (threading.py:9)\n') == []
    labelled = "".join(
        textwrap.indent(one.format(state="idle", parent=""), f"{rank}: ", lambda _: True)
        for rank, one in ((5, PY_SPY), (6, other))
    )
    assert [(rank.rank, len(rank.stacks)) for rank in of_text(labelled)] == [(5, 3), (6, 3)]


def test_json_of_py_spy() -> None:
    first = json.dumps([thread(7, "MainThread"), thread(7, None, os_thread_id=9)], indent=2)
    documents = f"{first}\n{json.dumps([thread(8, 'x', active=True)])}"
    assert stacks.recognizes(documents.encode())
    one, two = stacks.read(io.BytesIO(documents.encode()), "a.json")
    assert one == Rank(stacks.NOBODY, stacks=one.stacks, name="pid 7")
    frames = (Frame("MeanMetric.compute", "/site/swift/metrics/utils.py", 81),)
    assert one.stacks[0] == Stack("MainThread", frames, True, "a.json: thread 7")
    assert [stack.idle for stack in (*one.stacks, *two.stacks)] == [True, True, False]
    again, _ = stacks.read(io.BytesIO(f"{documents}{first}".encode()), "a.json")
    assert [stack.moved for stack in again.stacks] == [False, False], "the second one replaces the first"


@pytest.mark.parametrize(
    ("data", "ranks", "why"),
    [
        (b"", 0, "not a dump of py-spy"),
        (b"[]", 0, "not a dump of py-spy"),
        (b"[1, 2]", 0, "not a dump of py-spy"),
        (b'{"frames": []}', 0, "not a dump of py-spy"),
        (b'[{"pid": 1, "frames": 3}]', 0, "not a dump of py-spy"),
        (b"[" * 100_000, 0, "not a dump of py-spy"),
        (b'[{"frames":' + b"[" * 100_000, 0, "not a dump of py-spy"),
        (json.dumps([thread(7, "MainThread"), {"pid": 1}]).encode(), 1, "not a dump of py-spy"),
        (json.dumps([thread(7, "MainThread"), thread(8, "MainThread")])[:-20].encode(), 1, "cut off"),
        (gzip.compress(json.dumps([thread(7, "MainThread")]).encode())[:-8], 1, "ended before"),
    ],
)
def test_broken_json_gives_what_stands_before_the_break(data: bytes, ranks: int, why: str) -> None:
    stream = gzip.GzipFile(fileobj=io.BytesIO(data)) if data[:1] == b"\x1f" else io.BytesIO(data)
    found: list[Rank] = []
    with pytest.raises((ValueError, EOFError), match=why):
        found.extend(stacks.read(stream, "a.json"))
    assert [rank.stacks[0].source for rank in found] == ["a.json: thread 7"] * ranks


@pytest.mark.parametrize("all_threads", [True, False])
def test_what_faulthandler_prints(all_threads: bool) -> None:
    ready, done = threading.Event(), threading.Event()

    def waiting_for_it() -> None:
        ready.set()
        done.wait()

    other = threading.Thread(target=waiting_for_it)
    other.start()
    ready.wait()
    with tempfile.TemporaryFile() as stream:
        faulthandler.dump_traceback(stream, all_threads=all_threads)
        done.set()
        other.join()
        stream.seek(0)
        (rank,) = logs.read(stream, "x")
    functions = {stack.thread: [frame.function for frame in stack.frames] for stack in rank.stacks}
    assert functions.pop("MainThread")[0] == "test_what_faulthandler_prints"
    assert any("waiting_for_it" in frames for frames in functions.values()) == all_threads
    assert all(stack.idle is None for stack in rank.stacks)


DEEP = """\
Timeout (0:00:01)!
Thread 0x00007f1e88de46c0{name} (most recent call first):
  File "/job/prefetch.py", line 8 in walk
  File "/job/prefetch.py", line 9 in walk
  ...

Thread 0x00007f1e8a7dfb80{name} (most recent call first):
  File "/job/model.py", line 3 in forward
  File "/job/model.py", line 6 in forward
  ...
"""


@pytest.mark.parametrize("name", ["", " [pt_main_thread]"], ids=["3.13", "3.14"])
def test_the_last_thread_of_faulthandler_is_the_main_one_however_deep_the_stacks(name: str) -> None:
    (rank,) = of_text(DEEP.format(name=name) * 2)
    assert [stack.frames[0].function for stack in rank.stacks if stack.thread == "MainThread"] == ["forward"]
    assert where.path_to(rank)[0][0] == "forward"
    newer = DEEP.format(name=name).replace("7f1e88de46c0", "7f1e88de9999").replace("walk", "upload")
    (rank,) = of_text(DEEP.format(name=name) + newer)
    assert where.path_to(rank)[0][0] == "forward"
    (rank,) = of_text(DEEP.format(name=name).replace("Thread 0x00007f1e88", "Current thread 0x00007f1e88"))
    assert where.path_to(rank)[0][0] == "walk", "the current one counts before the last one"


def test_a_traceback_that_ends_in_a_wait_is_a_stack_and_any_is_with_its_error() -> None:
    code = "def inner(x):\n  raise RuntimeError(x)\ndef outer(x):\n  inner(x)\nouter(%r)"
    texts = [
        subprocess.run([sys.executable, "-c", code % error], check=False, capture_output=True, text=True).stderr
        for error in ("[third_party/gloo/pair.cc:553] Connection closed by peer [::1]:3", "no data\nat all")
    ]
    (waited,), (crashed,) = map(of_text, texts)
    assert [frame.function for frame in waited.stacks[0].frames] == ["inner", "outer", "<module>"]
    assert [frame.function for frame in crashed.messages[0].frames] == ["inner", "outer", "<module>"]
    assert (crashed.stacks, crashed.messages[0].text) == ((), "RuntimeError: no data")


@pytest.mark.parametrize(
    ("before", "moved", "doing"),
    [
        ("", None, "in load"),
        ("load (data.py:8)", True, "in load, and moves: its two stacks differ"),
        ("load (data.py:9)", False, "in load, and does not move: its two stacks are alike"),
    ],
)
def test_a_second_stack_of_a_process_says_whether_it_has_moved(before: str, moved: bool | None, doing: str) -> None:
    dump = 'Process 7: python\nThread 9 (idle): "MainThread"\n    {}\n'
    ended = 'Thread 10 (idle): "a thread that is not in the second one"\n    run (a.py:1)\n'
    text = (dump.format(before) + ended if before else "") + dump.format("load (data.py:9)")
    (rank,) = logs.read(io.BytesIO(text.encode()), "rank_1.txt")
    assert [one.moved for one in rank.stacks] == [moved]
    assert where.in_stack(rank).doing == doing
    busy = next(iter(logs.read(io.BytesIO(text.replace("idle", "active").encode()), "rank_1.txt")))
    assert ("on a CPU" in where.in_stack(busy).doing) == (moved is False)
    assert (where.is_busy(rank), where.is_busy(busy)) == (bool(moved), True)


GDB = """\
Attaching to process 7
[New LWP 9]
(gdb) thread apply all bt

Thread 2 (Thread 0x7f01 (LWP 9) "cuda-EvtHandlr"):
#0  0x00007f02 in poll () from /lib64/libc.so.6
#1  0x00007f03 in ?? () from /lib64/libcuda.so.1

Thread 1 (Thread 0x7f00 (LWP 7) "python"):
#0  0x00007f04 in ?? () from /lib64/libcuda.so.1
#1  0x00007f05 in cudaStreamSynchronize () from /x/libcudart.so.12
--Type <RET> for more, q to quit, c to continue without paging--c
#2  0x00007f06 in commDestroySync (job_=job_@entry=0x15) at init.cc:1313
#3  0x00007f07 in ncclCommAbort (comm=0x55) at init.cc:1508
#4  0x00007f08 in c10d::ProcessGroupNCCL::abort(std::map<int, c10d::NCCLComm*>&)
    () from /x/libtorch_cuda.so
"""


def test_gdb_tells_what_each_process_waits_for() -> None:
    one, two = of_text(GDB + GDB.replace("process 7", "process 8").replace("LWP 7", "LWP 8"))
    assert (one.name, two.name) == ("pid 7", "pid 8")
    assert [(stack.thread, stack.frames) for stack in one.stacks] == [("MainThread", ())]
    assert one.stacks[0].native == ("cudaStreamSynchronize", "ncclCommAbort", "c10d::ProcessGroupNCCL::abort")
    head = "(cuda-gdb) bt\n#0  0x1 in usleep () from libc\n"
    (bare,) = of_text(f"{head}#6  0x2 in pncclCommInitRankConfig () from libnccl\n")
    assert (bare.name, bare.stacks[0].native) == ("", ("pncclCommInitRankConfig",))
    assert of_text("#0  0x1 in ?? () from libcuda.so.1\n#3  0x2 in step (x=1) at train.cc:3\n") == []
    assert of_text("#1  0x2 in cudaStreamSynchronize () from a.so\n") == [], "its beginning is cut off"
    (cut,) = logs.read(io.BytesIO(b"#1  0x2 in cudaStreamSynchronize () from a.so\n#2  0x3 in step ()"), "a.txt")
    assert "ends of stacks or helper threads (cudaStreamSynchronize < step)" in cut.statements[0].words


@pytest.mark.parametrize(
    ("functions", "words"),
    [
        (["cuStreamSynchronize"], "waits for its GPU"),
        (["at::native::_local_scalar_dense_cuda(at::Tensor const&)::{lambda()#1}"], "waits for its GPU"),
        (["pncclCommInitRankConfig", "c10d::ProcessGroupNCCL::recv"], "being made, .* within c10d::Pr"),
        (["cudaFree", "ncclCommDestroy"], "waits for its GPU, within ncclCommDestroy: a communicator is being ended"),
        (["__lll_lock_wait", "c10::cuda::CUDACachingAllocator::Native::malloc"], "a lock, within .*: the allocator"),
        (["take_gil"], "waits for Python's lock"),
        (["c10d::TCPStore::wait", "c10d::ProcessGroupNCCL::broadcastUniqueNCCLID"], "in the store .* within c10d::P"),
        (["gloo::transport::tcp::UnboundBuffer::waitRecv"], "waits for other ranks, called by recv"),
    ],
)
def test_native_frames_beside_python_s_say_what_is_waited_for(functions: list[str], words: str) -> None:
    native = "".join(f"    {one} (libx.so)\n" for one in functions)
    spied = 'Process 5: ray::Worker.step\nThread 5 (idle): "MainThread"\n    0x7f (libc.so.6)\n'
    (rank,) = of_text(f"{spied}{native}    recv (train.py:3)\n    cudaFree (later.so)\n    <module> (train.py:9)\n")
    assert (rank.name, len(rank.stacks[0].native)) == ("ray::Worker.step (pid 5)", len(functions))
    assert re.search(words, where.in_stack(rank).doing)
    document = json.dumps([thread(5, "MainThread")]).replace('"name": "wait"', f'"name": "{functions[0]}"')
    (same,) = stacks.read(io.BytesIO(document.encode()), "a.json")
    assert same.stacks[0].native == (functions[0],)


def test_ray_stack_names_each_worker_also_as_old_py_spies_print_it() -> None:
    head = "Stack dump for u+  {pid}  2.0  0.1 14248 69280 ?  Sl 10:34 0:01 {title}\n"
    old = "Thread 0x7F41 (active)\n\t step (env.py:9)\n\t main_loop (ray/worker.py:1001)\n\t <module> (d.py:9)\n\n"
    found = of_text(head.format(pid=5, title="ray_worker") + old + head.format(pid=6, title="ray::IDLE") + old)
    told = [(one.name, len(one.stacks[0].frames)) for one in found]
    assert told == [("ray_worker (pid 5)", 3), ("ray::IDLE (pid 6)", 3)]


FAULT = """\
Thread 0x{one} (most recent call first):
  File "/usr/lib/python3.10/threading.py", line 973 in _bootstrap

Current thread 0x{two} (most recent call first):
  File "{file}", line 1 in f
  File "x.py", line 9 in <module>

"""


@pytest.mark.parametrize(
    "head", ["=== rank {} ===", "rank {}:", "node1: rank {}", "pid 71 rank {}\n", "Rank {}\nTimeout (0:05:00)!"]
)
def test_dumps_of_faulthandler_below_headings_are_of_these_ranks(head: str) -> None:
    dumps = [FAULT.format(one=f"1{rank}", two=f"2{rank}", file=f"{rank}.py") for rank in range(3)]
    found = of_text("".join(f"{head.format(rank)}\n{dump}" for rank, dump in enumerate(dumps)))
    assert [(one.rank, one.stacks[0].frames[0].file) for one in found] == [(0, "0.py"), (1, "1.py"), (2, "2.py")]
    assert [[stack.thread for stack in one.stacks].count("MainThread") for one in found] == [1, 1, 1]


def test_dumps_of_faulthandler_without_a_heading_are_of_several_processes() -> None:
    dumps = [FAULT.format(one=f"1{at}", two=f"2{at}", file=f"{at}.py") for at in range(3)]
    assert [one.name for one in of_text("".join(dumps))] == ["process 1", "process 2", "process 3"]
    (again,) = of_text(dumps[0] + dumps[0].replace("0.py", "7.py"))
    assert [stack.moved for stack in again.stacks if stack.thread == "MainThread"] == [True]
    pods = "".join(f"[pod/job-{at}/main] {line}\n" for at, dump in enumerate(dumps) for line in dump.split("\n"))
    assert [one.name for one in of_text(pods)] == ["job-0", "job-1", "job-2"]


def test_stacks_that_somebody_has_grouped_are_of_these_ranks() -> None:
    most = "ranks [0, 2-3]  stopped at  mesh.py:54 in get\n        via  swarm.py:86 in migrate\n"
    text = f"{most}rank  [1]  stopped at  swarm.py:1 in f\n"
    found = {one.rank: one.stacks[0].frames for one in of_text(text)}
    assert found[3] == (Frame("get", "mesh.py", 54), Frame("migrate", "swarm.py", 86))
    assert (sorted(found), found[1]) == ([0, 1, 2, 3], (Frame("f", "swarm.py", 1),))
