"""A diff applied in memory to the files of a release."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from unhang import gate
from unhang.errors import UnhangError
from unhang.shapes import shape

if TYPE_CHECKING:
    from unidiff.patch import Hunk, Line, PatchedFile


_APART = "keep that as a patch of its own, and begin the fix from a diff without it"
_ESCAPES = {
    b"a": b"\a", b"b": b"\b", b"t": b"\t", b"n": b"\n", b"v": b"\v", b"f": b"\f", b"r": b"\r", b'"': b'"', b"\\": b"\\",
}  # fmt: skip
"""How git writes these characters into a path in quotes, after a backslash."""
_TABS = re.compile(r"^(--- [^\t\n]+)\t?(\n\+\+\+ [^\t\n]+)\t?(?=\n@@ )", re.MULTILINE)
"""A header with the tabs that git writes behind paths with a space, and unidiff cannot read."""


class Change(NamedTuple):
    """One run of lines that the diff replaces: the place of each hunk's removed and added lines."""

    hunk: str
    """The hunk's header, such as ``@@ -1,4 +1,5 @@``."""
    removed: range
    """The line numbers before, counted from 1; an empty range stands before its first line."""
    added: range
    """The line numbers after."""


class Patched(NamedTuple):
    """One file of the release that the diff changes."""

    file: str
    before: str
    after: str
    changes: tuple[Change, ...]
    diffed: str = ""
    """Its path in the diff."""
    encoding: str = "utf-8"
    """That of the release's file; a BOM is part of it, and not of the texts."""


class Result(NamedTuple):
    """What the diff does to the release."""

    files: tuple[Patched, ...]
    left: tuple[str, ...]
    """What it changes besides these files, each in one line."""


def apply(
    text: str,
    read: Callable[[str], Sequence[tuple[str, str]]],
    release: str,
    is_inside: Callable[[str, Iterable[int]], bool] = lambda path, numbers: True,
) -> Result:
    """Apply a unified diff, or a mail patch, to a release.

    ``read`` returns where the release may have a file, with the text of each; of several, it is the only one with the
    lines that the diff expects. Bytes that are not UTF-8 are surrogates in all texts: lines of any encoding can be
    compared. ``is_inside`` returns whether one of these lines, of the file that the diff was made from, is in a
    function: a hunk that does not fit is left to a person if none is. A hunk may be some lines off. Raises UnhangError
    ``no-unidiff`` if the library is not installed, ``bad-patch`` if the text is no diff, ``patch-does-not-fit`` if a
    hunk's lines are not in the release.
    """
    files, left = [], []
    misfits: list[str] = []
    for changed in _parsed(text):
        diffed = _unquoted(changed.path)
        name = gate.line(diffed)
        is_edit = changed.is_modified_file and not changed.is_binary_file and not _moves(changed)
        places = read(diffed) if is_edit else ()
        tried = [(path, text, *_applied(changed, text.removesuffix("\n").split("\n"))) for path, text in places]
        if len(tried) > 1:
            tried = [it for it in tried if not any(is_inside(diffed, _numbers(hunk)) for hunk in it[-1])]
        if len(tried) != 1 or not name.endswith(".py"):
            left.append(f"{name}: {_why_not(changed, release)}")
            continue
        ((path, before, after, changes, unfit),) = tried
        if not f"/{diffed}".endswith(f"/{path}"):
            left.append(f"{name}: in {release} it is {gate.line(path)}; see whether that is the same code")
        try:
            (encoding, before), (now, after) = map(_decoded, (before, after))
        except ValueError as error:
            left.append(f"{name}: {gate.line(str(error))}; {_APART}")
            continue
        if encoding != now:
            left.append(f"{name}: the diff changes its encoding, from {encoding} to {now}; {_APART}")
            continue
        files.append(Patched(path, before, after, changes, diffed, encoding))
        for hunk in unfit:
            where = f"{name}, hunk {_header(hunk)}"
            if is_inside(diffed, _numbers(hunk)):
                misfits.append(where)
            else:
                left.append(f"{where}: it changes code outside of a function, and does not fit")
    if misfits:
        hint = "name the release that the diff was made for, or make the diff again on this one"
        message = f"{release} does not have the lines that the diff expects: {'; '.join(misfits)}"
        raise UnhangError("patch-does-not-fit", message, hint=hint)
    return Result(tuple(files), tuple(left))


def _why_not(changed: PatchedFile, release: str) -> str:
    """Return why a file of the diff is left to a person as a whole."""
    if changed.is_removed_file:
        return "the diff removes it"
    if changed.is_added_file:
        return "the diff adds it" if changed.source_file == "/dev/null" else "it is empty before the diff"
    if moves := _moves(changed):
        return f"the diff {moves}; {_APART}"
    return f"it is not a Python file of {release}"


def _moves(changed: PatchedFile) -> str:
    """Return how a diff of git's makes a file of another one, for people; empty if it does not."""
    for line in map(str, changed.patch_info or ()):
        word, _, other = line.rstrip().partition(" from ")
        if word in ("rename", "copy"):
            return f"makes it as a {word} of {gate.line(_unquoted(other))}"
    return ""


def _unquoted(name: str) -> str:
    """Return a path that git has put into quotes, with escapes, as it is; another one unchanged."""
    if len(name) < 2 or not name[0] == name[-1] == '"':
        return name
    letters = name[1:-1].encode("utf-8", "surrogateescape")
    plain = re.sub(
        rb'\\([0-3][0-7]{2}|[abfnrtv"\\])', lambda it: _ESCAPES.get(it[1]) or bytes([int(it[1], 8)]), letters
    )
    return plain.decode("utf-8", "surrogateescape")


def _decoded(text: str) -> tuple[str, str]:
    """Return the encoding of a file, and its text in it. Raises as ``shape.decoded``."""
    return shape.decoded(text.encode("utf-8", "surrogateescape"))


def check() -> None:
    """Raise UnhangError ``no-unidiff`` unless a diff can be read."""
    try:
        import unidiff  # noqa: F401 - only whether it is there
    except ImportError as error:
        raise UnhangError("no-unidiff", "reading a diff needs unidiff", hint="pip install 'unhang[new]'") from error


def _parsed(text: str) -> Sequence[PatchedFile]:
    check()
    from unidiff.errors import UnidiffParseError
    from unidiff.patch import PatchSet

    try:
        found: Sequence[PatchedFile] = PatchSet(_TABS.sub(r"\1\2", text))
    except (UnidiffParseError, ValueError) as error:  # ValueError: a line number of thousands of digits
        raise UnhangError("bad-patch", f"this is not a unified diff: {error}", hint="`git diff` writes one") from error
    if not any(len(file) for file in found):
        raise UnhangError("bad-patch", "this file has no unified diff in it", hint="`git diff` writes one")
    return found


def _applied(changed: PatchedFile, before: list[str]) -> tuple[str, tuple[Change, ...], list[Hunk]]:
    """Return a file after all hunks that fit, where they changed it, and the hunks that do not fit."""
    unfit: list[Hunk] = []
    after: list[str] = []
    changes: list[Change] = []
    done = offset = 0  # lines of `before` that are in `after`; how far the last hunk was off
    for hunk in changed:
        expected = [_text(line.value) for line in _lines(hunk) if not line.is_added]
        at = _place(before, expected, hunk.source_start - 1 + offset, done)
        if at is None:
            unfit.append(hunk)
            continue
        offset = at - hunk.source_start + 1
        after += before[done:at]
        done = at + len(expected)
        changes += _runs(hunk, at, after)
    return "".join(f"{line}\n" for line in after + before[done:]), tuple(changes), unfit


def _header(hunk: Hunk) -> str:
    return f"@@ -{hunk.source_start},{hunk.source_length} +{hunk.target_start},{hunk.target_length} @@"


def _lines(hunk: Hunk) -> list[Line]:
    r"""Return the lines of a hunk without ``\ No newline at end of file``, which is about the one above."""
    return [line for line in hunk if line.line_type != "\\"]


def _numbers(hunk: Hunk) -> list[int]:
    """Return the lines that a hunk changes, as the file was that the diff was made from; an addition is on two."""
    at, numbers = hunk.source_start, []
    for line in _lines(hunk):
        if line.is_removed:
            numbers.append(at)
        elif line.is_added:
            numbers += [at - 1, at]
        at += not line.is_added
    return numbers


def _runs(hunk: Hunk, at: int, after: list[str]) -> list[Change]:
    """Append a hunk's lines to ``after``, and return its runs of changed lines."""
    changes = []
    removed = added = 0
    for line in [*_lines(hunk), None]:
        if line is not None and line.is_removed:
            removed += 1
            at += 1
        elif line is not None and line.is_added:
            added += 1
            after.append(_text(line.value))
        else:
            if removed or added:
                first, new = at - removed + 1, len(after) - added + 1
                changes.append(Change(_header(hunk), range(first, at + 1), range(new, len(after) + 1)))
            removed = added = 0
            if line is not None:
                after.append(_text(line.value))
                at += 1
    return changes


def _place(before: Sequence[str], expected: Sequence[str], near: int, first: int) -> int | None:
    """Return the index, from ``first`` on, of the expected lines that is nearest to ``near``."""
    places = range(first, len(before) - len(expected) + 1)
    for at in sorted(places, key=lambda place: abs(place - near)):
        if before[at : at + len(expected)] == expected:
            return at
    return None


def _text(value: str) -> str:
    return value.rstrip("\r\n")
