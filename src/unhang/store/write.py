"""Write a plan to disk: for each root sources, RECORD rows and receipt in one transaction, then the bytecode."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Mapping, Sequence

from unhang.errors import UnhangError
from unhang.find.bytecode import cached, caches, compiler
from unhang.judge import recorded
from unhang.judge.decide import MARK
from unhang.plugins import parameters
from unhang.records import Installation, Search
from unhang.rewrite.plan import FilePlan, Rewritten
from unhang.shapes import catalog, shape
from unhang.store import bytecode, disk, dist_info, links, pristine, receipt, state
from unhang.store.receipt import Entry, Fixed, Receipt
from unhang.store.remains import living, look, rebased, signed
from unhang.store.transaction import FileChange, commit


def write(search: Search, root: str, files: Sequence[FilePlan]) -> list[UnhangError]:
    """Write the planned files of one root; call it inside `lock.exclusive`, with a plan that was made there.

    Returns why something of the run is left there. Raises UnhangError as `transaction.commit` and `receipt.load` do,
    with every file as it was.
    """
    stale = [file for file in files if file.bytecode]
    changes = _changes(root, [file for file in files if not file.bytecode], stale)
    return commit_with_bytecode(search, root, changes, [path for file in stale for path in file.bytecode])


def _changes(root: str, files: Sequence[FilePlan], stale: Iterable[FilePlan]) -> list[FileChange]:
    """Return the changes to the files, to the RECORDs that list them, and to the state. Raises UnhangError."""
    gone = [(record, path) for file in stale if (record := _record(file.installation, root)) for path in file.bytecode]
    if not files:
        return [change for change in record_changes((), gone) if not os.path.islink(change.path)]
    folder = state.folder(root)
    entries = [_entry(file, root) for file in files]
    old, kept = _rebased(receipt.load(folder), {file.path for file in files})
    entries = [_with_first_row(entry, old) for entry in entries]
    originals = {**kept, **{receipt.sha256(file.before): file.before for file in files}}
    after = {receipt.sha256(file.after): file.after for file in files}
    merged = receipt.merge(old, entries)
    new = {(entry.path, entry.patched) for entry in entries}
    entries_ = (
        signed(e, originals[e.pristine], after[e.patched])
        if (e.path, e.patched) in new and e.pristine in originals else e
        for e in merged.files
    )  # fmt: skip
    merged = merged._replace(files=tuple(entries_))
    changes = [FileChange(file.path, file.before, file.after) for file in files]
    changes += record_changes(((entry, file.after, None) for entry, file in zip(entries, files)), gone)
    with disk.about(folder):
        changes = links.replaced(changes)
    merged = merged._replace(links={**merged.links, **links.texts(changes, root)})
    return [*changes, *pristine.changes(folder, merged, originals)]


def _rebased(old: Receipt | None, paths: Collection[str]) -> tuple[Receipt | None, Mapping[str, bytes]]:
    """Return the receipt with an entry for each of these files as it is now, and the bytes before its fixes, by hash.

    That of the file before somebody's edit stays beside it.
    """
    originals: dict[str, bytes] = {}
    if old is None:
        return None, originals
    for path in paths:
        remains = living(look(entry) for entry in old.files if entry.path == path)
        if remains is not None and not remains.edited:
            entry, data = rebased(remains)
            originals[entry.pristine] = data
            if not remains.whole:
                old = old._replace(files=(entry, *old.files))
    return old, originals


def _with_first_row(entry: Entry, old: Receipt | None) -> Entry:
    """Return a new entry with the row that its file had in RECORD before us, if the row there now is one of ours."""
    for other in old.files if old else ():
        is_there = (other.path, other.record) == (entry.path, entry.record) and entry.record_row is not None
        if is_there and dist_info.has_digest(entry.record_row or "", other.patched):
            return entry._replace(record_row=other.record_row)
    return entry


def commit_with_bytecode(
    search: Search, root: str, changes: Sequence[FileChange], stale: Iterable[str] = ()
) -> list[UnhangError]:
    """Commit the changes, and recompile what bytecode of their sources the environment's interpreter had.

    First deletes the stale bytecode of other sources. Returns as `write`.
    """
    where = caches(search)
    bytecode.remove(stale)
    compiled = bytecode.survey((change.path for change in changes if change.path.endswith(".py")), where)
    left = commit(changes, state_dir=state.folder(root), caches=where)
    if python := compiler(search):
        bytecode.recompile(python, compiled)
    return [left] if left else []


def record_changes(
    files: Iterable[tuple[Entry, bytes, str | None]], stale: Iterable[tuple[str, str]] = ()
) -> list[FileChange]:
    """Return the changes to the RECORDs that list these files, and the bytecode that goes with a file or is ``stale``.

    Each file is its entry, its new bytes, and the row to restore (None: compute a new one); stale bytecode is its
    RECORD and its path. Raises UnhangError.
    """
    before: dict[str, bytes] = {}
    after: dict[str, bytes] = {}

    def is_there(record: str) -> bool:
        if record not in before and (data := links.read_record(record)) is not None:
            before[record] = after[record] = data
        return record in before  # else uninstalled since: nothing lists the file any more

    gone = list(stale)
    new: dict[str, dict[str, bytes]] = {}
    for entry, data, original in files:
        if entry.record is None or not is_there(entry.record):
            continue
        name = entry.relative.replace(os.sep, "/")
        if original is None:
            new.setdefault(entry.record, {})[name] = data
        else:
            after[entry.record] = dist_info.restore(after[entry.record], name, original)
        gone += ((entry.record, path) for path in cached(entry.path))
    for record, rows in new.items():
        after[record] = dist_info.update(after[record], rows)
        for name in (name for name, data in rows.items() if MARK not in data):
            after[record] = dist_info.quoted(after[record], name)
    for record, path in gone:
        if is_there(record):
            path = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
            name = os.path.relpath(path, os.path.dirname(os.path.dirname(record)))
            after[record] = dist_info.unhashed(after[record], name.replace(os.sep, "/"))
    return [FileChange(path, data, after[path]) for path, data in before.items() if after[path] != data]


def _record(installation: Installation, root: str) -> str | None:
    """Return the real path of the RECORD that lists an installation's files, if there is one."""
    if installation.record is None:
        return None
    folder = os.path.join(root, os.path.basename(os.path.dirname(installation.record)))
    # the list in a folder that is a link is not for this copy alone
    return None if os.path.islink(folder) else os.path.join(folder, "RECORD")


def _entry(file: FilePlan, root: str) -> Entry:
    installation = file.installation
    relative = os.path.relpath(file.path, root)
    record, row = _record(installation, root), None
    if record is not None:
        row = dist_info.row(links.read_record(record) or b"", relative.replace(os.sep, "/"))
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
        fixes=tuple(_fixed(step, file.after) for step in file.steps),
    )


def _fixed(step: Rewritten, after: bytes) -> Fixed:
    target, pack = step.target, catalog.pack_of(step.target.fix)
    fixed = Fixed(target.fix, target.file, target.function, step.before, step.after, step.listed)
    values = "\n".join(f"{name}={value}" for name, value in parameters.of(target.parameters).items())
    fixed = fixed._replace(pack=str(pack) if pack.folder else None, values=values or None)
    if target.text:
        written = recorded.edits(target).written(shape.text(after, target.file)[1], target)
        fixed = fixed._replace(edits=tuple(map(tuple, written)))
    if step.listed:
        return fixed
    date = time.strftime("%Y-%m-%d", time.gmtime())
    return fixed._replace(
        generation=catalog.generation(), date=date, beside=step.beside, seen_right=step.seen_right or None
    )
