"""Reverting: the receipt's pristine bytes put back, or built anew without one fix; the user's own edits never lost."""

from __future__ import annotations

import itertools
import os
from collections.abc import Collection
from typing import NamedTuple

from unhang.errors import UnhangError
from unhang.judge.observe import below_package, file_of
from unhang.records import Environment, Search
from unhang.shapes import catalog
from unhang.store import apply, disk, receipt
from unhang.store.receipt import Entry, Receipt
from unhang.store.transaction import FileChange

_HINT = "nothing was changed; look at who wrote that receipt, and reinstall what was patched"


class Undo(NamedTuple):
    """What a revert does: the files to write, the receipt that remains, and what stands in its way."""

    files: tuple[tuple[Entry, bytes, bytes], ...]
    """Entry, bytes now, bytes to be."""
    remaining: Receipt
    refused: tuple[tuple[Entry, str, str], ...]
    """Entry, why it stays, what to do."""
    notes: tuple[str, ...]
    copies: tuple[tuple[str, bytes], ...]
    """The files to make: the user's edited versions of what is reverted all the same."""


def plan(
    environment: Environment,
    search: Search,
    found: Receipt,
    fixes: Collection[str],
    upstreams: Collection[str],
    *,
    force: bool = False,
) -> Undo:
    """Plan to take these fixes out of these upstreams.

    A file that was edited since is refused, or with ``force`` kept under another name beside; one that was reinstalled
    or removed since only leaves the receipt. Raises UnhangError ``bad-receipt`` for an entry of these upstreams that
    leads out of the environment, or whose original bytes are gone, and for any that this unhang does not know.
    """
    files, refused, notes, copies = [], [], [], []
    remaining = {entry.path: entry for entry in found.files}
    for entry in found.files:
        _check_known(environment, entry)
        if entry.upstream not in upstreams:
            continue
        _check_place(environment, search, entry)
        kept = tuple(fixed for fixed in entry.fixes if fixed.fix not in fixes)
        if len(kept) == len(entry.fixes):
            continue
        with disk.about(entry.path):
            now = disk.read(entry.path)
        if now is None:
            notes.append(f"{entry.path} is gone; nothing is left to revert in it")
            del remaining[entry.path]
        elif receipt.sha256(now) == entry.patched or (force and _carries_ours(now, entry)):
            if receipt.sha256(now) != entry.patched:
                copies.append((_free_name(entry.path), now))
                notes.append(f"{entry.path} was edited since it was patched; your version is kept as {copies[-1][0]}")
            pristine = receipt.pristine(environment.state_dir, entry)
            after = _without(pristine, entry, kept)
            files.append((entry, now, after))
            if kept:
                remaining[entry.path] = entry._replace(patched=receipt.sha256(after), fixes=kept)
            else:
                del remaining[entry.path]
        elif not _carries_ours(now, entry):
            notes.append(f"{entry.path} was reinstalled or restored since; nothing of ours is left in it")
            del remaining[entry.path]
        else:
            hint = f"run `unhang revert --force`, which keeps your version as {_free_name(entry.path)}; "
            hint += f"or take your own change out, or reinstall {entry.upstream}, then run `unhang revert`"
            refused.append((entry, "edited since it was patched: reverting would destroy that edit", hint))
    left = found._replace(files=tuple(remaining.values()))
    return Undo(tuple(files), left, tuple(refused), tuple(notes), tuple(copies))


def carry_out(environment: Environment, undo: Undo) -> None:
    """Write what was planned; call it inside ``transaction.exclusive``, with a plan made inside of it."""
    changes = [FileChange(path, None, data) for path, data in undo.copies]
    changes += [FileChange(entry.path, now, after) for entry, now, after in undo.files]
    left = {entry.path for entry in undo.remaining.files}
    rows = apply.record_changes(
        (entry, after, entry.record_row if entry.path not in left else None) for entry, _, after in undo.files
    )
    changes += [*rows, *receipt.changes(environment.state_dir, undo.remaining, {})]
    apply.commit_with_bytecode(environment, changes)


def _without(pristine: bytes, entry: Entry, kept: tuple[receipt.Fixed, ...]) -> bytes:
    """The pristine bytes with only the kept fixes in place."""
    if not kept:
        return pristine
    from unhang.rewrite.one_file import RewriteError, Step, rewrite

    steps = []
    for fixed in kept:
        targets = {(target.file, target.function): target for target in catalog.fix(fixed.fix).targets}
        steps.append(Step(targets[fixed.file, fixed.function], fixed.after))
    try:
        return rewrite(pristine, steps).data
    except RewriteError as error:
        hint = "revert all fixes of this file: run `unhang revert`, then apply the ones to keep"
        message = f"{error.target.fix} cannot be kept: {error}"
        raise UnhangError("cannot-keep", message, path=entry.path, hint=hint) from error


def _carries_ours(data: bytes, entry: Entry) -> bool:
    """Whether a function of ours still stands in the file: then the rest of it is the user's edit."""
    from unhang.shapes import shape

    try:
        tree = shape.parse(data)
    except (SyntaxError, ValueError, RecursionError):
        return True  # broken by an edit, and not ours to throw away
    marks = any(f"# unhang {fixed.fix}:".encode() in data for fixed in entry.fixes)
    return marks or any(
        shape.digest(function) == fixed.after for fixed in entry.fixes for function in shape.find(tree, fixed.function)
    )


def _free_name(path: str) -> str:
    """Where the user's version of a file goes: beside it, under a name that no import finds and nobody has yet."""
    names = (f"{path}.unhang-kept{number}" for number in itertools.chain([""], itertools.count(2)))
    return next(name for name in names if not os.path.lexists(name))


def _check_known(environment: Environment, entry: Entry) -> None:
    """Raise for an entry that is about no target of ours."""
    targets = {(target.fix, target.upstream, target.file) for fix in catalog.fixes().values() for target in fix.targets}
    for fixed in entry.fixes:
        if (fixed.fix, entry.upstream, fixed.file) not in targets:
            what = f"{fixed.fix} in {entry.upstream}'s {fixed.file}"
            hint = f"use the unhang that wrote it, if it is newer than this one; else {_HINT}"
            raise _bad(environment, f"the receipt names {what}, which this unhang does not know", hint)


def _check_place(environment: Environment, search: Search, entry: Entry) -> None:
    """Raise for an entry that is not of this environment: a checkout may bring an enemy's receipt, which is to lead to
    no file but those that the fixes are about, and to no RECORD but the one beside.
    """
    packages, roots = [os.path.realpath(environment.prefix)], [os.path.realpath(environment.prefix)]
    if environment.python is not None:
        packages += [os.path.realpath(installation.package_dir) for installation in search.installations]
        roots += [os.path.realpath(installation.root) for installation in search.installations]
    hint = f"{_HINT}; `--upstream` with their names reverts others than {entry.upstream}"
    if not _is_inside(entry.path, packages):
        raise _bad(environment, f"the receipt names {entry.path}, which is not a file of this environment", hint)
    if entry.record is not None and not _is_inside(entry.record, roots):
        raise _bad(environment, f"the receipt names {entry.record}, which is not of this environment", hint)
    for fixed in entry.fixes:
        here = [os.path.realpath(file_of(i, fixed.file)) for i in search.installations if i.upstream == entry.upstream]
        tail = os.path.join(os.sep, *below_package(entry.upstream, fixed.file))
        if entry.path not in here and not entry.path.endswith(tail):  # here, it may be a link to another name
            raise _bad(environment, f"the receipt names {entry.path}, which is not {fixed.file}", hint)


def _is_inside(path: str, folders: Collection[str]) -> bool:
    """Whether a path is in one of these folders, with no link on the way."""
    return os.path.realpath(path) == path and any(path.startswith(os.path.join(folder, "")) for folder in folders)


def _bad(environment: Environment, message: str, hint: str) -> UnhangError:
    return UnhangError("bad-receipt", message, path=environment.state_dir, hint=hint)
