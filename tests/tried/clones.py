"""What the clones of others have."""

from __future__ import annotations

import subprocess


def shown(clone: str, name: str) -> bytes:
    """Return a file of a clone, named as ``COMMIT:PATH``. Raises CalledProcessError."""
    return subprocess.run(["git", "-C", clone, "show", name], check=True, capture_output=True).stdout


def commit(clone: str, ref: str) -> str:
    """Return the short name and the day of a commit."""
    command = ["git", "-C", clone, "log", "-1", "--format=%h of %cs", ref]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
