"""Write a plan to disk: sources, RECORD rows and receipt in one transaction; then recompile the bytecode there was."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from unhang.records import Environment, Installation
from unhang.rewrite.plan import FilePlan
from unhang.store import bytecode, disk, dist_info, pristine, receipt
from unhang.store.receipt import Entry, Fixed
from unhang.store.transaction import FileChange, commit


def apply(environment: Environment, files: Sequence[FilePlan]) -> None:
    """Write the planned files; call it inside `lock.exclusive`, with a plan that was made there.

    Raises UnhangError as `transaction.commit` and `receipt.load` do, with every file as it was.
    """
    entries = [_entry(file) for file in files]
    merged = receipt.merge(receipt.load(environment.state_dir), entries)
    originals = {receipt.sha256(file.before): file.before for file in files}
    changes = [FileChange(file.path, file.before, file.after) for file in files]
    rows = record_changes((entry, file.after, None) for entry, file in zip(entries, files))
    commit_with_bytecode(environment, [*changes, *rows, *pristine.changes(environment.state_dir, merged, originals)])


def commit_with_bytecode(environment: Environment, changes: Sequence[FileChange]) -> None:
    """Commit the changes, and recompile what bytecode of their sources the environment's interpreter had."""
    compiled = bytecode.survey(change.path for change in changes if change.path.endswith(".py"))
    commit(changes, state_dir=environment.state_dir)
    if environment.python is not None and compiled:
        bytecode.recompile(environment.python, compiled)


def record_changes(files: Iterable[tuple[Entry, bytes, str | None]]) -> list[FileChange]:
    """Return the changes to the RECORDs that list these files.

    Each file is its entry, its new bytes, and the row to restore (None: compute a new one). Raises UnhangError.
    """
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
    root = _root(file.path, installation)
    relative = os.path.relpath(file.path, root)
    record = row = None
    if installation.record is not None:
        record = os.path.join(root, os.path.basename(os.path.dirname(installation.record)), "RECORD")
        with disk.about(record):
            row = dist_info.row(disk.read(record) or b"", relative.replace(os.sep, "/"))
    return Entry(
        path=file.path,
        relative=relative,
        upstream=installation.upstream,
        version=installation.version,
        root=root,
        pristine=receipt.sha256(file.before),
        patched=receipt.sha256(file.after),
        record=record,
        record_row=row,
        fixes=tuple(
            Fixed(step.target.fix, step.target.file, step.target.function, step.before, step.after, step.listed)
            for step in file.steps
        ),
    )


def _root(path: str, installation: Installation) -> str:
    """Return the real root that contains `path`."""
    root = os.path.realpath(installation.root)
    if path.startswith(root + os.sep):
        return root
    # The package's folder is itself a link.
    root = os.path.realpath(installation.package_dir)
    return root[: -len(os.path.relpath(installation.package_dir, installation.root)) - 1] or root
