"""The functions that a codemod can change as a diff does, and the changes that are left to a person. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from unhang.codemods import splice
from unhang.codemods.base import AnchorError, replacing
from unhang.draft.patch import Patched
from unhang.draft.replacements import HeaderError, Replacement, Source, replacements, used_globals
from unhang.draft.skeleton import Rewrite
from unhang.errors import UnhangError, printable
from unhang.rewrite import one_file
from unhang.shapes import shape
from unhang.shapes.catalog import Target
from unhang.shapes.shape import Function


class Drafted(NamedTuple):
    """What becomes of one file's changes."""

    rewrites: tuple[Rewrite, ...]
    left: tuple[str, ...]
    """What a person must do, each in one line."""


def drafted(fix: str, upstream: str, patched: Patched) -> Drafted:
    """Return the rewrites of a file's changed functions, each tried: it gives the function as the diff has it.

    Raises UnhangError ``bad-patch`` if the file does not parse after the diff.
    """
    before, after = _functions(patched.before), _functions(patched.after)
    rewrites, left = [], list(_outside(patched, before, after))
    known = shape.bound_names(_parsed(patched.before))
    for name in sorted(before.keys() & after.keys(), key=lambda name: before[name].lineno):
        old, new = (
            Source(functions[name], text.split("\n"))
            for functions, text in ((before, patched.before), (after, patched.after))
        )
        if shape.digest(old.function) == shape.digest(new.function):
            continue
        place = f"{patched.file}, {name}"
        try:
            found = replacements(old, new)
            result = _tried(patched.before, old.function, found)
        except HeaderError:
            left.append(f"{place}: the diff changes its signature or a decorator, which no codemod edits")
            continue
        except (AnchorError, splice.SpanError) as error:
            left.append(f"{place}: its statements cannot be told apart ({error})")
            continue
        if result != shape.digest(new.function):
            left.append(f"{place}: whole statements do not give what the diff has")
            continue
        uses = used_globals(new.function, found)
        if missing := [name for name in uses if name not in known]:
            left.append(f"{place}: it uses {', '.join(missing)}, which the file does not define or import")
        target = Target(fix, upstream, patched.file, name)
        rewrites.append(Rewrite(target, shape.digest(old.function), result, tuple(found), tuple(uses)))
    return Drafted(tuple(rewrites), tuple(left))


def _functions(text: str) -> dict[str, Function]:
    """Return the functions that a module defines once each, by qualified name, without those nested in another."""
    found = list(_definitions(_parsed(text).body, ""))
    names = [name for name, _ in found]
    return {name: function for name, function in found if names.count(name) == 1}


def _definitions(body: Iterable[ast.stmt], prefix: str) -> Iterator[tuple[str, Function]]:
    for node in shape.statements(list(body)):
        if isinstance(node, ast.ClassDef):
            yield from _definitions(node.body, f"{prefix}{node.name}.")
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield prefix + node.name, node


def _parsed(text: str) -> ast.Module:
    try:
        return shape.parse(text.encode())
    except (SyntaxError, ValueError, RecursionError) as error:
        raise UnhangError(
            "bad-patch", f"a file does not parse: {error}", hint="see whether the diff is whole"
        ) from error


def _outside(patched: Patched, before: Mapping[str, Function], after: Mapping[str, Function]) -> Iterator[str]:
    """Yield each run of changed lines that is not in a function which is there before and after."""
    inside = [{*_lines(functions[name] for name in before.keys() & after.keys())} for functions in (before, after)]
    texts = patched.before.split("\n"), patched.after.split("\n")
    for change in patched.changes:
        for numbers, within, rows in zip((change.removed, change.added), inside, texts):
            code = [number for number in numbers if number not in within and _is_code(rows[number - 1])]
            if code:
                yield f"{patched.file}, hunk {change.hunk}: it changes code outside of a function: {_told(rows, code)}"
                break


def _lines(functions: Iterable[Function]) -> Iterator[int]:
    for function in functions:
        first = min(node.lineno for node in (function, *function.decorator_list))
        yield from range(first, (function.end_lineno or first) + 1)


def _is_code(row: str) -> bool:
    return bool(row.strip()) and not row.lstrip().startswith("#")


def _told(rows: Sequence[str], code: Sequence[int]) -> str:
    """Return the first of these lines, which names what changes."""
    return printable(rows[code[0] - 1].strip())[:60]


def _tried(text: str, function: Function, found: Iterable[Replacement]) -> str:
    """Return the shape of the function after these replacements. Raises AnchorError or SpanError."""
    edits = [replacing(function, old, new) for old, new in found]
    rows = splice.lines(text)
    new_rows = splice.apply(rows, edits, one_file.unit_of(rows, function))
    return shape.digest(one_file.parsed_again(new_rows, function, len(rows)))
