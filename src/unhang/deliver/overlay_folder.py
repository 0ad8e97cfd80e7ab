"""Writes an overlay to disk: first its files in a folder of their own, then, in one rename, the hook that uses them."""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import suppress

from unhang.deliver.overlay import Overlay
from unhang.errors import UnhangError
from unhang.find.bytecode import cached
from unhang.find.overlays import HOOK, MARK, STORE
from unhang.judge.stale import stale
from unhang.records import Search
from unhang.store import bytecode, disk
from unhang.store.state import LOCK

_NEW = "new-"  # unfinished work; the next run removes that of a killed one
# CHECKED_HASH compares the bytecode with the source's content, so it stays valid in a copy and is never stale.
_COMPILE = """\
import py_compile, sys
py_compile.compile(sys.argv[1], doraise=True, invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH)
"""


def write(folder: str, overlay: Overlay) -> bool:
    """Write the overlay into ``folder`` in place of any other; return whether anything had to be written.

    A process that starts meanwhile gets the old overlay or the new one, whole. Raises UnhangError ``not-empty`` if the
    folder holds anything else, ``not-a-folder``, ``bad-option`` if PYTHONPATH cannot name it, and as
    ``lock.exclusive`` and ``disk.refusal`` do.
    """
    _check_folder(folder)
    store = os.path.join(folder, STORE)
    if not _holds(folder, overlay):
        with disk.about(os.path.join(folder, "")):
            disk.run(os.makedirs, folder, exist_ok=True)
        return _write(folder, store, overlay)
    if left(folder, overlay) or os.path.lexists(os.path.join(store, LOCK)):  # a killed run's
        with suppress(UnhangError):  # the overlay is whole, even if we may not tidy it
            return _write(folder, store, overlay)
    return False


def _write(folder: str, store: str, overlay: Overlay) -> bool:
    from unhang.store.lock import exclusive  # here: a run that writes nothing does without it

    with exclusive(store, hidden=False), disk.about(store):  # an overlay may be committed: git must see its modules
        is_new = not _holds(folder, overlay)  # if not, another run wrote it meanwhile
        if is_new:
            _fill(store, overlay)
            _replace(folder, overlay.hook)
        for path in left(folder, overlay):
            with suppress(OSError):  # the new overlay is in place: the caller may say what is left beside it
                disk.run(shutil.rmtree if os.path.isdir(path) else os.unlink, path)
    return is_new


def left(folder: str, overlay: Overlay) -> list[str]:
    """Return what is still there of other overlays and of killed runs; raise nothing."""
    store = os.path.join(folder, STORE)
    try:
        names = set(os.listdir(store)) - {overlay.identity, LOCK}
    except OSError:  # an empty overlay, or not readable for us
        return []
    return [os.path.join(store, name) for name in sorted(names)]


def clear(folder: str, overlay: Overlay, search: Search) -> bool:
    """Delete stale bytecode of the overlay's hook and loader; return whether there was any. Raises as ``write``."""
    loader = os.path.join(folder, STORE, overlay.identity, "loader.py")
    found = stale({os.path.join(folder, HOOK): overlay.hook, loader: overlay.files["loader.py"]}, search)
    bytecode.remove(code.path for code in found)
    return bool(found)


def compile_hook(folder: str, python: str) -> None:
    """Write the hook's bytecode for this interpreter, since the job may be unable to. Failing to is not an error."""
    # -I -S: run nothing that the interpreter's environment starts
    command = [python, "-I", "-S", "-c", _COMPILE, os.path.join(folder, HOOK)]
    with suppress(OSError, subprocess.SubprocessError):
        subprocess.run(command, capture_output=True, timeout=60, check=False)


def _check_folder(folder: str) -> None:
    """Raise UnhangError unless the folder can be named in PYTHONPATH, and is missing, empty or an overlay."""
    if os.pathsep in folder:
        message = f"PYTHONPATH cannot name a folder with {os.pathsep!r} in its path"
        raise UnhangError("bad-option", message, path=folder, hint="choose another name")
    with disk.about(folder):
        if not os.path.lexists(folder):
            return
        if not os.path.isdir(folder):
            raise UnhangError("not-a-folder", "not a folder", path=folder, hint="give a folder, or a new path")
        names = os.listdir(folder)
        hook = disk.read(os.path.join(folder, HOOK))
    is_overlay = STORE in names and (hook is None or hook.startswith(MARK))
    if names and not is_overlay:
        hint = "give an empty folder, or a new path: an overlay needs a folder of its own"
        raise UnhangError("not-empty", f"{folder} is neither empty nor an overlay", path=folder, hint=hint)


def _holds(folder: str, overlay: Overlay) -> bool:
    """Return whether the folder has every byte of the overlay."""
    content = os.path.join(folder, STORE, overlay.identity)
    expected = {os.path.join(folder, HOOK): overlay.hook}
    expected.update((os.path.join(content, name), data) for name, data in overlay.files.items())
    try:
        return all(disk.read(path) == data for path, data in expected.items())
    except OSError:
        return False


def _fill(store: str, overlay: Overlay) -> None:
    """Write the overlay's files into a draft folder, and rename that to the overlay's identity."""
    draft = os.path.join(store, _NEW + os.urandom(8).hex())
    for name, data in overlay.files.items():
        path = os.path.join(draft, name)
        disk.run(os.makedirs, os.path.dirname(path), exist_ok=True)
        disk.write(path, data)
    content = os.path.join(store, overlay.identity)
    if os.path.lexists(content):  # it may be damaged
        disk.run(os.rename, content, f"{draft}.old")
    disk.run(os.rename, draft, content)
    for path, _, _ in os.walk(store):
        disk.sync_dir(path)


def _replace(folder: str, hook: bytes) -> None:
    """Replace the hook, and remove the old one's bytecode."""
    path, draft = os.path.join(folder, HOOK), os.path.join(folder, STORE, _NEW + "hook")
    # makes the new one younger, which outdates old bytecode
    like = disk.like_file(path) if os.path.exists(path) else None
    disk.write(draft, hook, like=like, replace=True)
    disk.run(os.replace, draft, path)
    for old in cached(path):
        with suppress(OSError):  # it is for the old hook, whose time differs
            disk.remove(old)
    with suppress(OSError):
        disk.sync_dir(folder)
