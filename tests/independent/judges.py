"""The judge of each fix: the module of its name, if it has one."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from collections.abc import Iterator
from typing import Any, NamedTuple

from independent.interpreter import BeyondError


class Judgement(NamedTuple):
    """``state`` of the untouched function: affected, fixed, not-affected; or why the judge does not know."""

    state: str
    wrong: list[str]
    """What is wrong with the rewrite."""


def known(fix: str) -> bool:
    """Return whether the fix has a judge here: a module of its id."""
    return importlib.util.find_spec(_name(fix)) is not None


def wrong(fix: str, function: str, before: bytes, after: bytes, as_written: bool = False) -> Iterator[str]:
    """Yield what is wrong with a rewrite. ``as_written``: the function has the pull request's edit before."""
    found = _module(fix).wrong
    more = (as_written,) if "as_written" in inspect.signature(found).parameters else ()
    yield from found(before, after, function, *more)


def judge(fix: str, function: str, before: bytes, after: bytes | None, as_written: bool = False) -> Judgement:
    """Judge a function in a file, and its rewrite if there is one."""
    try:
        state = _module(fix).state(before, function)
        return Judgement(state, [] if after is None else [*wrong(fix, function, before, after, as_written)])
    except BeyondError as problem:
        return Judgement(f"beyond the judge: {problem}", [])


def _module(fix: str) -> Any:
    return importlib.import_module(_name(fix))


def _name(fix: str) -> str:
    return f"independent.{fix.replace('-', '_')}"
