"""The state folder of a root, the names in it, and whether an earlier run left something there.

`check` asks this and has to be quick, so this module imports nothing slow.
"""

from __future__ import annotations

import os
import stat

from unhang.records import STATE

RECEIPT = "receipt.json"
LOCK = "lock"
GITIGNORE = ".gitignore"
"""Hides the folder from git."""
PRISTINE = "pristine"
"""The folder of the original bytes."""
JOURNAL_DRAFT = "journal.tmp"
TEMPORARY = frozenset({LOCK, GITIGNORE, JOURNAL_DRAFT})
"""A state folder that contains nothing else is removed."""

# The journal. Its name is the stage, so that a single rename takes a run from one stage to the next.
INTENT = "journal.intent"
"""No file is replaced yet, or all are restored: the temporary files can go."""
READY = "journal.json"
"""All new and old bytes are on disk: the run can go forward or back."""
DONE = "journal.done"
"""All files are replaced: the temporary files can go."""

OURS = {
    **dict.fromkeys((LOCK, JOURNAL_DRAFT), stat.S_IFREG),
    PRISTINE: stat.S_IFDIR,
    **dict.fromkeys((RECEIPT, INTENT, READY, DONE), 0),
}
"""What only those who own the root may put there, and of what kind it is; 0: reading it tells."""


def folder(root: str) -> str:
    """Return the path of a root's state folder: it holds the receipt, the journal and the lock."""
    return os.path.join(root, STATE)


def interrupted(state_dir: str) -> bool:
    """Return whether there is a journal: a run was killed, or is at work right now. Only reads, raises nothing."""
    return any(os.path.lexists(os.path.join(state_dir, stage)) for stage in (INTENT, READY, DONE))


def has_receipt(state_dir: str) -> bool:
    """Return whether a receipt is there, readable or not."""
    return os.path.lexists(os.path.join(state_dir, RECEIPT))


def kept(state_dir: str) -> bool:
    """Return whether there is something to revert or to recover. Only reads, raises nothing."""
    return interrupted(state_dir) or has_receipt(state_dir)


def stamp(state_dir: str) -> tuple[int, int] | None:
    """Return what tells this receipt from the one that replaces it, None if there is none. Only reads."""
    try:
        found = os.lstat(os.path.join(state_dir, RECEIPT))
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def littered(state_dir: str) -> bool:
    """Return whether a killed run left its lock or an empty folder here (or a run is at work right now).

    The next run that takes the lock removes them. Only reads, raises nothing.
    """
    try:
        names = set(os.listdir(state_dir))
    except OSError:  # missing, or not readable for us
        return False
    return not names - TEMPORARY or not {LOCK, JOURNAL_DRAFT}.isdisjoint(names)
