"""A job that has only a share of a processor, by a quota of a control group, which needs root."""

import contextlib
import multiprocessing
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

_PERIOD_US = 100_000


def within(percent: int, job: Callable[[], Any]) -> Any:
    """Return what the job returns in a fork that has this share of a processor. Skips the test without such groups."""
    with _group(percent) as group:
        ours, theirs = multiprocessing.Pipe(duplex=False)

        def run() -> None:
            (group / "cgroup.procs").write_text(str(os.getpid()))
            theirs.send(job())

        process = multiprocessing.get_context("fork").Process(target=run)
        process.start()
        theirs.close()
        try:
            return ours.recv()
        finally:
            process.join()


@contextlib.contextmanager
def _group(percent: int) -> Iterator[Path]:
    quota = _PERIOD_US * percent // 100
    version_1, version_2 = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")
    group = (version_1 if version_1.exists() else version_2) / f"unhang-{os.getpid()}"
    try:
        group.mkdir()
        if version_1.exists():
            (group / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
            (group / "cpu.cfs_quota_us").write_text(str(quota))
        else:
            (group / "cpu.max").write_text(f"{quota} {_PERIOD_US}")
    except OSError as error:
        with contextlib.suppress(OSError):
            group.rmdir()
        pytest.skip(f"no control groups with a quota here: {error}")
    try:
        yield group
    finally:
        group.rmdir()
