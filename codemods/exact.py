"""Edits that a diff gives, only for the shapes on record: lines for lines, without knowing what they do.

A codemod of a fix that is ``unproved`` is a table of these. Lines are found by those around them, which must stand in
the file exactly once; every other byte stays. Neither LibCST nor a parser is needed, whatever language the file is in.
"""

from __future__ import annotations

import ast
import hashlib
import io
import re
import textwrap
import tokenize
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from unhang.codemods.base import AnchorError, once
from unhang.plugins import parameters
from unhang.shapes import shape
from unhang.shapes.catalog import Target

EDGE = "\0"
"""Stands for what is before the first line of a file, and after its last one."""
MARK = re.compile(r"[ \t]*# unhang [a-z][a-z0-9-]*: ")
"""How the comments begin that fixes write."""
Rows = tuple[str, ...]


class Swap(NamedTuple):
    """Lines of a file, and what takes their place."""

    old: Rows
    new: Rows
    above: Rows
    """The lines right above, which stay."""
    below: Rows
    within: Rows = ()
    """Lines further above that stand less deep, the nearest first: ``def f(x):``, ``class A:``."""

    @property
    def undone(self) -> Swap:
        """The edit that takes this one back."""
        return self._replace(old=self.new, new=self.old)

    @property
    def told(self) -> str:
        """The line by which a person finds it in the diff."""
        return next((row.strip() for row in (*self.old, *self.above, *self.below) if row.strip(EDGE + " \t")), "")[:60]


class Text:
    """The lines of a file as edits see them: without comments of ours, and with an edge at both ends."""

    def __init__(self, text: str, values: Mapping[str, str] = {}, names: Sequence[str] = ()) -> None:
        """Take a file's text. ``values`` of the parameters ``names`` stand for their places in the edits."""
        *rows, last = text.split("\n")
        self.rows = [*((row.removesuffix("\r"), "\r\n" if row.endswith("\r") else "\n") for row in rows), (last, "")]
        """Each line with its end."""
        kept = [at for at, (row, _) in enumerate(self.rows) if not MARK.match(row)]
        self.seen = [EDGE, *(self.rows[at][0] for at in kept), EDGE]
        self.at = [-1, *kept, len(self.rows)]
        """Where each of them is among ``rows``."""
        ways = {
            name: [*map(re.escape, parameters.ways(values[name]))] if name in values else ["(?!)"] for name in names
        }
        self._ways = {f"${{{name}}}": f"(?:{'|'.join(each)})" for name, each in ways.items()}
        """What may stand in the place of each parameter."""

    def places(self, swap: Swap) -> list[int]:
        """Return the indexes among ``seen`` of the lines that an edit replaces, or before which it adds some."""
        block, first = [*swap.above, *swap.old, *swap.below], len(swap.above)
        starts = (at for at, row in enumerate(self.seen) if self._is(row, block[0]))
        found = [at + first for at in starts if self._are(self.seen[at : at + len(block)], block)]
        return [at for at in found if _is_part(swap.within, around(self.seen, at, margin((*swap.old, *swap.new))))]

    def _are(self, rows: Sequence[str], wanted: Sequence[str]) -> bool:
        return len(rows) == len(wanted) and all(map(self._is, rows, wanted))

    def _is(self, row: str, wanted: str) -> bool:
        if not any(place in wanted for place in self._ways):
            return row == wanted
        parts = re.split(f"({'|'.join(map(re.escape, self._ways))})", wanted)
        return re.fullmatch("".join(self._ways.get(it) or re.escape(it) for it in parts), row) is not None

    def marked(self, swap: Swap, mark: str) -> list[int]:
        """Return as ``places``; or, where others have changed the lines around, those with this comment of ours."""
        if (found := self.places(swap)) or not any(map(str.strip, swap.old)):
            return found
        first = next(at for at, row in enumerate(swap.old) if row.strip())
        alone = self.places(swap._replace(above=(), below=()))
        return [at for at in alone if self.rows[self.at[at + first] - 1][0].lstrip().startswith(mark)]

    def spots(self, swaps: Iterable[Swap], mark: str = "") -> list[tuple[int, Swap]]:
        """Return where each edit fits, in line order; with ``mark``, as ``marked``.

        Raises AnchorError unless each does exactly once.
        """
        places = ((self.marked(it, mark) if mark else self.places(it), it) for it in swaps)
        found = sorted((once(at, swap.told), swap) for at, swap in places)
        if any(at + len(swap.old) > later for (at, swap), (later, _) in zip(found, found[1:])):
            raise AnchorError("lines that no other edit changes")
        return found

    def edited(self, swaps: Iterable[Swap], mark: str = "", without: str = "") -> str:
        """Return the text after edits: a comment ``mark`` above each where it can stand, or none that is ``without``.

        Raises as ``spots``.
        """
        newline = self.rows[0][1] or "\n"
        out: list[tuple[str, str]] = []
        marks: list[int] = []
        done = 0
        for at, swap in self.spots(swaps, without):
            above, below = self.at[at - 1] + 1, self.at[at + len(swap.old)]
            first, last = (self.at[at], self.at[at + len(swap.old) - 1] + 1) if swap.old else (above, above)
            out += self.rows[done:above] + _others(self.rows[above:first], without)
            marks += [len(out) + number for number, row in enumerate(swap.new) if row.strip()][:1] if mark else ()
            ends = [end for _, end in self.rows[first:last] or self.rows[max(above - 1, 0) : above] or [("", newline)]]
            out += ((row, ends[min(number, len(ends) - 1)]) for number, row in enumerate(swap.new))
            out += _others(self.rows[last:below], without)
            done = below
        out += self.rows[done:]
        out = [*((row, end or newline) for row, end in out[:-1]), (out[-1][0], "")]
        for number in reversed(_that_take_a_comment(out, marks)):
            row, end = out[number]
            out.insert(number, (f"{row[: len(row) - len(row.lstrip())]}{mark}", end or newline))
        return "".join(row + end for row, end in out)


class Exact:
    """The edits of one target. Which shapes they are for, and what they give, is in the fix's data."""

    def __init__(self, *swaps: Swap, uses: Sequence[str] = ()) -> None:
        rows = [row for it in swaps if isinstance(it, Swap) for part in it for row in part]
        if not swaps or not all(isinstance(it, Swap) for it in swaps) or {*map(type, rows)} != {str}:
            raise TypeError("each edit is a Swap, with lines of text")
        self.swaps = swaps
        self.uses = frozenset(uses)
        """The global names that the new text uses, and its file must bind."""

    @property
    def shapes(self) -> tuple[str, str]:
        """The shape of a target that is no function, before the edits and after them."""
        plain = repr([tuple(map(tuple, it)) for it in self.swaps])
        before, after = (hashlib.sha256(f"{when} {plain}".encode()).hexdigest()[:16] for when in ("before", "after"))
        return before, after

    def shape(self, text: str, target: Target) -> str | None:
        """Return which of its two ``shapes`` a text has; None if it is neither, or has it in several places."""
        values = parameters.of(target.parameters)
        seen = Text(text, values, target.parameters)
        before, after = self.shapes
        is_there = all(len(seen.places(it.undone)) == 1 for it in self.swaps)
        if not is_there and all(len(seen.places(it)) == 1 for it in self.swaps):
            return before  # the comment may be that of another edit of the fix, with the same new lines
        if is_there or all(len(seen.marked(it.undone, f"# unhang {target.fix}: ")) == 1 for it in self.swaps):
            return after if self._is_filled(seen, text, values) else None
        return after if target.file.endswith(".py") and self._is_bound(text) else None

    def edited(self, text: str, target: Target, mark: str) -> str:
        """Return a text after the edits. Raises AnchorError unless each fits once; ``parameters.Refused``."""
        found = Text(text).edited(self.swaps, mark)
        names = [name for name in target.parameters if any(_has(it.new, name) for it in self.swaps)]
        return parameters.filled(found, parameters.of(names)) if names else found

    def written(self, text: str, target: Target) -> list[Swap]:
        """Return the edits as they stand in a text: with the values of parameters. None if they are not there."""
        seen = Text(text, parameters.of(target.parameters), target.parameters)
        places = [seen.marked(it.undone, f"# unhang {target.fix}: ") for it in self.swaps]
        if any(len(it) != 1 for it in places):
            return []
        pairs = zip(self.swaps, (at for (at,) in places))
        return [it._replace(new=tuple(seen.seen[at : at + len(it.new)])) for it, at in pairs]

    def _is_filled(self, seen: Text, text: str, values: Mapping[str, str]) -> bool:
        """Return whether the values of parameters stand in a text as they are to be written."""
        if not any(_has(it.new, name) for it in self.swaps for name in values):
            return True
        with suppress(AnchorError, parameters.Refused):
            plain = seen.edited(it.undone._replace(new=it.new) for it in self.swaps)
            return parameters.filled(plain, values) == text
        return False

    def _is_bound(self, text: str) -> bool:
        """Return whether all that the edits do is done otherwise: to import names, and to take some out."""
        with suppress(SyntaxError, ValueError, RecursionError):
            tree = shape.parse(text)
            return all(_is_done(tree, it) for it in self.swaps)
        return False


def margin(rows: Iterable[str]) -> int:
    """Return how deep the lines stand that stand least deep."""
    return min((len(row) - len(row.lstrip()) for row in rows if row.strip()), default=0)


def around(rows: Sequence[str], at: int, margin: int) -> Iterator[str]:
    """Yield the lines above one that stand less and less deep than ``margin``, the nearest first."""
    while margin and (at := at - 1) > 0:
        row = rows[at]
        depth = len(row) - len(row.lstrip())
        if row.strip() and depth < margin and not row.lstrip().startswith(("#", ")", "]", "}")):
            margin = depth
            yield row


def _is_part(wanted: Sequence[str], rows: Iterator[str]) -> bool:
    return all(any(row == it for row in rows) for it in wanted)


def _others(rows: Iterable[tuple[str, str]], without: str) -> list[tuple[str, str]]:
    return [it for it in rows if not (without and it[0].lstrip().startswith(without))]


def _has(rows: Rows, name: str) -> bool:
    return any(f"${{{name}}}" in row for row in rows)


def _that_take_a_comment(rows: Sequence[tuple[str, str]], numbers: Sequence[int]) -> list[int]:
    """Return those of these lines above which a comment changes nothing: not in a string, nor in a joined line."""
    inside = inner_lines("".join(f"{row}\n" for row, _ in rows)) if numbers else ()
    first = 1 if rows[0][0].startswith("#!") else 0
    return [it for it in numbers if it >= first and it + 1 not in inside and not rows[it - 1][0].endswith("\\")]


def _is_done(tree: ast.Module, swap: Swap) -> bool:
    """Return whether a module has the imports that an edit adds, and no name that it takes out."""
    old, new = (shape.parse(textwrap.dedent("\n".join(rows))).body for rows in (swap.old, swap.new))
    body: Sequence[ast.stmt] | None = tree.body
    for row in reversed(swap.within):
        name = re.match(r"\s*class (\w+)", row)
        found = [it for it in body or () if isinstance(it, ast.ClassDef) and name and it.name == name[1]]
        body = found[0].body if len(found) == 1 else None
    if body is None or not (old or new) or not all(isinstance(it, (ast.Import, ast.ImportFrom)) for it in new):
        return False
    there = {line for it in body for line in _imports(it)}
    if any(line not in there for it in new for line in _imports(it)):
        return False
    gone = {name: it for it in old for name in shape.names(it)}
    stays = {name for it in new for name in shape.names(it)}
    here = list(shape.statements(body))
    bound = {name for it in here for name in shape.names(it)}
    plain = {_nameless(it) for it in here}  # under another name it is still there
    is_gone = gone and bound.isdisjoint(gone.keys() - stays) and plain.isdisjoint(map(_nameless, gone.values()))
    return bool(new and not old) or (all(shape.names(it) for it in old) and bool(is_gone))


def _imports(node: ast.stmt) -> set[str]:
    """Return an import as one line for each name; nothing for another statement."""
    if not isinstance(node, (ast.Import, ast.ImportFrom)):
        return set()
    above = f"from {'.' * node.level}{node.module or ''} " if isinstance(node, ast.ImportFrom) else ""
    return {f"{above}import {it.name} as {it.asname or it.name}" for it in node.names}


def _nameless(node: ast.stmt) -> str:
    """Return what a statement is, but for the name that it binds."""
    if lines := _imports(node):
        return " ".join(sorted(it.rpartition(" as ")[0] for it in lines))
    return re.sub("|".join(rf"\b{re.escape(it)}\b" for it in shape.names(node)) or "$^", "_", ast.unparse(node))


def inner_lines(text: str) -> set[int]:
    """Return the lines of a text that begin inside of a string."""
    found: set[int] = set()
    starts: list[int] = []
    with suppress(tokenize.TokenError, SyntaxError):
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            kind = tokenize.tok_name[token.type]
            if kind == "FSTRING_START":  # Python 3.12 has one token for each part of an f-string
                starts.append(token.start[0])
            elif kind == "STRING" or (kind == "FSTRING_END" and starts):
                first = starts.pop() if kind == "FSTRING_END" else token.start[0]
                found.update(range(first + 1, token.end[0] + 1))
    return found
