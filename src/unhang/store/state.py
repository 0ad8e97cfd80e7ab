"""The names in an environment's state folder, and whether an earlier run left something there.

`check` asks this and has to be quick, so this module imports nothing slow.
"""

from __future__ import annotations

import os

RECEIPT = "receipt.json"
LOCK = "lock"
GITIGNORE = ".gitignore"
"""Hides the folder from git."""
MADE = "made-parent"
"""Says that unhang also made the folder's parent, such as `share`, and has to remove it again."""
JOURNAL_DRAFT = "journal.tmp"
TEMPORARY = frozenset({LOCK, GITIGNORE, MADE, JOURNAL_DRAFT})
"""A state folder that contains nothing else is removed."""
MAKING = ".unhang-made-"
"""Begins the name of a marker beside the parent while that is made or removed; the parent's name and a token follow."""

# The journal. Its name is the stage, so that a single rename takes a run from one stage to the next.
INTENT = "journal.intent"
"""No file is replaced yet, or all are restored: the temporary files can go."""
READY = "journal.json"
"""All new and old bytes are on disk: the run can go forward or back."""
DONE = "journal.done"
"""All files are replaced: the temporary files can go."""


def interrupted(state_dir: str) -> bool:
    """Return whether there is a journal: a run was killed, or is at work right now. Only reads, raises nothing."""
    return any(os.path.lexists(os.path.join(state_dir, stage)) for stage in (INTENT, READY, DONE))


def has_receipt(state_dir: str) -> bool:
    """Return whether a receipt is there, readable or not."""
    return os.path.lexists(os.path.join(state_dir, RECEIPT))


def littered(state_dir: str) -> bool:
    """Return whether a killed run left its lock or markers here (or a run is at work right now).

    The next run that takes the lock removes them. Only reads, raises nothing.
    """
    parent = os.path.dirname(os.path.realpath(state_dir))
    making = f"{MAKING}{os.path.basename(parent)}-"
    names = _names(state_dir)
    nothing_kept = names is not None and not names - TEMPORARY
    is_left = nothing_kept or not {LOCK, JOURNAL_DRAFT}.isdisjoint(names or ())
    return is_left or any(name.startswith(making) for name in _names(os.path.dirname(parent)) or ())


def _names(folder: str) -> set[str] | None:
    try:
        return set(os.listdir(folder))
    except OSError:  # missing, or not readable for us
        return None
