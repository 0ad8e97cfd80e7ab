"""Mutants made by hand: what a person may write instead. Those of the audit of 2026-11-21 are among them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from mutants.rules import RANK, Added, Mutant, mutants
from support import sources

EVERY = -1


class Sub(NamedTuple):
    """Replaces code that the rewrite added: of its occurrences, the one with this number, or every one."""

    old: str
    new: str
    number: int = 0

    def applied(self, text: str) -> str:
        parts = text.split(self.old)
        if len(parts) <= self.number + 1:
            raise LookupError(f"{self.old!r} is not in the rewrite from its first comment on, {self.number + 1} times")
        if self.number == EVERY:
            return self.new.join(parts)
        at = self.number + 1
        return self.old.join(parts[:at]) + self.new + self.old.join(parts[at:])


ByHand = Mapping[str, Sub | tuple[Sub, ...]]
"""By name: what is replaced, from the rewrite's first comment on."""


def each(changes: Mapping[str, Iterable[str]]) -> ByHand:
    """Return a mutant for each thing that may stand in the place of some code; the first place, if it has several."""
    return {f"{old}: {new}": Sub(old, new) for old, every in changes.items() for new in every}


class Mutants(NamedTuple):
    """How the rewrite of one function is mutated. A fix's test module has a list of these: ``MUTANTS``."""

    upstream: str
    versions: tuple[str, ...]
    """The releases whose rewrites are mutated."""
    by_hand: ByHand = MappingProxyType({})
    ranks: tuple[str, ...] = (RANK,)
    """Expressions for a rank of the process."""
    others: tuple[str, ...] = ()
    """The names of groups, or of their accessors, that the rewrite does not mean."""
    may_lack: bool = False
    """Whether a release may lack what some mutants by hand change."""
    function: str = ""
    """The target, where the fix has several in the upstream."""

    def made(self, fix: str, version: str) -> list[Mutant]:
        """Return all mutants of the rewrite of a release, those by hand first."""
        added = Added(sources.wheel(fix, version, self.upstream, self.function), self.ranks, self.others)
        try:
            hand = self.hand(added.text)
        except LookupError as error:
            raise LookupError(f"{self.upstream} {version}: {error}; `may_lack` if others have it") from None
        return [*(Mutant(f"by hand: {name}", text) for name, text in hand.items()), *mutants(added)]

    def hand(self, text: str) -> dict[str, str]:
        """Return the mutants by hand of a rewritten file, by name."""
        head, mark, tail = text.partition("# unhang ")
        found = {}
        for name, given in self.by_hand.items():
            subs = (given,) if isinstance(given, Sub) else given
            if self.may_lack and not all(sub.old in text for sub in subs):
                continue
            changed = tail
            for sub in subs:
                try:
                    changed = sub.applied(changed)
                except LookupError as error:
                    raise LookupError(f"mutant by hand {name!r}: {error}") from None
            found[name] = head + mark + changed
        return found
