"""Stacks: py-spy's text and --json, faulthandler's, gdb's, and Python's tracebacks.

Of native frames, those remain of which it is known what a process waits for in them.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator, Sequence
from functools import lru_cache
from io import BufferedIOBase
from typing import Any

from unhang.diagnose.evidence import Frame, Rank, Stack
from unhang.diagnose.phrases import LISTS, NATIVE

NOBODY = -1  # the rank where a text does not say it
MAIN = "MainThread"

_LARGEST = 1 << 28
# Far more than a process has: they bound what a hostile file can take.
_PROCESSES, _THREADS, _FRAMES, _KNOWN, _DIGITS, _NAMES = 4_096, 1_024, 1_000, 1 << 13, 20, 3
_NO_MAIN = "what is given of {} are ends of stacks or helper threads{}, and not its main thread: give all threads"
_OTHER = "what is given of {} is a worker of a data loader or a launcher{}, and no rank: give the process above it"
_NO_WAIT = "the main thread of {} is in no function of which it is known what it waits for{}"

_PROCESS = re.compile(r"Process (\d+): (\w{1,40}::[^\s()]{1,80})?")
_RAY = re.compile(r"Stack dump for \S+\s+(\d{1,9})\s.*?(ray\w*(?:::\S+)?(?:\(\))?)$")
"""What `ray stack` prints above each process: a line of `ps`."""
_ATTACHED = re.compile(r"(?:Attaching to (?:program: .*, )?process |\(?gdb\S* .*(?:-p|--pid)[ =]?)(\d{1,9})\b")
_GDB = re.compile(r"(?:\(\S*gdb\) )?Thread (\d{1,9}) \((?:Thread 0x[0-9a-f]+ )?\(?LWP (\d{1,9})\)?.*\):?$")
_GDB_FRAME = re.compile(r"#(\d{1,4}) +(?:0x[0-9a-f]+ in )?(?:\(anonymous namespace\)::)?([^(]*?) ?\(")
_WAITING = re.compile(r"[_?]|std::|(?:futex|pthread|e?poll|start_thread|clone|accept|syscall|read|recv)")
_CUT = "cut"  # a stack without its beginning, of which nobody knows what it waits for
_PAGER = ("--Type <", "---Type <")
_SPIED = re.compile(r'Thread (?:(\S+) )?\(([a-z+]+)\)(?::? "(.*)")?$')
# torchrun puts no space before a line, other launchers do: one that is the line's own may be gone.
_SPIED_FRAME = re.compile(r"(?: {3,4}|\t ?)(\S.*) \(([^()]+?)(?::(\d{1,9}))?\)$")
_FAULT = re.compile(
    r"(?:Stack|Traceback|(?:Thread|Current thread) (0x[0-9a-f]+)(?: \[(.*)\])?) \(most recent call first\):$"
)
_PYSTACK = re.compile(r"Traceback for thread (\d{1,9}) .*\(most recent call last\):$")
_FRAME = re.compile(r' +(?:\(Python\) )?File "(.*)", line (\d{1,9}|\?\?\?),? in (.*)$')
_BARE = re.compile(rb"(?:[ \t]+[^\s(][^\n]{0,200} \([^\s()]{1,400}:\d{1,9}\)\s*\n?){2,}\s*")
"""A stack of py-spy's without its heading."""
_BETWEEN = re.compile(r"[\s\[\],]*")  # the threads of all documents
_TRACEBACK = "Traceback (most recent call last):"

_NOT_PYTHON = (".c", ".cc", ".cpp", ".cu", ".h", ".hpp", ".rs", ".so")
# What a process waits for in native code, by the innermost function that says it.
DEVICE, SET_UP, ENDS, COLLECTIVE, STORE, ALLOCATOR = "device", "set-up", "ends", "group", "key-store", "allocator"
PYTHON, LOCK = "python", "lock"

_NO_RANK = tuple(one.split() for one in LISTS["no-rank"])


class Thread:
    """One thread of a dump, while its frames are read."""

    def __init__(self, name: str, idle: bool | None, source: str, *, gil: bool = False, inverted: bool = False) -> None:
        self.name, self.idle, self.source, self.gil, self._is_inverted = name, idle, source, gil, inverted
        self.frames: list[Frame] = []
        self.native: list[str] = []
        self.names: list[str] = []  # the innermost native functions that say more than that it waits, known or not
        self.library = ""  # the innermost one whose functions have no names

    def take(self, frame: Frame | str) -> None:
        """Take the next frame outwards; of native ones, those within all of Python's, or that Python calls by name."""
        if isinstance(frame, Frame) and len(self.frames) < _FRAMES:
            if not self.frames and frame.function.startswith("nccl") and native(frame.function):
                self.native.append(frame.function)
            self.frames.insert(0 if self._is_inverted else len(self.frames), frame)
        elif isinstance(frame, str) and not self.frames and len(self.native) < _FRAMES:
            self.native.append(frame)


class Collector:
    """The stacks in the text of one speaker, line by line."""

    def __init__(self) -> None:
        self.processes: dict[str, dict[str, Thread]] = {}
        """By pid, as py-spy says it; empty for what a process says of itself. A later dump replaces an earlier one."""
        self._earlier: dict[str, dict[str, Thread]] = {}  # the dumps that were replaced
        self.pid = ""
        self._titles: dict[str, str] = {}
        self._thread: Thread | None = None
        self._last: Thread | None = None
        self._is_gdb = False
        self._traceback: list[Frame] = []
        self.in_traceback = False  # whether the last lines were a traceback, so that the next one is its exception

    def line(self, text: str, source: str) -> bool:
        """Take one line; return whether it is one of a stack."""
        if text[:1] in ("", " ", "\t"):
            return self._inner(text)
        if text == _TRACEBACK:
            self._traceback, self.in_traceback, self._thread = [], True, None
        elif found := _PROCESS.match(text) or _RAY.match(text) or _ATTACHED.match(text):
            self._process(*found.groups())
        elif found := _GDB.match(text):
            if found[1] in self.processes.get(self.pid, {}) or not (self._is_gdb or self.pid in self._titles):
                self._process(f"process {len(self.processes) + 1}")
            self._begin(found[1], Thread(MAIN if found[1] == "1" else f"thread {found[1]}", None, source))
            self._is_gdb = True
            if found[1] == "1":  # its number is that of the process
                self._titles[self.pid] = f"pid {found[2]}"
        elif text.startswith("#"):
            return self._of_gdb(text, source)
        elif text.startswith(_PAGER):
            return self._is_gdb
        elif found := _SPIED.match(text):
            is_idle, gil = not found[2].startswith("active"), "gil" in found[2]
            key = found[1] or found[3] or ""
            own = self.processes.get(self.pid, {})
            if found[3] == MAIN and any(one.name == MAIN for it, one in own.items() if it != key):
                self._process(f"process {len(self.processes) + 1}")
            self._begin(key, Thread(found[3] or f"thread {key}", is_idle, source, gil=gil))
        elif found := _PYSTACK.match(text):
            self._begin(found[1], Thread("", None, source, inverted=True))  # the outermost first
        elif found := _FAULT.match(text):
            if not (found[1] or not self._is_gdb or self._thread is None):  # gdb's py-bt, below its thread
                return True
            self._of_fault(found[1] or "")
            self._begin(found[1] or "", Thread(found[2] or "", None, source), first=text.startswith("Current"))
        else:
            self._thread = None
            return False
        return True

    def _process(self, pid: str, title: str | None = None) -> None:
        self.pid, self._thread, self._is_gdb = pid, None, False
        if pid.isdecimal():
            self._titles[pid] = f"{title} (pid {pid})" if title else f"pid {pid}"
        if len(self.processes) < _PROCESSES or self.pid in self.processes:
            self._earlier[self.pid] = self.processes.get(self.pid, {})
            self.processes[self.pid] = {}

    def _of_fault(self, key: str) -> None:
        """Begin another process, or an earlier one anew, if the last thread was a main one: CPython ends with that."""
        own = self.processes.get(self.pid, {}) if not self.pid.isdecimal() else {}
        last = self._last
        is_over = last is not None and last.idle is None and last.frames and last.frames[-1].function == "<module>"
        same = next((pid for pid, them in self.processes.items() if key in them and not pid.isdecimal()), None)
        if self.pid.isdecimal() or (is_over and (key or len(own) == 1)):
            new = f"process {len(self.processes) + 1}" if own else ""
            self._process(new if same is None or not key else same)

    def _of_gdb(self, text: str, source: str) -> bool:
        """Take one of gdb's frames; return whether it is one."""
        found = _GDB_FRAME.match(text)
        if not found or (found[1] != "0" and not self._is_gdb and " 0x" not in text):
            return False
        if found[1] == "0" and not (self._is_gdb and self._thread and not self._thread.native):
            self._begin("1", Thread(MAIN, None, source))
        elif not self._is_gdb:
            self._begin(_CUT, Thread(_CUT, None, source))
        self._is_gdb = True
        if thread := self._thread:
            thread.names += [found[2]] * (not _WAITING.match(found[2]) and len(thread.names) < _NAMES)
            if not thread.library and "?? () from " in text:
                thread.library = text.rpartition("/")[2]
            if native(found[2]) and thread.name != _CUT:
                thread.take(found[2])
        return True

    def raised(self) -> tuple[Frame, ...]:
        """Return, and forget, the frames of the traceback that ends here, innermost first."""
        frames, self._traceback, self.in_traceback = self._traceback, [], False
        return tuple(reversed(frames))

    def pids(self) -> Iterator[tuple[str, tuple[Stack, ...]]]:
        """Yield the stacks of each process that may be a rank, and what it is called; empty for what a log says."""
        unnamed = [pid for pid in self.processes if pid not in self._titles]
        for pid, threads in self.processes.items():
            known = {key: thread for key, thread in threads.items() if thread.frames or thread.native}
            main, earlier, stacks = _main([*known.values()]), self._earlier.get(pid), []
            for key, one in known.items():
                name = MAIN if one is main else one.name or one.source
                moved = (key not in earlier or earlier[key].frames != one.frames) if earlier else None
                stacks.append(Stack(name, tuple(one.frames), one.idle, one.source, moved, one.gil, tuple(one.native)))
            if stacks and may_be_rank(stacks) and (main or not all(map(is_helper, stacks))):
                yield self._titles.get(pid) or pid or "process 1" * (len(unnamed) > 1), tuple(stacks)

    def unknown(self) -> Iterator[tuple[str, str]]:
        """Yield what is told of each process that is no rank, or whose main thread is not given, and where."""
        has_rank = any(self.pids())
        for pid, threads in self.processes.items():
            known = [one for one in threads.values() if one.frames or one.native]
            whose = _main(known)
            if threads and not (has_rank if whose else any(one.native for one in known)):
                main = next((one for one in threads.values() if one.name == MAIN), None)
                told = whose or main or next(iter(known or threads.values()))
                names = " < ".join(told.names or [frame.function for frame in told.frames[:_NAMES]]) or told.library
                words = _OTHER if whose else _NO_WAIT if main else _NO_MAIN
                yield words.format(self._titles.get(pid) or "a process", f" ({names})" if names else ""), told.source

    def _begin(self, key: str, thread: Thread, *, first: bool = False) -> None:
        threads = self.processes.setdefault(self.pid, {}) if len(self.processes) < _PROCESSES else {}
        self._thread, self._last, self.in_traceback, self._is_gdb = thread, thread, False, False
        if first:  # what the process was at when it wrote this, so no other thread is taken for the main one
            thread.name = MAIN
            self.processes[self.pid] = {key: thread, **threads}
        elif len(threads) < _THREADS:
            threads.pop(key, None)  # so that the last one in the text is the last one here
            threads[key] = thread

    def _inner(self, text: str) -> bool:
        frame = _frame(text)
        if self._thread is not None and frame:
            self._thread.take(frame)
        elif self._thread is None and isinstance(frame, Frame):  # Ray prints a traceback without its first line
            self.in_traceback = True
            self._traceback += [frame] * (len(self._traceback) < _FRAMES)
        return self._thread is not None or self.in_traceback


def _main(threads: Sequence[Thread]) -> Thread | None:
    """Return the main thread of a process: the one of that name, else the last of faulthandler's that nobody started.

    A started thread has a bootstrap, unless its stack has more than 100 frames; CPython lists the newest one first.
    """
    if named := [thread for thread in threads if thread.name == MAIN]:
        return named[0]
    fault = [thread for thread in threads if thread.idle is None and not is_helper(thread)]
    outermost = [thread for thread in fault or threads if thread.frames and thread.frames[-1].function == "<module>"]
    return next(reversed(outermost or fault), None)


def is_helper(stack: Stack | Thread) -> bool:
    """Return whether a thread was started by Python, beside the main one, which is not there: the text is cut."""
    return any(frame.function.rpartition(".")[2] == "_bootstrap" for frame in stack.frames[-3:])


def begins(text: str) -> bool:
    """Return whether a line may be the first one of what py-spy, faulthandler or gdb says of a process."""
    return any(one.match(text) for one in (_PROCESS, _SPIED, _FAULT, _ATTACHED, _GDB)) or text.startswith("#0 ")


def recognizes(head: bytes) -> bool:
    """Return whether a file that begins so is py-spy's --json, or a stack alone, without its heading."""
    return (head.lstrip()[:1] == b"[" and b'"frames"' in head) or bool(_BARE.fullmatch(head))


def read(stream: BufferedIOBase, name: str) -> Iterator[Rank]:
    """Yield the processes in py-spy's --json, one document or several, or of a bare stack, each as an unknown rank.

    Raises ValueError where it is none of py-spy's, or is cut off; what stands before the cut has been yielded then.
    """
    data, broken = whole(stream)
    text, found, wrong = data.decode(errors="replace"), Collector(), ""
    if _BARE.fullmatch(data):
        for number, line in enumerate(["Stack (most recent call first):", *text.splitlines()]):
            found.line(line.rstrip(), f"{name}:{max(number, 1)}")
    else:
        try:
            for thread in documents(text, 0):
                key = str(thread["os_thread_id"] or thread["thread_id"])
                for line in _as_text(thread, key, found):
                    found.line(line, f"{name}: thread {key}")
        except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
            wrong = "cut off" if isinstance(error, ValueError) else "not a dump of py-spy"
    yield from (Rank(NOBODY, stacks=stacks, name=title) for title, stacks in found.pids())
    if wrong or not found.processes:
        raise ValueError(wrong if found.processes else "not a dump of py-spy")
    if broken:
        raise broken


def documents(text: str, place: int) -> Iterator[Any]:
    """Yield what lists of JSON have from there on, one list or several. Raises ValueError where they break off."""
    decoder = json.JSONDecoder()
    while (place := _BETWEEN.match(text, place).end()) < len(text):  # type: ignore[union-attr]  # it matches nothing, too
        value, place = decoder.raw_decode(text, place)
        yield value


def _as_text(thread: Any, key: str, before: Collector) -> Iterator[str]:
    """Yield a thread of py-spy's --json as its text has it, given what stands before it."""
    pid, name = str(thread["pid"])[:_DIGITS], thread["thread_name"]
    if pid != before.pid or key in before.processes.get(pid, ()):
        yield f"Process {pid}: "
    state = ("active" if thread["active"] else "idle") + "+gil" * (thread.get("owns_gil") is True)
    yield f"Thread {key} ({state})" + f': "{name}"' * bool(name)
    for frame in thread["frames"]:
        yield f"    {frame['name']} ({frame['filename']}{f':{line}' if (line := frame['line']) else ''})"


def may_be_rank(stacks: Sequence[Stack]) -> bool:
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


@lru_cache(_KNOWN)
def _frame(text: str) -> Frame | str | None:
    """Return the frame that a line is, or the native function, if it is known what is waited for there; else None."""
    if found := _FRAME.match(text):
        return Frame(found[3], found[1], int(found[2]) if found[2].isdecimal() else 0)
    if (found := _SPIED_FRAME.match(text)) and found[3] and not found[2].endswith(_NOT_PYTHON):
        return Frame(found[1], found[2], int(found[3]))
    return found[1] if found and not found[3] and native(found[1]) else None


@lru_cache(_KNOWN)
def native(function: str) -> str:
    """Return what a process waits for in a native function; empty if that is not known."""
    name = re.sub(r"@.*|<.*|\(.*", "", function).strip()
    return next((kind for kind, pattern in NATIVE if pattern.match(name)), "")
