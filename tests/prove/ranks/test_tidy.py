"""What a run that is killed leaves."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from unhang.prove.ranks import tidy

JOB = """
import os, time
from unhang.prove.ranks import tidy
with tidy.folder("unhang-test-") as (path, _):
    open(os.path.join(path, "file"), "w").close()
    parent = os.getpid()
    if os.fork():
        print(path, flush=True)
    else:
        tidy.end_with(parent)
    time.sleep(600)
"""


def test_a_killed_process_leaves_no_child_and_no_folder(tmp_path: Path) -> None:
    command = [sys.executable, "-c", JOB]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "TMPDIR": str(tmp_path)}) as job:
        assert job.stdout is not None
        path = job.stdout.readline().decode().strip()
        assert os.listdir(path) == ["file"]
        job.kill()
        assert job.stdout.read() == b""  # ends with the last process that has it: the child, or what removes the folder
    assert os.listdir(tmp_path) == []


def test_a_folder_is_ones_own_and_gone_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with tidy.folder("unhang-test-") as (path, held):
        assert os.stat(path).st_mode & 0o777 == 0o700
    assert os.listdir(tmp_path) == []
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(held)


def test_a_process_whose_parent_is_gone_already_ends() -> None:
    code = "from unhang.prove.ranks import tidy; tidy.end_with(1 << 22); print('still here')"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).stdout == b""
