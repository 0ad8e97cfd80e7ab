"""The ranks of a node are found by their environment, and py-spy is asked for the stacks of each."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from unhang.diagnose import capture, logs
from unhang.diagnose.capture import Process
from unhang.errors import UnhangError

# A process that has loaded "torch", as far as /proc tells.
RANK = """
import mmap, sys, time
with open(sys.argv[1], "rb") as library:
    mapped = mmap.mmap(library.fileno(), 0, access=mmap.ACCESS_READ)
print("ready", flush=True)
sys.stdin.read()
"""
PY_SPY = f"""#!{sys.executable}
import sys
assert sys.argv[1:3] == ["dump", "--pid"]
print(f'Process {{sys.argv[3]}}: python\\nThread 1 (idle): "MainThread"\\n    wait (a.py:{{sys.argv[3]}})')
"""


def process(pid: int, parent: int = 1, *, torch: bool = True, **environment: str) -> Process:
    return Process(pid, parent, environment, torch)


@pytest.mark.parametrize(
    ("processes", "expected"),
    [
        ([], []),
        ([process(10)], []),
        # torchrun under srun, which has a number for the node; a loader's worker, a shell around a rank
        (
            [
                process(10, SLURM_PROCID="4"),
                process(11, 10, SLURM_PROCID="4", RANK="32"),
                process(12, 10, SLURM_PROCID="4", RANK="33"),
                process(13, 11, SLURM_PROCID="4", RANK="32"),
                process(14, 10, torch=False, RANK="34"),
                process(15, 14, RANK="34"),
                process(16, 15, torch=False, RANK="34"),
                process(17, 16, RANK="34"),
            ],
            [(32, 11, "_"), (33, 12, "_"), (34, 15, "_")],
        ),
        # ranks that srun or mpirun started
        ([process(10, SLURM_PROCID="7"), process(11, SLURM_PROCID="8")], [(7, 10, "_"), (8, 11, "_")]),
        ([process(10, OMPI_COMM_WORLD_RANK="7", SLURM_PROCID="0")], [(7, 10, "_")]),
        # two jobs
        (
            [
                process(10, RANK="0", MASTER_ADDR="10.0.0.1", MASTER_PORT="29500"),
                process(11, RANK="0", MASTER_PORT="2/3"),
            ],
            [(0, 10, "10_0_0_1_29500"), (0, 11, "_2_3")],
        ),
        # what no launcher sets, and a circle that a race in /proc can show
        ([process(10, RANK="x"), process(11, RANK=""), process(12, RANK="-1"), process(13, RANK="²")], []),
        ([process(10, 11, RANK="1"), process(11, 10, RANK="2")], [(1, 10, "_"), (2, 11, "_")]),
    ],
)
def test_which_processes_are_ranks(processes: list[Process], expected: list[tuple[int, int, str]]) -> None:
    assert list(capture.ranks(processes)) == expected


def stub(folder: Path, text: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "py-spy").write_text(text)
    (folder / "py-spy").chmod(0o755)


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Mapping[int, int]]:
    """Start two ranks of a job that nobody else has; yield their pids."""
    library = tmp_path / "libtorch_python.so"
    library.write_bytes(b"x")
    children = {}
    for rank in (5, 6):
        environment = {**os.environ, "RANK": str(rank), "MASTER_ADDR": tmp_path.name, "MASTER_PORT": "1"}
        command = [sys.executable, "-c", RANK, str(library)]
        pipe = subprocess.PIPE
        children[rank] = subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe)
    for child in children.values():
        assert child.stdout
        assert child.stdout.readline() == b"ready\n"
    yield {rank: child.pid for rank, child in children.items()}
    for child in children.values():
        child.communicate()


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="no /proc")
def test_the_stacks_of_this_nodes_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: Mapping[int, int]
) -> None:
    stub(tmp_path / "bin", PY_SPY)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    ours = {pid: rank for rank, pid in started.items()}
    taken = {}
    for file in capture.take(tmp_path / "out"):  # other jobs may run on this machine
        (rank,) = logs.read(io.BytesIO(file.read_bytes()), file.name)
        pid = rank.stacks[0].frames[0].line
        if pid in ours:
            taken[ours[pid]] = file.name
    assert taken == {5: "rank_5.txt", 6: "rank_6.txt"}


def test_why_no_stacks_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: Mapping[int, int]) -> None:
    found = capture.ranks([process(pid, RANK=str(rank)) for rank, pid in started.items()])
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    codes = []
    for text, ranks in (
        (None, found),
        (PY_SPY, ()),
        ("#!/bin/sh\necho 'Permission Denied: try sudo' >&2; exit 1", found),
        ("no program", found),
    ):
        if text:
            stub(tmp_path / "bin", text)
        monkeypatch.setattr(capture, "ranks", lambda _processes, ranks=ranks: ranks)
        with pytest.raises(UnhangError) as caught:
            capture.take(tmp_path / "out")
        codes.append((caught.value.code, caught.value.hint))
    assert codes == [
        ("no-py-spy", "do: pip install py-spy"),
        ("no-ranks", None),
        ("py-spy-failed", "it needs root, or the capability SYS_PTRACE"),
        ("py-spy-failed", None),
    ]
    assert not (tmp_path / "out").exists()


def test_each_shell_command_of_the_advice_is_one(tmp_path: Path) -> None:
    """All lines but Ray's, which are Python, are commands for a shell, whole and of names that exist."""
    advice = capture.advice()
    shell, _, python = advice.partition("    Ray ")
    exports = [line for line in shell.splitlines() if line.startswith("    export ")]
    script = "\n".join([*exports, "env"])
    said = subprocess.run(["sh", "-ec", script], check=True, capture_output=True, text=True, env={}).stdout
    variables = dict(line.split("=", 1) for line in said.splitlines())
    assert variables["TORCH_NCCL_TRACE_BUFFER_SIZE"] == variables["TORCH_FR_BUFFER_SIZE"] == "2000"
    assert variables["TORCH_NCCL_DEBUG_INFO_TEMP_FILE"] == variables["TORCH_FR_DUMP_TEMP_FILE"] == "DIR/dumps/rank_"
    ray = python.partition("kubectl")[0]
    compile("\n".join(line[14:] for line in f"    Ray {ray}".splitlines()), "ray", "exec")
    rest = advice.partition("    kubectl   ")[2].partition("\n\n")[0]
    assert subprocess.run(["sh", "-nc", rest], check=False).returncode == 0
    assert max(map(len, advice.splitlines())) <= 120
