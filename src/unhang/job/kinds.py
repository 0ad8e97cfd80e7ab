"""What a job is: one of the ways in which the users of an upstream start one, by the data in ``upstreams/``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from unhang.plugins import packs


class Kind(NamedTuple):
    """A kind of job."""

    upstream: str
    about: Mapping[str, Any]
    """Its entry in ``jobs``, which ``compat/schemas/upstream.json`` describes."""
    is_sure: bool = True
    """Whether the program says so, and not the settings alone."""

    def runs(self, upstream: str) -> str | None:
        """Return the condition under which it runs the code of an upstream; empty if none, None if it never does."""
        if upstream == self.upstream:
            return ""
        found: str | None = self.about.get("runs", {}).get(upstream)
        return found if found is not None or (self.is_sure and upstream in _known()) else ""

    def is_of(self, upstream: str) -> bool:
        """Return whether an upstream is its own, or in the same repository."""
        return upstream in (self.upstream, packs.upstreams()[self.upstream].within)


def of(program: str, names: Iterable[str] = ()) -> Kind | None:
    """Return the kind of job that runs a program; if nothing says that, the one that has these settings."""
    for kind in _kinds():
        if program and any(fnmatchcase(program, pattern) for pattern in kind.about["programs"]):
            return kind
    names = [*names]
    for kind in _kinds():
        if any(fnmatchcase(name, mark) for mark in kind.about.get("marks", ()) for name in names):
            return kind._replace(is_sure=False)
    return None


def commands() -> set[tuple[str, ...]]:
    """Return the commands that start jobs by a word after their name, each with such a word."""
    return {tuple(program.split()) for kind in _kinds() for program in kind.about["programs"] if " " in program}


def _kinds() -> Iterator[Kind]:
    for name, upstream in packs.upstreams().items():
        for about in upstream.about.get("jobs", ()):
            yield Kind(name, about)


def _known() -> set[str]:
    """Return the upstreams of which it is known which jobs run them."""
    return {name for kind in _kinds() for name in (kind.upstream, *kind.about.get("runs", {}))}
