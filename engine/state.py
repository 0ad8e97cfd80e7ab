"""The state folder of an environment: the names of what is in it, and whether a run was interrupted there.

Apart from the rest because `check` asks, which is to be quick: this imports nothing.
"""

from __future__ import annotations

import os

LOCK = "lock"
MADE = "made-parent"
"""The folder's parent, such as `share`, is ours too, and goes with it."""
JOURNAL_DRAFT = "journal.tmp"

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
