"""Reverting: the receipt's pristine bytes put back, or built anew without one fix; the user's own edits never lost."""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import NamedTuple

from unhang import catalog, disk, receipt, write
from unhang.errors import UnhangError
from unhang.model import Environment, Search
from unhang.receipt import Entry, Receipt
from unhang.transaction import FileChange


class Undo(NamedTuple):
    """What a revert does: the files to write, the receipt that remains, and what stands in its way."""

    files: tuple[tuple[Entry, bytes, bytes], ...]
    """Entry, bytes now, bytes to be."""
    remaining: Receipt
    refused: tuple[tuple[Entry, str, str], ...]
    """Entry, why it stays, what to do."""
    notes: tuple[str, ...]


def plan(
    environment: Environment, search: Search, found: Receipt, fixes: Collection[str], upstreams: Collection[str]
) -> Undo:
    """Plan to take these fixes out of these upstreams.

    A file that was edited since is refused; one that was reinstalled or removed since only leaves the receipt. Raises
    UnhangError ``bad-receipt`` for an entry that leads out of the environment, or whose original bytes are gone.
    """
    files, refused, notes = [], [], []
    remaining = {entry.path: entry for entry in found.files}
    for entry in found.files:
        _check_place(environment, search, entry)
        kept = tuple(fixed for fixed in entry.fixes if fixed.fix not in fixes)
        if len(kept) == len(entry.fixes) or entry.upstream not in upstreams:
            continue
        with disk.about(entry.path):
            now = disk.read(entry.path)
        if now is None:
            notes.append(f"{entry.path} is gone; nothing is left to revert in it")
            del remaining[entry.path]
        elif receipt.sha256(now) == entry.patched:
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
            hint = f"take your own change out of {entry.path}, or reinstall {entry.upstream}; then run `unhang revert`"
            refused.append((entry, "edited since it was patched: reverting would destroy that edit", hint))
    return Undo(tuple(files), found._replace(files=tuple(remaining.values())), tuple(refused), tuple(notes))


def carry_out(environment: Environment, undo: Undo) -> None:
    """Write what was planned; call it inside ``transaction.exclusive``, with a plan made inside of it."""
    changes = [FileChange(entry.path, now, after) for entry, now, after in undo.files]
    left = {entry.path for entry in undo.remaining.files}
    rows = write.record_changes(
        (entry, after, entry.record_row if entry.path not in left else None) for entry, _, after in undo.files
    )
    changes += [*rows, *receipt.changes(environment.state_dir, undo.remaining, {})]
    write.commit_with_bytecode(environment, changes)


def _without(pristine: bytes, entry: Entry, kept: tuple[receipt.Fixed, ...]) -> bytes:
    """The pristine bytes with only the kept fixes in place."""
    if not kept:
        return pristine
    from unhang.rewriting import RewriteError, Step, rewrite

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
    import ast

    from unhang import shape

    try:
        tree = ast.parse(data)
    except (SyntaxError, ValueError, RecursionError):
        return True  # broken by an edit, and not ours to throw away
    marks = any(f"# unhang {fixed.fix}:".encode() in data for fixed in entry.fixes)
    return marks or any(
        shape.digest(function) == fixed.after for fixed in entry.fixes for function in shape.find(tree, fixed.function)
    )


def _check_place(environment: Environment, search: Search, entry: Entry) -> None:
    allowed = [os.path.realpath(environment.prefix)]
    if environment.python is not None:
        allowed += [os.path.realpath(installation.package_dir) for installation in search.installations]
    inside = [path for path in allowed if entry.path.startswith(path + os.sep)]
    if not inside or os.path.realpath(entry.path) != entry.path:
        raise UnhangError(
            "bad-receipt",
            f"the receipt names {entry.path}, which is not a file of this environment",
            path=environment.state_dir,
            hint="nothing was changed; look at who wrote that receipt, and reinstall what was patched",
        )
