"""The state folder of an environment: the names of what is in it, and whether a run was interrupted there.

Apart from the rest because `check` asks, which is to be quick: this imports nothing.
"""

from __future__ import annotations

import os

RECEIPT = "receipt.json"
LOCK = "lock"
MADE = "made-parent"
"""The folder's parent, such as `share`, is ours too, and goes with it."""
JOURNAL_DRAFT = "journal.tmp"
MAKING = ".unhang-made-"
"""Above that parent, while it comes or goes: its name follows, and a word for each who makes it."""

# The journal; its name is the stage, so that one rename takes a run from a stage to the next.
INTENT = "journal.intent"
"""Nothing is replaced yet, or everything is put back: what stands beside the files can go."""
READY = "journal.json"
"""Every new and old file is on disk: it can go forward and back."""
DONE = "journal.done"
"""Everything is replaced: what stands beside the files can go."""


def interrupted(state_dir: str) -> bool:
    """Say whether a journal is there: a run was killed (or is at work right now). Only reads, raises nothing."""
    return any(os.path.lexists(os.path.join(state_dir, stage)) for stage in (INTENT, READY, DONE))


def has_receipt(state_dir: str) -> bool:
    """Return whether a receipt is there, readable or not."""
    return os.path.lexists(os.path.join(state_dir, RECEIPT))


def littered(state_dir: str) -> bool:
    """Say whether a killed run left its lock or its marks here (or one is at work right now): whoever enters
    `lock.exclusive` next takes them away. Only reads, raises nothing.
    """
    parent = os.path.dirname(os.path.realpath(state_dir))
    making = f"{MAKING}{os.path.basename(parent)}-"
    names = _names(state_dir)
    without_receipt = names is not None and not names - {LOCK, MADE, JOURNAL_DRAFT}
    is_left = without_receipt or not {LOCK, JOURNAL_DRAFT}.isdisjoint(names or ())
    return is_left or any(name.startswith(making) for name in _names(os.path.dirname(parent)) or ())


def _names(folder: str) -> set[str] | None:
    try:
        return set(os.listdir(folder))
    except OSError:  # there is none, or it is not for us to see
        return None
