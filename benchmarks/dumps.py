"""`python benchmarks/dumps.py`: what reading the dumps of a large job costs, beside bare unpickling and torchfrtrace.

`--torch PYTHON` names an interpreter that has torch; without it there is no torchfrtrace. `--write-docs` writes
docs/maintainers/dumps.md and dumps.svg. It takes about ten minutes on two idle cores, and 0.6 GB of `$TMPDIR`.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from support.recorder_dumps import as_pickle, dump, entry

DOCS = Path(__file__).parent.parent / "docs" / "maintainers"
WHOLE = (1024, 2000, 20)
"""Ranks, entries, and frames of each entry: the goals are about these."""
GROWTH = [(1024, n, 20) for n in (250, 500, 1000, 2000)] + [(n, 2000, 20) for n in (128, 256, 512)]
GROWTH += [(256, 2000, n) for n in (0, 80)]
THEIRS = [(32, 2000, 20), (128, 500, 20), (128, 2000, 20), WHOLE]
PATIENCE_S = 600
_OURS = "import sys; from unhang.diagnose import intake; print(intake.read(sys.argv[1:], lambda _: None).files)"
_BARE = """
import os, pickle, sys
from multiprocessing import Pool
def load(path):
    with open(path, "rb") as file:
        pickle.load(file)
if __name__ == "__main__":
    with Pool(len(os.sched_getaffinity(0))) as pool:
        files = [entry.path for entry in os.scandir(sys.argv[1])]
        print(sum(1 for _ in pool.imap_unordered(load, files)))
"""
_THEIRS = "from torch.distributed.flight_recorder.fr_trace import main; import sys; main(sys.argv[1:])"


class Cost(NamedTuple):
    """What a command took, its children included."""

    wall_s: float
    processor_s: float
    peak_mb: float
    """The highest sum of all its processes, looked at 20 times a second."""


def lay_out(folder: Path, ranks: int, entries: int, frames: int) -> None:
    """Write the dumps of a job: each rank has three groups, its last entries wait, and one rank never issued the last.

    Pickling each takes far longer than reading it. So one dump is pickled, and its groups are replaced in the others.
    """
    groups = {"0": "default_pg", "900001": "TENSOR_MODEL_PARALLEL_GROUP", "900002": "DATA_PARALLEL_GROUP_WITH_CP"}
    issued, made = dict.fromkeys(groups, 0), []
    for number in range(entries):
        name = "0" if number == entries - 1 else list(groups)[number % 3]
        issued[name] += 1
        made.append(
            entry(
                number + 100_000,
                ("nccl:all_reduce", "nccl:broadcast")[number % 2],
                group=(name, groups[name]),
                seq=issued[name],
                sizes=[[1024, 1 + number % 3]],
                state="completed" if number < entries - 8 else "scheduled",
                frames=[(f"function_{number % 60}_{n}", f"/env/megatron/core/{n}.py", n) for n in range(frames)] or None,
            )
        )
    config = {name: (text, [900_003 + at]) for at, (name, text) in enumerate(groups.items())}
    whole, short = (as_pickle(dump(some, config, "2.9")) for some in (made, made[:-1]))
    folder.mkdir()
    for rank in range(ranks):
        data, side, place = short if rank == 5 else whole, rank // 8, rank % 8
        for old, new in {
            "900001": str(1000 + side),
            "900002": str(2000 + place),
            "[900003]": list(range(ranks)),
            "[900004]": list(range(side * 8, side * 8 + 8)),
            "[900005]": list(range(place, ranks, 8)),
        }.items():
            data = data.replace(_text(old), _text(str(new)))
        (folder / f"nccl_trace_rank_{rank}").write_bytes(data)


def _text(text: str) -> bytes:
    return b"X" + struct.pack("<I", len(text)) + text.encode()


def cost(command: Sequence[str]) -> Cost | None:
    """Return what a command takes; None if it fails or takes too long."""
    begin, peak = time.perf_counter(), 0
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    while True:
        peak = max(peak, sum(map(_resident, _tree(child.pid))))
        pid, status, usage = os.wait4(child.pid, os.WNOHANG)
        taken = time.perf_counter() - begin
        if pid:
            child.returncode = os.waitstatus_to_exitcode(status)
            found = Cost(taken, usage.ru_utime + usage.ru_stime, peak / 2**20)
            return found if child.returncode == 0 else None
        if taken > PATIENCE_S:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            return None
        time.sleep(0.05)


def _tree(pid: int) -> Iterator[int]:
    """Yield a process, and all below it."""
    yield pid
    with suppress(OSError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            yield from _tree(int(child))


def _resident(pid: int) -> int:
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0
