"""Bytecode: which `.pyc` files belong to a source, and compiling them anew with the interpreter they were for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Compiled(NamedTuple):
    """One bytecode file that was there before its source was rewritten."""

    source: str
    path: str
    mode: str
    """`timestamp`, `checked-hash` or `unchecked-hash`."""
    optimize: str
    """`` or the level after `.opt-`."""
    tag: str
    """Which interpreter it is for, such as `cpython-312`."""


def cached(source: str) -> list[str]:
    """Return the existing bytecode files of a source, all interpreters and optimisation levels. Only reads."""
    raise NotImplementedError


def survey(sources: Iterable[str]) -> tuple[Compiled, ...]:
    """Return the bytecode there is for these sources; call it before `transaction.commit`, which deletes it."""
    raise NotImplementedError


def recompile(python: str, compiled: Sequence[Compiled], *, tag: str | None = None) -> None:
    """Compile anew, with the interpreter `python`, those of `compiled` that were for it, each in the mode it had.

    One subprocess, none where nothing is to do; `tag` (that interpreter's `sys.implementation.cache_tag`) spares it
    where only other interpreters had bytecode. A failure is none: the bytecode is gone, which is right too.
    """
    raise NotImplementedError
