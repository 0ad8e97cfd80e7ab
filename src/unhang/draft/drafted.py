"""The functions that a codemod can change as a diff does, and the changes that are left to a person. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from unhang import gate
from unhang.codemods import base, splice
from unhang.codemods.base import AnchorError
from unhang.draft import reads
from unhang.draft.modules import Rewrite
from unhang.draft.patch import Patched
from unhang.draft.replacements import HeaderError, Replacement, Source, replacements, used_globals
from unhang.errors import UnhangError
from unhang.rewrite import one_file
from unhang.shapes import shape
from unhang.shapes.catalog import Target
from unhang.shapes.shape import Function


class Drafted(NamedTuple):
    """What becomes of one file's changes."""

    rewrites: tuple[Rewrite, ...]
    left: tuple[str, ...]
    """What a person must do, each in one line."""


def drafted(fix: str, upstream: str, patched: Patched, upstreams_own: str | None = None) -> Drafted:
    """Return the rewrites of a file's changed functions, each tried: it gives the function as the diff has it.

    ``upstreams_own`` is the file as upstream's commit has it, if there is one. Raises UnhangError ``bad-patch`` if the
    file does not parse after the diff.
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
            uses = used_globals(after[name], found)
            result = _tried(patched.before, before[name], found)
        except HeaderError:
            left.append(f"{place}: the diff changes its signature or a decorator, which no codemod edits")
            continue
        except (AnchorError, splice.SpanError) as error:
            left.append(f"{place}: its statements cannot be told apart ({error})")
            continue
        if result != shape.digest(new.function):
            left.append(f"{place}: whole statements do not give what the diff has")
            continue
        missing = [name for name in uses if name not in known]
        imports = {name: line for name in missing if (line := _import(name, patched.after, upstreams_own or ""))}
        if imports:
            found = [_importing(item, imports) for item in found]
            result = _tried(patched.before, before[name], found)
            uses = [name for name in uses if name not in imports]
        if unbound := [name for name in missing if name not in imports]:
            left.append(f"{place}: it uses {', '.join(unbound)}, which the file does not define or import")
        target = Target(fix, upstream, patched.file, name)
        taken = reads.of([before[name], after[name]])
        rewrites.append(Rewrite(target, shape.digest(old.function), result, tuple(found), tuple(uses), taken))
    return Drafted(tuple(rewrites), tuple(left))


def by_name(rewrites: Iterable[Rewrite]) -> tuple[tuple[Rewrite, ...], list[str]]:
    """Return the rewrites that one codemod for each name can do, and why not the others: it knows no files."""
    kept: list[Rewrite] = []
    left = []
    for item in rewrites:
        first = next((it for it in kept if it.target.function == item.target.function), item)
        if first.replacements == item.replacements:
            kept.append(item)
        else:
            other = f"{first.target.file} has this function too, and the diff changes it in another way"
            left.append(f"{item.target.file}, {item.target.function}: {other}")
    return tuple(kept), left


def is_inside(text: str, numbers: Iterable[int]) -> bool:
    """Return whether one of these lines of a file is in a function."""
    return not {*_lines(_functions(text).values())}.isdisjoint(numbers)


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
        return shape.parse(text)
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
                where = f"{patched.file}, line {change.removed.start}"
                yield f"{where}: it changes code outside of a function: {_told(rows, code)}"
                break


def _lines(functions: Iterable[Function]) -> Iterator[int]:
    for function in functions:
        first = min(node.lineno for node in (function, *function.decorator_list))
        yield from range(first, (function.end_lineno or first) + 1)


def _is_code(row: str) -> bool:
    return bool(row.strip()) and not row.lstrip().startswith("#")


def _told(rows: Sequence[str], code: Sequence[int]) -> str:
    """Return the first of these lines, which names what changes."""
    return gate.line(rows[code[0] - 1].strip())[:60]


def _import(name: str, *files: str) -> str:
    """Return the line that imports a name in one of these files; empty if none does, or if it is relative."""
    for node in (node for text in files for node in _parsed(text).body):
        for alias in node.names if isinstance(node, (ast.Import, ast.ImportFrom)) else ():
            if (alias.asname or alias.name) == name and not getattr(node, "level", 0):
                short = (
                    ast.ImportFrom(node.module, [alias], 0) if isinstance(node, ast.ImportFrom) else ast.Import([alias])
                )
                return f"{ast.unparse(short)}\n"
    return ""


def _importing(item: Replacement, imports: Mapping[str, str]) -> Replacement:
    """Return a replacement that imports these names, as far as it uses them: its file does not."""
    used = {node.id for node in ast.walk(ast.parse(item.new)) if isinstance(node, ast.Name)}
    return item._replace(new="".join(line for name, line in imports.items() if name in used) + item.new)


def _tried(text: str, function: Function, found: Iterable[Replacement]) -> str:
    """Return the shape of the function after these replacements. Raises AnchorError or SpanError."""
    edits = [getattr(base, edit)(function, old, new) for old, new, edit in found]
    rows = splice.lines(text)
    new_rows = splice.apply(rows, edits, one_file.unit_of(rows, function))
    return one_file.parsed_again(new_rows, function, len(rows))[1]
