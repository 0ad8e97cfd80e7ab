"""Stacks: py-spy's text and --json, faulthandler's, and Python's tracebacks."""

from __future__ import annotations

import json
import re
import zlib
from typing import TYPE_CHECKING, Any

from unhang.diagnose.evidence import Frame, Rank, Stack

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from io import BufferedIOBase

NOBODY = -1
"""The rank where a text does not say it."""
MAIN = "MainThread"

_LARGEST = 1 << 28
# Far more than a process has: they bound what a hostile file can take.
_PROCESSES, _THREADS, _FRAMES, _KNOWN, _DIGITS = 4_096, 1_024, 1_000, 20_000, 20

_PROCESS = re.compile(r"Process (\d+): ")
_SPIED = re.compile(r'Thread (\S+) \(([a-z+]+)\)(?:: "(.*)")?$')
# torchrun puts no space before a line, other launchers do: one that is the line's own may be gone.
_SPIED_FRAME = re.compile(r" {3,4}(\S.*) \(([^()]+?)(?::(\d{1,9}))?\)$")
_FAULT = re.compile(
    r"(?:Stack|Traceback|(?:Thread|Current thread) (0x[0-9a-f]+)(?: \[(.*)\])?) \(most recent call first\):$"
)
_FRAME = re.compile(r' +File "(.*)", line (\d{1,9}|\?\?\?),? in (.*)$')
_BETWEEN = re.compile(r"[\s\[\],]*")  # the threads of all documents
_TRACEBACK = "Traceback (most recent call last):"

_NOT_PYTHON = (".c", ".cc", ".cpp", ".cu", ".h", ".hpp", ".rs", ".so")
# What stands beside the ranks on a node and is none: a main thread in one of these functions.
_NO_RANK = (
    ("multiprocessing/resource_tracker.py", "main"),
    ("multiprocessing/forkserver.py", "main"),
    ("torch/utils/data/_utils/worker.py", "_worker_loop"),
    ("torch/_inductor/compile_worker/__main__.py", "main"),
    ("torch/_inductor/compile_worker/subproc_pool.py", "main"),
    ("torch/distributed/launcher/api.py", "launch_agent"),
    ("torch/multiprocessing/spawn.py", "join"),
    ("deepspeed/launcher/launch.py", "main"),
)


class Thread:
    """One thread of a dump, while its frames are read."""

    def __init__(self, name: str, idle: bool | None, source: str, *, gil: bool = False) -> None:
        self.name, self.idle, self.source, self._gil = name, idle, source, gil
        self.frames: list[Frame] = []

    def stack(self, *, main: bool, moved: bool | None) -> Stack:
        """Return what was read; ``main``: whether it is the main thread."""
        name = MAIN if main else self.name or self.source
        return Stack(name, tuple(self.frames), self.idle, self.source, moved, self._gil)


class Collector:
    """The stacks in the text of one speaker, line by line."""

    def __init__(self) -> None:
        self.processes: dict[str, dict[str, Thread]] = {}
        """By pid, as py-spy says it; empty for what a process says of itself. A later dump replaces an earlier one."""
        self._earlier: dict[str, dict[str, Thread]] = {}
        """The dumps that were replaced."""
        self._pid = ""
        self._thread: Thread | None = None
        self._traceback: list[Frame] = []
        self.in_traceback = False
        """Whether the last lines were a traceback, so that the next one is its exception."""
        self._known: dict[str, Frame] = {}

    def line(self, text: str, source: str) -> bool:
        """Take one line; return whether it is one of a stack."""
        if text.startswith(" ") or not text:
            return self._inner(text)
        if text == _TRACEBACK:
            self._traceback, self.in_traceback, self._thread = [], True, None
        elif found := _PROCESS.match(text):
            self._pid, self._thread = found[1], None
            if len(self.processes) < _PROCESSES or self._pid in self.processes:
                self._earlier[self._pid] = self.processes.get(self._pid, {})
                self.processes[self._pid] = {}
        elif found := _SPIED.match(text):
            is_idle, gil = not found[2].startswith("active"), "gil" in found[2]
            self._begin(found[1], Thread(found[3] or f"thread {found[1]}", is_idle, source, gil=gil))
        elif found := _FAULT.match(text):
            self._pid = ""
            self._begin(found[1] or "", Thread(found[2] or "", None, source), first=text.startswith("Current"))
        else:
            self._thread = None
            return False
        return True

    def raised(self) -> tuple[Frame, ...]:
        """Return, and forget, the frames of the traceback that ends here, innermost first."""
        frames, self._traceback, self.in_traceback = self._traceback, [], False
        return tuple(reversed(frames))

    def pids(self) -> Iterator[tuple[str, tuple[Stack, ...]]]:
        """Yield the stacks of each process that may be a rank."""
        for pid, threads in self.processes.items():
            main = _main([thread for thread in threads.values() if thread.frames])
            stacks = tuple(
                thread.stack(main=thread is main, moved=self._moved(pid, key))
                for key, thread in threads.items()
                if thread.frames
            )
            if stacks and may_be_rank(stacks):
                yield pid, stacks

    def _moved(self, pid: str, key: str) -> bool | None:
        """Return whether a thread has moved on since the dump before, if there is one."""
        if not (earlier := self._earlier.get(pid)):
            return None
        return key not in earlier or earlier[key].frames != self.processes[pid][key].frames

    def _begin(self, key: str, thread: Thread, *, first: bool = False) -> None:
        threads = self.processes.setdefault(self._pid, {}) if len(self.processes) < _PROCESSES else {}
        self._thread, self.in_traceback = thread, False
        if first:  # what the process was at when it wrote this, so no other thread is taken for the main one
            thread.name = MAIN
            self.processes[self._pid] = {key: thread, **threads}
        elif len(threads) < _THREADS:
            threads.pop(key, None)  # so that the last one in the text is the last one here
            threads[key] = thread

    def _inner(self, text: str) -> bool:
        if not (frame := self._known.get(text)) and (frame := _frame(text)) and len(self._known) < _KNOWN:
            self._known[text] = frame
        if self._thread is not None:
            frames = self._thread.frames
        elif self.in_traceback or frame:  # Ray prints a traceback without its first line
            frames, self.in_traceback = self._traceback, True
        else:
            return False
        if frame and len(frames) < _FRAMES:
            frames.append(frame)
        return True


def _main(threads: Sequence[Thread]) -> Thread | None:
    """Return the main thread of a process: the one of that name, else that of a dump of faulthandler.

    CPython lists the newest thread first, so the main one is the last; only a started thread has a bootstrap, which is
    missing where a stack has more than 100 frames.
    """
    if named := [thread for thread in threads if thread.name == MAIN]:
        return named[0]
    fault = [
        thread
        for thread in threads
        if thread.idle is None and not any(frame.function.endswith("_bootstrap") for frame in thread.frames)
    ]
    outermost = [thread for thread in fault if thread.frames[-1].function == "<module>"]
    return (outermost or fault)[-1] if fault else None


def begins(text: str) -> bool:
    """Return whether a line is the first one of what py-spy or faulthandler says of a process."""
    return bool(_PROCESS.match(text) or (_FAULT.match(text) and not text.startswith("Thread")))


def recognizes(head: bytes) -> bool:
    """Return whether a file that begins so is py-spy's --json."""
    return head.lstrip()[:1] == b"[" and b'"frames"' in head


def read(stream: BufferedIOBase, name: str) -> Iterator[Rank]:
    """Yield the processes in py-spy's --json, one document or several, each as a rank that nobody knows.

    Raises ValueError where it is none of py-spy's, or is cut off; what stands before the cut has been yielded then.
    """
    data, broken = whole(stream)
    text = data.decode(errors="replace")
    decoder, wrong = json.JSONDecoder(), ""
    place = _BETWEEN.match(text).end()  # type: ignore[union-attr]  # it matches nothing at all, too
    processes: dict[object, list[Stack]] = {}
    try:
        while place < len(text):
            thread, place = decoder.raw_decode(text, place)
            stack = _of_json(thread, name)
            processes.setdefault(thread["pid"], []).append(stack)
            place = _BETWEEN.match(text, place).end()  # type: ignore[union-attr]
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError, RecursionError) as error:
        wrong = "cut off" if isinstance(error, ValueError) else "not a dump of py-spy"
    for pid, stacks in processes.items():
        if may_be_rank(stacks):
            yield Rank(NOBODY, stacks=tuple(stacks), pid=str(pid)[:_DIGITS])
    if wrong or not processes:
        raise ValueError(wrong if processes else "not a dump of py-spy")
    if broken:
        raise broken


def may_be_rank(stacks: tuple[Stack, ...] | list[Stack]) -> bool:
    """Return whether a process may be a rank, by its main thread: data loaders' workers and launchers are none."""
    return not any(
        frame.file.endswith(file) and frame.function.rpartition(".")[2] == function
        for stack in stacks
        if stack.thread == MAIN
        for frame in stack.frames
        for file, function in _NO_RANK
    )


def whole(stream: BufferedIOBase) -> tuple[bytes, Exception | None]:
    """Return all bytes of a dump, and why it breaks off, if it does. Raises ValueError if there is no end to it."""
    blocks, size = [], 0
    try:
        while block := stream.read1(1 << 20):  # not `read`, which keeps nothing of a block that breaks off
            blocks.append(block)
            size += len(block)
            if size > _LARGEST:
                raise ValueError("it is too large for a dump")
    except (EOFError, OSError, zlib.error) as error:
        return b"".join(blocks), error
    return b"".join(blocks), None


def _frame(text: str) -> Frame | None:
    """Return the frame that a line is; None for native frames, locals and lines of source."""
    if found := _FRAME.match(text):
        return Frame(found[3], found[1], int(found[2]) if found[2].isdecimal() else 0)
    if (found := _SPIED_FRAME.match(text)) and found[3] and not found[2].endswith(_NOT_PYTHON):
        return Frame(found[1], found[2], int(found[3]))
    return None


def _line(value: Any) -> int:
    line = int(value)
    return line if 0 <= line < 10**9 else 0


def _of_json(thread: Any, name: str) -> Stack:
    frames = [Frame(str(frame["name"]), str(frame["filename"]), _line(frame["line"])) for frame in thread["frames"]]
    source = f"{name}: thread {thread['os_thread_id'] or thread['thread_id']}"
    return Stack(
        str(thread["thread_name"] or source),
        tuple(frame for frame in frames if frame.line and not frame.file.endswith(_NOT_PYTHON))[:_FRAMES],
        not thread["active"],
        source,
        gil=thread.get("owns_gil") is True,
    )
