"""The lines that the fixes rewrote in a tree. Only of these is counted whether a test executes them.

A line is where a statement begins, or the head of a compound one (``if``, ``for``, ``except``, ...). It is rewritten if
its text differs from the untouched function's, so a changed condition counts, and so does what is only indented anew.
The lines come from the AST and not from bytecode, which lacks what follows a ``raise``.
"""

import ast
import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path

from unhang.shapes import shape

_PARTS = (ast.stmt, ast.ExceptHandler, ast.match_case)


def lines(before: Path, after: Path, targets: Iterable[tuple[str, str, str]]) -> dict[str, dict[str, list[int]]]:
    """Return the rewritten lines by fix and ``FILE:LINE``, each with all line numbers that belong to it.

    A target is a fix, a file and a qualified name; the trees may lack its file. Raises OSError and SyntaxError.
    """
    found: dict[str, dict[str, list[int]]] = {}
    for fix, file, function in targets:
        of_fix = found.setdefault(fix, {})
        if (after / file).is_file():
            old, new = ((tree / file).read_bytes() for tree in (before, after))
            changed = _changed(old, new, function)
            parts = (part for node in _found(new, function) for part in _parts(node))
            for part in sorted(parts, key=lambda part: part.start):
                if not changed.isdisjoint(part):
                    of_fix.setdefault(f"{file}:{part.start}", []).extend(part)
    return found


def places(names: Sequence[str]) -> str:
    """Return where these rewritten lines are: ``FILE lines 3-5, 9``."""
    text = []
    for file, of_file in groupby(names, lambda name: name.rpartition(":")[0]):
        numbers = [int(name.rpartition(":")[2]) for name in of_file]
        runs = groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])
        spans = [[str(number) for _, number in run] for _, run in runs]
        text.append(f"{file} line{'s' * (len(numbers) > 1)} {', '.join('-'.join(_ends(span)) for span in spans)}")
    return "; ".join(text)


def by_file(tree: Path, rewritten: Mapping[str, Mapping[str, Sequence[int]]]) -> dict[str, dict[int, str]]:
    """Return the name of each rewritten line by its file in this tree and its number, for ``unhang_reports``."""
    found: dict[str, dict[int, str]] = {}
    for name, numbers in (item for of_fix in rewritten.values() for item in of_fix.items()):
        path = (tree / name.rpartition(":")[0]).resolve()
        found.setdefault(str(path), {}).update(dict.fromkeys(numbers, name))
    return found


def _ends(span: Sequence[str]) -> Sequence[str]:
    return span[:1] if len(span) == 1 else (span[0], span[-1])


def _changed(old: bytes, new: bytes, function: str) -> set[int]:
    """Return the numbers of the lines of a function that differ from the old ones."""
    was, is_now = _rows(old, function), _rows(new, function)
    matcher = difflib.SequenceMatcher(None, [row for _, row in was], [row for _, row in is_now], autojunk=False)
    spans = (is_now[low:high] for kind, _, _, low, high in matcher.get_opcodes() if kind != "equal")
    return {number for span in spans for number, _ in span}


def _rows(data: bytes, function: str) -> list[tuple[int, bytes]]:
    """Return the lines of a function with their numbers."""
    rows = list(enumerate(data.splitlines(), 1))
    return [row for node in _found(data, function) for row in rows[node.lineno - 1 : node.end_lineno]]


def _found(data: bytes, function: str) -> list[shape.Function]:
    return shape.find(shape.parse(data), function)


def _parts(function: shape.Function) -> Iterator[range]:
    """Yield the lines of each statement in a function; of a compound one only those of its head."""
    for node in (node for child in function.body for node in ast.walk(child)):
        if not isinstance(node, _PARTS) or _does_nothing(node):
            continue
        inner = [
            one for child in ast.iter_child_nodes(node) if not isinstance(child, _PARTS) for one in ast.walk(child)
        ]
        numbers = [number for one in (node, *inner) if (number := getattr(one, "lineno", None))]
        ends = [number for one in inner if (number := getattr(one, "end_lineno", None))]
        yield range(min(numbers), max(numbers + ends) + 1)


def _does_nothing(node: ast.AST) -> bool:
    """Return whether nothing is executed for a statement."""
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return is_text or isinstance(node, (ast.Global, ast.Nonlocal))
