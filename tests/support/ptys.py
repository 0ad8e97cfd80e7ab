"""Run a command on a terminal of a given width."""

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from collections.abc import Mapping
from pathlib import Path

from support import cli


def unhang(*arguments: str | Path, columns: int, env: Mapping[str, str] | None = None) -> tuple[int, str]:
    """Run it with four fixes; return its exit code, and stdout and stderr together, as the terminal got them."""
    return python(*cli.COMMAND[1:], *arguments, columns=columns, env=env)


def python(
    *arguments: str | Path, columns: int, cwd: str | Path = "/", env: Mapping[str, str] | None = None
) -> tuple[int, str]:
    """Run this Python, which has the installed package."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    command = [sys.executable, *map(str, arguments)]
    environ = cli.environ({"TERM": "xterm", **(env or {})})
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, cwd=cwd, env=environ) as process:
        os.close(theirs)
        got = b""
        try:
            while data := os.read(ours, 65536):
                got += data
        except OSError:  # Linux' way to say that the other end is closed
            pass
        finally:
            os.close(ours)
    return process.returncode, got.decode().replace("\r\n", "\n")
