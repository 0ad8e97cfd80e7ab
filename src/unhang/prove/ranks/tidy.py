"""Leaves nothing of a run that is killed: no process, and no temporary folder."""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_REMOVE = "import os, shutil, sys; os.read(0, 1); shutil.rmtree(sys.argv[1], ignore_errors=True)"


def end_with(parent: int) -> None:
    """Have the kernel kill this process, a child of ``parent``, as soon as its parent is gone. Needs Linux."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it was gone before
        os._exit(1)


@contextlib.contextmanager
def folder(prefix: str) -> Iterator[tuple[str, int]]:
    """Make a temporary folder; yield its path, and a descriptor to hand on to the programs that write to it.

    The folder is removed at the end. Where this process is killed, a helper removes the folder once no process has the
    descriptor. Forks have it anyway.
    """
    path = os.path.join(tempfile.gettempdir(), f"{prefix}{secrets.token_hex(8)}")
    read, write = os.pipe()
    helper = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _REMOVE, path], stdin=read, cwd="/", start_new_session=True
    )
    os.close(read)
    try:
        os.mkdir(path, 0o700)
        yield path, write
    finally:
        helper.kill()
        helper.wait()
        os.close(write)
        shutil.rmtree(path, ignore_errors=True)
