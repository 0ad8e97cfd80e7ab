"""Read a dump of torch's flight recorder: a pickle as NCCL's watchdog writes it, or JSON; formats 2.0 to 2.10.

The formats differ little: see torch/csrc/distributed/c10d/FlightRecorder.hpp. A job may have a thousand dumps of some
thousand entries: each is looked at once, and only those that a diagnosis shows become records.
"""

from __future__ import annotations

import json
import pickle
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache, partial
from io import BufferedReader, BytesIO
from math import prod
from typing import Any, NamedTuple, NoReturn, TypeGuard

from unhang import gate
from unhang.diagnose.evidence import Count, Frame, Group, Move, Operation, Rank, Recent, kind_of
from unhang.diagnose.stacks import documents

KEPT = 16
"""So many operations of each group are kept that are not done: the oldest ones, and all of the batch of the last."""
_WIDEST_BATCH, _MOVES = 1 << 10, 1 << 8
RECENT, _WORD = 24, 100  # so many of the newest entries are kept for a picture
_AHEAD = 1 << 17  # so many bytes an unpickler looks ahead at: else it asks for each small part
_LONGEST_TEXT, _MOST_FRAMES, _MOST_RANKS = 1000, 200, 10**7
_LARGEST = 2**63 - 1
"""What torch's numbers can be. A hostile one may have so many digits that Python refuses to print it."""
_KEYS = (b'"entries"', b'"pg_config"', b'"pg_status"', b'"comm_lib_version"')
_NO_CODE = ", and data has no code"
_TITLE = re.compile(r"(\w+):(\w+)(?: (\d{1,9})(?:->|<-)(\d{1,9}))?")


class Dump(NamedTuple):
    """What one dump says."""

    rank: Rank  # its number is -1 where neither the dump nor the name tells it
    groups: tuple[Group, ...]  # those that the dump lists; gloo's dumps list none
    newest: int  # when the newest entry was made, in nanoseconds
    broken: str
    """Why a part of it could not be read, mostly the newest entries; else empty. Its rank is not `recorded` then."""


def recognizes(head: bytes) -> bool:
    """Return whether a file that begins like this is a dump, or another pickle."""
    if head[:1] == b"\x80":
        return head[1:2] in {b"\x02", b"\x03", b"\x04", b"\x05"}
    return head.lstrip()[:1] == b"{" and any(key in head for key in _KEYS)


def read(data: bytes, name: str, named: int | None) -> Dump:
    """Return what a dump says, given the name of its file, for the sources, and the rank in that name, if any.

    Raises ValueError, with the reason, if nothing of it can be read.
    """
    loaded, broken = unpickled(data) if data[:1] == b"\x80" else _json(data)
    raw = loaded if isinstance(loaded, dict) else {}
    entries, config = raw.get("entries", []), raw.get("pg_config", {})  # JSON without any entries leaves the key out
    if not isinstance(entries, list) or not isinstance(config, dict) or not raw.keys() & {"entries", "pg_config"}:
        raise ValueError("it is not a dump of the flight recorder")
    entries = [one if isinstance(one, dict) else {} for one in entries]
    scan = _Scan(entries)
    groups = {
        name: Group(_text(name), _description(value.get("desc")), _members(value.get("ranks")))
        for name, value in config.items()
        if isinstance(name, str) and name and isinstance(value, dict)
    }
    if entries and scan.unread == len(entries):
        raise ValueError(f"none of its entries can be read; its format is {_text(raw.get('version')) or 'not named'}")
    if scan.unread:
        broken = broken or f"{scan.unread} of its {len(entries)} entries cannot be read"
    rank = _rank(scan, groups, named)
    waiting, last, undone = _settled(scan)
    operation = partial(_operation, entries, groups, rank, name)
    found = Rank(
        rank,
        waiting=tuple(operation(row, done=False) for row in waiting),
        last=tuple(operation(row, done=True) for row in last),
        counts=_counts(raw, groups, scan, waiting),
        moves=tuple(_moves(entries, groups, undone)) if scan.peers else (),
        recorded=not broken,
        recent=tuple(_recent(entries, undone)),
    )
    newest = max(_count(entries[-1].get("time_created_ns")), 0) if entries else 0
    return Dump(found, tuple(groups.values()), newest, broken)


def _recent(entries: list[Any], undone: Collection[int]) -> Iterator[Recent]:
    """Yield what a picture shows of the newest entries; nothing of one without a time, a group or a number."""
    for at in range(max(len(entries) - RECENT, 0), len(entries)):
        raw = entries[at]
        number = "p2p_seq_id" if raw.get("is_p2p") is True else "collective_seq_id"
        group, sequence = raw.get("process_group"), raw.get(number)
        created, ended = (_count(raw.get(f"time_{what}_ns")) for what in ("created", "discovered_completed"))
        if created > 0 and isinstance(group, (list, tuple)) and group and _is_number(sequence):
            name, label, title = map(_text, (group[0], group[-1], raw.get("profiling_name")))
            label = f"group {name}" if label in ("", "undefined") else label
            kind, ended = title.partition(":")[2], max(ended, created) if ended > 0 else 0
            yield Recent(label[:_WORD], kind[:_WORD], sequence, created, ended, at in undone)


def _is_number(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and 0 <= value <= _LARGEST


class _Data:
    def find_class(self, module: str, name: str) -> NoReturn:
        raise ValueError(f"it names {module}.{name}{_NO_CODE}")


class _Unpickler(_Data, pickle.Unpickler):
    pass


class _SlowUnpickler(_Data, pickle._Unpickler):
    pass


def unpickled(data: bytes) -> tuple[object, str]:
    """Return what a pickle holds, made of plain data; of a dump that breaks off, its whole entries, and why it does.

    Raises ValueError, with the reason, for a pickle that is broken, or names anything to import. A hostile one can
    still ask for memory or time without end: call this in a process that has limits.
    """
    try:
        return _Unpickler(BufferedReader(BytesIO(data), _AHEAD)).load(), ""
    except MemoryError:
        raise
    except Exception as error:  # on broken data it raises nearly anything
        why = str(error) or type(error).__name__
    if not why.endswith(_NO_CODE) and (begun := _begun(data)):
        return begun, f"it breaks off: {why}"
    raise ValueError(why)


def _begun(data: bytes) -> dict[str, Any]:
    """Return the entries before a break; empty if there are none. Python's own unpickler tells where it is: on its
    stacks lie the items of what it has begun, and a dictionary stays empty until all of its items are read.
    """
    unpickler = _SlowUnpickler(BytesIO(data))
    with suppress(Exception):
        unpickler.load()
    begun = [*unpickler.metastack, unpickler.stack, []]  # type: ignore[attr-defined]
    for items, inner in zip(begun, begun[1:]):
        with suppress(TypeError):  # what cannot be a key
            found = dict(zip(items[::2], items[1::2]))
            if isinstance(entries := found.get("entries"), list):
                found["entries"] = entries + [one for one in inner if one and items[-2] == "entries"]
                return found if found["entries"] else {}
    return {}


def _json(data: bytes) -> tuple[object, str]:
    text = data.decode(errors="replace")
    try:
        return json.loads(text), ""
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except ValueError as error:
        start, entries = re.search(r'"entries"\s*:\s*\[', text), list[Any]()
        with suppress(ValueError, RecursionError):
            entries.extend(documents(text, start.end() if start else len(text)))
        if not entries:
            raise
        return {"entries": entries}, f"it breaks off: {error}"


class _Row(NamedTuple):
    """An entry, as far as its place is concerned."""

    at: int
    group: str
    p2p: bool
    sequence: int
    kind: str
    done: bool
    begun: bool = False  # whether a device is in it: torch tells it where it times them

    @property
    def batch(self) -> tuple[str, bool, int]:
        """What it has in common with the other members of a batch, and with the entry that closes it."""
        return self.group, self.p2p, self.sequence


class _Scan:
    """What one pass over all entries leaves."""

    def __init__(self, entries: list[Any]) -> None:
        self.unread = 0
        self.rows: list[_Row] = []  # those that their own state does not call done, and all that close a batch
        self.peers: set[tuple[str, str]] = set()  # each group, and each title in it that names two ranks
        self.newest: dict[str, int] = {}  # the number of the newest collective of each group
        self.ids: dict[str, object] = {}  # what this rank's process calls each group
        self.device = True  # whether a device runs the operations, apart from the host
        before = self.newest.get
        done: dict[tuple[str, str], tuple[int, str, bool, int, str, bool]] = {}
        for index, entry in enumerate(entries):  # what is common comes first: a job has millions of entries
            try:
                title = entry["profiling_name"]
                gloo, kind = _titled(title)
                group, p2p = entry["process_group"][0], entry["is_p2p"] is True
                sequence = entry["p2p_seq_id" if p2p else "collective_seq_id"]
                if sequence.__class__ is not int:
                    raise TypeError
                if p2p or sequence - 1 != before(group):
                    if not isinstance(group, str) or not -_LARGEST <= sequence <= _LARGEST:  # torch's cannot be so
                        raise TypeError
                    self.ids.setdefault(group, entry.get("pg_id"))
                if p2p:
                    self.peers.add((group, title))
                else:
                    self.newest[group] = sequence
                # gloo's stay `scheduled` for ever. One of NCCL's that is retired and not completed has timed out.
                over = entry["retired"] is True if gloo else entry["state"] == "completed"
                self.device = self.device and not gloo
                if kind != "coalesced" and over:
                    done[group, kind] = (index, group, p2p, sequence, kind, True)
                else:
                    self.rows.append(_Row(index, group, p2p, sequence, kind, over, entry["state"] == "started"))
            except (LookupError, TypeError, ValueError, AttributeError, OverflowError):
                self.unread += 1
        self.done = {key: _Row(*row) for key, row in done.items()}
        """The newest one of each kind in each group that its own state calls done."""


@lru_cache(1 << 12)
def _titled(title: str) -> tuple[bool, str]:
    """Return whether gloo is the backend, and the kind, of a title such as ``nccl:send 0->1``."""
    match = _TITLE.match(title)
    return (match[1] == "gloo", kind_of(match[2][:_LONGEST_TEXT])) if match else (False, _text(title))


def _settled(scan: _Scan) -> tuple[list[_Row], list[_Row], set[int]]:
    """Return the oldest entries of each group that are not done, its newest ones that are, and where all undone are.

    The state of a member of a batch is never updated: it has that of the entry that closes the batch, which is left
    out. A dump of the active entries only has no closing entries of batches that are done, so members without one are
    done too: https://github.com/pytorch/pytorch/issues/137969.
    """
    ends = [row for row in scan.rows if row.kind == "coalesced"]
    members = Counter(row.batch for row in scan.rows if row.kind != "coalesced")
    closing = {row.batch: row for row in ends}
    batched = {batch[:2] for batch, number in members.items() if batch[1] and (number > 1 or batch in closing)}
    settled = [row for row in ends if row.batch not in members]
    for row in (row for row in scan.rows if row.kind != "coalesced"):
        is_over = members[row.batch] > 1 or row.batch[:2] in batched
        end = closing.get(row.batch, row._replace(done=is_over))
        settled.append(row._replace(done=end.done, begun=end.begun))
    last = dict(scan.done)
    kept: Counter[str] = Counter()
    newest: dict[str, tuple[str, bool, int]] = {}
    waiting: list[_Row] = []
    for row in sorted(settled):
        if row.done:
            last[row.group, row.kind] = max(row, last.get((row.group, row.kind), row))
        elif kept[row.group] < KEPT or (row.p2p and row.batch == newest[row.group] and kept[row.group] < _WIDEST_BATCH):
            kept[row.group] += 1
            newest[row.group] = row.batch
            waiting.append(row)
    return waiting, sorted(last.values()), {row.at for row in (*settled, *ends) if not row.done}


def _moves(entries: list[Any], groups: dict[str, Group], undone: Collection[int]) -> Iterator[Move]:
    """Yield the newest operations in order. That the record begins with them stands there as a collective of nobody."""
    start = max(len(entries) - _MOVES, 0)
    if not start and entries[0].get("record_id") == 0:
        yield Move("", "", 0, done=True)
    for at in range(start, len(entries)):
        with suppress(LookupError, TypeError, ValueError, AttributeError):
            entry = entries[at]
            name, title, done = entry["process_group"][0], entry["profiling_name"], at not in undone
            if entry["is_p2p"] is not True:
                yield Move(name, "", entry["collective_seq_id"], done)
            elif (peer := _end(groups.get(name), title, 4)) is not None:
                yield Move(name, _titled(title)[1], peer, done, entry.get("op_id", 0))


def _counts(raw: Mapping[str, Any], groups: dict[str, Group], scan: _Scan, waiting: list[_Row]) -> dict[str, Count]:
    """Return how far the rank is in each group, by its entries and by the recorder's own status of it."""
    told = _status(raw.get("pg_status"), groups, scan)
    paired = {group for group, _ in scan.peers}
    over = {row.group: row.sequence for row in sorted(scan.done.values()) if not row.p2p}
    pending = {row.group: row.sequence for row in reversed(waiting) if not row.p2p}  # the oldest
    found = {}
    for group in dict.fromkeys([*told, *scan.newest]):
        said = told.get(group, {})
        enqueued, completed = (_count(said.get(f"last_{what}_collective")) for what in ("enqueued", "completed"))
        if scan.device and enqueued > 0 and "last_completed_collective" in said:
            completed = max(completed, 0)  # torch says -1 of a group in which nothing is done yet
        # a status may be older than the entries, or count what is over since it timed out
        completed = min(max(completed, over.get(group, -1)), pending.get(group, _LARGEST) - 1)
        if group not in paired:
            if not scan.device and group in scan.newest:  # gloo counts sends and receives too, and has no entry of them
                enqueued = -1
            enqueued = max(enqueued, scan.newest.get(group, -1))
        found[_text(group)] = Count(enqueued, completed, group not in paired, scan.device)
    return found


def _status(status: object, groups: dict[str, Group], scan: _Scan) -> dict[str, dict[str, object]]:
    """Return the recorder's own status of each group, by name; it has the numbers that the process gives its groups.

    Entries say both. For groups without one: names and numbers ascend together, if there are as many of each.
    """
    by_id = {str(key): one for key, one in status.items() if isinstance(one, dict)} if isinstance(status, dict) else {}
    names = {str(number): group for group, number in scan.ids.items()}
    if len(by_id) == len(groups) and all(_count(one) >= 0 for one in (*by_id, *groups)):
        ascending = dict(zip(sorted(by_id, key=int), sorted(groups, key=int)))
        if all(ascending.get(key, name) == name for key, name in names.items()):
            names = ascending
    return {name: by_id[key] for key, name in names.items() if key in by_id}


def _count(value: object) -> int:
    """Return a count, which JSON has as a text; -1 for none."""
    if isinstance(value, str) and len(value) < 18 and value.isascii() and value.isdecimal():
        value = int(value)
    return value if _is_number(value) else -1


def _members(ranks: object) -> tuple[int, ...]:
    """Return the members of a group, which torch writes as the text ``[0, 1]``."""
    with suppress(ValueError, RecursionError):
        listed = json.loads(ranks) if isinstance(ranks, str) else ranks
        if isinstance(listed, list):
            return tuple(sorted({rank for rank in listed if rank.__class__ is int and 0 <= rank < _MOST_RANKS}))
    return ()


def _description(text: object) -> str:
    return "" if text == "undefined" else _text(text)


def _rank(scan: _Scan, groups: dict[str, Group], named: int | None) -> int:
    """Return whose dump it is, or -1: by its sends and receives, else by its groups, else by its file's name."""
    ends = (_end(groups.get(group), title, 3) for group, title in scan.peers)
    selves = {end for end in ends if end is not None}
    listed = [set(group.members) for group in groups.values() if group.members]
    within = set.intersection(*listed) if listed else None
    for found in (selves, within or set()):
        if len(found) == 1 and (within is None or found <= within):
            return next(iter(found))
    return named if named is not None and (within is None or named in within) else -1


def _end(group: Group | None, title: str, end: int) -> int | None:
    """Return the global rank of one end of ``nccl:recv 0<-1``: 3, the rank itself, or 4, its peer."""
    match = _TITLE.match(title)
    if match is None or match[3] is None or group is None:
        return None
    number = int(match[end])
    return group.members[number] if number < len(group.members) else None


def _operation(
    entries: list[Any], groups: Mapping[str, Group], rank: int, name: str, row: _Row, *, done: bool
) -> Operation:
    entry = entries[row.at]
    group = groups.get(row.group) or Group(_text(row.group), _description(entry["process_group"][-1]))
    inputs, outputs = (_sizes(entry.get(f"{what}_sizes")) for what in ("input", "output"))
    types, frames = entry.get("input_dtypes"), entry.get("frames")
    dtypes = tuple(map(_text, types)) if isinstance(types, list) else None
    frames = tuple(map(_frame, frames[:_MOST_FRAMES])) if isinstance(frames, list) else ()
    elements = None if inputs is None else min(sum(map(prod, inputs)), _LARGEST)
    source, peer = f"{name}: entry {_text(entry.get('record_id', row.at))}", _end(group, entry["profiling_name"], 4)
    return Operation(
        rank, group, row.sequence, row.kind, inputs, outputs, dtypes, elements, done, frames, source, peer, row.begun
    )


_line = lru_cache(1 << 12)(gate.line)  # the frames of a job's dumps are mostly the same


def _text(value: object) -> str:
    """Return a text that can be shown: control characters are escaped, what is very long is cut."""
    return _line(str(value)[:_LONGEST_TEXT]) if isinstance(value, str) or _is_number(value) else ""


def _frame(value: object) -> Frame:
    raw = value if isinstance(value, dict) else {}
    name, file, line = raw.get("name"), raw.get("filename"), raw.get("line")
    return Frame(_text(name), _text(file), line if _is_number(line) else 0)


def _sizes(value: object) -> tuple[tuple[int, ...], ...] | None:
    if not isinstance(value, list) or not all(isinstance(one, list) and all(map(_is_number, one)) for one in value):
        return None
    return tuple(map(tuple, value))
