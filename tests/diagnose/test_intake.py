"""What a file is, its content tells; what one cannot be read for is told, and the rest is read."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import pickle
import struct
import tarfile
import zipfile
from codecs import BOM_UTF16_BE
from pathlib import Path

import pytest

from support.recorder_dumps import as_json, as_pickle, dump, entry
from unhang.diagnose import intake, readers
from unhang.diagnose.evidence import Job
from unhang.tell.progress import silent

WORLD = {"0": ("default_pg", (0, 1, 2, 3))}
HUNG = dump([entry(0), entry(1, state="started")], WORLD)


STACK = b"""Process 71: python train.py
Python v3.11.7 (/usr/bin/python3.11)

Thread 71 (active): "MainThread"
    step (train.py:12)
"""
LATE = STACK.replace(b"step", b"load")
SPIED = b"""[{"pid": 71, "thread_id": 1, "thread_name": "MainThread", "os_thread_id": 71, "active": true,
  "owns_gil": false, "frames": [{"name": "step", "filename": "/job/train.py", "short_filename": "train.py", "line": 12,
  "locals": null, "is_entry": true}], "process_info": null}]"""
LINE = (
    b"[rank%d]:[E1122 07:00:00.000 ProcessGroupNCCL.cpp:616] [Rank %d] Watchdog caught collective operation timeout: "
    b"WorkNCCL(SeqNum=2, OpType=ALLREDUCE, NumelIn=2, NumelOut=2, Timeout(ms)=600000) ran for 600029 milliseconds\n"
)


def write(folder: Path, files: dict[str, bytes]) -> str:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return str(folder)


def read(folder: Path, files: dict[str, bytes]) -> Job:
    return intake.read([write(folder, files)], silent)


def functions(job: Job) -> dict[int, str]:
    return {number: rank.stacks[0].frames[0].function for number, rank in job.ranks.items()}


def test_all_files_of_a_folder_are_of_one_job(tmp_path: Path) -> None:
    files = {
        "nccl_trace_rank_0": as_pickle(HUNG),
        "more/nccl_trace_rank_1.json": as_json(HUNG),
        "more/nccl_trace_rank_2.gz": gzip.compress(as_pickle(HUNG)),
        "more/deeper/3.json.gz": gzip.compress(as_json(HUNG)),
    }
    told: list[str] = []

    def step(text: object) -> None:
        told.append(text() if callable(text) else str(text))

    (empty := tmp_path / "empty").mkdir()
    job = intake.read([write(tmp_path / "job", files), str(empty)], step)
    assert [(rank, one.rank, len(one.waiting), one.recorded) for rank, one in job.ranks.items()] == [
        (rank, rank, 1, True) for rank in range(4)
    ]
    assert (job.size, job.files, job.unranked, told) == (4, 4, (), ["reading 0 of 4 files"])
    assert job.unread == ((str(empty), "it is a folder without files", False),)
    assert job.ranks[3].waiting[0].source == f"{tmp_path}/job/more/deeper/3.json.gz: entry 1"


def test_stacks_and_lines_join_the_dumps(tmp_path: Path) -> None:
    files = {
        "nccl_trace_rank_0": as_pickle(HUNG),
        "py-spy_rank_0.txt": STACK,
        "py-spy_rank_1.json.gz": gzip.compress(SPIED),
        "job.log.gz": gzip.compress(b"step 1\n" * 100_000 + LINE % (2, 2) + LINE % (0, 0)),
        "py-spy.txt": STACK,
    }
    job = read(tmp_path, files)
    assert {rank: (len(one.waiting), len(one.stacks), one.recorded) for rank, one in job.ranks.items()} == {
        0: (1, 1, True),
        1: (0, 1, False),
        2: (1, 0, False),
    }
    assert job.ranks[0].waiting[0].source.endswith("nccl_trace_rank_0: entry 1")
    assert job.ranks[2].waiting[0].source == f"{tmp_path}/job.log.gz:100001"
    assert job.unranked == (f"{tmp_path}/py-spy.txt",)
    assert (job.files, job.unread) == (5, ())


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-be"])
def test_text_with_a_mark_of_its_encoding_is_read(encoding: str, tmp_path: Path) -> None:
    mark = BOM_UTF16_BE if encoding == "utf-16-be" else b""
    files = {
        "job.log": mark + ("[rank1]: " + (LINE % (1, 1)).decode()).encode(encoding),
        "rank_2.json": mark + as_json(HUNG).decode().encode(encoding),
        "rank3.txt.gz": gzip.compress(mark + STACK.decode().encode(encoding)),
    }
    job = read(tmp_path, files)
    assert ([*job.ranks], job.unread, job.ranks[2].recorded) == ([1, 2, 3], (), True)


def test_a_log_that_was_emptied_while_it_was_written_is_read(tmp_path: Path) -> None:
    job = read(tmp_path, {"job.log": b"\0" * (3 << 20) + b"step 1\n" + LINE % (1, 1)})
    assert ([*job.ranks], job.unread) == ([1], ())
    assert job.ranks[1].waiting[0].source.endswith(":2")


def test_an_archive_is_called_one(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "dumps.tar", "w") as tar, tarfile.open(tmp_path / "dumps.tgz", "w:gz") as zipped:
        for archive in (tar, zipped):
            archive.addfile(tarfile.TarInfo("rank_0"))
    with zipfile.ZipFile(tmp_path / "dumps.zip", "w") as packed:
        packed.writestr("rank_0", STACK)
    job = read(tmp_path, {"rank_1.txt.xz": lzma.compress(STACK), "rank_2.txt.bz2": bz2.compress(STACK)})
    assert {one.file.rpartition(".")[2]: one.why for one in job.unread} == dict.fromkeys(
        ("tar", "tgz", "zip", "xz", "bz2"), "it is an archive: unpack it first"
    )


ENDLESS = (
    b"\x80\x02)q\x000"
    + b"".join(b"h" + bytes([n]) + b"h" + bytes([n]) + b"\x86q" + bytes([n + 1]) + b"0" for n in range(60))
    + b"}(h\x3cK\x01u."
)
"""A key that takes 2**60 steps to hash: pairs of the same pair."""
BAD = {
    "nested_key": b"\x80\x02}()" + b"\x85" * 3_000_000 + b"K\x01u.",  # of pairs in pairs, far deeper than the C stack
    "resized_memo": b"\x80\x02Nr\xff\xff\xff\xff.",  # four billion places
    "unzipped.gz": gzip.compress(b"\x80\x02X" + struct.pack("<I", 0x7FFFFFFF)) + gzip.compress(b"\0" * (64 << 20)) * 32,
    "bytes": b"\x80\x05\x96" + struct.pack("<Q", 1 << 40) + b".",
    "calls": b"\x80\x02cposix\nsystem\nX\x04\x00\x00\x00true\x85R.",
    "nested.json": b'{"entries": ' + b"[" * 1_000_000,
    "nested_lists": b"\x80\x02" + b"](" * 1_000_000,
    "other": pickle.dumps([1]),
    "checkpoint": b"PK\x03\x04" + b"\0" * 5000,
    "zeros": b"\0" * 100_000 + b"\x01\x00\x02" * 5000,
    "empty": b"",
    "cut.gz": gzip.compress(os.urandom(100_000))[:500],
    "wrong.gz": b"\x1f\x8b" + b"x" * 100,
}


def test_what_is_hostile_or_broken_is_named_and_the_rest_is_read(tmp_path: Path) -> None:
    good = {f"nccl_trace_rank_{rank}": as_pickle(HUNG) for rank in range(4)}
    job = read(tmp_path, BAD | good)
    assert sorted(job.ranks) == [0, 1, 2, 3]
    why = {os.path.basename(one.file): one.why for one in job.unread}
    assert why.keys() == BAD.keys()
    assert all(5 < len(text) < 200 for text in why.values())
    assert "ended the process" in why["nested_key"]
    assert "memory" in why["resized_memo"]
    assert "too large" in why["unzipped.gz"]
    assert "posix.system" in why["calls"]
    assert not any(one.partly for one in job.unread)


@pytest.mark.slow
def test_a_pickle_that_never_ends_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "PATIENCE_S", 2.0)
    assert read(tmp_path, {"rank_1": ENDLESS}).unread == ((f"{tmp_path}/rank_1", "reading it takes too long", False),)


def test_no_file_is_waited_for_that_never_ends(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "rank_1").write_bytes(as_pickle(HUNG))
    (tmp_path / "nowhere").symlink_to("gone")
    (tmp_path / "up").symlink_to(tmp_path)
    (tmp_path / "rank_2").hardlink_to(tmp_path / "rank_1")
    job = intake.read([str(tmp_path), f"{tmp_path}/./rank_1", str(tmp_path / "absent"), "/dev/zero"], silent)
    assert list(job.ranks) == [1], "each file once"
    assert {os.path.basename(one.file): one.why for one in job.unread} == {
        "fifo": "it is not a file",
        "nowhere": "No such file or directory",
        "absent": "No such file or directory",
        "zero": "it is not a file",
    }


def test_an_empty_log_is_nothing_to_tell(tmp_path: Path) -> None:
    job = read(tmp_path, dict.fromkeys(("rank_0.log", "stderr_1", "rank_2.json", "nccl_trace_rank_3"), b""))
    assert [os.path.basename(one.file) for one in job.unread] == ["nccl_trace_rank_3", "rank_2.json"]
    assert (job.files, {one.why for one in job.unread}) == (2, {"it is empty"})


@pytest.mark.parametrize("whole", [as_pickle, as_json])
def test_a_dump_that_breaks_off_is_read_in_part(tmp_path: Path, whole: object) -> None:
    data = whole(dump([entry(n, state="completed") for n in range(500)]))  # type: ignore[operator]
    zipped = gzip.compress(data + os.urandom(4000))
    job = read(tmp_path, {"rank_0": data[:-3000], "rank_1.gz": zipped[:-4500]})
    assert sorted(job.ranks) == [0, 1]
    assert [(one.partly, "breaks off" in one.why) for one in job.unread] == [(True, True)] * 2


@pytest.mark.parametrize(
    ("file", "rank"),
    [
        ("/tmp/nccl_trace_rank_12", 12),
        ("rank-3.json.gz", 3),
        ("py-spy.rank7.txt", 7),
        ("rank_2_of_8.txt", 2),
        ("job-5.rank.4.log", 4),
        ("/logs/rank_5/out.txt", 5),
        ("rank_1/rank_6", 6),
        ("stack_global_rank_6_local_rank_2.txt", 6),
        ("tp_rank_1.rank_12.txt", 12),
        ("local_rank_2.txt", None),
        ("slurm-4711.out", None),
        ("9/stderr.log", None),
    ],
)
def test_a_name_may_tell_the_rank(file: str, rank: int | None) -> None:
    assert intake.rank_in(file) == rank


def test_a_number_alone_is_the_rank_of_a_dump_and_of_nothing_else(tmp_path: Path) -> None:
    files = {"mine_2": as_pickle(HUNG), "3.json": as_json(HUNG), "out/0.log": LINE % (1, 1), "1.txt": STACK}
    assert [*read(tmp_path, files).ranks] == [1, 2, 3], "and the line says its own"
    job = intake.read([str(tmp_path / "1.txt")], silent)
    assert (min(job.ranks), [*job.names.values()]) == (-2, ["pid 71"])


def test_nobody_is_to_call_the_log_of_several_ranks_rank3(tmp_path: Path) -> None:
    lines = b"[rank0]: KeyError: 'a'\n[rank1]: KeyError: 'a'\nFileNotFoundError: no such file\n"
    job = read(tmp_path, {"train.log": lines})
    assert ([*job.ranks], [one.text for one in job.strangers]) == ([0, 1], ["FileNotFoundError: no such file"])
    assert job.unranked == ()


def test_of_torchrun_s_attempts_the_last_counts(tmp_path: Path) -> None:
    job = read(tmp_path, {f"x/attempt_{n}/3/stderr.log": b"ValueError: attempt %d\n" % n for n in (0, 9, 10)})
    assert [one.text for one in job.ranks[3].messages] == ["ValueError: attempt 10"]
    assert [one.why for one in job.unread] == ["it is of an earlier attempt than attempt_10"] * 2


def test_the_number_of_torchrun_s_folder_is_no_rank_where_the_lines_or_another_node_say_another(tmp_path: Path) -> None:
    lines = {"2": b"step 7\n", "3": b"ValueError: x\n", "4": b"[rank0]: KeyError: 'a'\nValueError: y\n"}
    files = {f"a_1/attempt_0/{number}/stderr.log": text for number, text in lines.items()}
    twice = {f"{node}/attempt_0/5/stderr.log": b"ValueError: z\n" for node in "bc"}
    job = read(tmp_path, files | twice)
    seen = [*job.ranks], [*job.spoken], [one.text for one in job.strangers]
    assert seen == ([0, 3], [2], ["ValueError: y", "ValueError: z", "ValueError: z"])
    assert job.unranked == tuple(f"{tmp_path}/{file}" for file in twice)
    named = {f"{node}/rank_3.txt": STACK for node in "cd"}
    assert list(read(tmp_path / "named", named).ranks) == [3], "a rank that is called one is one"


def test_a_process_of_which_nothing_says_the_rank_is_called_by_its_number_or_file(tmp_path: Path) -> None:
    files = {f"node{node}-local0.txt": STACK for node in range(12)} | {"all.txt": STACK + STACK.replace(b"71", b"72")}
    job = read(tmp_path, files)
    assert [one for one in job.ranks if one >= 0] == []
    assert {job.called([number]) for number in job.ranks} == {
        *(f"pid 71 ({tmp_path / name})" for name in files), "pid 72"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("names", "late", "at"),
    [
        ("rank{rank}_{time}.txt", {"20261125_100000": 1, "20261125_164420": 2, "20261125_130000": 3}, [7e8, 7e8, 7e8]),
        ("py-spy-rank{rank}.{time}.txt", {"0": 1, "2": 3, "10": 2}, [7e8, 7e8, 7e8]),
        ("py-spy-rank{rank}.{time}.txt", {"0": 1, "1": 2, "2": 3}, [7e8, 9e8, 8e8]),
        ("{time}/rank{rank}.txt", {"100000": 1, "130000": 3, "164420": 2}, [7e8, 7e8, 7e8]),
        ("{time}/rank{rank}.txt", {"b": 1, "a": 2}, [7e8, 9e8]),
    ],
)
def test_of_stacks_taken_again_the_newest_count_and_the_others_are_named(
    names: str, late: dict[str, int], at: list[float], tmp_path: Path
) -> None:
    """Each time, another rank is late."""
    for (time, rank), seconds in zip(late.items(), at):
        for number in range(4):
            name = names.format(rank=number, time=time)
            write(tmp_path, {name: LATE if number == rank else STACK})
            os.utime(tmp_path / name, (seconds + number, seconds + number))
    job = intake.read([str(tmp_path)], silent)
    assert functions(job) == {0: "step", 1: "step", 2: "load", 3: "step"}
    assert [len(rank.stacks) for rank in job.ranks.values()] == [1] * 4
    newest = next(time for time, rank in late.items() if rank == 2)
    out = {names.format(rank=rank, time=time) for time in late if time != newest for rank in range(4)}
    assert {(os.path.relpath(one.file, tmp_path), one.partly) for one in job.unread} == {(one, False) for one in out}


DEBUG_SERVER = "=== Rank {}: http://vm:4000{}/handler/dump_traceback? ===\n"
FAULT = 'Thread 0x00007fa964206b80 (most recent call first):\n  File "train.py", line 6 in {}\n\n'


def test_of_the_debug_server_s_files_the_newest_counts_whole(tmp_path: Path) -> None:
    times = {"20261125_100000": (1, 4), "20261125_130000": (0, 4), "20261125_164420": (2, 3)}
    for time, (late, size) in times.items():
        text = "".join(DEBUG_SERVER.format(n, n) + FAULT.format("load" if n == late else "step") for n in range(size))
        partial = "" if size == 4 else "PARTIAL DATA: 3/4 workers responded\n  Rank 3: Timeout: read timed out\n\n"
        (tmp_path / f"stacks_{time}.txt").write_text(partial + text)
    job = intake.read([str(tmp_path)], silent)
    assert (functions(job), job.size) == ({0: "step", 1: "step", 2: "load"}, 4)
    assert [os.path.basename(one.file)[7:22] for one in job.unread] == ["20261125_100000", "20261125_130000"]
    assert {one.why.rpartition("/")[2] for one in job.unread} == {
        "stacks_20261125_164420.txt is read for the same ranks: it is newer"
    }


@pytest.mark.parametrize(
    ("read_names", "left_names"),
    [
        # one rank is taken again; a trainer and its engines run side by side; two hosts claim the same ranks
        ([f"rank{n}.txt" for n in range(4)], ["rank3_again.txt"]),
        ([f"trainer/rank{n}.txt" for n in range(4)], [f"engine/rank{n}.txt" for n in range(3)]),
        ([f"hostB_rank{n}.txt" for n in range(4)], [f"hostA_rank{n}.txt" for n in range(4)]),
    ],
)
def test_of_stacks_of_one_minute_those_of_more_ranks_count_and_the_others_are_named(
    read_names: list[str], left_names: list[str], tmp_path: Path
) -> None:
    write(tmp_path, dict.fromkeys(read_names, STACK) | dict.fromkeys(left_names, LATE))
    is_even = len(read_names) == len(left_names)
    for place, name in enumerate([*left_names, *read_names] if is_even else [*read_names, *left_names]):
        os.utime(tmp_path / name, (9e8 + place, 9e8 + place))
    job = intake.read([str(tmp_path)], silent)
    assert functions(job) == dict.fromkeys(range(4), "step")
    assert [os.path.relpath(one.file, tmp_path) for one in job.unread] == left_names
    more = "" if is_even else ": it has more"
    assert {one.why.partition("txt is read ")[2] for one in job.unread} == {
        f"for the same ranks{more}; if these are other ranks of one job, put the rank in the job into each name"
    }


def test_stacks_beside_the_traceback_of_a_rank_s_log_both_count(tmp_path: Path) -> None:
    log = b'Traceback (most recent call last):\n  File "train.py", line 3, in f\nRuntimeError: Timed out waiting\n'
    job = read(tmp_path, {"rank0.txt": STACK, "rank0.log": log, "fault/rank0.txt": FAULT.encode()})
    assert (len(job.ranks[0].stacks), job.unread) == (3, ())


ONE = {"rank": 1, "state": "running", "cpu": 0.25}
ROWS = [ONE, {"rank": 2, "state": "stopped", "cpu": -1.0}, {"rank": 3, "pid": 9, "state": "gone", "cpu": "x"}]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({}, ([], None, "")),
        ({"size": 8, "ranks": ROWS}, ([(1, "running", 0.25), (2, "stopped", None), (3, "gone", None)], 8, "")),
        ({"notes": ["a\x1b[2J", *"bcdefg"]}, ([], None, r"a\x1b[2J; b; c; d; e; and 2 more")),
        (
            {"size": -1, "ranks": [7, {"rank": "2"}, {"rank": -1, "state": "gone"}, {"rank": 2, "state": ["x"]}]},
            ([], None, ""),
        ),
        # who has no process was reckoned: not beyond the size
        ({"size": 2, "ranks": ROWS}, ([(1, "running", 0.25), (3, "gone", None)], 2, "")),
        ({"size": 10**9, "ranks": "x", "notes": {}}, ([], None, "")),
    ],
)
def test_what_notes_say(content: dict[str, object], expected: object) -> None:
    one = intake.states(json.dumps({"unhang-live": 1, "node": "n1", **content}).encode(), "x/ranks.json")
    assert ([(part.rank, part.process, part.cpu) for part in one.parts], one.size, one.why) == expected
