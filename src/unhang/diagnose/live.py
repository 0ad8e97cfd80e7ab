"""Collect what a job that hangs now shows, from all its nodes, into a folder that can be diagnosed.

What comes back from a node is believed in nothing: names are of a few forms, sizes and times are bounded.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Lock, Timer
from typing import NamedTuple

from unhang import gate
from unhang.diagnose import collector
from unhang.diagnose.evidence import GONE
from unhang.diagnose.intake import states
from unhang.diagnose.job import Told
from unhang.errors import UnhangError
from unhang.tell.console import count
from unhang.tell.progress import Step

APART_S = collector.APART_S
_QUERY_S = 60
_LIMIT_S = 330  # for a node, beside the time between the stacks; the collector ends itself before
_AT_ONCE = 64
_LARGEST = 4 << 30  # bytes in all
_FILE = 4_096  # bytes on a disk, beside what is in it
_NOTES = 8 << 20  # bytes of a node's table
_SHOWN = 3
_EVERY, _CONTAINER = re.compile(r" (?:-A|--all-namespaces)\b"), re.compile(r" (?:-c[= ]?|--container[= ])(\S+)")
"""Options of kubectl's that `get` alone takes, or `exec` alone."""
_LINE = re.compile(rb"(?:([\w.:@/-]{1,100}): ?)?@unhang (begin|data|end|step|note|nodes|done)(?: (.*))?$")
_NAME = re.compile(
    r"(\w{1,101})/(ranks\.json|ras\.txt|stacks/rank_\d{1,7}\.txt|dumps/(?:(?!rank_)\w{1,40}/)?rank_\d{1,7}(?:\.json)?)",
    re.ASCII,
)
_ROOT = "/"
"""Each Python starts here, where only root writes; and with -I, so that it imports from its own environment alone."""
_SHELL = f"""\
cd {_ROOT}
for python in python3 python python3.13 python3.12 python3.11 python3.10 python3.9 python3.8; do
  "$python" -I -c 'import sys; sys.exit(sys.version_info < (3, 8))' 2>/dev/null && exec "$python" -I -c "$0" "$@"
done
echo 'no Python 3.8 or newer is on PATH'; exit 3"""


class Place(NamedTuple):
    """Where ranks are, and what collects there."""

    name: str
    command: tuple[str, ...]
    nodes: int = 1
    is_all: bool = True  # whether these are all nodes of the job
    cwd: str | None = None
    """Where the command runs; None: in our own working directory, as paths in kubectl's options are relative to it."""


class Collected(NamedTuple):
    """A job, and what was collected of it."""

    folder: Path
    ranks: int


def here(named: str = "") -> list[Place]:
    """Return this node."""
    command = (sys.executable, "-I", "-c", _boot(), str(APART_S), collector.name_of(named))
    return [Place("this node", command, is_all=False, cwd=_ROOT)]


def slurm(job: str, named: str = "") -> list[Place]:
    """Return the nodes of a Slurm job. Raises UnhangError ``no-nodes``."""
    if not re.fullmatch(r"\w[\w+]*", job):
        raise UnhangError("no-nodes", f"not the number of a job: {job}")
    said = _said(["squeue", "--noheader", "--jobs", job, "--format", "%A %D %T"])
    rows = [row.split() for row in said.splitlines() if row.strip()]
    running = re.findall(r"(?m)^ *(\d+) +(\d+) +(?:RUNNING|COMPLETING|SUSPENDED|STOPPED) *$", said)
    if len(running) != 1:
        what = f"it is {rows[0][2]}" if len(rows) == 1 and len(rows[0]) == 3 else f"squeue lists {len(rows)} jobs"
        raise UnhangError("no-nodes", f"Slurm's job {job} has no nodes that could be asked: {what}")
    number, nodes = running[0]
    command = (
        "srun", f"--jobid={number}", "--overlap", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1",
        "--cpu-bind=none", "--kill-on-bad-exit=0", "--input=none", "--label", *_remote(named, number),
    )  # fmt: skip
    return [Place(f"Slurm's job {number}", command, int(nodes))]


def kubectl(selector: str, named: str = "") -> list[Place]:
    """Return the pods that a selector names, behind which options of kubectl's may stand: ``job=x -n team``.

    Raises UnhangError ``no-nodes``.
    """
    every = ["-A"] if _EVERY.search(selector) else []
    container = ["-c", found[1]] if (found := _CONTAINER.search(selector)) else []
    try:
        label, *options = shlex.split(_EVERY.sub("", _CONTAINER.sub("", selector)))
    except ValueError:
        label, options = "", []
    if not label or label.startswith("-"):
        raise UnhangError("no-nodes", f"not a selector of pods: {selector}")
    said = _said(["kubectl", *options, *every, "get", "pods", "--selector", label, "--output", "json"])
    try:
        pods = [_pod(item) for item in json.loads(said)["items"]]
    except (ValueError, LookupError, TypeError, AttributeError):
        raise UnhangError("no-nodes", "kubectl's answer is not a list of pods") from None
    if not pods:
        raise UnhangError("no-nodes", f"kubectl knows no pod of {label}", hint="add its options, as in 'job=x -n team'")
    places = []
    for namespace, pod, why in pods:
        command = ("kubectl", *options, "exec", f"--namespace={namespace}", pod, *container, "--", *_remote(named))
        name = f"pod {namespace}/{pod}" if every else f"pod {pod}"
        places.append(Place(name, ("echo", f"{collector.MARK} note {why}") if why else command))
    return places


def _pod(item: Mapping[str, Mapping[str, object]]) -> tuple[str, str, str]:
    """Return the namespace and the name of a pod, and why nothing can be run in it, if so."""
    namespace, pod = str(item["metadata"]["namespace"]), str(item["metadata"]["name"])
    if not all(re.fullmatch(r"[a-z0-9][a-z0-9.-]{0,252}", name) for name in (namespace, pod)):
        raise ValueError(pod)
    phase = str(item["status"].get("phase"))
    reasons = set(re.findall(r"'reason': '(\w{1,40})'", str(item["status"].get("containerStatuses"))))
    return namespace, pod, "" if phase == "Running" else " ".join(["the pod is", phase, *sorted(reasons)])


def ray(address: str, python: str | None, named: str = "") -> list[Place]:
    """Return the nodes of a Ray cluster, which an interpreter that has Ray asks: this one, unless one is named."""
    asks = python or sys.executable
    if os.path.basename(asks) != asks:  # else a command on PATH
        asks = os.path.abspath(asks)
    limit = str(APART_S + _LIMIT_S - 30)
    # Ray puts the working directory on the path of its workers.
    return [Place("Ray", (asks, "-I", "-c", _boot(), "ray", address, limit, *_remote(named)), 0, cwd=_ROOT)]


def _said(command: Sequence[str]) -> str:
    """Return what a command says. Raises UnhangError ``no-nodes``."""
    try:
        done = subprocess.run(
            command, check=False, capture_output=True, stdin=subprocess.DEVNULL, timeout=_QUERY_S, env=_environment()
        )
    except FileNotFoundError:
        hint = "run this where the job was started from"
        raise UnhangError("no-nodes", f"{command[0]} is not on PATH", hint=hint) from None
    except subprocess.TimeoutExpired:
        raise UnhangError("no-nodes", f"{command[0]} has not answered within {_QUERY_S} s") from None
    if done.returncode != 0:  # kubectl logs each of its tries, and sums them up in its last line
        why = done.stderr.decode(errors="replace").strip().rpartition("\n")[2] or f"exit code {done.returncode}"
        raise UnhangError("no-nodes", f"{command[0]} has failed: {gate.line(why)}")
    return done.stdout.decode(errors="replace")


def _remote(named: str, *more: str) -> tuple[str, ...]:
    return ("sh", "-c", _SHELL, _boot(), str(APART_S), collector.name_of(named), *more)


def _boot() -> str:
    """Return a program of one line that is the collector."""
    packed = base64.b64encode(zlib.compress(Path(collector.__file__).read_bytes(), 9)).decode()
    return f"import base64,zlib;exec(zlib.decompress(base64.b64decode('{packed}')))"


def _environment() -> dict[str, str]:
    """Return our environment without what Slurm says of the job that we may be in ourselves."""
    return {name: value for name, value in os.environ.items() if not name.startswith("SLURM_") or name == "SLURM_CONF"}


def collect(places: Sequence[Place], folder: Path, step: Step) -> list[Collected]:
    """Collect from all places at once. Return the jobs, that with most running ranks first, each in its own folder.

    What went wrong is noted in the files. Raises UnhangError ``no-ranks``, and OSError if the folder is not writable.
    """
    inbox = _Inbox(folder, sum(place.nodes for place in places))
    step(lambda: f"{len(inbox.done)} of {count(inbox.nodes, 'node')} done; {inbox.step}")
    with ThreadPoolExecutor(min(_AT_ONCE, len(places))) as pool:
        try:
            list(pool.map(inbox.receive, places))
        except BaseException:  # also Ctrl-C: nothing is to run on
            inbox.end()
            raise
    if not inbox.told:
        raise _nobody(inbox.notes)
    # that a node has other jobs' ranks alone matters where no node has this one's
    notes = [note for note in inbox.notes if f": {collector.OTHERS}: " not in note]
    is_whole = not notes and len(inbox.done) >= inbox.nodes and all(place.is_all for place in places)
    jobs = []
    for world, told in inbox.told.items():
        size = max(one.size or 0 for one in told)
        parts = [part for one in told for part in one.parts]
        gone = sorted({*range(size)} - {part.rank for part in parts}) if is_whole else []
        rows = [{"rank": number, "state": GONE} for number in gone]
        if rows or notes:
            document = {"unhang-live": 1, "size": size, "ranks": rows, "notes": notes}
            (folder / world / "nodes.json").write_text(json.dumps(document), encoding="utf-8")
        jobs.append(Collected(folder / world, len({part.rank for part in parts if part.process != GONE})))
    return sorted(jobs, key=lambda one: (-one.ranks, one.folder))


def _nobody(notes: Sequence[str]) -> UnhangError:
    """Return the error ``no-ranks``: its message has the first of the notes, which are why, its hint what to do."""
    why = "; ".join([*notes[:_SHOWN], *([f"and {len(notes) - _SHOWN} more"] if len(notes) > _SHOWN else [])])
    what, hint = "has loaded torch and has a rank", "start it as the job's user, or as root, on a node of the job"
    if "No module named 'ray'" in why:
        hint = "name the Python of the job's own environment, which has Ray, with --python PY"
    elif f": {collector.OTHERS}: " in why:
        what, hint = "is a rank of that job", "name one of these with --master, or none"
    return UnhangError("no-ranks", f"no process was found that {what}{f': {why}' if why else ''}", hint=hint)


def _end(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
        Timer(5, process.kill).start()


class _Inbox:
    """The folder into which all nodes write."""

    def __init__(self, folder: Path, nodes: int) -> None:
        self._folder, self.nodes = folder, nodes
        self._lock, self._unpacking = Lock(), Lock()
        self._left = _LARGEST
        self._open: dict[tuple[str, str], tuple[re.Match[str], list[bytes]]] = {}
        """By place and node, the name and the lines of the file that is coming: one comes after the other."""
        self.done: set[tuple[str, str]] = set()
        self.step = "asking"
        self._running: set[subprocess.Popen[bytes]] = set()
        self._is_over = False
        self.notes: list[str] = []
        self.told: dict[str, list[Told]] = defaultdict(list)  # by job, what each node has told of its ranks

    def end(self) -> None:
        """End all that runs, and start nothing more."""
        with self._lock:
            self._is_over = True
            for process in self._running:
                _end(process)

    def receive(self, place: Place) -> None:
        """Take all that a place sends, until it ends or its time is over."""
        try:
            with self._lock:
                if self._is_over:
                    return
                process = subprocess.Popen(
                    place.command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                    start_new_session=True, env=_environment(), cwd=place.cwd,
                )  # fmt: skip
                self._running.add(process)
        except OSError as error:
            self.note(place.name, f"{place.command[0]}: {error.strerror}")
            return
        limit = APART_S + _LIMIT_S
        until = time.monotonic() + limit
        clock = Timer(limit, _end, [process])
        clock.daemon = True
        clock.start()
        said, finished = "", 0
        try:
            with process, process.stdout as lines:  # type: ignore[union-attr]  # it is a pipe
                for line in iter(lambda: lines.readline(1 << 16), b""):
                    found = _LINE.match(line.strip())
                    if found is None:
                        said = line.decode(errors="replace").strip() or said
                        continue
                    label = (found[1] or place.name.encode()).decode()
                    kind, text = found[2].decode(), (found[3] or b"")
                    if kind == "nodes" and place.nodes == 0 and not found[1]:
                        self.nodes += int(text) if re.fullmatch(rb"\d{1,5}", text) else 0
                    elif kind == "note":
                        self.note(label, text.decode(errors="replace"))
                    elif kind == "step":
                        self.step = text.decode(errors="replace")
                    elif kind == "done":
                        finished += 1
                        self.done.add((place.name, label))
                    else:
                        self._take((place.name, label), kind, text)
        finally:
            clock.cancel()
            with self._lock:
                self._running.discard(process)
            for key in [key for key in tuple(self._open) if key[0] == place.name]:
                self._refuse(key, "a file arrived incomplete")
        if time.monotonic() >= until:
            self.note(place.name, f"not everything arrived within {limit:.0f} s")
        elif finished < max(place.nodes, 1) and place.command[0] != "echo":
            self.note(place.name, f"not every node has answered ({finished} have): {said or 'it said nothing'}")

    def note(self, whose: str, text: str) -> None:
        with self._lock:
            if len(self.notes) < 100:
                self.notes.append(f"{whose}: {gate.line(text[:500])}")

    def _has_room(self, size: int) -> bool:
        with self._lock:
            if size > self._left:
                return False
            self._left -= size
            return True

    def _take(self, key: tuple[str, str], kind: str, text: bytes) -> None:
        """Take a line of a node's file."""
        name, lines = self._open.get(key, (None, []))
        if kind == "begin":
            if name:
                self._refuse(key, "a file arrived incomplete")
            found = _NAME.fullmatch(text.decode(errors="replace"))
            if found and self._has_room(_FILE):
                self._open[key] = found, []
            else:
                self.note(key[1], f"a file was refused: {text[:100].decode(errors='replace')}")
        elif name and kind == "data":
            lines.append(text)
            if not self._has_room(len(text)):
                self._refuse(key, "a file is too large")
        elif name and kind == "end":
            with self._unpacking:
                self._end(key, name, lines)

    def _end(self, key: tuple[str, str], name: re.Match[str], lines: list[bytes]) -> None:
        """Keep a file that has come whole."""
        largest = _NOTES if name[2] == "ranks.json" else collector.LARGEST_DUMP + 1
        unpacked = zlib.decompressobj()
        data = b""
        with suppress(zlib.error, ValueError):
            packed = b"".join(base64.b64decode(line, validate=True) for line in lines)
            data = unpacked.decompress(packed, largest + 1)
        if len(data) > largest or not self._has_room(len(data)):
            self._refuse(key, "a file is too large")
        elif not unpacked.eof:  # zlib sums up what is in it
            self._refuse(key, "a file came damaged")
        else:
            del self._open[key]
            world, rest = name.groups()
            path = self._folder / world / re.sub(r"[^A-Za-z0-9-]", "_", key[1]) / rest
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            if rest == "ranks.json":
                with suppress(ValueError, AttributeError, RecursionError):
                    if (told := states(data, key[1])).parts:
                        self.told[world].append(told)

    def _refuse(self, key: tuple[str, str], why: str) -> None:
        name, _ = self._open.pop(key)
        self.note(key[1], f"{why}: {name[2].rpartition('/')[2]}")
