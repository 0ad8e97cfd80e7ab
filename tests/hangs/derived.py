"""What else a hung job may leave, made of a recorded one: dumps as NCCL's watchdog writes them, its lines in logs."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

_OP_TYPES = {
    "all_reduce": "ALLREDUCE",
    "all_gather": "ALLGATHER",
    "_all_gather_base": "_ALLGATHER_BASE",
    "_reduce_scatter_base": "_REDUCE_SCATTER_BASE",
    "all_to_all": "ALLTOALL_BASE",
    "broadcast": "BROADCAST",
    "barrier": "BARRIER",
    "send": "SEND",
    "recv": "RECV",
}
_Key = tuple[str, bool, int]
"""Of an operation: its group, whether it is one between two ranks, and its number."""
_DONE, _WAITS = "completed", "scheduled"


def ranks(out: Path) -> list[int]:
    """Return the ranks that have dumps, in order."""
    return sorted(int(file.name.rpartition("_")[2]) for file in (out / "recorder").iterdir())


def nccl(out: Path, rank: int, version: str, *, frames: bool = True, active: bool = False) -> bytes:
    """Return the dump of a rank as NCCL's watchdog would have written it in this format.

    With ``active``, as Megatron sets it, the operations that are done are left out.
    """
    groups, waits = _groups(out, rank), _waits(out)
    raw: dict[str, Any] = _load(out, rank)
    entries = [_as_nccl(entry, groups, waits) for entry in raw["entries"]]
    status = {key: _status(int(key), entries) for key in raw["pg_status"]}
    if active:
        entries = [entry for entry in entries if entry["state"] != _DONE]
    for entry in () if frames else entries:
        del entry["frames"]
    config = {name: {"name": name, "desc": text, "ranks": str(members)} for name, (text, members) in groups.items()}
    library = {"comm_lib_version": "2.27.5"} if version == "2.10" else {"nccl_version": "2.21.5"}
    dump = {"version": version, **library, "pg_config": config, "pg_status": status, "nccl_comm_state": {}}
    return pickle.dumps({**dump, "entries": entries}, protocol=2)


def _status(group: int, entries: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Return how far a rank is in a group, by these entries: gloo's own status lags behind."""
    own = [entry for entry in entries if entry["pg_id"] == group and not entry["is_p2p"]]
    enqueued, completed = (
        max((entry["collective_seq_id"] for entry in own if entry["state"] in states), default=-1)
        for states in ((_DONE, _WAITS), (_DONE,))
    )
    return {
        "last_enqueued_collective": enqueued,
        "last_started_collective": -1,
        "last_completed_collective": completed,
    }


def _load(out: Path, rank: int) -> dict[str, Any]:
    raw: dict[str, Any] = pickle.loads((out / "recorder" / f"nccl_trace_rank_{rank}").read_bytes())
    return raw


def _groups(out: Path, rank: int) -> Mapping[str, tuple[str, list[int]]]:
    found: dict[str, tuple[str, list[int]]] = json.loads((out / "groups" / f"{rank}.json").read_text())
    return found


@cache
def _waits(out: Path) -> frozenset[_Key]:
    """Return the operations that some rank waits in."""
    entries = [entry for rank in ranks(out) for entry in _load(out, rank)["entries"]]
    return frozenset(_key(entry) for entry in entries if not entry["retired"])


def _key(entry: Mapping[str, Any]) -> _Key:
    return entry["process_group"][0], entry["is_p2p"], entry["p2p_seq_id" if entry["is_p2p"] else "collective_seq_id"]


def _as_nccl(
    entry: dict[str, Any], groups: Mapping[str, tuple[str, list[int]]], waits: frozenset[_Key]
) -> dict[str, Any]:
    """Return an entry with NCCL's names and states.

    What gloo makes of other collectives is what it was before. Where sizes differ, gloo lets some ranks pass; on a GPU
    only a rank without an element does.
    """
    kind, outputs = entry["profiling_name"].partition(":")[2], entry["output_sizes"]
    called = {frame["name"] for frame in entry["frames"]}
    if called & {"reduce_scatter_single", "reduce_scatter_tensor", "_reduce_scatter_base"}:
        members = len(groups[entry["process_group"][0]][1])
        kind, outputs = "_reduce_scatter_base", [[rows // members, *rest] for rows, *rest in outputs]
    elif kind == "all_gather" and called & {"all_gather_single", "all_gather_into_tensor", "_all_gather_base"}:
        kind = "_all_gather_base"
    is_empty = entry["input_sizes"] != [] and not any(map(prod, entry["input_sizes"]))
    is_done = entry["retired"] and (is_empty or _key(entry) not in waits)
    changed = {"profiling_name": f"nccl:{kind}", "output_sizes": outputs, "state": _DONE if is_done else _WAITS}
    times = dict.fromkeys(("time_discovered_started_ns", "time_discovered_completed_ns"), entry["time_created_ns"])
    return {**entry, **changed, "timeout_ms": 600_000, **(times if is_done else {})}


def watchdog(out: Path, only: Iterable[int]) -> str:
    """Return the lines that NCCL's watchdog writes of these ranks, as torchrun shows them."""
    lines = [line for rank in only for line in _of_watchdog(out, rank)]
    return "".join(f"{line}\n" for line in lines)


def _of_watchdog(out: Path, rank: int) -> Iterator[str]:
    groups, waits = _groups(out, rank), _waits(out)
    names = list(groups)
    for raw in _load(out, rank)["entries"]:
        entry = _as_nccl(raw, groups, waits)
        if entry["state"] == _DONE:
            continue
        name, description = entry["process_group"]
        kind = _OP_TYPES[entry["profiling_name"].partition(":")[2]]
        counts = [sum(map(prod, entry[f"{side}_sizes"])) for side in ("input", "output")]
        group = f"[PG ID {names.index(name)} PG GUID {name}({description}) Rank {groups[name][1].index(rank)}]"
        work = (
            f"WorkNCCL(SeqNum={entry['p2p_seq_id'] if entry['is_p2p'] else entry['collective_seq_id']}, OpType={kind}, "
            f"NumelIn={counts[0]}, NumelOut={counts[1]}, Timeout(ms)=600000)"
        )
        yield (
            f"[rank{rank}]:[E1122 09:15:{rank:02}.123456789 ProcessGroupNCCL.cpp:685] {group} Watchdog caught "
            f"collective operation timeout: {work} ran for 600{rank:03} milliseconds before timing out."
        )
        yield (
            f"[rank{rank}]:[E1122 09:15:{rank:02}.223456789 ProcessGroupNCCL.cpp:2175] {group} failure detected by "
            f"watchdog at work sequence id: {entry['collective_seq_id']} PG status: last enqueued work: "
            f"{entry['collective_seq_id']}, last completed work: {entry['collective_seq_id'] - 1}"
        )
