"""Make the state folder, hide it from git, and remove it when it holds nothing that counts.

unhang may have to make the folder's parent too, such as `share`. Marker files record that, so that the parent is
removed again even if a run is killed between any two steps.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress

from unhang.store import disk
from unhang.store.state import GITIGNORE, JOURNAL_DRAFT, LOCK, MADE, MAKING, TEMPORARY


def make(state_dir: str, *, hidden: bool = True) -> bool:
    """Make the state folder, and its parent where that is missing; `hidden` puts a .gitignore into it.

    Returns whether unhang made the parent, now or earlier. Raises OSError. Needs no lock.
    """
    parent = os.path.dirname(state_dir)
    made = not os.path.isdir(parent) and _make_parent(parent)
    try:
        disk.run(os.mkdir, state_dir)
    except FileNotFoundError:
        pass  # another run has just removed the parent: taking the lock will fail, and the caller tries again
    except FileExistsError:
        with suppress(FileNotFoundError):
            if not stat.S_ISDIR(os.lstat(state_dir).st_mode):
                raise
    if hidden:
        _hide(state_dir)
    return made or bool(_markers(state_dir)) or os.path.exists(os.path.join(state_dir, MADE))


def _make_parent(parent: str) -> bool:
    marker = _marker(parent, os.urandom(4).hex())
    disk.write(marker, b"")
    try:
        disk.run(os.mkdir, parent)
    except FileExistsError:
        disk.remove(marker)
        return False
    except OSError:
        disk.remove(marker)
        raise
    disk.write(marker, b"", replace=True)  # a run that came and went in between may have removed the first
    return True


def _hide(state_dir: str) -> None:
    path = os.path.join(state_dir, GITIGNORE)
    with suppress(OSError):  # a failure must not stop the run; a full disk, for example, is reported by what follows
        # An empty one is from a run that was killed or failed here. Any other content is the user's choice.
        if not os.path.lexists(path) or os.lstat(path).st_size == 0:
            disk.write(path, b"*", replace=True)


def keep_marker(state_dir: str, made: bool) -> None:
    """Replace the markers beside the parent by a lasting one in the state folder. Raises OSError. Needs the lock."""
    path = os.path.join(state_dir, MADE)
    if made and not os.path.exists(path):
        disk.write(path, b"", replace=True)
    for marker in _markers(state_dir):
        disk.remove(marker)


def clean_up(state_dir: str) -> None:
    """Remove the lock, and the folder with it if it holds nothing that counts. Raises OSError. Needs the lock."""
    names = set(os.listdir(state_dir))
    parent, made = os.path.dirname(state_dir), MADE in names
    marker = _marker(parent, os.urandom(4).hex())
    try:
        if not names - TEMPORARY:
            if made:
                disk.write(marker, b"")
            for name in (MADE, JOURNAL_DRAFT, GITIGNORE):
                disk.remove(os.path.join(state_dir, name))
    finally:
        disk.remove(os.path.join(state_dir, LOCK))  # last: from here on other runs may come in
    # The marker stays if another run has come in meanwhile: that run removes it.
    if disk.remove_dir(state_dir) and made and (disk.remove_dir(parent) or not os.path.exists(state_dir)):
        disk.remove(marker)


def _marker(parent: str, token: str) -> str:
    # One for each run that makes or removes the parent, so that no run removes the marker of another.
    return os.path.join(os.path.dirname(parent), f"{MAKING}{os.path.basename(parent)}-{token}")


def _markers(state_dir: str) -> list[str]:
    parent = os.path.dirname(state_dir)
    above, start = os.path.split(_marker(parent, ""))
    with suppress(OSError):
        return [os.path.join(above, name) for name in os.listdir(above) if name.startswith(start)]
    return []
