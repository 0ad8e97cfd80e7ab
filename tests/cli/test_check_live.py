"""`unhang check --live`: what the ranks of this machine import, and which of them run code from before a rewrite."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from filelock import FileLock

from support import cli
from support.live_ranks import RANK

pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="no /proc")


@contextmanager
def running(folder: Path, rank: int, site: Path) -> Iterator[int]:
    """Run a process that looks like a rank which imports from a folder; yield its pid."""
    library = folder / "libtorch_python.so"
    library.write_bytes(b"x")
    environment = {**os.environ, "PYTHONPATH": str(site), "MASTER_ADDR": "stale", "WORLD_SIZE": "2"}
    command = [sys.executable, "-c", RANK, str(library), str(rank), str(folder)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, cwd=folder) as child:
        assert child.stdout
        assert child.stdout.readline() == b"ready\n"
        yield child.pid
        child.communicate()


@pytest.fixture
def alone() -> Iterator[None]:
    """Wait for other tests that start ranks: all of this machine are looked at."""
    with FileLock(Path(tempfile.gettempdir()) / "unhang-live-ranks.lock"):
        yield


def rows(ran: cli.Ran) -> dict[int, dict[str, object]]:
    return {row["pid"]: row for row in ran.json["ranks"]}


@pytest.mark.usefixtures("alone")
def test_a_rank_that_was_started_before_the_rewrite_is_stale(site: Path, tmp_path: Path) -> None:
    with running(tmp_path, 0, site) as before:
        found = rows(cli.called("check", "--live", "--output-format", "json"))[before]
        assert (found["rank"], found["stale"]) == (0, [])
        assert "needed" in str(found["verdicts"])
        time.sleep(2.1)  # when this machine was started is told in seconds
        cli.applied("--target", site)
        time.sleep(1.1)
        with running(tmp_path, 1, site) as after:
            ran = cli.called("check", "--live", "--output-format", "json")
            assert ran.code == 1
            assert [rows(ran)[pid]["stale"] != [] for pid in (before, after)] == [True, False]
            text = cli.called("check", "--live")
    assert f"stale: rank 0, pid {before}: it was started at " in text.out
    assert f"stale: rank 1, pid {after}" not in text.out
    assert f"ranks 0-1 (pid {before}, {after}): started in {tmp_path}, PYTHONPATH={site}" in text.out
    assert os.environ.get("PYTHONPATH") != str(site), "it looks with the rank's, and puts ours back"


@pytest.mark.usefixtures("alone")
def test_what_it_does_not_go_with_and_that_there_is_no_rank_is_said() -> None:
    assert "error[bad-option]: --live does not go with --target" in cli.called("check", "--live", "--target", ".").err
    assert "--output-format sarif" in cli.called("check", "--live", "--output-format", "sarif").err
    ran = cli.called("check", "--live")
    assert ran.code != 2 or "error[no-ranks]" in ran.err
