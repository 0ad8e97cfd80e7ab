"""The ranks of a node are found by their environment of now, and what they are at is taken and sent."""

from __future__ import annotations

import base64
import json
import os
import signal
import socket
import subprocess
import sys
import time
import zlib
from collections.abc import Mapping
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from support.live_ranks import program
from unhang.diagnose import collector
from unhang.diagnose.collector import Process


def made(text: str) -> list[Process]:
    """Return processes, of which each is told as ``PID<PARENT NAME=VALUE ...``; a `-` before it: it has no torch."""
    found = []
    for number, *variables in (line.split() for line in text.split(";") if line.strip()):
        pid, _, parent = number.strip("-").partition("<")
        environment = dict(one.split("=") for one in variables)
        began, network = int(environment.pop("began", 0)), environment.pop("network", "")
        found.append(Process(int(pid), int(parent or 1), environment, "-" not in number, True, began, network))
    return found


@pytest.mark.parametrize(
    ("processes", "expected"),
    [
        ("", []),
        ("10", []),
        # torchrun under srun, which has a number for the node; a loader's worker, a shell around a rank
        (
            "10 SLURM_PROCID=4; 11<10 SLURM_PROCID=4 RANK=32; 12<10 SLURM_PROCID=4 RANK=33;"
            "13<11 SLURM_PROCID=4 RANK=32; -14<10 RANK=34; 15<14 RANK=34; -16<15 RANK=34; 17<16 RANK=34",
            [(32, 11, "_"), (33, 12, "_"), (34, 15, "_")],
        ),
        # ranks that srun or mpirun started
        ("10 SLURM_PROCID=7; 11 SLURM_PROCID=8", [(7, 10, "_"), (8, 11, "_")]),
        ("10 OMPI_COMM_WORLD_RANK=7 SLURM_PROCID=0", [(7, 10, "_")]),
        # two jobs
        (
            "10 RANK=0 MASTER_ADDR=10.0.0.1 MASTER_PORT=29500; 11 RANK=0 MASTER_PORT=2/3",
            [(0, 10, "10_0_0_1_29500"), (0, 11, "_2_3")],
        ),
        # torchrun in a pod or a shell that has a rank, under mpirun, and with a job of its own below a rank
        (
            "10 RANK=1 WORLD_SIZE=2; 11<10 RANK=2 LOCAL_RANK=0 TORCHELASTIC_RUN_ID=x;"
            "12<10 RANK=3 LOCAL_RANK=1 TORCHELASTIC_RUN_ID=x; 13<12 RANK=3 LOCAL_RANK=1 TORCHELASTIC_RUN_ID=x;"
            "14<12 RANK=0 TORCHELASTIC_RUN_ID=y MASTER_PORT=1; 15 RANK=0 LOCAL_RANK=0 MASTER_PORT=2;"
            "16<15 RANK=0 LOCAL_RANK=0 TORCHELASTIC_RUN_ID=z MASTER_PORT=2; 17 OMPI_COMM_WORLD_RANK=5; 18<17 RANK=40",
            [(0, 14, "_1"), (0, 16, "_2"), (2, 11, "_"), (3, 12, "_"), (40, 18, "_")],
        ),
        # a rank's orphan; jobs without an address, and in two containers with one address
        ("11 RANK=1; 10 RANK=1 began=5", [(1, 11, "_")]),
        (
            "10 OMPI_COMM_WORLD_RANK=0 PMIX_NAMESPACE=a.1; 11 SLURM_PROCID=0 SLURM_JOB_ID=7",
            [(0, 10, "a_1_"), (0, 11, "7_")],
        ),
        (
            ";".join(
                f"{pid} RANK=0 MASTER_ADDR={address} MASTER_PORT=1 network={pid}"
                for pid, address in enumerate(["localhost", "localhost", "::1", "host", "host"], 10)
            ),
            [(0, 10, "localhost_1_10"), (0, 11, "localhost_1_11"), (0, 12, "__1_1"), (0, 13, "host_1")],
        ),
        # what no launcher sets, and a circle that a race in /proc can show
        ("10 RANK=x; 11 RANK=; 12 RANK=-1; 13 RANK=²", []),
        ("10<11 RANK=1; 11<10 RANK=2", [(1, 10, "_"), (2, 11, "_")]),
    ],
)
def test_which_processes_are_ranks(processes: str, expected: list[tuple[int, int, str]]) -> None:
    assert sorted(collector.ranks(made(processes))) == sorted(expected)


@pytest.mark.parametrize(
    ("processes", "gone"),
    [
        # torchrun's, of which one is left; a node of two agents
        ("10 RANK=6 GROUP_RANK=1", [4, 5, 7]),
        ("10 RANK=1 GROUP_RANK=0; 11 RANK=4 GROUP_RANK=1", [0, 2, 3, 5, 6, 7]),
        # another launcher's, which may deal ranks out in turn; no row of this job
        ("10 RANK=4 LOCAL_RANK=0; 11 RANK=6 LOCAL_RANK=2", []),
        ("10 RANK=6 GROUP_RANK=0", []),
        ("10 RANK=9 GROUP_RANK=2", []),
    ],
)
def test_who_is_gone_is_reckoned_where_torchrun_says_how_many_a_node_has(processes: str, gone: list[int]) -> None:
    of_job = made(";".join(f"{one} WORLD_SIZE=8 LOCAL_WORLD_SIZE=4" for one in processes.split(";")))
    by_pid = {one.pid: one for one in of_job}
    found = [collector.Found(int(one.environment["RANK"]), one.pid, "w") for one in of_job]
    rows = json.loads(collector.census({one: {"state": "running"} for one in found}, by_pid, ()))["ranks"]
    assert [row["rank"] for row in rows if row["state"] == "gone"] == gone


FRAMES = """\
Thread 9 (idle): "MainThread"
    all_reduce (torch/distributed/distributed_c10d.py:2501)
        Arguments:
            rank: 77
    {}
    BaseProcess.run (multiprocessing/process.py:108)
        Arguments:
            rank: 78
    main (train.py:2)
        Arguments:
            rank: 79

Thread 10 (idle): "Other"
    f (a.py:1)
"""
WRAP = """_wrap (torch/multiprocessing/spawn.py:90)
        Arguments:
            fn: <function at 0x7f>
            i: 3
            args: (8, "i: 4")"""
HOST = socket.gethostname()
PLAIN = "main (train.py:9)\n    "
TARGET = """main (train.py:9)
        Arguments:
            {}
            world_size: 8
            x: "rank: 5"
    """


@pytest.mark.parametrize(
    ("frames", "environment", "expected"),
    [
        (TARGET.format("gpu: 3") + WRAP, {}, {"RANK": "3", "WORLD_SIZE": "8", "MASTER_ADDR": "pid10"}),
        (TARGET.format("rank: 11") + WRAP, {}, {"RANK": "11", "WORLD_SIZE": "8", "MASTER_ADDR": "pid10"}),
        (TARGET.format("rank: 2").rstrip(), {}, {"RANK": "2", "WORLD_SIZE": "8", "MASTER_ADDR": "pid10"}),
        # a node counts from 0; one that knows the rank does not
        (PLAIN + WRAP, {"MASTER_ADDR": "a"}, {"RANK": "3", "WORLD_SIZE": "", "MASTER_ADDR": f"a_{HOST}"}),
        (TARGET.format("rank: 2") + WRAP, {"MASTER_ADDR": "a"}, {"RANK": "2", "WORLD_SIZE": "8", "MASTER_ADDR": "a"}),
        (PLAIN + WRAP, {"MASTER_ADDR": "::1"}, {"RANK": "3", "WORLD_SIZE": "", "MASTER_ADDR": "::1"}),
        # a loader's worker; what another thread or a frame within says
        ("_worker_loop (torch/utils/data/_utils/worker.py:9)\n        Arguments:\n            i: 3", {}, {}),
        ("main (train.py:9)", {}, {}),
    ],
)
def test_a_rank_that_is_an_argument_is_read_from_the_frame_that_multiprocessing_calls(
    frames: str, environment: dict[str, str], expected: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def dump(program: str, pid: int, until: float, *options: str) -> tuple[bytes, str]:
        asked.append((program, pid, *options))
        return FRAMES.format(frames).encode(), ""

    monkeypatch.setattr(collector, "dump", dump)
    monkeypatch.setattr(collector, "py_spy", lambda _: "py-spy")
    node = made("10; 11<10; 12<10 RANK=0; 13<12; -14<10")
    node[1] = node[1]._replace(environment=environment)
    found = collector.told_by_arguments(node)
    assert asked == [("py-spy", 11, "--locals")]
    assert found[1].environment == {**environment, **expected}
    assert [(one.rank, one.pid) for one in collector.ranks(found)] == sorted(
        [(0, 12), *([(int(expected["RANK"]), 11)] if expected else [])]
    )


def test_the_environment_of_now_is_read_from_memory(started: Mapping[int, int]) -> None:
    by_pid = {one.pid: one for one in collector.processes() if one.pid in started.values()}
    assert {rank: by_pid[pid].environment["RANK"] for rank, pid in started.items()} == {5: "5", 6: "6"}
    assert all(one.readable and one.environment["WORLD_SIZE"] == "8" for one in by_pid.values())
    assert b"RANK=5" not in Path(f"/proc/{started[5]}/environ").read_bytes().split(b"\0"), "os.environ has it alone"


def test_a_node_without_ranks_sends_nothing() -> None:
    began = time.monotonic()
    command = [sys.executable, "-I", "-c", Path(collector.__file__).read_text(), "60", "", "no-such-job"]
    said = subprocess.run(command, capture_output=True, check=True, text=True)
    assert (said.stdout, said.stderr) == ("@unhang done\n", "")
    assert time.monotonic() - began < 30, "it does not wait for a second stack of nobody"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("#!/bin/sh\necho 'No name\nReason: Permission denied' >&2; exit 1",
         "No name; it needs root, or the capability SYS_PTRACE"),
        ("#!/bin/sh\nexit 3", "exit code 3"),
        ("#!/bin/sh\nsleep 60", "py-spy has not ended within 0 s"),
    ],
)  # fmt: skip
def test_why_py_spy_gives_no_stack(tmp_path: Path, text: str, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collector, "_PY_SPY_S", 0.3 if "sleep" in text else 60)
    program(tmp_path, "py-spy", text)
    assert collector.dump(str(tmp_path / "py-spy"), os.getpid()) == (b"", why)


def test_what_a_main_thread_uses_of_a_cpu_is_measured() -> None:
    thread = Thread(target=lambda: [number * number for number in range(10**7)])
    before = collector.used(os.getpid())
    thread.start()
    thread.join()
    other = collector.used(os.getpid())[1] - before[1]
    began = time.process_time()
    while time.process_time() < began + 0.3:
        pass
    at, seconds = collector.used(os.getpid())
    assert seconds - before[1] - other >= 0.25
    assert other < 0.3, "what another thread does is not of the main thread"
    assert collector.share((at, seconds), (at + 10, seconds + 2.5)) == 0.25
    assert collector.share((at, seconds), (at + 0.5, seconds)) is None, "too close to tell"
    assert collector.share((at, seconds), collector.used(2**22 + 1)) is None
    assert collector.share((at, seconds), (at + 10, float("nan"))) is None, "it is gone"


def notes(said: str) -> Any:
    """Return what a node says of the ranks of the job."""
    lines = said.partition("@unhang begin hung_1/ranks.json\n")[2].partition("@unhang end")[0].splitlines()
    return json.loads(zlib.decompress(b"".join(base64.b64decode(line.removeprefix("@unhang data ")) for line in lines)))


def test_why_there_are_no_stacks_and_dumps_is_said_once_for_all_ranks(
    started: Mapping[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program(tmp_path, "py-spy", "#!/bin/sh\nexit 3")
    monkeypatch.setattr(collector, "py_spy", lambda _: str(tmp_path / "py-spy"))
    monkeypatch.setattr(collector, "_DUMPS_S", -1)
    try:
        collector.main(1.5, "hung_1")
    finally:
        signal.alarm(0)
    said = notes(capsys.readouterr().out)
    assert said["notes"] == [
        f"no stacks, the first time, of process {started[5]}, {started[6]}: exit code 3",
        "not all dumps were sent within -1 s",
        f"no stacks, the second time, of process {started[5]}, {started[6]}: exit code 3",
    ]
    assert all(row["cpu"] is not None for row in said["ranks"] if row["rank"] in (5, 6)), "it has looked twice"


def test_a_link_in_place_of_a_dump_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"{}")
    (tmp_path / "link").symlink_to("secret")
    (tmp_path / "text").write_bytes(b"no dump")
    names = ("secret", "link", "text", "none")
    assert [collector._dump_file(str(tmp_path / name)) for name in names] == [b"{}", b"", b"", b""]


def test_py_spy_beside_torch_is_run_only_if_the_rank_has_the_same_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, other = tmp_path / "env/bin", tmp_path / "container" / str(tmp_path / "env/bin").lstrip("/")
    for folder in (there, other, tmp_path / "7"):
        folder.mkdir(parents=True)
    (there / "py-spy").touch(mode=0o755)
    maps = f"7f00-7f01 r-xp 00000000 00:00 1 {tmp_path}/env/lib/python3.12/site-packages/torch/lib/libtorch_cpu.so\n"
    (tmp_path / "7/maps").write_text(maps)
    monkeypatch.setattr(collector, "_PROC", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", "/nowhere")
    root = tmp_path / "7/root"
    for top, found in (("/", str(there / "py-spy")), (str(tmp_path / "container"), None), ("/nowhere", None)):
        root.unlink(missing_ok=True)
        root.symlink_to(top)
        assert collector.py_spy(7) == found
