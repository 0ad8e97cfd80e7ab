"""A plan brought to disk: sources, RECORD rows and receipt in one transaction, then the bytecode that was there."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from unhang.records import Change, Environment
from unhang.rewrite.plan import FilePlan
from unhang.store import bytecode, disk, dist_info, receipt
from unhang.store.receipt import Entry, Fixed
from unhang.store.transaction import FileChange, commit


def apply(environment: Environment, files: Sequence[FilePlan]) -> None:
    """Write the planned files; call it inside ``transaction.exclusive``, with a plan made inside of it.

    Raises UnhangError as ``transaction.commit`` and ``receipt.load`` do, with every file as it was.
    """
    entries = [_entry(file) for file in files]
    merged = receipt.merge(receipt.load(environment.state_dir), entries)
    originals = {receipt.sha256(file.before): file.before for file in files}
    changes = [Change(file.path, file.before, file.after) for file in files]
    rows = record_changes((entry, file.after, None) for entry, file in zip(entries, files))
    commit_with_bytecode(environment, [*changes, *rows, *receipt.changes(environment.state_dir, merged, originals)])


def commit_with_bytecode(environment: Environment, changes: Sequence[FileChange | Change]) -> None:
    """Commit the changes, and compile anew what bytecode the environment's interpreter had of their sources."""
    compiled = bytecode.survey(change.path for change in changes if change.path.endswith(".py"))
    commit(changes, state_dir=environment.state_dir)
    if environment.python is not None and compiled:
        bytecode.recompile(environment.python, compiled)


def record_changes(files: Iterable[tuple[Entry, bytes, str | None]]) -> list[FileChange]:
    """The changes of the RECORDs that list these files: entry, new bytes, and the row to restore (None: compute it)."""
    before: dict[str, bytes] = {}
    after: dict[str, bytes] = {}
    for entry, data, original in files:
        if entry.record is None:
            continue
        if entry.record not in before:
            with disk.about(entry.record):
                found = disk.read(entry.record)
            if found is None:
                continue  # uninstalled since: nothing lists the file any more
            before[entry.record] = after[entry.record] = found
        now = after[entry.record]
        name = entry.relative.replace(os.sep, "/")
        if original is None:
            after[entry.record] = dist_info.update(now, {name: data})
        else:
            after[entry.record] = dist_info.restore(now, name, original)
    return [FileChange(path, data, after[path]) for path, data in before.items() if after[path] != data]


def _entry(file: FilePlan) -> Entry:
    installation = file.installation
    root = os.path.realpath(installation.root)
    if not file.path.startswith(root + os.sep):  # the package's folder is itself a link
        root = os.path.realpath(installation.package_dir)
        root = root[: -len(os.path.relpath(installation.package_dir, installation.root)) - 1] or root
    relative = os.path.relpath(file.path, root)
    listed = row = None
    if installation.record is not None:
        listed = os.path.join(root, os.path.basename(os.path.dirname(installation.record)), "RECORD")
        with disk.about(listed):
            row = dist_info.row(disk.read(listed) or b"", relative.replace(os.sep, "/"))
    fixes = tuple(
        Fixed(target.fix, target.file, target.function, before, after, verified)
        for target, before, after, verified in file.steps
    )
    return Entry(
        file.path,
        relative,
        installation.upstream,
        installation.version,
        root,
        receipt.sha256(file.before),
        receipt.sha256(file.after),
        listed,
        row,
        fixes,
    )
