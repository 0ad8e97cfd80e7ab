"""All or nothing: a set of files is replaced, created and deleted together, or not at all, whatever instant kills us."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from unhang.model import Change


class FileChange(NamedTuple):
    """One file of a transaction, which unlike `Change` may also create or delete."""

    path: str
    before: bytes | None
    """Its bytes as planned; None: it must not exist."""
    after: bytes | None
    """Its new bytes; None: it is deleted."""
    prune: bool = False
    """After a deletion: remove its folder too, where that leaves it empty."""


def interrupted(state_dir: str) -> bool:
    """Say whether a journal is there: a run was killed (or is at work right now). Only reads, raises nothing."""
    raise NotImplementedError


@contextmanager
def exclusive(state_dir: str, *, timeout: float = 60.0) -> Iterator[None]:
    """Be the only writer of the environment that keeps its state in `state_dir`, for the length of a `with`.

    Plan inside of it: what was planned before the wait may be old. Leaves no folder or file behind in which nothing of
    ours remains. Raises UnhangError `locked`, `no-locks` or `not-writable`.
    """
    raise NotImplementedError
    yield


def recover(state_dir: str) -> str | None:
    """Finish or roll back what a killed run left; call it first inside `exclusive`.

    Returns a sentence that says which, None where there was nothing. Raises UnhangError `bad-journal` (a journal that
    is not ours to trust; nothing is touched), `cannot-recover` (files were changed since), or as `commit` does.
    """
    raise NotImplementedError


def commit(changes: Sequence[FileChange | Change], *, state_dir: str) -> None:
    """Bring all changes to disk, or none; call it inside `exclusive(state_dir)`.

    Stale bytecode of the changed `.py` files goes too. Raises UnhangError, with every file as it was:
    `changed-underneath`, `vanished`, `not-writable`, `disk-full`, `interrupted` (call `recover` first), `write-failed`.
    """
    raise NotImplementedError
