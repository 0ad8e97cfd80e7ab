"""The 64 dumps of NCCL that nvidia-resiliency-ext keeps: four hangs of 16 ranks, with a fault put into two of each.

They are theirs, and stay in their repository: ``UNHANG_NVRX_CLONE`` names a clone of it.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

CLONE = os.environ.get("UNHANG_NVRX_CLONE")
TREE = "36eeea62bfb5a4fb8c97748dbe703feae8d81380"  # the folder as it was diagnosed: git's digest of all that is in it
needs_clone = pytest.mark.skipif(not CLONE, reason="UNHANG_NVRX_CLONE names no clone of nvidia-resiliency-ext")


def hangs(into: Path) -> Iterator[tuple[str, Path, tuple[int, ...]]]:
    """Write the dumps of each hang to a folder of its own; yield its name, that, and the ranks that had the fault."""
    packed = subprocess.run(["git", "-C", CLONE or ".", "archive", TREE], check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        files = {member.name: stream.read() for member in archive if (stream := archive.extractfile(member))}
    for log in sorted(name for name in files if name.endswith("/fault_injection.log")):
        name = log.partition("/")[0]
        folder = into / name
        folder.mkdir(parents=True)
        for path, data in files.items():
            if path.startswith(f"{name}/_dump_"):
                (folder / path.rpartition("/")[2]).write_bytes(data)
        yield name, folder, tuple(sorted(map(int, re.findall(rb"^Rank (\d+),", files[log], re.MULTILINE))))
