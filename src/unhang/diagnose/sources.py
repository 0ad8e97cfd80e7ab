"""Which function a line of a file belongs to, by the source that an environment has: a frame often has no class."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import lru_cache
from os.path import join

from unhang import packs
from unhang.diagnose.evidence import Frame
from unhang.diagnose.signature import Place


class Sources:
    """The sources below some folders of the import path."""

    def __init__(self, roots: Iterable[str]) -> None:
        self._roots = tuple(roots)

    def is_at(self, frame: Frame, place: Place) -> bool | None:
        """Return whether a frame is in a function, by its line; None if no source here tells."""
        called = bare(frame)
        for root in self._roots:
            named = [name for first, last, name in _functions(join(root, place.file)) if first <= frame.line <= last]
            if named and named[-1].rpartition(".")[2] == called:
                return named[-1] == place.function or named[-1].endswith(f".{place.function}")
        return None


def bare(frame: Frame) -> str:
    """Return the name of a frame's function alone, without its class."""
    return frame.function.rpartition(".")[2]


@lru_cache(maxsize=64)
def _functions(path: str) -> tuple[tuple[int, int, str], ...]:
    """Return the first line, the last line and the qualified name of each function, the outer ones first."""
    try:
        return tuple(_within(ast.parse(packs.read(path)), ""))
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return ()


def _within(node: ast.AST, above: str) -> Iterator[tuple[int, int, str]]:
    for child in ast.iter_child_nodes(node):
        name = above
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{above}.{child.name}".lstrip(".")
            if not isinstance(child, ast.ClassDef):
                yield child.lineno, child.end_lineno or child.lineno, name
        yield from _within(child, name)
