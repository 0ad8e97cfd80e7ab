"""What a user may have of a hung job: all of it, a part, or another format. Each input is a folder to diagnose."""

from __future__ import annotations

import gzip
import random
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path

from hangs import derived
from unhang.diagnose import intake
from unhang.diagnose.job import Told

WHOLE, PART, OTHER = "all that the recorder has", "a part of it", "stacks and logs"
UNSIZED = "all that gloo's recorder has: it lists no ranks, so that one may be missing"
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


def _copy(kind: str, *, lost: bool = False) -> _Made:
    """Copy what a folder of the job has; ``lost``: without the last quarter of the ranks, as where a node is lost."""

    def make(out: Path, folder: Path) -> None:
        gone = {rank for rank in derived.ranks(out)[_kept(out) :] if lost}
        for file in (out / kind).iterdir():
            if int(file.stem.rpartition("_")[2]) not in gone:
                shutil.copy(file, folder)

    return make


def _kept(out: Path) -> int:
    return 3 * len(derived.ranks(out)) // 4


def _nccl(version: str, *, frames: bool = True, active: bool = False) -> _Made:
    def make(out: Path, folder: Path) -> None:
        for rank in derived.ranks(out):
            dump = derived.nccl(out, rank, version, frames=frames, active=active)
            (folder / f"nccl_trace_rank_{rank}").write_bytes(dump)

    return make


def _one_file(out: Path, folder: Path) -> None:
    """Write the stacks of all ranks to one file, as ``srun --label`` shows them."""
    texts = {rank: (out / "py-spy" / f"rank_{rank}.txt").read_text() for rank in derived.ranks(out)}
    lines = [f"{rank}: {line}\n" for rank, text in texts.items() for line in text.splitlines()]
    (folder / "stacks.txt").write_text("".join(lines))


def launched(out: Path, folder: Path) -> None:
    """Write what the ranks wrote to stderr to a file of ``folder``, as torchrun shows it: a line of each in turn."""
    logs = {int(file.stem.rpartition("_")[2]): file.read_text().splitlines() for file in (out / "log").iterdir()}
    lines = []
    while any(logs.values()):
        lines += [f"[rank{rank}]: {left.pop(0)}\n" for rank, left in sorted(logs.items()) if left]
    size = f"using world size: {len(derived.ranks(out))}, data-parallel size: 1\n"  # as Megatron prints it
    (folder / "job.log").write_text(size + "".join(lines))


def _watchdog(out: Path, folder: Path) -> None:
    (folder / "job.log").write_text(derived.watchdog(out, derived.ranks(out)))


def _zipped(out: Path, folder: Path) -> None:
    """Zip the dumps and the stacks, and add the log."""
    for kind in ("recorder", "py-spy"):
        (folder / kind).mkdir()
        for file in (out / kind).iterdir():
            (folder / kind / f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes()))
    launched(out, folder)


INPUTS: Mapping[str, tuple[str, _Made]] = {
    "gloo": (UNSIZED, _copy("recorder")),
    "gloo, no frames": (PART, _copy("recorder-no-frames")),
    "gloo, JSON": (PART, _copy("recorder-json")),
    "gloo, a quarter missing": (PART, _copy("recorder", lost=True)),
    "gloo, no frames, a quarter missing": (PART, _copy("recorder-no-frames", lost=True)),
    "NCCL 2.4": (WHOLE, _nccl("2.4")),
    "NCCL 2.10, active": (PART, _nccl("2.10", active=True)),
    "NCCL 2.10, active, no frames": (PART, _nccl("2.10", active=True, frames=False)),
    "py-spy": (OTHER, _copy("py-spy")),
    "py-spy --json": (OTHER, _copy("py-spy-json")),
    "py-spy, one file": (OTHER, _one_file),
    "stderr": (OTHER, launched),
    "watchdog": (OTHER, _watchdog),
    ALL: (WHOLE, _zipped),
}
"""By name: what it has, and how to make it."""


def of(kind: str) -> set[str]:
    """Return the inputs that have this of a job."""
    return {name for name, (has, _) in INPUTS.items() if has == kind}


Piece = tuple[str, int]
"""A kind of evidence, and a rank."""
POOLS = (
    ("gloo", "gloo, no frames", "gloo, JSON", "py-spy", "stderr"),
    ("NCCL", "NCCL, active", "NCCL, active, no frames", "py-spy", "stderr", "watchdog"),
)
"""What one job may leave of each rank: no job has the dumps of two backends."""
_LEFT_OUT = 64
_SUBSETS = 200
_FOLDERS = {
    "gloo": "recorder", "gloo, no frames": "recorder-no-frames", "gloo, JSON": "recorder-json", "py-spy": "py-spy",
    "stderr": "log",
}  # fmt: skip
_DUMPS: Mapping[str, Callable[[Path, int], bytes]] = {
    "NCCL": lambda out, rank: derived.nccl(out, rank, "2.4"),
    "NCCL, active": lambda out, rank: derived.nccl(out, rank, "2.10", active=True),
    "NCCL, active, no frames": lambda out, rank: derived.nccl(out, rank, "2.10", active=True, frames=False),
    "watchdog": lambda out, rank: derived.watchdog(out, [rank]).encode(),
}


def told(out: Path, into: Path, pool: Sequence[str]) -> dict[Piece, Told]:
    """Return what each piece of evidence of a recorded job says; made ones are written below ``into``."""
    found = {}
    for kind in pool:
        if kind in _FOLDERS:
            folder = out / _FOLDERS[kind]
            files = {int(file.stem.rpartition("_")[2]): file for file in folder.iterdir()} if folder.exists() else {}
        else:
            files = {rank: into / f"{kind.replace(', ', '-')}_rank_{rank}" for rank in derived.ranks(out)}
            for rank, file in files.items():
                file.write_bytes(_DUMPS[kind](out, rank))
        found.update({(kind, rank): intake.told_by(str(file)) for rank, file in files.items() if file.stat().st_size})
    return found


def pairs(pieces: Sequence[Piece]) -> Iterator[tuple[frozenset[Piece], frozenset[Piece]]]:
    """Yield pairs of a smaller and a larger set: each kind and pair of kinds, with a rank left out; some at random.

    Of more ranks than 64, as many are left out: in a job of 1,024 each would take hours.
    """
    kinds, every = sorted({kind for kind, _ in pieces}), sorted({rank for _, rank in pieces})
    ranks = random.Random(0).sample(every, min(_LEFT_OUT, len(every)))
    for some in (*combinations(kinds, 1), *combinations(kinds, 2)):
        whole = frozenset(piece for piece in pieces if piece[0] in some)
        yield from ((frozenset(piece for piece in whole if piece[1] != rank), whole) for rank in ranks)
        yield from ((frozenset(piece for piece in whole if piece[0] == kind), whole) for kind in some)
    seeded = random.Random(0)
    for _ in range(_SUBSETS):
        larger = seeded.sample(pieces, seeded.randint(1, len(pieces)))
        yield frozenset(seeded.sample(larger, seeded.randint(1, len(larger)))), frozenset(larger)
