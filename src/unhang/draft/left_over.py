"""Which hunks of a file are left to a person, and which change no code. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence

from unhang import gate
from unhang.codemods import exact
from unhang.draft import around, places
from unhang.draft.patch import Patched
from unhang.shapes import binding, shape


def accounted(
    patched: Patched, before: places.File, after: places.File, names: Iterable[str], why: Mapping[str, str]
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the hunks that are left, each with the reason, and those that change no code."""
    covered = [{*_binding_lines(file.tree)} for file in (before, after)]
    reasons: list[dict[int, str]] = [{}, {}]
    for name in names:
        for side, file in enumerate((before, after)):
            for node in _whole(name, file, before.tree):
                lines = range(exact.above(node), exact.end(node) + 1)
                if name in why:
                    reasons[side].update(dict.fromkeys(lines, f"{name}: {why[name]}"))
                else:
                    covered[side].update(lines)
    bare = [around.without_code(file.rows) for file in (before, after)]
    left: dict[str, str] = {}
    has_code: dict[str, bool] = {}
    for change in patched.changes:
        place = f"{patched.file}, hunk {change.hunk}"
        lines_of = zip((change.removed, change.added), bare)
        code = [[number for number in numbers if number not in no_code] for numbers, no_code in lines_of]
        for reason in _reasons(code, (before, after), covered, reasons):
            left.setdefault(place, reason)
        has_code[place] = has_code.get(place, False) or any(code)
    return left, tuple(place for place, is_code in has_code.items() if not is_code)


def _binding_lines(tree: ast.Module) -> Iterator[int]:
    """Yield the lines of all statements that bind a name: whatever they bind was compared."""
    for node in shape.statements(tree.body):
        if shape.names(node) or places.attributes(tree, node):
            yield from range(exact.above(node), exact.end(node) + 1)


def _whole(name: str, file: places.File, before: ast.Module) -> list[ast.stmt]:
    """Return the statements that bind a name in a file, each with what is new around it."""
    nodes = binding.statements(file.tree, name) or []
    owner = name.rpartition(".")[0]
    if nodes:
        old = binding.statements(before, name) or () if file.tree is not before else ()
        mine = [it for node in old for it in shape.names(node)]
        block, at = places.outermost(binding.scope(file.tree, name) or [], nodes[0], before, owner, mine)
        return [block[at], *nodes]
    return nodes


def _reasons(
    code: Iterable[Sequence[int]],
    files: Iterable[places.File],
    covered: Sequence[set[int]],
    reasons: Sequence[Mapping[int, str]],
) -> Iterator[str]:
    """Yield why these lines of the files, before and after, are left."""
    for file, numbers, inside, why in zip(files, code, covered, reasons):
        for number in numbers:
            if number in why:
                yield why[number]
            elif number not in inside:
                line = gate.line(file.rows[number - 1].strip())[:60]
                yield f"it changes code that binds no name: {line}; {_way_out(file, number)}"


def _way_out(file: places.File, number: int) -> str:
    """Return what a person can do about a line whose statement binds no name."""
    loose = (it for it in shape.statements(file.tree.body) if isinstance(it, ast.Expr))
    if any(number in range(it.lineno, exact.end(it) + 1) for it in loose):
        return "for a fix to have it, let the diff give it a name that is new, such as `_done = ...`"
    return "keep that change as a patch of its own"
