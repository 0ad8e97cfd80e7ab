"""Revert: restore the pristine bytes, or only those of the functions, and never lose an edit of the user's."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from unhang.errors import UnhangError, joined
from unhang.find.bytecode import caches
from unhang.judge import recorded
from unhang.judge.observe import below_package, placed
from unhang.records import Request, Search
from unhang.shapes import catalog
from unhang.shapes.catalog import Target
from unhang.store import disk, links, pristine, receipt, state, untrusted, write
from unhang.store.disk import Content
from unhang.store.receipt import Entry, Fixed, Receipt, sha256
from unhang.store.remains import Remains, living, look, put_back, signed, states
from unhang.store.roots import locked
from unhang.store.transaction import FileChange
from unhang.suggest import Command, Hint, complete, hinted

_HINT = "nothing was changed; find out who wrote that receipt, and reinstall what was patched"


class Revert(NamedTuple):
    """The plan of a revert of one root: the files to write, the receipt that remains, and what prevents the rest."""

    root: str
    files: tuple[tuple[Entry, bytes, bytes], ...]
    """Entry, bytes now, new bytes."""
    remaining: Receipt
    refused: tuple[UnhangError, ...]
    """Why a file stays as it is, and what to do."""
    notes: tuple[str, ...]
    asleep: tuple[str, ...]
    """The files that have none of our rewrites now, and are not as they were either: their originals stay."""
    copies: tuple[tuple[str, Content], ...]
    """The files to make: the user's edited versions of files that are reverted anyway."""
    links: Mapping[str, str] = {}
    """The links to put back, as the receipt has them."""


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

    remaining: tuple[Entry, ...]
    """The entries that the receipt keeps."""
    file: tuple[Entry, bytes, bytes] | None = None
    refused: UnhangError | None = None
    note: str = ""
    asleep: str | None = None
    copy: tuple[str, Content] | None = None


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


def forget(search: Search, request: Request) -> tuple[str, ...]:
    """Drop from the receipts what the request is about and an installer has written since: RECORD lists it.

    Without permission this does nothing. Returns a sentence for each file.
    """
    notes: list[str] = []
    for root in search.roots:
        with suppress(UnhangError, OSError):  # whoever needs that receipt next says what is wrong with it
            if _replaced(search, root, request):
                with locked([root], caches(search)) as held, held.failing(root):
                    if root not in held.failed and (planned := _replaced(search, root, request)):
                        carry_out(search, planned)
                        notes += planned.notes
    return tuple(notes)


def listed(search: Search) -> set[str]:
    """Return the fixes that the receipts list. Raises UnhangError as ``receipt.load``."""
    receipts = map(receipt.load, map(state.folder, search.roots))
    return {fixed.fix for found in receipts if found for entry in found.files for fixed in entry.fixes}


def _replaced(search: Search, root: str, request: Request) -> Revert | None:
    """Return the plan that drops what `forget` is about from a root's receipt; None if there is nothing.

    Raises UnhangError for a receipt that `revert` refuses.
    """
    found = receipt.load(state.folder(root)) if state.has_receipt(state.folder(root)) else None
    gone: dict[Entry, str] = {}
    for entry in found.files if found else ():
        _check_place(search, entry)
        if _is_selected(entry, request) and (remains := look(entry)).is_listed:
            gone[entry] = remains.absent
    if found is None or not gone:
        return None
    left = tuple(entry for entry in found.files if entry not in gone)
    return Revert(root, (), found._replace(files=left), (), tuple(dict.fromkeys(gone.values())), (), ())


def plan_revert(search: Search, root: str, found: Receipt, request: Request, *, force: bool = False) -> Revert:
    """Plan to take the fixes of the request out of its upstreams, in one root, whose receipt is ``found``.

    Where a file was edited since, its functions alone are put back. One that was edited itself is refused; with
    ``force``, the file is restored, and a copy of it is kept beside it under another name. An entry leaves the receipt
    when its file is as it was, or as its RECORD lists it. Raises UnhangError ``bad-receipt`` for an entry of these
    upstreams that no fix is for, for any unknown entry, and if nothing but lost originals is in the way.
    """
    planned = []
    for _, group in itertools.groupby(found.files, key=lambda entry: entry.path):
        entries = tuple(group)
        for entry in entries:
            _check_known(entry)
            if request.is_about(entry.upstream):
                _check_place(search, entry)
        planned.append(_plan_file(entries, request, force))
    remaining = tuple(entry for one in planned for entry in one.remaining)
    files = tuple(one.file for one in planned if one.file)
    refused = tuple(one.refused for one in planned if one.refused)
    if not files and (broken := next((error for error in refused if error.code == "bad-receipt"), None)):
        raise broken
    asleep = {one.asleep for one in planned if one.asleep}
    ours = {name for entry in remaining if entry.path not in asleep for name in entry.names}
    back = {name: text for name, text in found.links.items() if name not in ours}
    after = {entry.path: data for entry, _, data in files}
    lost = [
        f"{entry.path} was a link to {back[entry.relative]}, which has other bytes now: it stays a file"
        for entry, before, data in files
        if before != data and entry.relative in back and not links.fits(entry.path, back[entry.relative], after)
    ]
    names = {
        f"{fixed.fix} ({fixed.pack})": None
        for entry, _, _ in files for fixed in entry.fixes if is_gone(fixed) and _is_chosen(fixed, request)
    }  # fmt: skip
    if names:
        lost.append(
            f"reverted, also of packs that are not in effect: {', '.join(names)}; `--fix ID` takes back one alone"
        )
    return Revert(
        root=root,
        files=files,
        remaining=found._replace(files=remaining),
        refused=refused,
        notes=(*(one.note for one in planned if one.note), *lost),
        asleep=tuple(sorted(asleep)),
        copies=tuple(one.copy for one in planned if one.copy),
        links=back,
    )


def _plan_file(entries: tuple[Entry, ...], request: Request, force: bool) -> _FileRevert:
    """Plan for one file, of which the receipt has these entries."""
    if not any(_is_selected(entry, request) for entry in entries):
        return _FileRevert(entries)
    found = tuple(map(look, entries))
    live = living(found)
    there = [fixed for fixed in live.entry.fixes if fixed in (*live.intact, *live.edited)] if live else []
    if live is None or not any(_is_chosen(fixed, request) for fixed in there):
        return _at_rest(entries, found, request, bool(there))
    entry, now = live.entry, live.now
    kept = tuple(fixed for fixed in there if not _is_chosen(fixed, request))
    edited = [fixed.function for fixed in live.edited if fixed not in kept]
    if edited and not (force and live.is_release):
        return _FileRevert(entries, refused=_refusal(live, edited, request))
    try:
        plain = pristine.read(entry)
        ours = [fixed for fixed in there if fixed not in kept]
        is_exact = live.whole or edited
        after = _without(plain, entry, kept) if is_exact else put_back(entry, now, plain, ours)
    except UnhangError as error:
        if error.code != "bad-receipt":
            raise
        return _FileRevert(entries, refused=hinted(error, request))
    if lost := [fixed.fix for fixed in kept if fixed.edits and not states(entry, after)[fixed]]:
        names = dict.fromkeys(fixed.fix for fixed in there)
        whole = Command("revert", tuple(word for name in names for word in ("--fix", name)))
        message = f"{lost[0]} cannot be kept: it is on top of what would be taken back"
        hint = complete(Hint("take all of it back: ", whole), request)
        return _FileRevert(entries, refused=UnhangError("cannot-keep", message, path=entry.path, hint=hint))
    entry = next((it.entry for it in found if it.entry.pristine == sha256(after)), entry)
    remaining = tuple(one for one in entries if one.pristine != sha256(after))
    if kept and is_exact:
        left = signed(entry._replace(patched=sha256(after), fixes=kept), plain, after)
        remaining = (left, *(one for one in remaining if one.patched != left.patched))
    asleep = entry.path if remaining and not kept else None
    note, copy = "", None
    if edited:
        copy = (_free_name(entry.path), links.itself(entry.path, now))
        note = f"{entry.path} was edited since it was patched; your version is kept as {copy[0]}"
    elif not live.whole and sha256(after) != entry.pristine:
        note = f"{entry.path} was edited elsewhere since it was patched: that edit stays"
    if asleep:
        note = joined(note, f"an original of {entry.path} stays in {state.folder(entry.root)}")
    return _FileRevert(remaining, (entry, now, after), note=note, asleep=asleep, copy=copy)


def _at_rest(entries: tuple[Entry, ...], found: tuple[Remains, ...], request: Request, is_ours: bool) -> _FileRevert:
    """Return what a revert does to a file that has none of the chosen rewrites: to its bytes, nothing.

    ``is_ours`` says whether it has others.
    """
    chosen = [(entry, it) for entry, it in zip(entries, found, strict=True) if _is_selected(entry, request)]
    over = {entry: it for entry, it in chosen if it.is_over}
    entry, remains = next(iter(over.items()), chosen[0])
    remaining = tuple(one for one in entries if one not in over)
    gone = ", ".join(dict.fromkeys(it.fix for it in entry.fixes if _is_chosen(it, request)))
    note = remains.absent or f"{entry.path} was restored since: {gone} is not in it any more"
    asleep = entry.path if remaining and not is_ours else None
    if asleep:
        note = joined(note, f"its original stays in {state.folder(entry.root)}")
    row = (entry, remains.now, remains.now) if over and not remains.is_listed else None
    return _FileRevert(remaining, row, note=note, asleep=asleep)


def _is_selected(entry: Entry, request: Request) -> bool:
    """Return whether a request is about one of the fixes of an entry."""
    return request.is_about(entry.upstream) and any(_is_chosen(fixed, request) for fixed in entry.fixes)


def _is_chosen(fixed: Fixed, request: Request) -> bool:
    """Return whether a request is about a row of a receipt: where it names no fixes, also about those of gone packs."""
    is_narrow = any(option in ("--fix", "--kind") for option, _ in request.chosen)
    is_named = ("--fix", fixed.fix) in request.chosen
    return fixed.fix in request.fixes or (is_gone(fixed) and (is_named or not is_narrow))


def is_gone(fixed: Fixed) -> bool:
    """Return whether a fix is one of a pack that is not in effect."""
    return fixed.pack is not None and fixed.fix not in catalog.fixes()


def _refusal(remains: Remains, edited: Sequence[str], request: Request) -> UnhangError:
    """Return why a file is refused, and what to do."""
    entry = remains.entry
    hint = Hint(f"undo your own change, or reinstall {entry.upstream}, then run ", Command("revert"))
    if remains.is_release:
        kept = f", which keeps your version as {_free_name(entry.path)}; or "
        hint = Hint("run ", Command("revert", ("--force",)), kept, hint)
    why = f"{entry.path}: {', '.join(edited)} was edited since it was patched: reverting would destroy that edit"
    return UnhangError("edited", why, path=entry.path, hint=complete(hint, request))


def carry_out(search: Search, planned: Revert) -> list[UnhangError]:
    """Write what was planned; call it inside ``lock.exclusive``, with a plan that was made there.

    Returns why something of the run is left in the root.
    """
    folder = state.folder(planned.root)
    if not planned.files and planned.remaining == receipt.load(folder):
        return []
    changes = [FileChange(path, None, data) for path, data in planned.copies]
    changes += [FileChange(entry.path, now, after) for entry, now, after in planned.files if now != after]
    changes += write.record_changes(
        (entry, after, entry.record_row if sha256(after) == entry.pristine else None)
        for entry, _, after in planned.files
    )
    with disk.about(folder):
        changes = links.restored(links.replaced(changes), planned.root, planned.links)
    changes += pristine.changes(folder, planned.remaining, {})
    return write.commit_with_bytecode(search, planned.root, changes)


def _without(original: bytes, entry: Entry, kept: tuple[Fixed, ...]) -> bytes:
    """Return the original bytes with only the kept fixes."""
    if not kept:
        return original
    from unhang.rewrite.one_file import RewriteError, Step, rewrite

    names = dict.fromkeys(fixed.fix for fixed in entry.fixes)
    whole = Command("revert", tuple(word for name in names for word in ("--fix", name)))
    done: dict[Target, str] = {}
    for fixed in kept:
        if is_gone(fixed):
            message = f"{fixed.fix} cannot be kept: its pack, {fixed.pack}, is not in effect"
            hint = Hint("name the pack with --pack; or revert all fixes of this file: run ", whole)
            raise UnhangError("cannot-keep", message, path=entry.path, hint=hint)
        targets = {(target.file, target.function): target for target in catalog.fix(fixed.fix).targets}
        # what another fix had done already is to be done
        texts = (it for it in targets.values() if it.text and it.file == fixed.file and it not in done)
        done |= {it: recorded.edits(it).shapes[1] for it in texts}
        done[targets[fixed.file, fixed.function]] = fixed.after
    try:
        return rewrite(original, [Step(*it) for it in done.items()]).data
    except RewriteError as error:
        hint = Hint("revert all fixes of this file: run ", whole, ", then apply the ones to keep")
        message = f"{error.target.fix} cannot be kept: {error}"
        raise UnhangError("cannot-keep", message, path=entry.path, hint=hint) from error


def _free_name(path: str) -> str:
    """Return an unused name beside a file for the user's version of it, under which no import finds it."""
    names = (f"{path}.unhang-kept{number}" for number in itertools.chain([""], itertools.count(2)))
    return next(name for name in names if not os.path.lexists(name))


def _check_known(entry: Entry) -> None:
    """Raise UnhangError for an entry with a fix that this unhang does not know."""
    targets = {(target.fix, target.upstream, target.file) for fix in catalog.fixes().values() for target in fix.targets}
    for fixed in entry.fixes:
        if is_gone(fixed):  # its place is checked as that of any other
            if not untrusted.is_plain(fixed.file):
                raise _bad(entry, f"the receipt names {fixed.file}, which is not a file of a package", _HINT)
        elif (fixed.fix, entry.upstream, fixed.file) not in targets:
            what = f"{fixed.fix} in {entry.upstream}'s {fixed.file}"
            hint = f"use the unhang that wrote it, if it is newer than this one; otherwise {_HINT}"
            raise _bad(entry, f"the receipt names {what}, which this unhang does not know", hint)


def _check_place(search: Search, entry: Entry) -> None:
    """Raise UnhangError for an entry that leads to anything but a fix's own file, or the RECORD beside it.

    A checkout may contain a forged receipt.
    """
    for path in filter(None, (entry.path, entry.record)):
        if os.path.realpath(os.path.dirname(path)) != os.path.dirname(path):
            raise _bad(entry, f"the receipt names {path}, and a link is on the way there", _HINT)
    for fixed in entry.fixes:
        here = [placed(i, fixed.file).real for i in search.installations if i.upstream == entry.upstream]
        tail = os.path.join(os.sep, *below_package(entry.upstream, fixed.file))
        # In an installation it may be a link to another name.
        if entry.path not in here and not entry.path.endswith(tail):
            raise _bad(entry, f"the receipt names {entry.path}, which is not {fixed.file}", _HINT)


def _bad(entry: Entry, message: str, hint: str) -> UnhangError:
    return UnhangError("bad-receipt", message, path=state.folder(entry.root), hint=hint)
