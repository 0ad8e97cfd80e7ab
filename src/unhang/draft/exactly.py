"""What a diff does to a file, as edits of a fix that is unproved: of functions, and of other lines. Pure.

An edit has as many lines around it as it takes to find it only once, and so the place where it has led.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from difflib import SequenceMatcher
from typing import NamedTuple

from unhang.codemods.base import bound
from unhang.codemods.exact import EDGE, Exact, Swap, Text, around, inner_lines, margin
from unhang.draft.patch import Patched
from unhang.draft.replacements import above, end
from unhang.plugins import parameters
from unhang.shapes import rebound, shape
from unhang.shapes.catalog import Target


class Bound(NamedTuple):
    """A function that the diff changes, or other lines of a file."""

    target: Target
    before: str
    """Its shape in the release."""
    after: str
    swaps: tuple[Swap, ...]
    uses: tuple[str, ...] = ()
    """The global names that the new text uses, and the file binds."""
    is_code: bool = True
    """Whether it changes more than comments, docstrings and blank lines."""

    @property
    def codemod(self) -> Exact:
        """The edits, as a codemod."""
        return Exact(*self.swaps, uses=self.uses)


class _Run(NamedTuple):
    """Lines that the diff replaces, and those that stand there afterwards."""

    old: range
    new: range
    owner: str = ""
    """The function that they are part of, if they are the function's alone."""

    def __add__(self, other: object) -> _Run:
        """Return this run and a following one as one."""
        assert isinstance(other, _Run)
        return _Run(range(self.old.start, other.old.stop), range(self.new.start, other.new.stop))

    def is_in(self, old: Sequence[int] | set[int], new: Sequence[int] | set[int]) -> bool:
        return all(it in old for it in self.old) and all(it in new for it in self.new)

    def touches(self, old: range, new: range) -> bool:
        return any(it in old for it in self.old) or any(it in new for it in self.new)


def part(fix: str, upstream: str, patched: Patched, values: Mapping[str, str] = {}) -> list[Bound]:
    """Return the edits of a file, in line order. The ``values`` of parameters are their names in them."""
    both = Text(patched.before), Text(patched.after)
    trees = _trees(patched.file, both)
    runs = _owned(list(_runs(*(it.seen for it in both))), trees, values, both[1].seen)
    runs, swaps = _told_apart(runs, *both)
    bare = [_without_code(*it) for it in zip(trees, both)] if trees else [set(), set()]
    found: dict[str, Bound] = {}
    for run, swap in zip(runs, swaps):
        label = run.owner or f"line-{max(run.old.start, 1)}"
        target = Target(fix, upstream, patched.file, label, exact=True, text=not run.owner, parameters=tuple(values))
        one = found.get(label) or Bound(target, "", "", (), is_code=False)
        named = swap._replace(new=tuple(parameters.named(row, values) for row in swap.new))
        is_code = one.is_code or not trees or not run.is_in(*bare)
        found[label] = one._replace(swaps=(*one.swaps, named), is_code=is_code)
    return [_shaped(it, trees) for it in found.values()]


def _trees(file: str, both: Sequence[Text]) -> Sequence[ast.Module]:
    """Return the module before and after; nothing where it is none, or newer than our Python."""
    with suppress(SyntaxError, ValueError, RecursionError):
        return [shape.parse("\n".join(it.seen[1:-1])) for it in both] if file.endswith(".py") else []
    return []


def _runs(before: Sequence[str], after: Sequence[str]) -> Iterator[_Run]:
    top = next((at for at, pair in enumerate(zip(before, after)) if pair[0] != pair[1]), 0)
    rest = min(len(before), len(after)) - top
    tail = next((at for at in range(rest) if before[-1 - at] != after[-1 - at]), rest)
    old, new = before[top : len(before) - tail], after[top : len(after) - tail]
    for tag, *at in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag != "equal":
            first, last, new_first, new_last = (it + top for it in at)
            yield _Run(range(first, last), range(new_first, new_last))


def _owned(
    runs: Sequence[_Run], trees: Sequence[ast.Module], values: Mapping[str, str], after: Sequence[str]
) -> list[_Run]:
    """Return the runs, each with the function that has it, if all that changes of that function is in it."""
    functions = _functions(trees) if trees else {}
    runs = [it for run in runs for it in _cut(run, functions.values())]
    found = list(runs)
    for name, (old, new) in functions.items():
        mine = [at for at, it in enumerate(runs) if it.touches(old, new)]
        has_value = any(value in after[it] for at in mine for it in runs[at].new for value in values.values())
        if not has_value and all(runs[at].is_in(old, new) for at in mine):
            for at in mine:
                found[at] = found[at]._replace(owner=name)
    return found


def _cut(run: _Run, functions: Iterable[tuple[range, range]]) -> Iterator[_Run]:
    """Yield a run of lines of a function, and what the diff adds right above and below that, each as one."""
    for old, new in functions:
        first, last = max(run.new.start, new.start), min(run.new.stop, new.stop)
        if run.old and first < last and all(it in old for it in run.old):
            at, end = run.old.start, run.old.stop
            parts = (at, at, run.new.start, first), (at, end, first, last), (end, end, last, run.new.stop)
            yield from (_Run(range(*it[:2]), range(*it[2:])) for it in parts if it[0] < it[1] or it[2] < it[3])
            return
    yield run


def _functions(trees: Sequence[ast.Module]) -> dict[str, tuple[range, range]]:
    """Return the lines, before and after, of the functions in whose place nothing else may run, and that change."""
    found = {}
    for name in dict.fromkeys(_names(trees[0].body, "")):
        nodes = [shape.find(tree, name) for tree in trees]
        if [len(it) for it in nodes] == [1, 1] and shape.digest(nodes[0][0]) != shape.digest(nodes[1][0]):
            if not any(rebound.lines(tree, name) for tree in trees):
                old, new = (range(above(it[0]), end(it[0]) + 1) for it in nodes)
                found[name] = old, new
    return found


def _names(body: Sequence[ast.stmt], prefix: str) -> Iterator[str]:
    for node in shape.statements(body):
        if isinstance(node, ast.ClassDef):
            yield from _names(node.body, f"{prefix}{node.name}.")
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield prefix + node.name


def _told_apart(runs: list[_Run], before: Text, after: Text) -> tuple[list[_Run], list[Swap]]:
    """Return each run with its edit; two that cannot be told apart become one."""
    swaps: list[Swap] = []
    while len(swaps) < len(runs):
        at = len(swaps)
        if swap := _swap(runs, at, before, after):
            swaps.append(swap)
            continue
        first = at if at + 1 < len(runs) else at - 1
        pair = runs[first : first + 2]
        lost = {it.owner for it in pair} if len({it.owner for it in pair}) > 1 else set()
        owner = "" if lost else pair[0].owner
        runs[first : first + 2] = [(pair[0] + pair[1])._replace(owner=owner)]
        runs = [it._replace(owner="") if it.owner in lost else it for it in runs]
        swaps = []
    return runs, swaps


def _swap(runs: Sequence[_Run], at: int, before: Text, after: Text) -> Swap | None:
    """Return the edit that a run is, with the fewest lines around it that make it the only one; None if none do."""
    run, rows, new_rows = runs[at], before.seen, after.seen
    most = run.old.start - (runs[at - 1].old.stop if at else 0)
    most_below = (runs[at + 1].old.start if at + 1 < len(runs) else len(rows)) - run.old.stop
    old, new = rows[run.old.start : run.old.stop], new_rows[run.new.start : run.new.stop]
    deep = margin((*old, *new))
    there = [*around(new_rows, run.new.start, deep)]
    inside = tuple(it for it in around(rows, run.old.start, deep) if it in there)
    is_own = run.owner and any(map(str.strip, old)) and any(map(str.strip, new))
    up = 0 if is_own else next((at for at in range(1, most) if rows[run.old.start - at].strip(f"{EDGE} \t")), most)
    down = 0 if is_own else next((at for at in range(1, most_below) if rows[run.old.stop + at - 1].strip()), most_below)
    while True:
        lines = rows[run.old.start - up : run.old.start], rows[run.old.stop : run.old.stop + down]
        swap = Swap(tuple(old), tuple(new), tuple(lines[0]), tuple(lines[1]), inside)
        if before.places(swap) == [run.old.start] and after.places(swap.undone) == [run.new.start]:
            if not before.places(swap.undone):
                return swap
        if (up, down) == (most, most_below):
            return None
        up, down = (up + 1, down) if down == most_below or (up <= down and up < most) else (up, down + 1)


def _without_code(tree: ast.Module, text: Text) -> set[int]:
    """Return those lines of a file that are blank, a comment, or a string that is a statement."""
    inside = inner_lines("\n".join(text.seen[1:-1]))
    plain = {at for at, row in enumerate(text.seen) if at not in inside and (not row.strip() or row.lstrip()[0] == "#")}
    texts = (it for it in ast.walk(tree) if isinstance(it, ast.stmt) and _is_text(it))
    return plain | {line for it in texts for line in range(it.lineno, end(it) + 1)}


def _is_text(node: ast.stmt) -> bool:
    """Return whether a statement is nothing but a string."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _shaped(one: Bound, trees: Sequence[ast.Module]) -> Bound:
    """Return an edit with the shapes of what it changes, and the names that it uses."""
    if one.target.text:
        before, after = one.codemod.shapes
        return one._replace(before=before, after=after)
    old, new = (shape.find(tree, one.target.function)[0] for tree in trees)
    loaded = [{it.id for it in ast.walk(node) if isinstance(it, ast.Name)} for node in (old, new)]
    arguments = {it.arg for it in ast.walk(new) if isinstance(it, ast.arg)}
    uses = (loaded[1] - loaded[0] - bound(new) - arguments - {*dir(builtins)}) & shape.bound_names(trees[0])
    return one._replace(before=shape.digest(old), after=shape.digest(new), uses=tuple(sorted(uses)))
