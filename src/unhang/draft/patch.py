"""A diff applied in memory to the files of a release."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from difflib import SequenceMatcher
from itertools import groupby
from typing import NamedTuple

from unhang import gate
from unhang.codemods.exact import MARK
from unhang.errors import UnhangError
from unhang.shapes import shape

_APART = "keep that as a patch of its own, and begin the fix from a diff without it"
_ESCAPES = {
    b"a": b"\a", b"b": b"\b", b"t": b"\t", b"n": b"\n", b"v": b"\v", b"f": b"\f", b"r": b"\r", b'"': b'"', b"\\": b"\\",
}  # fmt: skip
"""How git writes these characters into a path in quotes, after a backslash."""
_TIME = re.compile(r"\t.*$|\s+(?:\d{4}-\d\d-\d\d|[A-Z][a-z]{2} [A-Z][a-z]{2} +\d+) +\d\d:\d\d.*$")
"""What follows a path in a header, behind a tab or spaces."""
_ADDED = "the diff adds it"
_HUNK = re.compile(r"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@")
_KINDS = {
    "new file mode ": _ADDED,
    "deleted file mode ": "the diff removes it",
    "Binary files ": "it is no text",
    "GIT binary patch": "it is no text",
}


class Change(NamedTuple):
    """One run of lines that the diff replaces."""

    removed: range
    """The line numbers before, counted from 1; an empty range stands before its first line."""
    added: range
    """The line numbers after."""


class Patched(NamedTuple):
    """One file of the release that the diff changes."""

    file: str
    before: str
    after: str
    diffed: str = ""
    """Its path in the diff."""
    encoding: str = "utf-8"
    """That of the release's file; a BOM is part of it, and not of the texts."""

    @property
    def changes(self) -> Iterator[Change]:
        """The runs of lines that differ."""
        old, new = self.before.split("\n"), self.after.split("\n")
        for tag, first, last, start, end in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
            if tag != "equal":
                yield Change(range(first + 1, last + 1), range(start + 1, end + 1))


class Result(NamedTuple):
    """What the diff does to the release."""

    files: tuple[Patched, ...]
    left: tuple[str, ...]
    """What it changes besides these files, each in one line."""
    out: tuple[str, ...] = ()
    """The sections that cannot matter, each in one line: the release has no such files."""


class _Hunk(NamedTuple):
    start: int
    """The line before the diff that it begins with."""
    rows: tuple[tuple[str, str], ...]
    """Each with `` ``, ``-`` or ``+``. After the last line of a file that ends with a newline is an empty row."""

    @property
    def header(self) -> str:
        old, new = (sum(sign in signs for sign, _ in self.rows) for signs in (" -", " +"))
        return f"@@ -{self.start},{old} +{self.start},{new} @@"

    @property
    def numbers(self) -> list[int]:
        """The lines that it changes, as the file was that the diff was made from; an addition is on two."""
        at, numbers = self.start, []
        for sign, _ in self.rows:
            numbers += [at] if sign == "-" else [at - 1, at] if sign == "+" else []
            at += sign != "+"
        return numbers

    def side(self, sign: str) -> list[str]:
        return [row for it, row in self.rows if it in (" ", sign)]


class _Section(NamedTuple):
    """What a diff does to one file."""

    path: str
    hunks: list[_Hunk]
    why: str = ""
    """Why it is more than a change of lines; empty if it is none."""
    has_mode: bool = False
    """Whether it changes the file's mode."""


def apply(
    text: str,
    read: Callable[[str], Sequence[tuple[str, str]]],
    release: str,
    is_inside: Callable[[str, Iterable[int]], bool] = lambda path, numbers: True,
    matters: Callable[[str, bool], bool] = lambda path, is_new: True,
) -> Result:
    """Apply a unified diff, or mails one after the other, to a release.

    ``read`` returns where the release may have a file, with the text of each; of several, it is the only one with the
    lines that the diff expects. Bytes that are not UTF-8 are surrogates in all texts: lines of any encoding can be
    compared. ``is_inside`` returns whether one of these lines, of the file that the diff was made from, is in a
    function: a hunk that does not fit is left to a person if none is. ``matters`` returns whether a path that the
    release does not have is of its code; the second argument is whether the diff adds it. A hunk may be some lines off.
    Raises UnhangError ``bad-patch`` if the text is no diff, ``patch-does-not-fit`` if a hunk's lines are not there.
    """
    done: dict[str, tuple[str, str, str]] = {}  # by place: the path in the diff, the text before and now
    left: list[str] = []
    out: list[str] = []
    misfits: list[str] = []
    for section in _sections(text):
        name = gate.line(section.path)
        if section.has_mode:
            out.append(f"{name}: the mode of the file")
            if not section.hunks and not section.why:
                continue
        places = [(it, done[it][2] if it in done else was) for it, was in read(section.path)]
        tried = [(path, was, *_applied(section.hunks, was.split("\n"))) for path, was in places]
        if len(tried) > 1 or (tried and not f"/{section.path}".endswith(f"/{tried[0][0]}")):
            tried = [it for it in tried if not any(is_inside(section.path, hunk.numbers) for hunk in it[-1])]
        if len(tried) != 1 or section.why or not section.hunks:
            several = f"{release} has several files that may be it" if tried else f"{release} has no such file"
            several = "an installer writes it" if re.search(r"\.(dist|egg)-info/", section.path) else several
            why = section.why or (several if len(tried) != 1 else "it changes no line")
            is_there = any(f"/{section.path}".endswith(f"/{it}") for it, _ in places) or len(tried) > 1
            is_lost = bool(section.why or section.hunks) if is_there else matters(section.path, section.why == _ADDED)
            (left if is_lost else out).append(f"{name}: {why}")
            continue
        ((path, was, now, unfit),) = tried
        if not f"/{section.path}".endswith(f"/{path}"):
            left.append(f"{name}: in {release} it is {gate.line(path)}; see whether that is the same code")
        done[path] = section.path, done[path][1] if path in done else was, now
        for hunk in unfit:
            where = f"{name}, hunk {hunk.header}"
            if is_inside(section.path, hunk.numbers):
                misfits.append(where)
            else:
                left.append(f"{where}: it changes code outside of a function, and does not fit")
    if misfits:
        hint = "name the release that the diff was made for, or make the diff again on this one"
        message = f"{release} does not have the lines that the diff expects: {'; '.join(misfits)}"
        raise UnhangError("patch-does-not-fit", message, hint=hint)
    files = []
    for path, (diffed, was, now) in done.items():
        try:
            (encoding, before), (other, after) = (_decoded(it, path) for it in (was, now))
        except ValueError as error:
            left.append(f"{gate.line(diffed)}: {gate.line(str(error))}; {_APART}")
            continue
        if encoding != other:
            left.append(f"{gate.line(diffed)}: the diff changes its encoding, from {encoding} to {other}; {_APART}")
        elif before != after:
            files.append(Patched(path, before, after, diffed, encoding))
    return Result(tuple(files), tuple(left), tuple(out))


def changes_ends(text: str) -> bool:
    """Return whether lines that a diff removes end in another way than those that take their place. Pure."""
    runs = [(sign, {row.endswith("\r") for row in rows}) for sign, rows in groupby(text.split("\n"), lambda it: it[:1])]
    return any((one[0], two[0]) == ("-", "+") and one[1] != two[1] for one, two in zip(runs, runs[1:]))


def _sections(text: str) -> list[_Section]:
    """Return what a diff does to each file, in its order. Raises UnhangError ``bad-patch``."""
    rows, at = text.split("\n"), 0
    found: list[_Section] = []
    is_open = False  # whether the last section has no hunk yet
    while at < len(rows):
        row, following = rows[at], rows[at + 1] if at + 1 < len(rows) else ""
        if row.startswith("diff --git "):
            found.append(_Section(_of_git(row), []))
            is_open = True
        elif is_open and (why := next((why for start, why in _KINDS.items() if row.startswith(start)), "")):
            found[-1] = found[-1]._replace(why=found[-1].why or why)
        elif is_open and row.startswith("new mode "):
            found[-1] = found[-1]._replace(has_mode=True)
        elif is_open and (moved := re.match("(rename|copy) from (.*)", row)):
            why = f"the diff makes it as a {moved[1]} of {gate.line(_unquoted(moved[2]))}; {_APART}"
            found[-1] = found[-1]._replace(why=why)
        elif is_open and (moved := re.match("(?:rename|copy) to (.*)", row)):
            found[-1] = found[-1]._replace(path=_unquoted(moved[1]))
        elif row.startswith("--- ") and following.startswith("+++ "):
            section = _named(row[4:], following[4:])
            if is_open and found[-1].path == section.path:
                before = found.pop()
                section = section._replace(why=section.why or before.why, has_mode=before.has_mode)
            found.append(section)
            at, is_open = at + 1, False
        elif found and (begins := _HUNK.match(row)):
            hunk, at = _hunk(rows, at, *(int(it or 1) for it in begins.groups()))
            found[-1].hunks.append(hunk)
            is_open = False
            continue
        at += 1
    if not any(it.hunks or it.why or it.has_mode for it in found):
        raise UnhangError("bad-patch", "this file has no unified diff in it", hint="`git diff` writes one")
    return found


def _of_git(row: str) -> str:
    """Return the path in the first line of a section of git's: both of its halves have it."""
    rest = row.removeprefix("diff --git ")
    half = rest[len(rest) // 2 + 1 :]
    return _plain(_unquoted(half if rest.startswith(("a/", '"a/')) else rest.rpartition(" ")[2]))


def _named(old: str, new: str) -> _Section:
    """Return a section with the path and the kind that its header says."""
    old, new = (_unquoted(_TIME.sub("", it)) for it in (old, new))
    why = {(True, False): _ADDED, (False, True): "the diff removes it"}
    kind = why.get((old == "/dev/null", new == "/dev/null"), "")
    return _Section(_plain(old if new == "/dev/null" else new), [], kind)


def _plain(path: str) -> str:
    return re.sub("^[abciow]/", "", path)


def _unquoted(name: str) -> str:
    """Return a path that git has put into quotes, with escapes, as it is; another one unchanged."""
    if len(name) < 2 or not name[0] == name[-1] == '"':
        return name
    letters = name[1:-1].encode("utf-8", "surrogateescape")
    plain = re.sub(
        rb'\\([0-3][0-7]{2}|[abfnrtv"\\])', lambda it: _ESCAPES.get(it[1]) or bytes([int(it[1], 8)]), letters
    )
    return plain.decode("utf-8", "surrogateescape")


def _decoded(text: str, path: str) -> tuple[str, str]:
    """Return the encoding of a file, and its text in it. Raises as ``shape.text``."""
    return shape.text(text.encode("utf-8", "surrogateescape"), path)


def _hunk(rows: Sequence[str], at: int, start: int, old: int, _: int, new: int) -> tuple[_Hunk, int]:
    """Return a hunk, and the index of the line after it. Lines without a change may be missing at its end."""
    first, found = at + 1, list[tuple[str, str]]()
    ends = {"-": False, "+": False}  # whether a side ends without a newline
    at += 1
    while at < len(rows):
        sign, row = rows[at][:1] or " ", rows[at][1:]
        if sign == "\\" and found:
            ends.update(dict.fromkeys(ends if found[-1][0] == " " else found[-1][0], True))
        elif (old or new) and sign in " -+" and (rows[at] or at + 1 < len(rows)):
            found += [] if MARK.match(row) else [(sign, row)]  # our comments are in no text
            old, new = old - (sign != "+"), new - (sign != "-")
            if min(old, new) < 0:
                break
        else:
            break
        at += 1
    if old != new or old < 0 or not found:
        why = f"this is not a unified diff: the hunk at line {first} does not have as many lines as it says"
        raise UnhangError("bad-patch", why, hint="`git diff` writes one")
    if ends["-"] != ends["+"]:
        found.append(("+" if ends["-"] else "-", ""))
    return _Hunk(start, tuple(found)), at


def _applied(hunks: Iterable[_Hunk], before: list[str]) -> tuple[str, list[_Hunk]]:
    """Return a file after all hunks that fit, and the hunks that do not fit."""
    unfit: list[_Hunk] = []
    after: list[str] = []
    done = offset = 0  # lines of `before` that are in `after`; how far the last hunk was off
    for hunk in hunks:
        expected = hunk.side("-")
        near = hunk.start - bool(expected) + offset
        at = _place(before, expected, near, done)
        if at is None:
            unfit.append(hunk)
            continue
        offset += at - near
        after += [*before[done:at], *hunk.side("+")]
        done = at + len(expected)
    return "\n".join(after + before[done:]), unfit


def _place(before: Sequence[str], expected: Sequence[str], near: int, first: int) -> int | None:
    """Return the index, from ``first`` on, of the expected lines that is nearest to ``near``."""
    places = range(first, len(before) - len(expected) + 1)
    for at in sorted(places, key=lambda place: abs(place - near)):
        if before[at : at + len(expected)] == expected:
            return at
    return None
