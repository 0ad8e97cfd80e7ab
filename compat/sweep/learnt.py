"""What our own code says of contents: asked once, and kept for as long as that code is the same."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable
from importlib import metadata, util
from typing import Any

from unhang.compat.sweep import as_written
from unhang.compat.sweep.cache import Cache, code_digest
from unhang.compat.sweep.classify import State, classify
from unhang.compat.sweep.sources import Content, content
from unhang.rewrite.one_file import RewriteError, Step, rewrite
from unhang.shapes import shape as shapes
from unhang.shapes.catalog import Target
from unhang.shapes.outline import Entry, outline

_FILE = "learnt.json"


class UnreadableError(Exception):
    """A content that does not parse, or that defines a target more than once: nothing can be said of its shape."""


class Learnt:
    """Facts about contents, from the cache where it has them."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._code = _code()
        kept = cache.read(_FILE)
        self._facts: dict[str, Any] = kept["facts"] if isinstance(kept, dict) and kept.get("code") == self._code else {}
        self._known = len(self._facts)

    def save(self) -> None:
        """Keep what is new in the cache."""
        if len(self._facts) > self._known:
            self._cache.write(_FILE, {"code": self._code, "facts": self._facts})

    def shape(self, found: Content, function: str) -> str | None:
        """The shape of a function in a content; None where it is not there. Raises UnreadableError."""
        told = self._fact(f"shape {found.sha256} {function}", lambda: _shape(found.data, function))
        if isinstance(told, dict):
            raise UnreadableError(told["unreadable"])
        shape: str | None = told
        return shape

    def state(self, found: Content, target: Target) -> State:
        """The state of a target in a content that has it."""
        told = self._fact(f"state {found.sha256} {_name(target)}", lambda: classify(found.data, target))
        state, result, names, why = told
        return State(state, result, tuple(names), why)

    def patched(self, found: Content, target: Target, result: str) -> str | None:
        """The digest of a file that our rewrite leaves, if the function then has the shape ``result``; else None."""
        digest: str | None = self._fact(
            f"patched {found.sha256} {_name(target)} {result}", lambda: _patched(found.data, target, result)
        )
        return digest

    def outline(self, found: Content, function: str) -> list[Entry]:
        """The outline of a function that a content has."""
        told = self._fact(f"outline {found.sha256} {function}", lambda: _outline(found.data, function))
        return [Entry(*entry) for entry in told]

    def outline_patched(self, found: Content, target: Target, result: str) -> list[Entry]:
        """The outline of what our rewrite makes of a target in a content; ``result`` is the shape that it has then."""
        step = Step(target, result)
        told = self._fact(
            f"outline {found.sha256} {_name(target)} {result}",
            lambda: _outline(rewrite(found.data, [step]).data, target.function),
        )
        return [Entry(*entry) for entry in told]

    def as_written(self, found: Content, diff: str) -> Content | None:
        """A content with an upstream pull request applied; None where it does not apply whole, or does not parse."""
        key = f"diff {content(diff.encode()).sha256} {found.sha256}"
        digest = self._fact(key, lambda: self._as_written(found, diff))
        changed = None if digest is None else self._cache.content(digest)
        if digest is not None and changed is None:  # the cache has lost it
            del self._facts[key]
            return self.as_written(found, diff)
        return changed

    def _as_written(self, found: Content, diff: str) -> str | None:
        data = as_written.applied(diff, found.data)
        try:
            shapes.parse(data or b"")
        except SyntaxError:
            return None
        if data is None:
            return None
        self._cache.keep_content(content(data))
        return content(data).sha256

    def _fact(self, key: str, ask: Callable[[], Any]) -> Any:
        if key not in self._facts:
            self._facts[key] = ask()
        return self._facts[key]


def _shape(data: bytes, function: str) -> str | dict[str, str] | None:
    if not shapes.mentions(data, function):
        return None
    try:
        found = shapes.find(shapes.parse(data), function)
    except (SyntaxError, ValueError, RecursionError) as error:
        return {"unreadable": f"it does not parse: {error}"}
    if len(found) > 1:
        return {"unreadable": f"{function} is defined {len(found)} times"}
    return shapes.digest(found[0]) if found else None


def _patched(data: bytes, target: Target, result: str) -> str | None:
    try:
        return content(rewrite(data, [Step(target, result)]).data).sha256
    except RewriteError:
        return None


def _outline(data: bytes, function: str) -> list[Entry]:
    (found,) = shapes.find(shapes.parse(data), function)
    return outline(found)


def _name(target: Target) -> str:
    return f"{target.fix} {target.file} {target.function}"


def _code() -> str:
    """What the answers rest on: our own code, LibCST, and this Python."""
    folders = []
    for name in ("unhang", "unhang.codemods", "unhang.compat"):
        spec = util.find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        folders.append(os.path.dirname(spec.origin))
    return f"{code_digest(folders)} libcst {metadata.version('libcst')} {platform.python_version()} {sys.platform}"
