"""Facts about contents, computed by our own code and cached for as long as the code behind each stays the same."""

from __future__ import annotations

import functools
import hashlib
import importlib
import platform
import sys
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from unhang.compat.sweep import as_written, trees
from unhang.compat.sweep.cache import Cache
from unhang.compat.sweep.sources import Content, content
from unhang.judge.rows import Row, Source
from unhang.judge.scene import SceneError
from unhang.rewrite.one_file import RewriteError, Step, rewrite
from unhang.shapes import catalog
from unhang.shapes import shape as shapes
from unhang.shapes.catalog import Target
from unhang.shapes.outline import Entry, outline
from unhang.survey.classify import State, classify

_FOLDER = "learnt"
_KEPT_DAYS = 30
_OF_THE_MATRIX = {"catalog", "facts"}
"""What reads the matrix, in unhang.shapes: no fact depends on it."""
_OF_SHAPES = ("unhang.shapes", "unhang.compat.sweep.as_written", "unhang.compat.sweep.learnt")
_OF_ROWS = ("unhang.shapes", "unhang.prove", "unhang.judge.scene", "unhang.judge.rows", "unhang.compat.sweep.trees")
_OF_FIXES = ("unhang.codemods", "unhang.judge", "unhang.rewrite", "unhang.survey", *_OF_ROWS)


class Kind(NamedTuple):
    """What a fact depends on: the code of a fix, or of what judges it alone; of shapes if there is no fix."""

    fix: str = ""
    rows: bool = False


class UnreadableError(Exception):
    """A content has no single shape: it does not parse, or defines the function more than once."""


class Learnt:
    """Facts about contents, read from the cache where it has them."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._facts: dict[str, dict[str, Any]] = {}
        """By the digest of the code that they depend on."""
        self._new: set[str] = set()
        """The digests with facts that the cache does not have yet."""
        self._code = functools.cache(code_digest)

    def save(self) -> None:
        """Write what is new to the cache, and drop the facts of code that nobody has asked about for long.

        Each code has a file of its own, for several checkouts may share the cache.
        """
        for code in self._new:
            self._cache.write(_file(code), {**self._read(code), **self._facts[code]})
        self._cache.drop_older(_FOLDER, _KEPT_DAYS, {_file(code) for code in self._facts})
        self._new.clear()

    def shape(self, found: Content, function: str) -> str | None:
        """Return the shape of a function in a content; None if it is not there. Raises UnreadableError."""
        answer = self._fact(Kind(), f"shape {found.sha256} {function}", lambda: _shape(found.data, function))
        if isinstance(answer, dict):
            raise UnreadableError(answer["unreadable"])
        shape: str | None = answer
        return shape

    def state(self, found: Content, target: Target) -> State:
        """Return the state of a target in a content that has it."""
        key = f"state {found.sha256} {_name(target)}{' with a workaround' if target.workaround else ''}"
        try:
            answer = self._fact(Kind(target.fix), key, lambda: classify(found.data, target, self._row))
        except SceneError as error:  # a busy machine may be the reason: it is asked again in the next run
            return State("undecided", None, (), str(error))
        state, result, names, why, row = answer
        return State(state, result, tuple(names), why, row and Row(*row))

    def patched(self, found: Content, steps: Sequence[Step]) -> str | None:
        """Return the sha256 of a file with these rewrites of one fix; None if a function does not get its result."""
        key = f"patched {found.sha256} {' '.join(f'{_name(step.target)} {step.result}' for step in steps)}"
        digest: str | None = self._fact(Kind(steps[0].target.fix), key, lambda: _patched(found.data, steps))
        return digest

    def outline(self, found: Content, function: str) -> list[Entry]:
        """Return the outline of a function in a content that has it."""
        answer = self._fact(Kind(), f"outline {found.sha256} {function}", lambda: _outline(found.data, function))
        return [Entry(*entry) for entry in answer]

    def outline_patched(self, found: Content, target: Target, result: str) -> list[Entry]:
        """Return the outline of our rewrite of a target in a content; ``result`` is the shape of that rewrite."""
        step = Step(target, result)
        answer = self._fact(
            Kind(target.fix),
            f"outline {found.sha256} {_name(target)} {result}",
            lambda: _outline(rewrite(found.data, [step]).data, target.function),
        )
        return [Entry(*entry) for entry in answer]

    def as_written(self, found: Content, diff: str) -> Content | None:
        """Return a content with a pull request's diff applied; None if it does not apply or does not parse."""
        key = f"diff {content(diff.encode()).sha256} {found.sha256}"
        digest = self._fact(Kind(), key, lambda: self._as_written(found, diff))
        changed = None if digest is None else self._cache.content(digest)
        if digest is not None and changed is None:  # the cache has lost it
            del self._facts[self._code(Kind())][key]
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

    def _row(self, fix: str, before: Source, after: Source | None) -> Row:
        """Return what ``trees.run`` does. It depends on no codemod: another one may well give the same text."""
        texts = (content(source.text.encode()).sha256 if source else "" for source in (before, after))
        key = f"row {' '.join(texts)} {before.name}"
        return Row(*self._fact(Kind(fix, rows=True), key, lambda: trees.run(fix, before, after)))

    def _fact(self, kind: Kind, key: str, compute: Callable[[], Any]) -> Any:
        """Return a fact, which is computed once."""
        code = self._code(kind)
        if code not in self._facts:
            self._facts[code] = self._read(code)
        facts = self._facts[code]
        if key not in facts:
            facts[key] = compute()
            self._new.add(code)
        return facts[key]

    def _read(self, code: str) -> dict[str, Any]:
        kept = self._cache.read(_file(code))
        return kept if isinstance(kept, dict) else {}


def code_digest(kind: Kind) -> str:
    """Return a digest of the code that facts of this kind depend on.

    It covers LibCST, this Python and the torch of a scene too, but no module of another fix, and none that reads the
    matrix.
    """
    others = {other.replace("-", "_") for other in catalog.fixes() if other != kind.fix} | _OF_THE_MATRIX
    whole = hashlib.sha256()
    for name in _OF_ROWS if kind.rows else _OF_FIXES if kind.fix else _OF_SHAPES:
        module = importlib.import_module(name)
        folder = Path(module.__path__[0]) if hasattr(module, "__path__") else Path(module.__file__ or "")
        for path in sorted(folder.rglob("*.py")) or [folder]:
            inner = path.relative_to(folder)
            if not {part.removesuffix(".py") for part in inner.parts} & others:
                code = path.read_bytes()
                whole.update(f"{name} {inner} {len(code)}\n".encode() + code)
    torch = f" torch {_torch()}" if kind.fix else ""
    return f"{whole.hexdigest()} libcst {metadata.version('libcst')} {platform.python_version()} {sys.platform}{torch}"


def _torch() -> str:
    return next((it.version for it in metadata.distributions(name="torch")), "none")


def _file(code: str) -> str:
    return f"{_FOLDER}/{hashlib.sha256(code.encode()).hexdigest()[:32]}.json"


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


def _patched(data: bytes, steps: Sequence[Step]) -> str | None:
    try:
        return content(rewrite(data, steps).data).sha256
    except RewriteError:
        return None


def _outline(data: bytes, function: str) -> list[Entry]:
    (found,) = shapes.find(shapes.parse(data), function)
    return outline(found)


def _name(target: Target) -> str:
    return f"{target.fix} {target.file} {target.function}"
