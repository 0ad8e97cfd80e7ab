"""Revert: restore the pristine bytes, or rebuild a file without one fix, and never lose an edit of the user's."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from unhang import suggest
from unhang.errors import UnhangError
from unhang.judge.observe import below_package, file_of
from unhang.records import Request, Search
from unhang.shapes import catalog
from unhang.store import apply, disk, pristine, receipt, state
from unhang.store.bytecode import caches
from unhang.store.receipt import Entry, Fixed, Receipt, sha256
from unhang.store.roots import locked
from unhang.store.transaction import FileChange

_HINT = "nothing was changed; find out who wrote that receipt, and reinstall what was patched"


class Revert(NamedTuple):
    """The plan of a revert of one root: the files to write, the receipt that remains, and what prevents the rest."""

    root: str
    files: tuple[tuple[Entry, bytes, bytes], ...]
    """Entry, bytes now, new bytes."""
    remaining: Receipt
    refused: tuple[tuple[Entry, str, str], ...]
    """Entry, why it stays, what to do."""
    notes: tuple[str, ...]
    copies: tuple[tuple[str, bytes], ...]
    """The files to make: the user's edited versions of files that are reverted anyway."""


class Reverted(NamedTuple):
    """What a run reverted, root by root."""

    done: tuple[Revert, ...]
    """The plans that were carried out, or had nothing to write."""
    failed: Mapping[str, UnhangError]
    """The roots in which nothing was written, and why."""
    recovered: tuple[str, ...]
    """What was done about runs that had been killed, a sentence each."""
    left: Mapping[str, Sequence[UnhangError]]
    """Why something of the run is left in a root where all is in place."""


class _FileRevert(NamedTuple):
    """What a revert does to one file."""

    remaining: Entry | None
    """The entry that the receipt keeps."""
    file: tuple[Entry, bytes, bytes] | None = None
    refused: tuple[Entry, str, str] | None = None
    note: str | None = None
    copy: tuple[str, bytes] | None = None


def has_state(search: Search) -> bool:
    """Return whether there is something to revert or to recover, even if the upstreams were uninstalled since."""
    return any(state.kept(state.folder(root)) for root in search.roots)


def revert(search: Search, request: Request, *, force: bool = False) -> Reverted:
    """Take the fixes of the request out of its upstreams, one root after the other.

    Raises UnhangError if nothing could be reverted at all, with every file as it was: as ``plan_revert``,
    ``transaction.commit``, ``lock.exclusive`` and ``recovery.recover`` do.
    """
    roots = [root for root in search.roots if state.kept(state.folder(root))]
    with locked(roots, caches(search)) as held:
        planned: list[Revert] = []
        for root in sorted(set(roots) - held.failed.keys()):
            with held.failing(root):
                found = receipt.load(state.folder(root))
                if found is not None:
                    planned.append(plan_revert(search, root, found, request, force=force))
        done: list[Revert] = []
        for one in planned:
            with held.failing(one.root):
                held.left[one.root] += carry_out(search, one)
                done.append(one)
    if held.failed and not any(one.files for one in done):
        raise next(iter(held.failed.values()))
    held.complete_hints(request)
    return Reverted(tuple(done), held.failed, held.recovered, held.left)


def plan_revert(search: Search, root: str, found: Receipt, request: Request, *, force: bool = False) -> Revert:
    """Plan to take the fixes of the request out of its upstreams, in one root, whose receipt is ``found``.

    A file that was edited since is refused; with ``force``, a copy of it is kept beside it under another name. A file
    that was reinstalled or removed since only leaves the receipt. Raises UnhangError ``bad-receipt`` for an entry of
    these upstreams that no fix is for or whose original bytes are gone, and for any unknown entry.
    """
    planned = []
    for entry in found.files:
        _check_known(entry)
        one = _FileRevert(entry)
        if entry.upstream in request.upstreams:
            _check_place(search, entry)
            kept = tuple(fixed for fixed in entry.fixes if fixed.fix not in request.fixes)
            if len(kept) < len(entry.fixes):
                one = _plan_file(entry, kept, request, force)
        planned.append(one)
    return Revert(
        root=root,
        files=tuple(one.file for one in planned if one.file),
        remaining=found._replace(files=tuple(one.remaining for one in planned if one.remaining)),
        refused=tuple(one.refused for one in planned if one.refused),
        notes=tuple(one.note for one in planned if one.note),
        copies=tuple(one.copy for one in planned if one.copy),
    )


def _plan_file(entry: Entry, kept: tuple[Fixed, ...], request: Request, force: bool) -> _FileRevert:
    with disk.about(entry.path):
        now = disk.read(entry.path)
    if now is None:
        return _FileRevert(None, note=f"{entry.path} is gone; nothing is left to revert in it")
    is_edited = sha256(now) != entry.patched
    if is_edited and not _has_fixes(now, entry):
        return _FileRevert(
            None, note=f"{entry.path} was reinstalled or restored since; none of our changes are left in it"
        )
    if is_edited and not force:
        forced, plain = suggest.command("revert", request, "--force"), suggest.command("revert", request)
        hint = f"run `{forced}`, which keeps your version as {_free_name(entry.path)}; "
        hint += f"or undo your own change, or reinstall {entry.upstream}, then run `{plain}`"
        refused = (entry, "edited since it was patched: reverting would destroy that edit", hint)
        return _FileRevert(entry, refused=refused)
    after = _without(pristine.read(entry), entry, kept)
    remaining = entry._replace(patched=sha256(after), fixes=kept) if kept else None
    if not is_edited:
        return _FileRevert(remaining, (entry, now, after))
    copy = _free_name(entry.path)
    note = f"{entry.path} was edited since it was patched; your version is kept as {copy}"
    return _FileRevert(remaining, (entry, now, after), note=note, copy=(copy, now))


def carry_out(search: Search, planned: Revert) -> list[UnhangError]:
    """Write what was planned; call it inside ``lock.exclusive``, with a plan that was made there.

    Returns why something of the run is left in the root.
    """
    folder = state.folder(planned.root)
    if planned.remaining == receipt.load(folder):
        return []
    changes = [FileChange(path, None, data) for path, data in planned.copies]
    changes += [FileChange(entry.path, now, after) for entry, now, after in planned.files]
    left = {entry.path for entry in planned.remaining.files}
    rows = apply.record_changes(
        (entry, after, entry.record_row if entry.path not in left else None) for entry, _, after in planned.files
    )
    changes += [*rows, *pristine.changes(folder, planned.remaining, {})]
    return apply.commit_with_bytecode(search, planned.root, changes)


def _without(original: bytes, entry: Entry, kept: tuple[Fixed, ...]) -> bytes:
    """Return the original bytes with only the kept fixes."""
    if not kept:
        return original
    from unhang.rewrite.one_file import RewriteError, Step, rewrite

    steps = []
    for fixed in kept:
        targets = {(target.file, target.function): target for target in catalog.fix(fixed.fix).targets}
        steps.append(Step(targets[fixed.file, fixed.function], fixed.after))
    try:
        return rewrite(original, steps).data
    except RewriteError as error:
        fixes = " ".join(f"--fix {name}" for name in dict.fromkeys(fixed.fix for fixed in entry.fixes))
        hint = f"revert all fixes of this file: run `unhang revert {fixes}`, then apply the ones to keep"
        message = f"{error.target.fix} cannot be kept: {error}"
        raise UnhangError("cannot-keep", message, path=entry.path, hint=hint) from error


def _has_fixes(data: bytes, entry: Entry) -> bool:
    """Return whether the file still contains a fix: then its other changes are the user's edit."""
    from unhang.shapes import shape

    try:
        tree = shape.parse(data)
    except (SyntaxError, ValueError, RecursionError):
        return True  # broken by an edit, which must not be lost
    marks = any(f"# unhang {fixed.fix}:".encode() in data for fixed in entry.fixes)
    return marks or any(
        shape.digest(function) == fixed.after for fixed in entry.fixes for function in shape.find(tree, fixed.function)
    )


def _free_name(path: str) -> str:
    """Return an unused name beside a file for the user's version of it, under which no import finds it."""
    names = (f"{path}.unhang-kept{number}" for number in itertools.chain([""], itertools.count(2)))
    return next(name for name in names if not os.path.lexists(name))


def _check_known(entry: Entry) -> None:
    """Raise UnhangError for an entry with a fix that this unhang does not know."""
    targets = {(target.fix, target.upstream, target.file) for fix in catalog.fixes().values() for target in fix.targets}
    for fixed in entry.fixes:
        if (fixed.fix, entry.upstream, fixed.file) not in targets:
            what = f"{fixed.fix} in {entry.upstream}'s {fixed.file}"
            hint = f"use the unhang that wrote it, if it is newer than this one; otherwise {_HINT}"
            raise _bad(entry, f"the receipt names {what}, which this unhang does not know", hint)


def _check_place(search: Search, entry: Entry) -> None:
    """Raise UnhangError for an entry that leads to anything but a fix's own file, or the RECORD beside it.

    A checkout may contain a forged receipt.
    """
    for path in filter(None, (entry.path, entry.record)):
        if os.path.realpath(os.path.dirname(path)) != os.path.dirname(path) or os.path.islink(path):
            raise _bad(entry, f"the receipt names {path}, and a link is on the way there", _HINT)
    for fixed in entry.fixes:
        here = [os.path.realpath(file_of(i, fixed.file)) for i in search.installations if i.upstream == entry.upstream]
        tail = os.path.join(os.sep, *below_package(entry.upstream, fixed.file))
        # In an installation it may be a link to another name.
        if entry.path not in here and not entry.path.endswith(tail):
            raise _bad(entry, f"the receipt names {entry.path}, which is not {fixed.file}", _HINT)


def _bad(entry: Entry, message: str, hint: str) -> UnhangError:
    return UnhangError("bad-receipt", message, path=state.folder(entry.root), hint=hint)
