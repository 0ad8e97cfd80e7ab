"""Facts about contents: each is computed once in a run, however many releases and commits have the content."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from unhang.compat.sweep import as_written
from unhang.compat.sweep.classify import State, classify
from unhang.compat.sweep.sources import Content, content
from unhang.rewrite.one_file import RewriteError, Step, rewrite
from unhang.shapes import shape as shapes
from unhang.shapes.catalog import Target
from unhang.shapes.outline import Entry, outline

Fact = TypeVar("Fact")


class UnreadableError(Exception):
    """A content has no single shape: it does not parse, or defines the function more than once."""


class Learnt:
    """The facts of one run."""

    def __init__(self) -> None:
        self._facts: dict[tuple[object, ...], Any] = {}

    def shape(self, found: Content, function: str) -> str | None:
        """Return the shape of a function in a content; None if it is not there. Raises UnreadableError."""
        return self._fact(_shape, found, function)

    def state(self, found: Content, target: Target) -> State:
        """Return the state of a target in a content that has it."""
        return self._fact(_state, found, target)

    def patched(self, found: Content, target: Target, result: str) -> bytes | None:
        """Return our rewrite of a file; None if its function does not get the shape ``result``."""
        return self._fact(_patched, found, target, result)

    def as_written(self, found: Content, diff: str) -> Content | None:
        """Return a content with a pull request's diff applied; None if it does not apply or does not parse."""
        return self._fact(_as_written, found, diff)

    def _fact(self, compute: Callable[..., Fact], *arguments: object) -> Fact:
        key = compute, *arguments
        if key not in self._facts:
            self._facts[key] = compute(*arguments)
        fact: Fact = self._facts[key]
        return fact


def outline_of(data: bytes, function: str) -> tuple[Entry, ...]:
    """Return the outline of a function in a file that has it."""
    (found,) = shapes.find(shapes.parse(data), function)
    return tuple(outline(found))


def _shape(found: Content, function: str) -> str | None:
    if not shapes.mentions(found.data, function):
        return None
    try:
        nodes = shapes.find(shapes.parse(found.data), function)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise UnreadableError(f"it does not parse: {error}") from error
    if len(nodes) > 1:
        raise UnreadableError(f"{function} is defined {len(nodes)} times")
    return shapes.digest(nodes[0]) if nodes else None


def _state(found: Content, target: Target) -> State:
    return classify(found.data, target)


def _patched(found: Content, target: Target, result: str) -> bytes | None:
    try:
        return rewrite(found.data, [Step(target, result)]).data
    except RewriteError:
        return None


def _as_written(found: Content, diff: str) -> Content | None:
    data = as_written.applied(diff, found.data)
    try:
        shapes.parse(data or b"")
    except SyntaxError:
        return None
    return None if data is None else content(data)
