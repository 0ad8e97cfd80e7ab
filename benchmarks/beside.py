"""What torchfrtrace and unhang say of the same dumps: of one hang, written in the ways that people have it."""

from __future__ import annotations

import gzip
import pickle
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from support.recorder_dumps import as_json, as_pickle, dump, entry
from unhang.diagnose import fixes, intake, known
from unhang.tell.progress import silent

_GROUPS = {"0": ("default_pg", (0, 1, 2, 3)), "2": ("DATA_PARALLEL_GROUP_WITH_CP", (0, 1))}
_OTHER = {**_GROUPS, "2": ("DATA_PARALLEL_GROUP_WITH_CP", (2, 3))}
_STAGES = {"7": ("PIPELINE_MODEL_PARALLEL_GROUP", (0, 1, 2, 3))}
_LOSS = (
    ("all_reduce", "/env/torch/distributed/distributed_c10d.py", 2810),
    ("reduce_loss_in_tracker", "/env/megatron/core/transformer/multi_token_prediction.py", 359),
    ("get_megatron_mtp_loss", "/env/verl/utils/megatron_utils.py", 1300),
    ("forward_backward_batch", "/env/verl/workers/engine/megatron/transformer_impl.py", 600),
)
_STEP = (("barrier", "/env/torch/distributed/distributed_c10d.py", 4800), ("update", "/job/train.py", 12))
_Dumps = list[dict[str, Any]]
_Write = Callable[[Path, _Dumps], None]


def mtp_hang(*, gloo: bool = False, batches: bool = False) -> _Dumps:
    """Return the dumps of mtp-cp-deadlock: one rank of each pair reduces the loss, the others wait in a barrier."""
    library = "gloo" if gloo else "nccl"
    made = []
    for rank in range(4):
        done = [entry(n, f"{library}:all_reduce", retired=True) for n in range(3)]
        if rank % 2:
            last = entry(30, f"{library}:{'barrier' if gloo else 'all_reduce_barrier'}", seq=4, frames=_STEP)
        else:
            last = entry(30, f"{library}:all_reduce", seq=1, group=("2", _GROUPS["2"][0]), sizes=[[1]], frames=_LOSS)
        sent = _sent(rank) if batches else []
        all_ = [*done, *sent, last | {"state": "scheduled", "retired": False}]
        groups = {} if gloo else (_GROUPS if rank < 2 else _OTHER) | (_STAGES if batches else {})
        made.append(dump([one | {"state": "scheduled"} for one in all_] if gloo else all_, groups))
    return made


def _sent(rank: int) -> _Dumps:
    """Return what a stage of a pipeline has sent and received: the members' state is never updated."""
    group, made = ("7", _STAGES["7"][0]), []
    for step in range(3):
        titles = [f"nccl:send {rank}->{rank + 1}"] * (rank < 3) + [f"nccl:recv {rank}<-{rank - 1}"] * (rank > 0)
        members = [(title, "scheduled") for title in titles]
        for number, (title, state) in enumerate([*members, ("nccl:coalesced", "completed")]):
            sizes: dict[str, Any] = {} if title != "nccl:coalesced" else {"sizes": [], "dtypes": []}
            more = {"group": group, "p2p": True, "seq": step + 1, "op": 3 * step + number + 1, "state": state}
            made.append(entry(10 + 3 * step + number, title, retired=False, **more, **sizes))
    return made


def _pickled(folder: Path, dumps: _Dumps, only: tuple[int, ...] = (0, 1, 2, 3)) -> None:
    for rank in only:
        (folder / f"nccl_trace_rank_{rank}").write_bytes(as_pickle(dumps[rank]))


def _active(folder: Path, dumps: _Dumps) -> None:
    for made in dumps:
        made["entries"] = [one for one in made["entries"] if one["state"] != "completed"]
    _pickled(folder, dumps)


def _cut(folder: Path, dumps: _Dumps) -> None:
    _pickled(folder, dumps)
    whole = (folder / "nccl_trace_rank_3").read_bytes()
    (folder / "nccl_trace_rank_3").write_bytes(whole[: len(whole) * 3 // 4])


def _beside_a_log(folder: Path, dumps: _Dumps) -> None:
    _pickled(folder, dumps)
    (folder / "stderr_0").write_text("starting\n")


def _mixed(folder: Path, dumps: _Dumps) -> None:
    dumps[3]["version"] = "2.9"
    _pickled(folder, dumps)


def _as_json(folder: Path, dumps: _Dumps) -> None:
    for rank, made in enumerate(dumps):
        (folder / f"nccl_trace_rank_{rank}").write_bytes(as_json(made))


def _zipped(folder: Path, dumps: _Dumps) -> None:
    for rank, made in enumerate(dumps):
        (folder / f"nccl_trace_rank_{rank}").write_bytes(gzip.compress(as_pickle(made)))


def _hostile(folder: Path, dumps: _Dumps) -> None:
    _pickled(folder, dumps)
    (folder / "nccl_trace_rank_3").write_bytes(pickle.dumps(_Runs(folder.parent / "ran")))


class _Runs:
    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self._path,)


WAYS: Mapping[str, tuple[Mapping[str, bool], _Write]] = {
    "NCCL's pickles, all ranks": ({}, _pickled),
    "rank 3 is missing": ({}, lambda folder, dumps: _pickled(folder, dumps, (0, 1, 2))),
    "active entries only": ({}, _active),
    "active entries only, of a pipeline": ({"batches": True}, _active),
    "gloo's": ({"gloo": True}, _pickled),
    "JSON": ({}, _as_json),
    "zipped": ({}, _zipped),
    "the dump of rank 3 breaks off": ({}, _cut),
    "rank 3 has another torch": ({}, _mixed),
    "a log lies beside them, and no prefix is given": ({}, _beside_a_log),
    "the dump of rank 3 is a pickle that runs code": ({}, _hostile),
}


def table(torch: str) -> str:
    """Return Markdown: each way, and what both say."""
    rows = ["| dumps | torchfrtrace | unhang |", "| --- | --- | --- |"]
    for way, (options, write) in WAYS.items():
        with tempfile.TemporaryDirectory(prefix="unhang-beside-") as work:
            folder = Path(work) / "dumps"
            folder.mkdir()
            write(folder, mtp_hang(**options))
            ours = _ours(folder)
            assert not (folder.parent / "ran").exists()
            theirs = _theirs(torch, folder)
            ran = "; it ran the code" if (folder.parent / "ran").exists() else ""
            rows.append(f"| {way} | {theirs}{ran} | {ours} |")
    return "\n".join(rows)


def _ours(folder: Path) -> str:
    job = intake.read([str(folder)], silent)
    found = known.diagnose(job)
    answers = known.answers(found, fixes.signatures(), known.Sources(()), {})
    said = [f"{one.answer} {one.fix}" for one in answers[:1]] or [f"suspects {[*found.who.why]}"]
    return "; ".join([*said, *(f"{Path(one.file).name}: {one.why}" for one in job.unread)])


def _theirs(torch: str, folder: Path) -> str:
    """Return what torchfrtrace says in short; it is asked to bear missing ranks."""
    command = [torch, "-m", "torch.distributed.flight_recorder.fr_trace", "--allow-incomplete-ranks", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = (done.stdout + done.stderr).splitlines()
    if done.returncode:
        return f"dies: {lines[-1].strip()[:80]}"
    told_by = ("Not all", "Collective seq", "Input/", "We cannot", "missing ranks")
    said = [line for line in lines if line.startswith(told_by)]
    told = [line.partition(" because")[0] for line in dict.fromkeys(said)]
    return "; ".join(told[:4]) + ("; ..." if len(told) > 4 else "") or "says nothing"
