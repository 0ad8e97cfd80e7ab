"""A stand-in for the target's interpreter, for tests of ``unhang prove``."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from unhang.prove import host
from unhang.prove.cases import PASSED, Case, Outcome

Results = Callable[..., tuple[int, list[dict[str, Any]]]]
"""Runs ``unhang prove`` on a folder with more options; gives the exit code and the JSON results."""


class Asked:
    """Replaces ``host.ask``: keeps the questions. Untouched source ends as its case says, patched source passes."""

    def __init__(self) -> None:
        self.variants: list[Mapping[str, Mapping[str, bytes]]] = []
        self.cases: list[list[Case]] = []
        self.paths: list[Sequence[str]] = []

    def __call__(
        self, python: str, fix: str, path: Sequence[str], variants: Any, cases: Sequence[Case], **_: Any
    ) -> host.Answer:
        self.variants.append({name: files for name, (files, _wanted) in variants.items()})
        self.cases.append(list(cases))
        self.paths.append(path)
        ends: dict[str, Callable[[Case], Outcome]] = {
            host.UNTOUCHED: lambda case: Outcome(case.untouched, f"somewhere in {case.at}", 1.5),
            host.PATCHED: lambda _: Outcome(PASSED, "all is well", 0.25),
        }
        outcomes = {name: {case.name: ends[name](case) for case in cases} for name in variants}
        return host.Answer({"torch": "2.0", "python": "3.12.0"}, True, outcomes)
