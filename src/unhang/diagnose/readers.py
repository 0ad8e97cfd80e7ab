"""Read files in processes of their own: a file that ends its reader, or keeps it for ever, harms nothing else."""

from __future__ import annotations

import gc
import os
import pickle
import resource
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from importlib import import_module
from multiprocessing.connection import Connection, Pipe, wait
from time import monotonic
from typing import Any

MEMORY = 1 << 30  # so many bytes of address space each process has
PATIENCE_S = 60.0  # so long a file may take; a large one takes longer, see _SLOWEST
_SLOWEST = 1_000_000  # bytes in a second
_LONGEST = 16 << 20  # of an answer; that for a dump of 2,000 entries has some 20,000 bytes
# Isolated: else a `pickle.py` of the working directory, which may be where the files are, would be imported.
_CHILD = "import sys; sys.path[:] = sys.argv[4:]; from unhang.diagnose import readers; readers.serve(*sys.argv[1:4])"


class NoAnswer(Exception):
    """Why a file has no answer."""


def answers(read: Callable[[str], object], sizes: Mapping[str, int]) -> Iterator[tuple[str, Any]]:
    """Yield each file, in any order, with what a module's function returns for it, or with a NoAnswer.

    The function runs in as many processes as there are cores, but 16 at most, each with a limit of memory and of time.
    """
    todo = deque(sorted(sizes, key=lambda file: (-sizes[file], file)))  # a large one last would run alone
    idle: list[_Reader] = []
    busy: dict[Connection, _Reader] = {}
    try:
        while todo or busy:
            while todo and len(busy) < _cores():
                reader = idle.pop() if idle else _Reader(read)
                reader.begin(todo[0], sizes[todo.popleft()])
                busy[reader.pipe] = reader
            ready = wait(list(busy), max(0.0, min(reader.until for reader in busy.values()) - monotonic()))
            over = [reader for reader in busy.values() if reader.until <= monotonic() and reader.pipe not in ready]
            for reader in [*(busy[pipe] for pipe in ready if isinstance(pipe, Connection)), *over]:
                del busy[reader.pipe]
                answer = NoAnswer("reading it takes too long") if reader in over else reader.answer()
                if isinstance(answer, NoAnswer):
                    reader.end()
                else:
                    idle.append(reader)
                yield reader.file, answer
    finally:
        for reader in (*idle, *busy.values()):
            reader.end()


class _Reader:
    """A process that reads one file after the other."""

    def __init__(self, read: Callable[[str], object]) -> None:
        self.pipe, theirs = Pipe()
        path = [folder for folder in sys.path if folder]
        flags = ["-I", "-B"] if sys.dont_write_bytecode else ["-I"]
        what = [str(theirs.fileno()), read.__module__, read.__qualname__]
        command = [sys.executable, *flags, "-c", _CHILD, *what, *path]
        self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        theirs.close()
        self.file = ""
        self.until = 0.0

    def begin(self, file: str, size: int) -> None:
        self.file, self.until = file, monotonic() + PATIENCE_S + size / _SLOWEST
        self.pipe.send_bytes(os.fsencode(file))

    def answer(self) -> object:
        """Return the answer that is there, or why there is none."""
        try:
            return pickle.loads(self.pipe.recv_bytes(_LONGEST))  # noqa: S301 - it comes from our own code
        except (EOFError, ConnectionError):
            return NoAnswer("reading it ended the process that reads")
        except OSError:
            return NoAnswer("it says more than a diagnosis can hold")

    def end(self) -> None:
        self.pipe.close()
        self._process.kill()
        self._process.wait()


def serve(pipe: str, module: str, function: str) -> None:
    """Answer for each file that comes through the pipe, until it closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # our parent ends us
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(ValueError, OSError):  # macOS knows the limit, and refuses it
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))
    read = getattr(import_module(module), function)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # CPython itself complains of some broken pickles
    gc.disable()  # a dump makes 100,000 objects, none of them garbage
    gc.freeze()  # then to collect takes no time
    with Connection(int(pipe)) as line:
        while True:
            try:
                file = os.fsdecode(line.recv_bytes())
            except EOFError:
                return
            try:
                answer = pickle.dumps(read(file))
            except MemoryError:
                answer = pickle.dumps(NoAnswer(f"reading it takes more than {MEMORY >> 30} GiB of memory"))
            except Exception as error:  # a bug of ours, at one file: the others are still read
                answer = pickle.dumps(NoAnswer(f"this is a bug in unhang: {type(error).__name__}: {error}"))
            line.send_bytes(answer)
            # Only a hostile file leaves circles. But lists of free objects, kept all over the memory, scatter what the
            # next file makes, and to walk over that takes half as long again.
            gc.collect()


def _cores() -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, 16)  # each takes some 20 MB
