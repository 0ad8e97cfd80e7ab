"""Collects each distinct shape of a target, and each distinct file, in releases and commits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from unhang.compat.sweep.clones import Seen
from unhang.compat.sweep.learnt import Learnt, UnreadableError
from unhang.compat.sweep.sources import Content, Release
from unhang.rewrite.one_file import Step
from unhang.shapes.catalog import Target

Key = tuple[str, str, str]
"""Fix, function and shape."""


@dataclass
class Row:
    """A shape: the first content that has it, and where it was seen."""

    content: Content
    note: str = ""
    commits: list[str] = field(default_factory=list)
    """Date and short name of commits."""
    releases: list[tuple[str, str]] = field(default_factory=list)
    """Upstream and version."""
    supported: bool = False
    """Whether the floor version or a later one has it."""


class Collection:
    """The distinct shapes and files of some targets. Pure, except for the cache in ``learnt``."""

    def __init__(self, targets: Sequence[Target], learnt: Learnt) -> None:
        self.targets = targets
        self.rows: dict[Key, Row] = {}
        self.files: dict[tuple[str, str], dict[str, str | None]] = {}
        """The shapes of a fix in each file of a release or a branch's tip, by the fix and the file's sha256."""
        self.released: dict[tuple[Target, str], Content] = {}
        """The released contents that have a target, by target and sha256."""
        self.releases: dict[str, dict[str, Release]] = {}
        self.shapes: dict[tuple[str, str, Target], str | None] = {}
        """A target's shape in a release, by upstream and version."""
        self.contents: dict[tuple[str, str], set[str]] = {}
        """The sha256 of every file examined, by fix and function."""
        self.problems: list[str] = []
        """Released files that have no single shape: a person must look at them."""
        self._learnt = learnt

    def release(self, release: Release) -> None:
        """Record a release's files and shapes."""
        self.releases.setdefault(release.upstream, {})[release.version] = release
        for target in (target for target in self.targets if target.upstream == release.upstream):
            found = release.files[target.file]
            shape = None if found is None else self._see(target, found, f"{release.upstream} {release.version}")
            self.shapes[release.upstream, release.version, target] = shape
            if shape is not None and found is not None:
                row = self._row(target, shape, found)
                row.supported = True
                row.releases.append((release.upstream, release.version))
                self.released.setdefault((target, found.sha256), found)

    def history(self, seen: Iterable[Seen]) -> list[str]:
        """Record contents in history; return those without a single shape: a branch may be broken for a day."""
        broken = []
        for item in seen:
            for target in (target for target in self.targets if target.file == item.path):
                try:
                    shape = self._shape(target, item.content)
                except UnreadableError as error:
                    broken.append(f"{item.path} at {item.first}: {error}")
                    continue
                if shape is not None:
                    row = self._row(target, shape, item.content)
                    row.supported |= item.supported
                    row.commits += [item.first, item.last]
        return broken

    def tip(self, path: str, found: Content) -> None:
        """Record a file at a branch's tip, so that `check` need not parse it in a checkout."""
        for target in self.targets:
            if target.file == path:
                self._see(target, found, f"{path} at the tip of a branch")

    def change(self, target: Target, found: Content, note: str) -> None:
        """Record an upstream change that people apply by hand."""
        shape = self._learnt.shape(found, target.function)
        if shape is not None and shape not in {known for _, _, known in self.rows}:
            self._row(target, shape, found).note = note

    def patched(self, results: Mapping[Key, str]) -> list[str]:
        """Record what released files become when a fix is in them, so that `check` need not parse those either.

        Return the files in which the rewrite of a shape fails, for example because an import is missing.
        """
        failed = []
        together: dict[tuple[str, str, Content], list[Step]] = {}
        for (target, _), found in self.released.items():
            shape = self._learnt.shape(found, target.function)
            result = results.get((target.fix, target.function, shape or ""))
            if result is not None:
                together.setdefault((target.fix, target.file, found), []).append(Step(target, result))
        for (fix, file, found), steps in together.items():
            digest = self._learnt.patched(found, steps)
            if digest is None:
                shapes = (self._learnt.shape(found, step.target.function) for step in steps)
                failed.append(f"{fix} {', '.join(map(str, shapes))}: its rewrite fails in {file} of {found.sha256}")
            else:
                self.files.setdefault((fix, digest), {}).update({step.target.function: step.result for step in steps})
        return failed

    def _see(self, target: Target, found: Content, where: str) -> str | None:
        try:
            shape = self._shape(target, found)
        except UnreadableError as error:
            self.problems.append(f"{target.file} of {where}: {error}")
            return None
        self.files.setdefault((target.fix, found.sha256), {})[target.function] = shape
        return shape

    def _shape(self, target: Target, found: Content) -> str | None:
        self.contents.setdefault((target.fix, target.function), set()).add(found.sha256)
        return self._learnt.shape(found, target.function)

    def _row(self, target: Target, shape: str, found: Content) -> Row:
        return self.rows.setdefault((target.fix, target.function, shape), Row(found))
