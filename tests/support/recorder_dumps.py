"""Made-up dumps of torch's flight recorder, as torch writes them: pickles and JSON, each format from 2.4 to 2.10."""

import json
import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

FORMATS = tuple(f"2.{minor}" for minor in range(4, 11))
FRAMES = (
    ("all_reduce", "/env/torch/distributed/distributed_c10d.py", 2810),
    ("wrapper", "/env/torch/distributed/c10d_logger.py", 81),
    ("step", "/job/train.py", 12),
    ("<module>", "/job/train.py", 40),
)


def entry(number: int, title: str = "nccl:all_reduce", **more: Any) -> dict[str, Any]:
    """Return an entry that is done; ``more`` says what differs: ``state``, ``seq``, ``group``, ``sizes``, ..."""
    name, description = more.get("group", ("0", "default_pg"))
    frames: Sequence[tuple[str, str, int]] | None = more.get("frames", FRAMES)
    state, p2p = more.get("state", "completed"), more.get("p2p", False)
    sequence = more.get("seq", number + 1)
    sizes, dtypes = more.get("sizes", [[2]]), more.get("dtypes", ["Float"])
    made: dict[str, Any] = {}
    if frames is not None:
        made["frames"] = [{"name": name, "filename": file, "line": line} for name, file, line in frames]
    return made | {
        "record_id": number,
        "pg_id": int(name) if name.isdecimal() else 0,
        "process_group": (name, description),
        "thread_name": "pt_main",
        "thread_id": "140338316344192",
        "collective_seq_id": 0 if p2p else sequence,
        "p2p_seq_id": sequence if p2p else 0,
        "op_id": more.get("op", sequence),
        "profiling_name": title,
        "time_created_ns": 1_790_000_000_000_000_000 + number * 1000,
        "input_sizes": sizes,
        "input_dtypes": dtypes,
        "output_sizes": more.get("outputs", sizes),
        "output_dtypes": dtypes,
        "state": state,
        "time_discovered_started_ns": 1_790_000_000_000_000_100 if state != "scheduled" else None,
        "time_discovered_completed_ns": 1_790_000_000_000_000_200 if state == "completed" else None,
        "retired": more.get("retired", state == "completed"),
        "timeout_ms": 600_000,
        "is_p2p": p2p,
    }


def dump(
    entries: Sequence[Mapping[str, Any]],
    groups: Mapping[str, tuple[str, Sequence[int]]] = {"0": ("default_pg", (0, 1, 2, 3))},
    version: str = "2.10",
) -> dict[str, Any]:
    """Return a dump with the fields of that format; no groups stand for gloo."""
    minor = int(version.partition(".")[2])
    library = "comm_lib_version" if minor >= 10 else "nccl_version"
    threads = {"thread_id", "thread_name"} if minor < 9 else set()
    config = {name: {"name": name, "desc": text, "ranks": str(list(ranks))} for name, (text, ranks) in groups.items()}
    return {
        "version": version,
        "pg_config": config or {"": {"name": "", "desc": "", "ranks": "[]"}},
        **({library: "2.27.3"} if minor >= 5 else {}),
        "pg_status": {name: _status(name, entries) for name in config or ("0",)},
        "entries": [{key: value for key, value in one.items() if key not in threads} for one in entries],
    }


def _status(group: str, entries: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Return how far a rank is in a group."""
    own = [one for one in entries if one["process_group"][0] == group]
    done = [one for one in own if one["state"] == "completed"]
    enqueued, completed = (max((it["collective_seq_id"] for it in same), default=-1) for same in (own, done))
    return {"last_enqueued_collective": enqueued, "last_started_collective": -1, "last_completed_collective": completed}


def as_json(made: Mapping[str, Any]) -> bytes:
    """Return a dump as torch's JSON: no frames, 0 for no time, texts as status, no empty list of entries."""
    entries = [
        {key: 0 if value is None else value for key, value in one.items() if key != "frames"} for one in made["entries"]
    ]
    status = {name: {key: str(value) for key, value in one.items()} for name, one in made["pg_status"].items()}
    rest = {key: value for key, value in made.items() if key not in {"entries", "pg_status"}}
    whole = rest | {"pg_status": status} | ({"entries": entries} if entries else {})
    return json.dumps(whole, sort_keys=True, separators=(",", ":")).encode()


def as_pickle(value: object) -> bytes:
    """Return a value as torch's own pickler writes it: protocol 2, one memo for texts and for equal frames."""
    writer = _Writer()
    frames = (
        [tuple(f.values()) for e in value.get("entries", ()) for f in e.get("frames", ())]
        if isinstance(value, dict)
        else []
    )
    writer.shared = Counter(frames)
    writer.write(value)
    return b"\x80\x02" + bytes(writer.out) + b"."


class _Writer:
    def __init__(self) -> None:
        self.out = bytearray()
        self.memo: dict[object, int] = {}
        self.shared: Counter[tuple[object, ...]] = Counter()

    def write(self, value: object) -> None:
        if value is None or isinstance(value, bool):
            self.out += {None: b"N", True: b"\x88", False: b"\x89"}[value]
        elif isinstance(value, int):
            self._integer(value)
        elif isinstance(value, float):
            self.out += b"G" + struct.pack(">d", value)
        elif isinstance(value, str):
            if not self._known(value):
                text = value.encode()
                self.out += b"X" + struct.pack("<I", len(text)) + text
                self._keep(value)
        elif isinstance(value, tuple):
            for one in value:
                self.write(one)
            self.out += {1: b"\x85", 2: b"\x86", 3: b"\x87"}[len(value)]
        elif isinstance(value, list):
            self.out += b"]("
            for one in value:
                self.write(one)
            self.out += b"e"
        elif isinstance(value, dict):
            self._dictionary(value)
        else:
            raise TypeError(value)

    def _integer(self, value: int) -> None:
        if 0 <= value < 1 << 8:
            self.out += b"K" + bytes([value])
        elif 0 <= value < 1 << 16:
            self.out += b"M" + struct.pack("<H", value)
        elif -1 << 31 <= value < 1 << 31:
            self.out += b"J" + struct.pack("<i", value)
        else:
            self.out += b"\x8a\x08" + struct.pack("<q", value)

    def _dictionary(self, value: dict[str, object]) -> None:
        frame = tuple(value.values()) if "filename" in value else None
        if frame and self._known(frame):
            return
        self.out += b"}("
        for key, one in value.items():
            self.write(key)
            self.write(one)
        self.out += b"u"
        if frame and self.shared[frame] > 1:
            self._keep(frame)

    def _known(self, value: object) -> bool:
        number = self.memo.get(value)
        if number is not None:
            self.out += b"h" + bytes([number]) if number < 1 << 8 else b"j" + struct.pack("<I", number)
        return number is not None

    def _keep(self, value: object) -> None:
        number = self.memo[value] = len(self.memo)
        self.out += b"q" + bytes([number]) if number < 1 << 8 else b"r" + struct.pack("<I", number)
