"""Write a plan to disk: for each root sources, RECORD rows and receipt in one transaction, then the bytecode."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from unhang.errors import UnhangError
from unhang.records import Request, Search
from unhang.rewrite.plan import FilePlan, Plan, Rewritten
from unhang.shapes import catalog
from unhang.store import bytecode, disk, dist_info, pristine, receipt, state
from unhang.store.bytecode import caches
from unhang.store.receipt import Entry, Fixed
from unhang.store.roots import locked
from unhang.store.survey import Survey, again, planned
from unhang.store.transaction import FileChange, commit


class Applied(NamedTuple):
    """What a run wrote, root by root."""

    plan: Plan
    files: tuple[FilePlan, ...]
    """Those of the plan that are in place now."""
    failed: Mapping[str, UnhangError]
    """The roots in which nothing was written, and why."""
    recovered: tuple[str, ...]
    """What was done about runs that had been killed, a sentence each."""
    left: Mapping[str, Sequence[UnhangError]]
    """Why something of the run is left in a root where all is in place."""


def apply(seen: Survey, request: Request) -> Applied:
    """Bring every needed fix of a survey into place, one root after the other; plan again if anything has changed.

    Raises UnhangError if nothing could be written at all, with every file as it was: as `transaction.commit`,
    `lock.exclusive`, `recovery.recover`, `receipt.load` and `survey.planned` do.
    """
    plan = _plan_early(seen)
    wanted = {root for root in seen.search.roots if plan is None or state.interrupted(state.folder(root))}
    found = caches(seen.search)
    while wanted := wanted | {file.installation.real_root for file in (plan.files if plan else ())}:
        with locked(wanted, found) as held:
            now = again(seen.search, request)
            if plan is None or now.findings != seen.findings:
                plan = planned(now)
            by_root = _by_root(plan.files)
            if not by_root.keys() <= wanted:
                continue  # somebody else wrote meanwhile: take all locks again, in their order
            written: list[FilePlan] = []
            for root in sorted(by_root.keys() - held.failed.keys()):
                with held.failing(root):
                    held.left[root] += write(now.search, root, by_root[root])
                    written += by_root[root]
        if held.failed and not written:
            raise next(iter(held.failed.values()))
        held.complete_hints(request)
        return Applied(plan, tuple(written), held.failed, held.recovered, held.left)
    assert plan is not None  # without a plan, the roots are wanted
    return Applied(plan, (), {}, (), {})


def rehearse(seen: Survey) -> Applied:
    """Return what `apply` would write, and the roots in which we may not; write nothing, and take no lock.

    Raises UnhangError as `survey.planned` does, or `not-writable` if nothing could be written at all.
    """
    plan = planned(seen)
    by_root = _by_root(plan.files)
    failed = {}
    for root, files in by_root.items():
        for path in (state.folder(root), *(file.path for file in files)):
            if not os.access(os.path.dirname(path), os.W_OK):  # a file is replaced, so its folder must be writable
                failed[root] = disk.refusal(PermissionError(errno.EACCES, os.strerror(errno.EACCES)), path)
    if failed and failed.keys() == by_root.keys():
        raise next(iter(failed.values()))
    rest = tuple(file for file in plan.files if file.installation.real_root not in failed)
    return Applied(plan, rest, failed, (), {})


def _plan_early(seen: Survey) -> Plan | None:
    """Return the plan, made without a lock; None if the receipt is inconsistent."""
    try:
        return planned(seen)
    except UnhangError as error:
        if error.code != "bad-receipt":
            raise
        return None  # a run was killed while it wrote the receipt, or is writing it: whoever has the lock can tell


def _by_root(files: Iterable[FilePlan]) -> dict[str, list[FilePlan]]:
    groups: dict[str, list[FilePlan]] = {}
    for file in files:
        groups.setdefault(file.installation.real_root, []).append(file)
    return groups


def write(search: Search, root: str, files: Sequence[FilePlan]) -> list[UnhangError]:
    """Write the planned files of one root; call it inside `lock.exclusive`, with a plan that was made there.

    Returns why something of the run is left there. Raises UnhangError as `transaction.commit` and `receipt.load` do,
    with every file as it was.
    """
    folder = state.folder(root)
    entries = [_entry(file, root) for file in files]
    merged = receipt.merge(receipt.load(folder), entries)
    originals = {receipt.sha256(file.before): file.before for file in files}
    changes = [FileChange(file.path, file.before, file.after) for file in files]
    rows = record_changes((entry, file.after, None) for entry, file in zip(entries, files))
    return commit_with_bytecode(search, root, [*changes, *rows, *pristine.changes(folder, merged, originals)])


def commit_with_bytecode(search: Search, root: str, changes: Sequence[FileChange]) -> list[UnhangError]:
    """Commit the changes, and recompile what bytecode of their sources the environment's interpreter had.

    Returns as `write`.
    """
    found = caches(search)
    compiled = bytecode.survey((change.path for change in changes if change.path.endswith(".py")), found)
    left = commit(changes, state_dir=state.folder(root), caches=found)
    if search.environment.python is not None and compiled:
        bytecode.recompile(search.environment.python, compiled)
    return [left] if left else []


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
            found = _read_record(entry.record)
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


def _read_record(path: str) -> bytes | None:
    try:
        return disk.read(path)
    except OSError as error:
        message = f"cannot read {path}, whose hashes must be right after a change: {error.strerror}"
        hint = "nothing was changed; run this as a user who can read it, or reinstall the package"
        raise UnhangError("unreadable", message, path=path, hint=hint) from error


def _entry(file: FilePlan, root: str) -> Entry:
    installation = file.installation
    relative = os.path.relpath(file.path, root)
    record = row = None
    if installation.record is not None:
        record = os.path.join(root, os.path.basename(os.path.dirname(installation.record)), "RECORD")
        row = dist_info.row(_read_record(record) or b"", relative.replace(os.sep, "/"))
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
        fixes=tuple(map(_fixed, file.steps)),
    )


def _fixed(step: Rewritten) -> Fixed:
    fixed = Fixed(step.target.fix, step.target.file, step.target.function, step.before, step.after, step.listed)
    if step.listed:
        return fixed
    return fixed._replace(generation=catalog.generation(), date=time.strftime("%Y-%m-%d", time.gmtime()))
