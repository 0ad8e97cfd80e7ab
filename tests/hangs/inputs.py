"""What a user may have of a hung job: all of it, a part, or another format. Each input is a folder to diagnose."""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

WHOLE, STACKS, PART = "all dumps, or all there is", "stacks alone", "what may lack the functions"
ALL = "dumps, py-spy and stderr, zipped"
_Made = Callable[[Path, Path], None]


def made(out: Path, into: Path) -> Mapping[str, Path]:
    """Make each input of a recorded job below ``into``; return the folders. Without py-spy, its inputs are left out."""
    found = {}
    for number, (name, (_, make)) in enumerate(INPUTS.items()):
        folder = into / f"{number}"
        if "py-spy" in name and not (out / "py-spy").exists():
            continue
        folder.mkdir(parents=True)
        make(out, folder)
        found[name] = folder
    return found


def _ranks(out: Path) -> list[int]:
    return sorted(int(file.name.rpartition("_")[2]) for file in (out / "recorder").iterdir())


def _copy(kind: str, *, lost: bool = False) -> _Made:
    """Copy what a folder of the job has; ``lost``: without the last quarter of the ranks, as where a node is lost."""

    def make(out: Path, folder: Path) -> None:
        ranks = _ranks(out)
        gone = {rank for rank in ranks[3 * len(ranks) // 4 :] if lost}
        for file in (out / kind).iterdir():
            if int(file.stem.rpartition("_")[2]) not in gone:
                shutil.copy(file, folder)

    return make


def _one_file(out: Path, folder: Path) -> None:
    """Write the stacks of all ranks to one file, as ``srun --label`` shows them."""
    texts = {rank: (out / "py-spy" / f"rank_{rank}.txt").read_text() for rank in _ranks(out)}
    lines = [f"{rank}: {line}\n" for rank, text in texts.items() for line in text.splitlines()]
    (folder / "stacks.txt").write_text("".join(lines))


def launched(out: Path, folder: Path) -> None:
    """Write what the ranks wrote to stderr to a file of ``folder``, as torchrun shows it: a line of each in turn."""
    logs = {int(file.stem.rpartition("_")[2]): file.read_text().splitlines() for file in (out / "log").iterdir()}
    lines = []
    while any(logs.values()):
        lines += [f"[rank{rank}]: {left.pop(0)}\n" for rank, left in sorted(logs.items()) if left]
    size = f"using world size: {len(_ranks(out))}, data-parallel size: 1\n"  # as Megatron prints it
    (folder / "job.log").write_text(size + "".join(lines))


def _zipped(out: Path, folder: Path) -> None:
    """Zip the dumps and the stacks, and add the log."""
    for kind in ("recorder", "py-spy"):
        (folder / kind).mkdir()
        for file in (out / kind).iterdir():
            (folder / kind / f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes()))
    launched(out, folder)


INPUTS: Mapping[str, tuple[str, _Made]] = {
    "gloo": (WHOLE, _copy("recorder")),
    "gloo, no frames": (PART, _copy("recorder-no-frames")),
    "gloo, JSON": (PART, _copy("recorder-json")),  # torch writes no frames there
    "gloo, a quarter missing": (PART, _copy("recorder", lost=True)),
    "gloo, no frames, a quarter missing": (PART, _copy("recorder-no-frames", lost=True)),
    "py-spy": (STACKS, _copy("py-spy")),
    "py-spy --json": (STACKS, _copy("py-spy-json")),
    "py-spy, one file": (STACKS, _one_file),
    "stderr": (PART, launched),
    ALL: (WHOLE, _zipped),
}
"""By name: what it has, and how to make it."""
