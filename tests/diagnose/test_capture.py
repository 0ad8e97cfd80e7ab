"""py-spy is asked for the stacks of this node's ranks, and the advice is of commands that exist."""

from __future__ import annotations

import io
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from support.live_ranks import PY_SPY, program
from unhang.cli import arguments
from unhang.diagnose import capture, collector, intake, logs
from unhang.errors import UnhangError


def test_the_stacks_of_this_nodes_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: Mapping[int, int]
) -> None:
    program(tmp_path / "bin", "py-spy", PY_SPY)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    ours = {pid: rank for rank, pid in started.items()}
    out, taken = tmp_path / "out", {}
    for file in capture.take(out):  # other jobs may run on this machine
        (rank,) = logs.read(io.BytesIO(file.read_bytes()), file.name)
        pid = int(rank.stacks[0].frames[0].function.removeprefix("load") or 0)
        if pid in ours:
            taken[ours[pid]] = file.name
            beside = [intake.told_by(str(other)).size for other in file.parent.glob("on-*.json")]
    assert taken == {5: "rank_5.txt", 6: "rank_6.txt"}
    assert beside == [8]


def test_why_no_stacks_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: Mapping[int, int]) -> None:
    found = tuple(collector.Found(rank, pid, "_") for rank, pid in started.items())
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))  # py-spy may be beside ours
    codes = []
    for text, ranks in (
        (None, found),
        (PY_SPY, ()),
        ("#!/bin/sh\necho 'Permission Denied: try sudo' >&2; exit 1", found),
        ("no program", found),
    ):
        if text:
            program(tmp_path / "bin", "py-spy", text)
        monkeypatch.setattr(collector, "ranks", lambda _processes, ranks=ranks: ranks)
        with pytest.raises(UnhangError) as caught:
            capture.take(tmp_path / "out")
        codes.append((caught.value.code, caught.value.hint or caught.value.message.partition(": ")[2]))
    assert codes == [
        ("no-py-spy", "do: pip install py-spy"),
        ("no-ranks", ""),
        ("py-spy-failed", "Permission Denied: try sudo; it needs root, or the capability SYS_PTRACE"),
        ("py-spy-failed", f"[Errno 8] Exec format error: '{tmp_path}/bin/py-spy'"),
    ]
    assert not (tmp_path / "out").exists()


def test_each_command_of_the_advice_is_one() -> None:
    """The exports are for a shell, the rest for the parser."""
    advice = capture.advice()
    exports = [line for line in advice.splitlines() if line.startswith("    export ")]
    script = "\n".join([*exports, "env"])
    said = subprocess.run(["sh", "-ec", script], check=True, capture_output=True, text=True, env={}).stdout
    variables = dict(line.split("=", 1) for line in said.splitlines())
    assert variables["TORCH_NCCL_TRACE_BUFFER_SIZE"] == variables["TORCH_FR_BUFFER_SIZE"] == "2000"
    assert variables["TORCH_NCCL_DEBUG_INFO_TEMP_FILE"] == variables["TORCH_FR_DUMP_TEMP_FILE"] == "DIR/dumps/rank_"
    commands = [line.split(" unhang ")[1] for line in advice.splitlines() if " unhang " in line and line[:4] == "    "]
    parsed = [arguments.parse(shlex.split(command, comments=True)) for command in commands]
    assert [(one.live, one.slurm, one.ray, one.capture) for one in parsed] == [
        (True, None, None, False), (True, "JOB", None, False), (True, None, "auto", False), (True, None, None, False),
        (False, None, None, True), (False, None, None, False),
    ]  # fmt: skip
    assert max(map(len, advice.splitlines())) <= 120
    assert max(len(line) for line in advice.splitlines() if line[:4] != "    ") <= 80, "prose fits a terminal"
