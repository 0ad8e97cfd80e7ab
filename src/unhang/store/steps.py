"""The steps that a transaction and its recovery share: roll forward, roll back, remove the temporary files.

No file is ever replaced or deleted because of the journal alone. The temporary file beside it must have the bytes whose
sha256 the journal names, and only a user who may write to that folder can have put it there.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Literal

from unhang.errors import UnhangError
from unhang.find.bytecode import Caches, cached, folders
from unhang.store import disk
from unhang.store.journal import File, Journal, digest
from unhang.store.state import INTENT


def state_of(file: File) -> Literal["old", "new", "other"]:
    """Return which of the journal's two versions a file is in now."""
    try:
        now = digest(disk.content(file.path))
    except OSError:
        return "other"
    return "old" if now == file.old else "new" if now == file.new else "other"


def advance(state_dir: str, stage: str, following: str) -> None:
    """Take the journal from one stage to another, and have that on disk. Raises UnhangError as `disk.refusal`."""
    with disk.about(os.path.join(state_dir, following)):
        disk.run(os.rename, os.path.join(state_dir, stage), os.path.join(state_dir, following))
        disk.sync_dir(state_dir)


def roll_forward(journal: Journal, caches: Caches) -> None:
    """Put every new file in place. Raises UnhangError `changed-underneath`, and as `disk.refusal`.

    Bytecode goes before, because unchecked bytecode would seem to fit the new source, and again after, because an
    import may have written some in between.
    """
    _remove_bytecode(journal, caches)
    for file in journal.files:
        with disk.about(file.path):
            state = state_of(file)
            if state == "old" and file.new is None:
                disk.remove(file.path)
            elif state == "old":
                disk.run(os.replace, file.temp, file.path)
            elif state == "other" and (file.new is None or os.path.lexists(file.temp)):
                raise changed(file.path, "was changed by another program a moment ago")
    _remove_bytecode(journal, caches)
    _sync(journal, caches)


def roll_back(journal: Journal, caches: Caches) -> None:
    """Restore every file that was replaced. Raises UnhangError as `disk.refusal`."""
    for file in journal.files:
        with disk.about(file.path):
            if state_of(file) == "new":
                if file.old is None:
                    disk.remove(file.path)
                else:
                    disk.run(os.replace, file.backup, file.path)
    with suppress(UnhangError):  # what is left is for the new source, whose time and size are never those of the old
        _remove_bytecode(journal, caches)
    _sync(journal, caches)


def clean(state_dir: str, journal: Journal, stage: str) -> None:
    """Remove the temporary files, then the journal, which is at `stage` (INTENT or DONE). Raises OSError."""
    for file in journal.files:
        disk.remove(file.temp)
        disk.remove(file.backup)
    if stage == INTENT:  # at DONE everything that counts is on disk already
        for folder in journal.folders():
            disk.sync_dir(folder)
    unneeded = journal.made[::-1] if stage == INTENT else [os.path.dirname(f.path) for f in journal.files if f.prune]
    for folder in unneeded:
        disk.remove_dir(folder)
    disk.remove(os.path.join(state_dir, stage))
    disk.sync_dir(state_dir)


def changed(path: str, how: str) -> UnhangError:
    """Return the error for a file that another program changed after the plan was made."""
    hint = "run the same command again: it starts from what is there now"
    return UnhangError("changed-underneath", f"{path} {how}; nothing was written", path=path, hint=hint)


def _sync(journal: Journal, caches: Caches) -> None:
    """Sync the folders of the files, and those of their bytecode: old bytecode must not come back either."""
    of_bytecode = {folder for file in journal.files for folder in folders(file.path, caches)}
    for folder in (*journal.folders(), *sorted(of_bytecode)):
        with disk.about(os.path.join(folder, "")):
            disk.sync_dir(folder)


def _remove_bytecode(journal: Journal, caches: Caches) -> None:
    for file in journal.files:
        for path in cached(file.path, caches):
            with disk.about(path):
                disk.remove(path)
