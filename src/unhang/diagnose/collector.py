"""What the ranks of this node are at: stacks and NCCL's RAS, twice, and the recorder's dumps.

This file is all that a node of a job is sent. Any Python from 3.8 on runs it, with the standard library alone. It
changes nothing of the job, ends by itself, and what it takes is bounded. That goes to stdout, each file as a line
`@unhang begin NAME`, lines of base64 of zlib, and one at the end: launchers put labels and other text between them.
"""

from __future__ import annotations

import base64
import json
import mmap
import os
import re
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, NamedTuple

APART_S = 30.0  # so far apart are the two stacks of a rank
MARK = "@unhang"
OTHERS = "its ranks are of other jobs"
LARGEST_STACK, LARGEST_RAS, LARGEST_DUMP = 4 << 20, 32 << 20, 256 << 20
_PROC = "/proc"
_PY_SPY_S, _DUMP_S, _RAS_S = 20, 15, 12
_STACKS_S, _DUMPS_S = 60, 80  # of all ranks here
_LONGEST_S = 240  # all in all, but for the time between the stacks
_AT_ONCE = 8
_WIDEST = 1024  # ranks of a node
_LINE = 380  # bytes a line, which become 508 characters: srun cuts lines of a thousand

# How launchers tell a process its rank, and how many there are: torchrun and Ray, mpirun, srun.
_RANKS = {"RANK": "WORLD_SIZE", "OMPI_COMM_WORLD_RANK": "OMPI_COMM_WORLD_SIZE", "SLURM_PROCID": "SLURM_NTASKS"}


class Process(NamedTuple):
    """A process of this node."""

    pid: int
    parent: int
    environment: Mapping[str, str]
    torch: bool  # whether it has loaded torch
    readable: bool = True  # whether its environment of now could be read, and not only that with which it was started
    began: int = 0
    network: str = ""  # the namespace in which its addresses hold


class Found(NamedTuple):
    """A rank of this node."""

    rank: int
    pid: int
    world: str  # where its ranks meet: of two jobs on a node, each has a rank 0


def ranks(processes: Collection[Process]) -> tuple[Found, ...]:
    """Return the ranks among the processes of a node, in ascending order; of two processes of one rank the older one.

    A launcher is none, even with a rank in its environment, nor what a rank has started itself, as a loader's worker.
    """
    by_pid = {process.pid: process for process in processes}
    ranked = {process.pid: process for process in processes if process.torch and _rank(process)[1] >= 0}
    above = {pid: [one for one in _above(process, by_pid) if one.pid in ranked] for pid, process in ranked.items()}
    launchers = {
        one.pid
        for pid, process in ranked.items()
        for one in above[pid]
        if _launches(one, process) and process not in above[one.pid]
    }
    local = {(_world(process), process.network) for process in ranked.values() if _is_local(process)}
    found: dict[tuple[str, int], Found] = {}
    for pid, process in sorted(ranked.items(), key=lambda item: (item[1].began, item[0])):
        rank = _rank(process)[1]
        if pid not in launchers and rank not in (_rank(one)[1] for one in above[pid] if one.pid not in launchers):
            world = _world(process)
            if _is_local(process) and sum(name == world for name, _ in local) > 1:
                world += f"_{process.network}"
            found.setdefault((world, rank), Found(rank, pid, world))
    return tuple(sorted(found.values()))


def _launches(above: Process, below: Process) -> bool:
    """Return whether a process with a rank is no rank but the launcher of one, as torchrun is in a pod with a RANK."""
    if "TORCHELASTIC_RUN_ID" in above.environment:
        return False
    is_another = "LOCAL_RANK" not in above.environment and _rank(above) != _rank(below)
    return is_another or "TORCHELASTIC_RUN_ID" in below.environment


def _is_local(process: Process) -> bool:
    """Return whether the ranks of its job meet at an address that another container has too."""
    return bool(re.match(r"localhost$|127\.|::1$", process.environment.get("MASTER_ADDR", "")))


def _world(process: Process) -> str:
    """Return a name of the job of a rank, made of letters, digits and `_`."""
    of = process.environment.get
    parts = [of("MASTER_ADDR", ""), of("MASTER_PORT", "")]
    if not any(parts):
        parts = [of("PMIX_NAMESPACE") or of("SLURM_JOB_ID", ""), of("SLURM_STEP_ID", "")]
    return name_of("_".join(parts))


def name_of(job: str) -> str:
    """Return how a job is called, given where its ranks meet, such as ``127.0.0.1:29500``."""
    return re.sub(r"[^A-Za-z0-9]", "_", job)[:80]


def processes() -> Iterator[Process]:
    """Yield the processes that this user may look at; none where there is no /proc."""
    for pid in map(int, filter(str.isdecimal, os.listdir(_PROC) if os.path.isdir(_PROC) else ())):
        try:
            status = _status(pid)
            told = _parts(_read(f"{_PROC}/{pid}/environ"))
            torch = b"/libtorch" in _read(f"{_PROC}/{pid}/maps")
        except (OSError, ValueError, IndexError):  # it has ended, or is another user's
            continue
        present, network = {}, ""
        with suppress(OSError):
            present = _present(pid) if torch else {}
            network = re.sub(r"\D", "", os.readlink(f"{_PROC}/{pid}/ns/net"))
        readable = bool(present) or not torch
        yield Process(pid, int(status[1]), {**told, **present}, torch, readable, int(status[19]), network)


def number(process: Process, name: str) -> int:
    """Return a number of a process's environment, or -1."""
    value = process.environment.get(name, "")
    return int(value) if value.isascii() and value.isdecimal() and len(value) < 8 else -1


def _rank(process: Process) -> tuple[str, int]:
    """Return the variable that says a process's rank, and the rank; -1 without one."""
    return next(((name, rank) for name in _RANKS if (rank := number(process, name)) >= 0), ("", -1))


def _above(process: Process, by_pid: Mapping[int, Process]) -> Iterator[Process]:
    """Yield the processes above one. A number that is taken again while we look may make a circle of them."""
    seen = {process.pid}
    while (process := by_pid.get(process.parent, process)).pid not in seen:
        seen.add(process.pid)
        yield process


def _status(pid: int | str) -> list[str]:
    """Return the fields of a process's status from its state on; of a thread's, given PID/task/TID."""
    return _read(f"{_PROC}/{pid}/stat").rpartition(b")")[2].decode().split()


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _parts(block: bytes) -> dict[str, str]:
    parts = (part.partition("=") for part in os.fsdecode(block).split("\0"))
    return {name: value for name, equals, value in parts if equals}


_STARTED = re.compile(r"(?m)^ {4}(?:\w+\.)?run \(multiprocessing/process\.py:\d+\)$")
_FRAME = re.compile(r"(?m)^ {4}(?=\S)")
_SPAWNED = re.compile(r"(?s)_wrap \(torch/multiprocessing/spawn\.py:.*?\n +i: (\d{1,7})\n")
_GIVEN = re.compile(r"(?m)^ +(?:global_)?(rank|world_?size|nprocs): (\d{1,7})$")


def told_by_arguments(found: Sequence[Process]) -> tuple[Process, ...]:
    """Return processes, and what multiprocessing has given a rank, by py-spy, as if that were in its environment."""
    by_pid = {one.pid: one for one in found}
    started = [one for one in found if one.torch and one.parent in by_pid and by_pid[one.parent].torch]
    asked = [one for one in started if all(_rank(it)[1] < 0 for it in (one, *_above(one, by_pid)))]
    program, until = py_spy(asked[0].pid) if asked else None, time.monotonic() + _PY_SPY_S
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        spied = pool.map(lambda one: dump(program or "", one.pid, until, "--locals")[0], asked if program else ())
        told = {one.pid: _arguments(text.decode(errors="replace"), one) for one, text in zip(asked, spied)}
    return tuple(one._replace(environment={**one.environment, **told.get(one.pid, {})}) for one in found)


def _arguments(text: str, process: Process) -> dict[str, str]:
    """Return what the arguments in py-spy's stacks say of a rank, as torchrun names it; empty if it is none."""
    inner, *outer = _STARTED.split(text.partition('"MainThread"\n')[2].partition("\nThread ")[0], maxsplit=1)
    _, *frames = _FRAME.split(inner) if outer else ("",)
    spawned = _SPAWNED.match(frames.pop()) if frames and frames[-1].startswith("_wrap (torch/") else None
    given = dict(_GIVEN.findall(frames[-1])) if frames else {}
    if not spawned and "rank" not in given:
        return {}
    address = process.environment.get("MASTER_ADDR", "")
    if address and "rank" not in given and not _is_local(process):  # each node counts from 0
        address += f"_{socket.gethostname()}"
    rank = given.pop("rank", "") or spawned[1]  # type: ignore[index]  # there is one of the two
    size = next(iter(given.values()), process.environment.get("WORLD_SIZE", ""))
    return {"RANK": rank, "WORLD_SIZE": size, "MASTER_ADDR": address or f"pid{process.parent}"}


# /proc/PID/environ has what a process was started with. Ray's workers get their rank in os.environ, once they run, and
# write their title over what /proc shows. The C library's variable `environ` has all of it, in memory.


def _present(pid: int) -> dict[str, str]:
    """Return the environment of a process as os.environ has made it; empty where its memory may not be read."""
    with suppress(OSError, ValueError, struct.error), open(f"{_PROC}/{pid}/mem", "rb", buffering=0) as memory:
        for address in _environ_addresses(pid):
            (place,) = struct.unpack("<Q", os.pread(memory.fileno(), 8, address))
            block = os.pread(memory.fileno(), 1 << 15, place) if place else b""
            texts = []
            for (pointer,) in struct.iter_unpack("<Q", block[: len(block) & ~7]):
                if not pointer:
                    break
                with suppress(OSError, OverflowError):
                    texts.append(os.pread(memory.fileno(), 1 << 12, pointer).partition(b"\0")[0])
            if found := _parts(b"\0".join(texts)):
                return found
    return {}


def _environ_addresses(pid: int) -> Iterator[int]:
    """Yield where a process may have its variable `environ`: in the program itself, else in the C library."""
    images: dict[str, int] = {}
    for line in os.fsdecode(_read(f"{_PROC}/{pid}/maps")).splitlines():
        fields = line.split(None, 5)
        if len(fields) == 6 and fields[2] == "00000000":
            images.setdefault(fields[5], int(fields[0].partition("-")[0], 16))
    program = os.readlink(f"{_PROC}/{pid}/exe")
    for path in (program, *(path for path in images if re.match(r"(libc[.-]|ld-musl)", os.path.basename(path)))):
        if path in images:
            with suppress(OSError, ValueError, struct.error):
                yield from _symbol(f"{_PROC}/{pid}/root{path}", images[path])


def _symbol(path: str, start: int) -> Iterator[int]:
    """Yield the addresses of `environ` in a 64-bit ELF file that is mapped from there on."""
    plain = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe may have its name by now
    with os.fdopen(plain, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as image:
        if image[:6] != b"\x7fELF\2\1":
            return
        kind, sections, size, count = struct.unpack_from("<H22xQ10xHH", image, 16)
        headers = [struct.unpack_from("<IIQQQQIIQQ", image, sections + size * index) for index in range(count)]
        for _, section, _, _, offset, length, link, *_ in headers:
            if section != 11:  # the symbols that a dynamic linker sees
                continue
            names = headers[link][4]
            for name, _, _, within, value, _ in struct.iter_unpack("<IBBHQQ", image[offset : offset + length]):
                if within and image[names + name : names + name + 8] == b"environ\0":
                    yield value + (start if kind == 3 else 0)


def py_spy(pid: int = 0) -> str | None:
    """Return the path of py-spy: on our PATH, beside our interpreter, or beside the torch of a rank, if it is ours."""
    places = [os.environ.get("PATH"), os.path.dirname(sys.executable)]
    with suppress(OSError):
        if pid and os.stat(f"{_PROC}/{pid}").st_uid == os.geteuid():  # root runs nothing of another user's
            maps = os.fsdecode(_read(f"{_PROC}/{pid}/maps"))
            torch = re.search(r" (/\S+)/lib(?:64)?/python3[.\d]*/\S+/libtorch", maps)
            # in a container, others may have files here that have its names
            if torch and os.path.samefile(f"{_PROC}/{pid}/root{torch[1]}/bin", f"{torch[1]}/bin"):
                places.append(f"{torch[1]}/bin")
    return next((path for place in places if place and (path := shutil.which("py-spy", path=place))), None)


def dump(program: str, pid: int, until: float = float("inf"), *options: str) -> tuple[bytes, str]:
    """Return the stacks of a process, or why there are none. It is not paused: a stopped one would go on after that."""
    command = [program, "dump", "--pid", str(pid), "--nonblocking", *options]
    why = ""
    for _ in range(3):  # one that is at work may change what is being read
        left = min(_PY_SPY_S, until - time.monotonic())
        if left <= 0:
            return b"", why or "no time was left for py-spy"
        try:
            done = subprocess.run(command, check=False, capture_output=True, stdin=subprocess.DEVNULL, timeout=left)
        except subprocess.TimeoutExpired:
            return b"", f"py-spy has not ended within {left:.0f} s"
        except OSError as error:
            return b"", str(error)
        if done.returncode == 0:
            return done.stdout[:LARGEST_STACK], ""
        said = done.stderr.decode(errors="replace").strip()
        why = said.partition("\n")[0] or f"exit code {done.returncode}"
        if re.search("ermission|not permitted", said):
            return b"", f"{why}; it needs root, or the capability SYS_PTRACE"
    return b"", why


def state_of(pid: int) -> str:
    """Return whether a process runs: `running`, `stopped` or `gone`."""
    try:
        state = _status(pid)[0]
    except (OSError, IndexError):
        return "gone"
    return {"T": "stopped", "t": "stopped", "Z": "gone", "X": "gone"}.get(state, "running")


def used(pid: int) -> tuple[float, float]:
    """Return the time, and the seconds of a CPU that the main thread of a process has used; NaN if it is gone."""
    with suppress(OSError, ValueError, IndexError):
        return time.monotonic(), sum(map(int, _status(f"{pid}/task/{pid}")[11:13])) / os.sysconf("SC_CLK_TCK")
    return time.monotonic(), float("nan")


def share(before: tuple[float, float], after: tuple[float, float]) -> float | None:
    """Return the share of a CPU that was used between two times; None if it is gone, or they are too close to tell."""
    apart, seconds = after[0] - before[0], after[1] - before[1]
    return round(seconds / apart, 3) if apart >= 1 and seconds >= 0 else None


def _pipe(rank: Found, process: Process) -> bool:
    """Ask a rank for its dump by the pipe that torch reads; return whether it was asked."""
    stem = process.environment.get("TORCH_NCCL_DEBUG_INFO_PIPE_FILE")
    path = _inside(rank.pid, f"{stem}{rank.rank}.pipe") if stem else ""
    # it cannot be opened where nobody reads it
    with suppress(OSError), os.fdopen(os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW), "wb", 0) as pipe:
        return stat.S_ISFIFO(os.fstat(pipe.fileno()).st_mode) and pipe.write(b"1") == 1
    return False


def _inside(pid: int, path: str) -> str:
    """Return a path of a process, which may be in a container, as we can open it."""
    return f"{_PROC}/{pid}/{'root' if path.startswith('/') else 'cwd/'}{path}"


def booted() -> float:
    """Return when this machine was started, in seconds since 1970: to that, the times of processes are relative."""
    found = re.search(rb"^btime (\d+)", _read(f"{_PROC}/stat"), re.MULTILINE)
    return float(found[1]) if found else 0.0


def _written(rank: Found, process: Process) -> tuple[int, int, str]:
    """Return when the newest dump that a rank has written was, its size and its path; zeros if there is none."""
    environment = process.environment
    cache = environment.get("XDG_CACHE_HOME") or f"{environment.get('HOME', '')}/.cache"
    stems = [environment.get(name) for name in ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")]
    stems += [f"{cache}/torch/comm_lib_trace_rank_", "/tmp/nccl_trace_rank_"]  # noqa: S108 - torch's own defaults
    started, found = booted() + process.began / os.sysconf("SC_CLK_TCK"), [(0, 0, "")]
    for stem in filter(None, stems):
        path = _inside(rank.pid, f"{stem}{rank.rank}")
        with suppress(OSError):
            status = os.lstat(path)
            if stat.S_ISREG(status.st_mode) and status.st_size and status.st_mtime >= started - 1:
                found.append((status.st_mtime_ns, status.st_size, path))
    return max(found)


def _dump_file(path: str) -> bytes:
    """Return a dump; empty for a file that is none. A link in its place is not followed."""
    with suppress(OSError), os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
        head = file.read(1)
        return head + file.read(LARGEST_DUMP) if head in (b"\x80", b"{") else b""
    return b""


def _dumps(found: Collection[Found], by_pid: Mapping[int, Process]) -> bool:
    """Ask the ranks for their dumps, and send what there is; return whether there was time for all."""
    until = time.monotonic() + _DUMPS_S
    running = [one for one in found if state_of(one.pid) == "running"]
    before = {one: _written(one, by_pid[one.pid]) for one in running}
    asked = [one for one in running if _pipe(one, by_pid[one.pid])]
    ready = time.monotonic() + _DUMP_S
    last: dict[Found, tuple[int, int, str]] = {}
    if asked:
        _say("step", f"waiting for the dumps of {len(asked)} ranks")
    while asked and time.monotonic() < ready:
        time.sleep(0.5)
        now = {one: _written(one, by_pid[one.pid]) for one in asked}
        if now == last and all(now[one][0] > before[one][0] for one in asked):  # all are there, and grow no more
            break
        last = now
    for one in found:
        if time.monotonic() > until:
            return False
        if data := _dump_file(_written(one, by_pid[one.pid])[2]):
            _send(f"{one.world}/dumps/rank_{one.rank}", data)
    return True


def ras(address: str) -> bytes:
    """Return what NCCL's RAS says at an address, as JSON from 2.28.7 on; empty if nothing answers there in time."""
    host, _, port = address.rpartition(":")
    said, until = b"", time.monotonic() + _RAS_S
    with suppress(OSError, ValueError), socket.create_connection((host.strip("[]"), int(port)), _RAS_S) as line:
        line.sendall(b"CLIENT PROTOCOL 2\nTIMEOUT 5\nSET FORMAT json\nVERBOSE STATUS\n")
        while len(said) < LARGEST_RAS and (left := until - time.monotonic()) > 0:
            line.settimeout(left)
            if not (part := line.recv(1 << 16)):
                break
            said += part
    return said if (said.startswith(b"SERVER PROTOCOL") and b"\n{" in said) or b"Communicators" in said else b""


def asked(found: Collection[Found], by_pid: Mapping[int, Process]) -> dict[str, bytes]:
    """Return what RAS says of each job here: several share one port, so that it has to name a rank of the job then."""
    jobs: dict[str, tuple[str, dict[int, int]]] = {}
    for one in found:
        with suppress(OSError):  # it has ended meanwhile
            # in another container's network it cannot be reached
            if by_pid[one.pid].network == re.sub(r"\D", "", os.readlink(f"{_PROC}/self/ns/net")):
                inside = re.search(rb"(?m)^NSpid:.*?(\d+)$", _read(f"{_PROC}/{one.pid}/status"))
                address = by_pid[one.pid].environment.get("NCCL_RAS_ADDR") or "localhost:28028"
                jobs.setdefault(one.world, (address, {}))[1][int(inside[1]) if inside else one.pid] = one.rank
    told = {}
    for world, (address, pids) in jobs.items():
        head = "".join(f"RAS of rank {rank}, process {pid}\n" for pid, rank in pids.items()).encode()
        said = ras(address)
        if said and (len(jobs) == 1 or any(re.search(rf'(?:process|"pid":) {it}\b'.encode(), said) for it in pids)):
            told[world] = head + said
    return told


def _say(kind: str, text: str = "") -> None:
    print(f"{MARK} {kind} {text}".rstrip(), flush=True)


def _send(name: str, data: bytes) -> None:
    packed = zlib.compress(data, 6)
    _say("begin", name)
    for at in range(0, len(packed), _LINE):
        _say("data", base64.b64encode(packed[at : at + _LINE]).decode())
    _say("end")


def census(here: Mapping[Found, Mapping[str, object]], by_pid: Mapping[int, Process], notes: Sequence[str]) -> bytes:
    """Return what is known of the ranks of one job on this node, given what was seen of those that are found."""
    rows: list[dict[str, object]] = [{"rank": one.rank, "pid": one.pid, **seen} for one, seen in here.items()]
    started: set[int] = set()
    for one in here:  # torchrun numbers the ranks of a node in a row, and mpirun may deal them out in turn
        node, local, size = (number(by_pid[one.pid], it) for it in ("GROUP_RANK", "LOCAL_WORLD_SIZE", "WORLD_SIZE"))
        if 0 < local <= _WIDEST and one.rank // local == node and (node + 1) * local <= size:
            started.update(range(node * local, (node + 1) * local))
    rows += [{"rank": rank, "state": "gone"} for rank in sorted(started - {one.rank for one in here})]
    size = max(number(by_pid[one.pid], _RANKS[_rank(by_pid[one.pid])[0]]) for one in here)
    table = {"unhang-live": 1, "node": socket.gethostname(), "size": size, "ranks": rows, "notes": [*notes]}
    return json.dumps(table).encode()


def main(apart: float, job: str = "", slurm: str = "") -> None:
    """Take what the ranks of this node are at, and send it; of a job and of a Slurm job, if they are named."""
    began = time.monotonic()
    signal.alarm(int(apart + _LONGEST_S))  # it ends this process then, whatever hangs in it
    of_job = told_by_arguments([one for one in processes() if slurm in ("", one.environment.get("SLURM_JOB_ID"))])
    by_pid = {process.pid: process for process in of_job}
    everyone = ranks(of_job)
    found = tuple(one for one in everyone if job in ("", one.world))
    notes = [
        f"process {one.pid} has loaded torch, and whether it is a rank cannot be told: its memory may not be read"
        for one in of_job
        if one.torch and not one.readable and _rank(one)[1] < 0
    ]
    if found:
        _take(found, by_pid, began + apart, notes)
    else:
        others = [f"{OTHERS}: {', '.join(sorted({one.world for one in everyone}))}"] if everyone else []
        for note in (*notes[:20], *others):
            _say("note", note)
    _say("done")


def _take(found: Sequence[Found], by_pid: Mapping[int, Process], again: float, notes: list[str]) -> None:
    """Take what these ranks are at, now and at a second time, and send it."""
    pids = [one.pid for one in found]
    program, states = py_spy(pids[0]), {pid: state_of(pid) for pid in pids}
    if program is None:
        notes.append("no stacks: py-spy is not on PATH, nor in the ranks' environment; do: pip install py-spy")
    _say("step", f"taking stacks of {len(found)} ranks")
    before, first = {pid: used(pid) for pid in pids}, _stacks(program, pids, "first", notes)
    answers = asked(found, by_pid)
    if not _dumps(found, by_pid):
        notes.append(f"not all dumps were sent within {_DUMPS_S} s")
    while (left := again - time.monotonic()) > 0:
        _say("step", f"taking the stacks again in {left:.0f} s")
        time.sleep(min(left, 5))
    after, second = {pid: used(pid) for pid in pids}, _stacks(program, pids, "second", notes)
    for world, said in (asked(found, by_pid) if answers else {}).items():
        answers[world] = answers.get(world, b"") + b"\n" + said
    for pid in pids:
        now = state_of(pid)
        states[pid] = "running" if now == "stopped" != states[pid] else now
    for world in sorted({one.world for one in found}):
        here: dict[Found, dict[str, object]] = {}
        for one in (one for one in found if one.world == world):
            here[one] = {"state": states[one.pid], "cpu": share(before[one.pid], after[one.pid])}
            if stacks := first.get(one.pid, b"") + second.get(one.pid, b""):
                _send(f"{world}/stacks/rank_{one.rank}.txt", stacks)
        if world in answers:
            _send(f"{world}/ras.txt", answers[world])
        _send(f"{world}/ranks.json", census(here, by_pid, notes[:100]))


def _stacks(program: str | None, pids: Sequence[int], which: str, notes: list[str]) -> dict[int, bytes]:
    """Return the stacks of the processes that are there, by pid; note why there are none of others."""
    alive = [pid for pid in pids if program and state_of(pid) != "gone"]
    until = time.monotonic() + _STACKS_S
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        taken = dict(zip(alive, pool.map(lambda pid: dump(program or "", pid, until), alive)))
    for why in sorted({why for _, why in taken.values() if why}):
        of = ", ".join(str(pid) for pid in alive if taken[pid][1] == why)
        notes.append(f"no stacks, the {which} time, of process {of}: {why}")
    return {pid: stacks for pid, (stacks, _) in taken.items()}


def on_ray(address: str, limit: float, command: Sequence[str]) -> None:
    """Print what a command prints on each node of a Ray cluster, with a label before each line, once it has ended."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    def take(words: Sequence[str], seconds: float) -> bytes:
        path = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)])
        ended = subprocess.run(
            words, check=False, capture_output=True, stdin=subprocess.DEVNULL, timeout=seconds,
            env={**os.environ, "PATH": path},
        )  # fmt: skip
        return ended.stdout + ended.stderr[-2_000:]

    try:
        ray.init(address, log_to_driver=False, logging_level=40)
    except Exception as error:
        why = error.__cause__ or error  # such as a token that is missing
        sys.exit(" ".join(f"{type(why).__name__}: {why}".split())[:400])
    remote = ray.remote(num_cpus=0, max_retries=0)(take)
    waiting: dict[Any, str] = {}
    for node in ray.nodes():  # type: ignore[no-untyped-call,unused-ignore]
        name = f"{node['NodeManagerAddress']}-{node['NodeID'][:8]}"
        if node["Alive"]:
            where = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            waiting[remote.options(scheduling_strategy=where).remote(command, limit)] = name
        else:
            _labelled(name, b"@unhang note Ray says that this node is gone")
    _say("nodes", str(len(waiting)))
    while waiting:
        for done in ray.wait(list(waiting))[0]:
            name = waiting.pop(done)
            try:
                _labelled(name, ray.get(done))
            except Exception as error:
                _labelled(name, f"@unhang note {type(error).__name__}: {error}".partition("\n")[0].encode())


def _labelled(name: str, text: bytes) -> None:
    for line in text.splitlines():
        sys.stdout.buffer.write(f"{name}: ".encode() + line + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    if sys.argv[1] == "ray":
        on_ray(sys.argv[2], float(sys.argv[3]), sys.argv[4:])
    else:
        main(float(sys.argv[1]), *sys.argv[2:])
