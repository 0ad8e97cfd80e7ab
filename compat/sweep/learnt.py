"""Facts about contents, computed by our own code and cached for as long as that code stays the same."""

from __future__ import annotations

import hashlib
import importlib
import platform
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

from unhang.compat.sweep import as_written
from unhang.compat.sweep.cache import Cache
from unhang.compat.sweep.classify import State, classify
from unhang.compat.sweep.sources import Content, content
from unhang.rewrite.one_file import RewriteError, Step, rewrite
from unhang.shapes import shape as shapes
from unhang.shapes.catalog import Target
from unhang.shapes.outline import Entry, outline

_FILE = "learnt.json"
_PACKAGES = ("unhang.shapes", "unhang.judge", "unhang.codemods", "unhang.rewrite", "unhang.compat.sweep")


class UnreadableError(Exception):
    """A content has no single shape: it does not parse, or defines the function more than once."""


class Learnt:
    """Facts about contents, read from the cache where it has them."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._code = code_digest()
        kept = cache.read(_FILE)
        self._facts: dict[str, Any] = kept["facts"] if isinstance(kept, dict) and kept.get("code") == self._code else {}
        self._known = len(self._facts)

    def save(self) -> None:
        """Write new facts to the cache."""
        if len(self._facts) > self._known:
            self._cache.write(_FILE, {"code": self._code, "facts": self._facts})

    def shape(self, found: Content, function: str) -> str | None:
        """Return the shape of a function in a content; None if it is not there. Raises UnreadableError."""
        answer = self._fact(f"shape {found.sha256} {function}", lambda: _shape(found.data, function))
        if isinstance(answer, dict):
            raise UnreadableError(answer["unreadable"])
        shape: str | None = answer
        return shape

    def state(self, found: Content, target: Target) -> State:
        """Return the state of a target in a content that has it."""
        answer = self._fact(f"state {found.sha256} {_name(target)}", lambda: classify(found.data, target))
        state, result, names, why = answer
        return State(state, result, tuple(names), why)

    def patched(self, found: Content, target: Target, result: str) -> str | None:
        """Return the sha256 of our rewrite of a file; None if its function does not get the shape ``result``."""
        digest: str | None = self._fact(
            f"patched {found.sha256} {_name(target)} {result}", lambda: _patched(found.data, target, result)
        )
        return digest

    def outline(self, found: Content, function: str) -> list[Entry]:
        """Return the outline of a function in a content that has it."""
        answer = self._fact(f"outline {found.sha256} {function}", lambda: _outline(found.data, function))
        return [Entry(*entry) for entry in answer]

    def outline_patched(self, found: Content, target: Target, result: str) -> list[Entry]:
        """Return the outline of our rewrite of a target in a content; ``result`` is the shape of that rewrite."""
        step = Step(target, result)
        answer = self._fact(
            f"outline {found.sha256} {_name(target)} {result}",
            lambda: _outline(rewrite(found.data, [step]).data, target.function),
        )
        return [Entry(*entry) for entry in answer]

    def as_written(self, found: Content, diff: str) -> Content | None:
        """Return a content with a pull request's diff applied; None if it does not apply or does not parse."""
        key = f"diff {content(diff.encode()).sha256} {found.sha256}"
        digest = self._fact(key, lambda: self._as_written(found, diff))
        changed = None if digest is None else self._cache.content(digest)
        if digest is not None and changed is None:  # the cache has lost it
            del self._facts[key]
            return self.as_written(found, diff)
        return changed

    def _as_written(self, found: Content, diff: str) -> str | None:
        data = as_written.applied(diff, found.data)
        if data is None:
            return None
        try:
            shapes.parse(data)
        except SyntaxError:
            return None
        changed = content(data)
        self._cache.keep_content(changed)
        return changed.sha256

    def _fact(self, key: str, compute: Callable[[], Any]) -> Any:
        if key not in self._facts:
            self._facts[key] = compute()
        return self._facts[key]


def code_digest() -> str:
    """Return a digest of what the facts depend on: our code below these packages, LibCST and this Python."""
    whole = hashlib.sha256()
    for name in _PACKAGES:
        folder = Path(importlib.import_module(name).__path__[0])
        for path in sorted(folder.rglob("*.py")):
            code = path.read_bytes()
            whole.update(f"{name} {path.relative_to(folder)} {len(code)}\n".encode() + code)
    return f"{whole.hexdigest()} libcst {metadata.version('libcst')} {platform.python_version()} {sys.platform}"


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
