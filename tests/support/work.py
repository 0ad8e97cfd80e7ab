"""Count with strace which files a process opens and how much it reads.

For the tests, and for the table in docs/performance.md.
"""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

STRACE = shutil.which("strace")
_CALL = re.compile(r"^(?:\d+ +)?(?P<name>\w+)\((?P<arguments>.*)\) += (?P<result>-?\d+)")
_PATH = re.compile(r'"((?:[^"\\]|\\.)*)"')
_OPENED = re.compile(r'^(?:AT_FDCWD(?:<[^>]*>)?, )?"((?:[^"\\]|\\.)*)", (?P<flags>[A-Z_|]+)')
_OF_FILE = re.compile(r"^\d+<(?P<path>/[^>]*)>")


class Work(NamedTuple):
    """The work of one process and of those it starts."""

    opened: tuple[str, ...]
    """The files that were opened, in order, with repetitions."""
    listed: tuple[str, ...]
    """The folders that were listed."""
    calls: int
    """System calls that name a path, including those that fail."""
    read: int
    """Bytes read from files."""


def count(command: Sequence[str], *, environment: Mapping[str, str] | None = None, cwd: Path | None = None) -> Work:
    """Run a command and count its work. Raises FileNotFoundError if strace is missing."""
    with tempfile.TemporaryDirectory(prefix="unhang-strace-") as folder:
        log = Path(folder) / "log"
        asked = ["-y", "-s", "4096", "-e", "trace=%file,read,pread64", "-e", "signal=none"]
        asked += ["-ff", "-o", str(log)]  # one log for each process: a shared one would mix their lines
        subprocess.run(
            ["strace", *asked, *command], capture_output=True, check=False, cwd=cwd or "/",
            env={**os.environ, **(environment or {})},
        )  # fmt: skip
        return parse("".join(part.read_text(errors="replace") for part in sorted(Path(folder).iterdir())))


def parse(log: str) -> Work:
    opened: list[str] = []
    listed: list[str] = []
    calls = read = 0
    for line in log.splitlines():
        match = _CALL.match(line)
        if match is None:
            continue
        name, arguments, result = match["name"], match["arguments"], int(match["result"])
        if name in ("read", "pread64"):
            file = _OF_FILE.match(arguments)
            read += max(result, 0) if file and not file["path"].startswith(("/proc/", "/dev/")) else 0
            continue
        calls += _PATH.search(arguments) is not None
        found = _OPENED.match(arguments)
        if name in ("open", "openat") and found and result >= 0:
            (listed if "O_DIRECTORY" in found["flags"] else opened).append(found[1])
    return Work(tuple(opened), tuple(listed), calls, read)


def beyond(work: Work, start: Work) -> Work:
    """Return the work of a process without that of another: the start of the interpreter."""
    left, opened = list(start.opened), []
    for path in work.opened:
        if path in left:
            left.remove(path)
        else:
            opened.append(path)
    listed = tuple(path for path in work.listed if path not in start.listed)
    return Work(tuple(opened), listed, work.calls - start.calls, work.read - start.read)
