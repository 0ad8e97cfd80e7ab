"""Collects each distinct shape of a target, and each distinct file, in releases and commits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
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
        self.pairs: dict[Key, set[str]] = {}
        """The shapes of the function that a target depends on, beside which each of its own was seen."""
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
        for target in (target for target in self.targets if target.upstream == release.upstream):
            if (other := target.depends_on) is not None:
                both = (self.shapes.get((release.upstream, release.version, one)) for one in (target, other))
                self._pair(target, *both)

    def together(self, target: Target, mine: Content, beside: Content) -> None:
        """Record that a commit has a target's file beside that of the function that the target depends on."""
        assert target.depends_on is not None
        with suppress(UnreadableError):
            self._pair(target, self._shape(target, mine), self._shape(target.depends_on, beside))

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

    def change(self, target: Target, before: str, found: Content, note: str) -> None:
        """Record an upstream change that people apply by hand, and the shape before it: what was beside that one."""
        shape = self._learnt.shape(found, target.function)
        if shape is None:
            return
        if shape not in {known for _, _, known in self.rows}:
            self._row(target, shape, found).note = note
        if beside := self.pairs.get((target.fix, target.function, before)):
            self.pairs.setdefault((target.fix, target.function, shape), set()).update(beside)
        depending = {(one.fix, one.function) for one in self.targets if one.depends_on == target}
        for key, beside in self.pairs.items():
            if key[:2] in depending and before in beside:
                beside.add(shape)

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

    def _pair(self, target: Target, mine: str | None, beside: str | None) -> None:
        if mine is not None and beside is not None:
            self.pairs.setdefault((target.fix, target.function, mine), set()).add(beside)

    def _row(self, target: Target, shape: str, found: Content) -> Row:
        return self.rows.setdefault((target.fix, target.function, shape), Row(found))
