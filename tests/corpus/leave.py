"""What the ranks of a played job leave: dumps of NCCL's flight recorder, stacks of py-spy, and lines in a log."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

from corpus.ranks import DIE, FAIL, ISSUE, End, Groups, Stack, Step, Work
from support import recorder_dumps

SITE = "/opt/venv/lib/python3.11/site-packages/"
_TYPES = {
    "all_reduce": "ALLREDUCE", "_all_gather_base": "_ALLGATHER_BASE", "_reduce_scatter_base": "_REDUCE_SCATTER_BASE",
    "all_to_all": "ALLTOALL_BASE", "broadcast": "BROADCAST", "send": "SEND", "recv": "RECV", "barrier": "BARRIER",
    "coalesced": "COALESCED",
}  # fmt: skip
_CALLS = {
    "_all_gather_base": "all_gather_into_tensor", "_reduce_scatter_base": "reduce_scatter_tensor",
    "all_to_all": "all_to_all_single", "coalesced": "batch_isend_irecv",
}  # fmt: skip
PREFIXES: Mapping[str, str] = {
    "": "",
    "torchrun": "[default{rank}]:",
    "srun": "{rank}: ",
    "ray": "(WorkerDict pid={pid}, ip=10.0.0.{node}) ",
    "kubectl": "[pod/train-worker-{rank}/pytorch] ",
    "stern": "train-worker-{rank} pytorch ",
}


class Style(NamedTuple):
    """How a job was set up to leave its evidence."""

    version: str = "2.10"
    status: bool = True
    frames: bool = True
    active: bool = False
    as_json: bool = False
    timed: bool = False  # whether the recorder tells what a device has begun
    prefix: str = ""
    at: int = 9  # the hour
    at_exit: bool = False  # whether a rank that fails writes its dump
    kept: int = 12  # so many entries of each rank
    logged: int = 1 << 30  # the logs of so many ranks are at hand, as of one node


def torch(kind: str) -> Stack:
    """Return the frames of torch in which a host waits in a collective."""
    call = _CALLS.get(kind, kind)
    return (f"torch/distributed/distributed_c10d.py::{call}", "torch/distributed/c10d_logger.py::wrapper")


def dump(rank: int, end: End, groups: Groups, style: Style) -> bytes | None:
    """Return the dump of a rank; None of one that is gone."""
    if end.last is None or end.last.do == DIE or (end.last.do == FAIL and not style.at_exit):
        return None
    own = {work.group: (work.step.group, _members(groups, work.step.group, rank)) for work in end.works}
    entries = [one for at, work in enumerate(end.works) for one in _entries(at, work, rank, own, end, style)]
    entries = [{**one, "record_id": number} for number, one in enumerate(entries)]
    known = own or {"0": ("default_pg", _members(groups, "default_pg", rank))}
    raw = recorder_dumps.dump(entries, known, style.version)
    raw["entries"] = [one for one in raw["entries"] if not style.active or one["state"] != "completed"][-style.kept :]
    if not style.status:
        del raw["pg_status"]
    if style.as_json:
        return recorder_dumps.as_json({"entries": [], **raw})
    return recorder_dumps.as_pickle(raw)


def _entries(at: int, work: Work, rank: int, own: Mapping[str, Any], end: End, style: Style) -> Iterator[Any]:
    """Yield the entry of an operation; of a batch, those of its members, whose state torch leaves as it is, first."""
    for number, step in enumerate(work.step.batch):
        order = work.order - len(work.step.batch) + number + 1
        one = work._replace(step=step._replace(at=work.step.at), order=order)
        never = end._replace(done=-1)
        yield _entry(at, one, rank, own, never, style)
    yield _entry(at, work, rank, own, end, style)


def _entry(at: int, work: Work, rank: int, own: Mapping[str, Any], end: End, style: Style) -> dict[str, Any]:
    begun = style.timed and at == end.done and not end.stuck
    step, state = work.step, "completed" if at < end.done else "started" if begun else "scheduled"
    title = f"nccl:{step.kind}"
    if step.peer >= 0:
        ends = [own[work.group][1].index(one) for one in (rank, step.peer)]
        title += f" {ends[0]}{'->' if step.kind == 'send' else '<-'}{ends[1]}"
    frames = [
        (name, SITE + file if _is_installed(file) else f"/job/{file}", 40) for file, name in map(_split, _whole(step))
    ]
    made = recorder_dumps.entry(
        at, title, group=(work.group, step.group), seq=work.number, state=state, op=work.order,
        sizes=[] if step.batch else [list(step.sizes)], dtypes=[] if step.batch else [step.dtype],
        p2p=bool(step.pairs), frames=frames if style.frames else None,
    )  # fmt: skip
    shift = 3600 * 10**9 * style.at
    return {**made, **{key: value + shift for key, value in made.items() if key.endswith("_ns") and value}}


def _whole(step: Step) -> Stack:
    """Return the stack of a host, with torch's frames."""
    return (*torch(step.kind), *step.at) if step.do == ISSUE else step.at


def _split(place: str) -> tuple[str, str]:
    file, _, function = place.partition("::")
    return file, function.rpartition(".")[2]


def _is_installed(file: str) -> bool:
    return "/" in file and not file.startswith("/")


def _members(groups: Groups, name: str, rank: int) -> tuple[int, ...]:
    return next((tuple(part) for part in groups.get(name, ()) if rank in part), ())


def stack(rank: int, end: End, *, as_json: bool) -> str | None:
    """Return what py-spy says of a rank; None of one that is gone."""
    if end.last is None or end.last.do in (FAIL, DIE):
        return None
    step = end.last
    frames = [(place.partition("::")[2], place.partition("::")[0]) for place in _whole(step)]
    if as_json:
        rows = [{"name": name, "filename": file, "short_filename": file, "line": 40} for name, file in frames]
        thread = {"pid": 4000 + rank, "thread_id": 1, "thread_name": "MainThread", "os_thread_id": 4000 + rank}
        return json.dumps([{**thread, "active": not step.idle, "owns_gil": not step.idle, "frames": rows}])
    state = "idle" if step.idle else "active+gil"
    lines = "".join(f"    {name} ({file}:40)\n" for name, file in frames)
    process = f"Process {4000 + rank}: python train.py\nPython v3.11.9 (/usr/bin/python3.11)\n\n"
    return f'{process}Thread {4000 + rank} ({state}): "MainThread"\n{lines}'


def log(rank: int, end: End, groups: Groups, style: Style) -> Iterator[str]:
    """Yield the lines that a rank writes to its log."""
    stamp = f"1122 {style.at:02}:15:{rank % 60:02}"
    waits = end.works[end.done] if end.done < len(end.works) else None
    if end.last is not None and end.last.do == FAIL:
        yield f"[rank{rank}]: Traceback (most recent call last):"
        for file, name in map(_split, reversed(end.last.at)):
            yield f'[rank{rank}]:   File "{SITE + file if _is_installed(file) else "/job/" + file}", line 40, in {name}'
        yield f"[rank{rank}]: {end.last.text}"
    elif end.last is not None and end.last.do != DIE and waits is not None:
        members = _members(groups, waits.step.group, rank)
        number, named = list(groups).index(waits.step.group), f"{waits.group}({waits.step.group})"
        group = f"[PG ID {number} PG GUID {named} Rank {members.index(rank)}]"
        size = prod(waits.step.sizes)
        where = f"[rank{rank}]:[E{stamp}.123456789 ProcessGroupNCCL.cpp:685] {group}"
        yield (
            f"{where} Watchdog caught collective operation timeout: WorkNCCL(SeqNum={waits.number}, "
            f"OpType={_TYPES[waits.step.kind]}, NumelIn={size}, NumelOut={size}, Timeout(ms)=600000) ran for 600012 "
            "milliseconds before timing out."
        )
        enqueued = max(work.number for work in end.works if work.group == waits.group)
        if not waits.step.pairs:
            yield (
                f"{where} failure detected by watchdog at work sequence id: {waits.number} PG status: "
                f"last enqueued work: {enqueued}, last completed work: {waits.number - 1}"
            )


def prefixed(rank: int, lines: Sequence[str], style: Style) -> str:
    """Return lines as a launcher shows them."""
    prefix = PREFIXES[style.prefix].format(rank=rank, pid=4000 + rank, node=1 + rank // 8)
    return "".join(f"{prefix}{line}\n" for line in lines)


def exits(ends: Sequence[End]) -> str:
    """Return torchrun's summary of the ranks that died."""
    return "".join(
        f"[{at}]:\n  time      : 2026-11-22_09:15:40\n  host      : node-1\n"
        f"  rank      : {rank} (local_rank: {rank % 8})\n"
        f"  exitcode  : {end.last.text} (pid: {4000 + rank})\n  error_file: <N/A>\n"
        for at, (rank, end) in enumerate((r, e) for r, e in enumerate(ends) if e.last and e.last.do == DIE)
        if end.last
    )
