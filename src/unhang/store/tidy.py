"""Removes what a killed run left in a state folder when there is no journal to recover from."""

from __future__ import annotations

from contextlib import suppress

from unhang.errors import UnhangError
from unhang.store.state import littered


def tidy(state_dir: str) -> str | None:
    """Remove the lock and marks of a killed run, if any; without permission to write this does nothing.

    Returns what ``transaction.recover`` did, in a sentence; None if it had nothing to do.
    """
    if not littered(state_dir):
        return None
    from unhang.store.lock import exclusive
    from unhang.store.transaction import recover

    with suppress(UnhangError), exclusive(state_dir):
        return recover(state_dir)
    return None
