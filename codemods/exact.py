"""Edits that a diff gives, for the shapes on record alone: text for text, and nothing known of what they do.

A codemod of a fix that is ``unproved`` is a table of these. Statements are found by their ASTs, and replaced as whole
lines; every other byte stays. LibCST is not needed.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from unhang import parameters
from unhang.codemods.base import AnchorError, once, places
from unhang.shapes import binding, shape
from unhang.shapes.catalog import Target
from unhang.shapes.outline import header

REPLACED, BEFORE, AFTER, HEADER = "replaced", "before", "after", "header"
IMPORT, ADDED, WRAPPED = "import", "added", "wrapped"
_HOW = {REPLACED, BEFORE, AFTER, HEADER, IMPORT, ADDED, WRAPPED}


class Swap(NamedTuple):
    """One edit of a binding."""

    how: str
    """``replaced``: statements, by others. ``before``, ``after``: statements that are added beside the one that begins
    as ``old``. ``header``: all of a definition above its body. ``import``: the part of an import that binds the name.
    ``added``: the whole binding, where the name was not bound. ``wrapped``: the only statement that binds the name, by
    one that has it inside."""
    old: str
    new: str


class Lines(NamedTuple):
    """Lines ``first`` to ``last`` of a file, counted from 1, and what takes their place.

    An addition has none: its ``last`` is the line before ``first``.
    """

    first: int
    last: int
    rows: tuple[str, ...]
    """Without line ends."""


class Exact:
    """The edits of one target. Which shapes they are for, and what they give, is in the fix's data."""

    def __init__(self, *swaps: Swap, uses: Sequence[str] = ()) -> None:
        if any(not isinstance(it, Swap) or {*map(type, it)} != {str} or it.how not in _HOW for it in swaps):
            raise TypeError("each edit is a Swap of one of the kinds, with two texts")
        self.swaps = swaps
        self.uses = frozenset(uses)
        """The global names that the new text uses, and its file must bind."""

    def filled(self, values: Mapping[str, str]) -> Exact:
        """Return the same edits with the values of parameters in their new text. Raises ``parameters.Refused``."""

        def swap(it: Swap) -> Swap:
            parse = (lambda text: ast.Module([_definition(text)], [])) if it.how == HEADER else None
            return it._replace(new=parameters.filled(it.new, values, parse))

        return Exact(*map(swap, self.swaps), uses=tuple(self.uses))

    @property
    def imports(self) -> bool:
        """Whether they only import a name."""
        return all(it.how in (ADDED, IMPORT) and it.new.startswith(("import ", "from ")) for it in self.swaps)

    def plan(self, tree: ast.Module, target: Target, rows: Sequence[str]) -> list[Lines]:
        """Return what changes in a file, in line order. ``rows`` are its lines, with or without their ends.

        Raises AnchorError unless each edit fits exactly once; so it does where all of them are in place.
        """
        nodes = binding.statements(tree, target.function)
        if nodes is None:
            raise AnchorError(f"the class of {target.function}")
        try:
            found = [line for swap in self.swaps for line in _lines(swap, tree, nodes, target, rows)]
        except (SyntaxError, ValueError, IndexError) as error:
            raise AnchorError(f"an edit whose text parses ({error})") from error
        found.sort(key=lambda it: (it.first, it.last))
        if any(later.first <= earlier.last for earlier, later in zip(found, found[1:])):
            raise AnchorError("edits that do not overlap")
        return found


def _lines(swap: Swap, tree: ast.Module, nodes: list[ast.stmt], target: Target, rows: Sequence[str]) -> list[Lines]:
    if swap.how == ADDED:
        return [_added(swap, tree, nodes, target, rows)]
    if swap.how == IMPORT:
        return [_import(swap, nodes, target, rows)]
    mark = f"# unhang {target.fix}: unproved"
    whole = ast.Module(nodes, [])
    if swap.how == HEADER:
        wanted = _digest(header(_definition(swap.old)))
        found = [it for it in ast.walk(whole) if isinstance(it, _DEFINITIONS) and _digest(header(it)) == wanted]
        node = once(found, swap.old.strip().partition("\n")[0])
        first, last = above(node), header_end(node, rows)
        return [Lines(first, last, (*_indented(mark, margin(rows, first)), *_indented(swap.new, margin(rows, first))))]
    if swap.how in (REPLACED, WRAPPED):
        old, new = _text(swap.old), _text(swap.new)
        run = once(places(whole, old.digests, new.digests), old.core[0])
        first, last = above(run[0]), end(run[-1])
        _refuse_shared(run, rows)
        if swap.how == WRAPPED and len(nodes) > 1:
            raise AnchorError("one statement")
        note = mark if new.digests else f"# unhang {target.fix}: without {target.function}"
        return [_around(old, new, first, last, note, rows, margin(rows, first))]
    return _beside(swap, whole, mark, rows)


def _around(old: _Text, new: _Text, first: int, last: int, note: str, rows: Sequence[str], space: str) -> Lines:
    """Replace lines; the comments above and below them, too, where they are those of the release."""
    lead, trail = (_at(part, space) for part in (old.lead, old.trail))
    above_it, below = _plain(rows[max(first - 1 - len(lead), 0) : first - 1]), _plain(rows[last : last + len(trail)])
    text = list(new.core)
    if lead == above_it:
        first, text = first - len(lead), [*new.lead, *text]
    if trail == below:
        last, text = last + len(trail), [*text, *new.trail]
    return Lines(first, last, _marked(note, _at(text, space), space))


def _beside(swap: Swap, whole: ast.Module, mark: str, rows: Sequence[str]) -> list[Lines]:
    old, new = _text(swap.old), _text(swap.new)
    wanted, line = _digest(header(ast.parse(swap.old).body[old.at])), old.core[0]
    lists = [it for node in ast.walk(whole) for field in _FIELDS if isinstance(it := getattr(node, field, None), list)]
    found = [
        (block, at)
        for block in lists
        for at, node in enumerate(block)
        if isinstance(node, ast.stmt) and _digest(header(node)) == wanted
    ]
    block, at = once(found, line)
    there = block[at - len(new.digests) : at] if swap.how == BEFORE else block[at + 1 : at + 1 + len(new.digests)]
    if new.digests and list(map(_digest, there)) == new.digests:
        raise AnchorError(f"{line} without what is added")
    _refuse_shared([block[at]], rows)
    space, note = margin(rows, above(block[at])), mark if new.digests else ""
    first = above(block[at]) if swap.how == BEFORE else end(block[at]) + 1
    known = old.lead if swap.how == BEFORE else old.trail
    lines = _inserted(swap.how, known, new, first, note, rows, space)
    return [lines] if lines.rows or lines.last >= lines.first else []


def _inserted(
    how: str, known: Sequence[str], new: _Text, first: int, note: str, rows: Sequence[str], space: str
) -> Lines:
    """Add lines before or from line ``first`` on, in the place of the comments that are ``known`` there."""
    known, text = _at(known, space), [*new.lead, *new.core, *new.trail]
    start = first - len(known) if how == BEFORE else first
    if start < 1 or _plain(rows[start - 1 : start - 1 + len(known)]) != known:
        start, text, known = _commented(first, rows) if how == BEFORE else first, new.core, []
    return Lines(start, start + len(known) - 1, _marked(note, _at(text, space), space))


def _added(swap: Swap, tree: ast.Module, nodes: list[ast.stmt], target: Target, rows: Sequence[str]) -> Lines:
    how, neighbour = target.beside or ("", "")
    place = binding.place(tree, target)
    if nodes or place is None:
        raise AnchorError(f"{neighbour} alone, and no {target.function}")
    block, at = place
    beside = block[at - 1] if how == AFTER else block[at]
    _refuse_shared([beside], rows)
    space = margin(rows, above(beside))
    first = end(beside) + 1 if how == AFTER else above(beside)
    note = f"# unhang {target.fix}: added {how} {neighbour}"
    return _inserted(how, swap.old.split("\n")[:-1], _text(swap.new), first, note, rows, space)


def _import(swap: Swap, nodes: list[ast.stmt], target: Target, rows: Sequence[str]) -> Lines:
    """Change what an import statement binds the name to; the other names of the statement stay."""
    name = target.function.rpartition(".")[2]
    wanted = _digests(swap.old)
    node = once([it for it in nodes if [_digest(binding.reduced(it, name))] == wanted], swap.old.strip())
    if any([_digest(binding.reduced(it, name))] == _digests(swap.new) for it in nodes):
        raise AnchorError(f"{swap.old.strip()} without what is added")
    _refuse_shared([node], rows)
    rest, space = binding.rest(node, name), margin(rows, node.lineno)
    text = (f"{ast.unparse(ast.fix_missing_locations(rest))}\n" if rest else "") + swap.new
    note = f"# unhang {target.fix}: {'unproved' if swap.new else f'without {name}'}"
    return Lines(node.lineno, end(node), (*_indented(note, space), *_indented(text, space)))


_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_FIELDS = ("body", "orelse", "finalbody")
_digest = shape.digest


class _Text(NamedTuple):
    """The lines of an edit's text: its statements, and what is above and below them."""

    lead: list[str]
    """Comments, blank lines and docstrings."""
    core: list[str]
    trail: list[str]
    digests: list[str]
    """The shapes of the statements; none where there is nothing but a docstring."""
    at: int
    """The index of the first one."""


def _text(text: str) -> _Text:
    rows, nodes = text.split("\n")[:-1], ast.parse(text).body
    code = [at for at, node in enumerate(nodes) if not binding.is_text(node)]
    if not code:
        return _Text(rows, [], [], [], 0)
    first, last = above(nodes[code[0]]) - 1, end(nodes[code[-1]])
    found = [_digest(node) for node in nodes[code[0] : code[-1] + 1]]
    return _Text(rows[:first], rows[first:last], rows[last:], found, code[0])


def _at(rows: Sequence[str], space: str) -> list[str]:
    """Return lines at another margin."""
    return _indented("".join(f"{row}\n" for row in rows), space)


def _plain(rows: Sequence[str]) -> list[str]:
    return [row.rstrip("\r\n") for row in rows]


def _marked(note: str, rows: Sequence[str], space: str) -> tuple[str, ...]:
    """Return lines with a comment of ours above the first that is not blank."""
    at = next((at for at, row in enumerate(rows) if row.strip()), len(rows))
    return (*rows[:at], *([f"{space}{note}"] if note else []), *rows[at:])


def _digests(text: str) -> list[str]:
    return [_digest(node) for node in ast.parse(text).body]


def _definition(text: str) -> ast.stmt:
    """Return the definition that a header begins."""
    (node,) = ast.parse(f"{text.rstrip()}\n    ...\n").body
    return node


def above(node: ast.AST) -> int:
    """Return the first line of a statement, its decorators included."""
    lines = [it.lineno for it in (node, *getattr(node, "decorator_list", ())) if isinstance(it, (ast.stmt, ast.expr))]
    return min(lines)


def end(node: ast.stmt) -> int:
    """Return the last line of a statement."""
    return node.end_lineno or node.lineno


def margin(rows: Sequence[str], line: int) -> str:
    """Return what a line is indented with."""
    row = rows[line - 1]
    return row[: len(row) - len(row.lstrip())]


def _commented(line: int, rows: Sequence[str]) -> int:
    """Return the first line of the comment that stands right above a line, or the line itself."""
    space = margin(rows, line)
    while line > 1 and rows[line - 2].startswith(f"{space}#"):
        line -= 1
    return line


def header_end(node: ast.stmt, rows: Sequence[str]) -> int:
    """Return the last line of a definition's header. Raises AnchorError if its body begins there."""
    body: list[ast.stmt] = getattr(node, "body", [])
    last = above(body[0]) - 1
    while last > node.lineno and (not rows[last - 1].strip() or rows[last - 1].lstrip().startswith("#")):
        last -= 1
    if rows[above(body[0]) - 1][: body[0].col_offset].strip() or last < node.lineno:
        raise AnchorError("a header on lines of its own")
    return last


def _refuse_shared(run: Sequence[ast.stmt], rows: Sequence[str]) -> None:
    """Raise AnchorError unless these statements have their lines for themselves."""
    first, last = run[0], run[-1]
    before = rows[first.lineno - 1].encode()[: first.col_offset]
    after = rows[end(last) - 1].encode()[last.end_col_offset or 0 :].decode(errors="replace").strip()
    if before.strip(b" \t\f\xef\xbb\xbf") or (after and not after.startswith("#")):
        raise AnchorError("statements on lines of their own")


def inner_lines(text: str) -> set[int]:
    """Return the lines of a text that begin inside of a string: their indentation is a part of it."""
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


def _indented(text: str, space: str) -> list[str]:
    """Return the lines of a text at another margin; what is inside of a string stays as it is."""
    lines = text.split("\n")[:-1] if text.endswith("\n") else text.split("\n")
    inside = inner_lines(text) if space and text else ()
    return [f"{space}{it}" if it and at not in inside else it for at, it in enumerate(lines, 1)] if text else []
