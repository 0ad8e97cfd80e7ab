"""An overlay brought to disk: its files in a folder of their own, then the hook that leads to them in one rename."""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import suppress

from unhang.deliver.overlay import MARK, Overlay
from unhang.errors import UnhangError
from unhang.store import bytecode, disk
from unhang.store.state import LOCK

STORE = ".unhang-overlay"
HOOK = "sitecustomize.py"
_NEW = "new-"  # what a run is still writing; a killed one leaves it to the next
# Checked against the source's own bytes when read: right after a copy and a move, and never stale.
_COMPILE = """\
import py_compile, sys
py_compile.compile(sys.argv[1], doraise=True, invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH)
"""


def bring(folder: str, overlay: Overlay) -> bool:
    """Have ``folder`` hold this overlay, whatever one it held; says whether anything was written.

    Whoever starts meanwhile gets the one or the other, whole. Raises UnhangError ``not-empty`` where it holds what is
    not ours, ``bad-option`` where PYTHONPATH cannot name it, and as ``lock.exclusive`` and ``disk.refusal`` do.
    """
    _permitted(folder)
    if _holds(folder, overlay):
        return False
    with disk.about(os.path.join(folder, "")):
        disk.run(os.makedirs, folder, exist_ok=True)
    store = os.path.join(folder, STORE)
    from unhang.store.lock import exclusive  # only who writes pays for it

    with exclusive(store, hidden=False):  # an overlay may be committed: git must not leave out its modules
        if _holds(folder, overlay):  # another run was first
            return False
        with disk.about(store):
            _fill(store, overlay)
            _replace(folder, overlay.hook)
            for name in set(os.listdir(store)) - {overlay.identity, LOCK}:
                disk.run(shutil.rmtree, os.path.join(store, name))
    return True


def compile_hook(folder: str, python: str) -> None:
    """Have bytecode of the hook for this interpreter: the job may not be able to write any. A failure is none."""
    # -I -S keeps out whatever its environment would run at start
    command = [python, "-I", "-S", "-c", _COMPILE, os.path.join(folder, HOOK)]
    with suppress(OSError, subprocess.SubprocessError):
        subprocess.run(command, capture_output=True, timeout=60, check=False)


def _permitted(folder: str) -> None:
    if os.pathsep in folder:
        message = f"PYTHONPATH cannot name a folder with {os.pathsep!r} in it"
        raise UnhangError("bad-option", message, path=folder, hint="choose another name")
    with disk.about(folder):
        if not os.path.lexists(folder):
            return
        if not os.path.isdir(folder):
            raise UnhangError("not-a-folder", "not a folder", path=folder, hint="give a folder, or a new name")
        names = os.listdir(folder)
        hook = disk.read(os.path.join(folder, HOOK))
    is_ours = STORE in names and (hook is None or hook.startswith(MARK))
    if names and not is_ours:
        raise UnhangError(
            "not-empty", f"{folder} is neither empty nor an overlay", path=folder,
            hint="give an empty folder, or a new name: an overlay is all that its folder holds",
        )  # fmt: skip


def _holds(folder: str, overlay: Overlay) -> bool:
    """Whether every byte of the overlay is in place."""
    content = os.path.join(folder, STORE, overlay.identity)
    wanted = {os.path.join(folder, HOOK): overlay.hook}
    wanted.update((os.path.join(content, name), data) for name, data in overlay.files.items())
    try:
        return all(disk.read(path) == data for path, data in wanted.items())
    except OSError:  # whatever stands there, it is not what we wrote
        return False


def _fill(store: str, overlay: Overlay) -> None:
    draft = os.path.join(store, _NEW + os.urandom(8).hex())
    for name, data in overlay.files.items():
        path = os.path.join(draft, name)
        disk.run(os.makedirs, os.path.dirname(path), exist_ok=True)
        disk.write(path, data)
    content = os.path.join(store, overlay.identity)
    if os.path.lexists(content):  # damaged: else its hook would have been all that is missing, which costs no less
        disk.run(os.rename, content, f"{draft}.old")
    disk.run(os.rename, draft, content)
    for path, _, _ in os.walk(store):
        disk.sync_dir(path)


def _replace(folder: str, hook: bytes) -> None:
    path, draft = os.path.join(folder, HOOK), os.path.join(folder, STORE, _NEW + "hook")
    like = os.stat(path) if os.path.exists(path) else None  # it makes the new one younger: bytecode goes by that
    disk.write(draft, hook, like=like, replace=True)
    disk.run(os.replace, draft, path)
    for cached in bytecode.cached(path):
        disk.remove(cached)
    disk.sync_dir(folder)
