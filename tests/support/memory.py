"""Temporary folders in memory, for tests that sync thousands of times: a real disk takes minutes for that."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

SHARED = "/dev/shm"
ROOM = 256 * 2**20


@contextlib.contextmanager
def folder(otherwise: Path) -> Iterator[Path]:
    """Make a folder in memory for the length of a `with`; `otherwise` if this machine has no room there."""
    if not os.access(SHARED, os.W_OK) or shutil.disk_usage(SHARED).free < ROOM:
        yield otherwise
        return
    made = Path(tempfile.mkdtemp(prefix="unhang-", dir=SHARED))
    try:
        yield made
    finally:
        shutil.rmtree(made)
