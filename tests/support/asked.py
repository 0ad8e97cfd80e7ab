"""A stand-in for the target's interpreter, for tests of ``unhang prove``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from unhang.prove import host
from unhang.prove.cases import PASSED, Case, Outcome

Outcomes = Callable[[Case], Outcome]
Results = Callable[..., tuple[int, list[dict[str, Any]]]]
"""Runs ``unhang prove`` on a folder with more options; gives the exit code and the JSON results."""


class Asked:
    """Replaces ``host.ask``: keeps the questions, and gives each side's outcomes."""

    def __init__(self, untouched: Outcomes, patched: Outcomes) -> None:
        self._answers = {host.UNTOUCHED: untouched, host.PATCHED: patched}
        self.variants: list[Mapping[str, Mapping[str, bytes]]] = []
        self.cases: list[list[Case]] = []
        self.paths: list[Sequence[str]] = []

    def __call__(
        self, python: str, fix: str, path: Sequence[str], variants: Any, cases: Sequence[Case], **_: Any
    ) -> host.Answer:
        self.variants.append({name: files for name, (files, _wanted) in variants.items()})
        self.cases.append(list(cases))
        self.paths.append(path)
        outcomes = {
            name: {case.name: self._answers[name](case) for case in cases if case.name in wanted}
            for name, (_files, wanted) in variants.items()
        }
        return host.Answer("2.0", "3.12.0", outcomes)


def as_known(case: Case) -> Outcome:
    """End as the case says of the untouched source."""
    return Outcome(case.untouched, f"somewhere in {case.at}", 1.5)


def passing(case: Case) -> Outcome:
    """Pass."""
    return Outcome(PASSED, "all is well", 0.25)
