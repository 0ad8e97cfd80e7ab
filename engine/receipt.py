"""The receipt: what unhang did to an environment, with the pristine bytes, so that it can be undone to the byte."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from unhang.transaction import FileChange


class Fixed(NamedTuple):
    """One function that a fix rewrote."""

    fix: str
    file: str
    function: str
    before: str
    """Its shape before."""
    after: str
    """Its shape after."""
    verified: bool
    """Whether the shape was listed, not allowed by `--unverified`."""


class Entry(NamedTuple):
    """One file that was rewritten."""

    path: str
    """The real path, absolute."""
    relative: str
    """The same relative to `root`, posix."""
    upstream: str
    version: str | None
    root: str
    """The installation's root, real and absolute."""
    pristine: str
    """sha256 (hex) of the bytes before the first fix."""
    patched: str
    """sha256 (hex) of the bytes we wrote."""
    record: str | None
    """The RECORD that lists it."""
    record_row: str | None
    """Its row before the first fix (`record.row`)."""
    fixes: tuple[Fixed, ...]


class Exclude(NamedTuple):
    """The line that keeps `.unhang/` out of git."""

    path: str
    added: str
    """Exactly what was appended."""
    created: bool
    made_dir: bool


class Receipt(NamedTuple):
    """All of it."""

    unhang: str
    """The version that wrote it last."""
    files: tuple[Entry, ...]
    exclude: Exclude | None = None


def sha256(data: bytes) -> str:
    """Return the hex digest by which receipts name bytes."""
    raise NotImplementedError


def load(state_dir: str) -> Receipt | None:
    """Return the receipt kept in `state_dir`, None where there is none. Blobs are not read.

    Raises UnhangError `newer-receipt` (a later unhang wrote it) or `bad-receipt` (not to be trusted, and why).
    """
    raise NotImplementedError


def pristine(state_dir: str, entry: Entry) -> bytes:
    """Return the bytes of the file before the first fix. Raises UnhangError `bad-receipt` if gone or altered."""
    raise NotImplementedError


def merge(receipt: Receipt | None, entries: Sequence[Entry]) -> Receipt:
    """Return the receipt after an apply that wrote `entries`.

    An entry whose `pristine` is what the receipt's entry for that path has as `patched` goes on top of it: the first
    pristine bytes and row are kept, and its fixes are joined. Any other replaces the old entry (fixes included).
    """
    raise NotImplementedError


def without(receipt: Receipt, paths: Collection[str]) -> Receipt:
    """Return the receipt without the entries of these paths."""
    raise NotImplementedError


def changes(state_dir: str, receipt: Receipt, blobs: Mapping[str, bytes]) -> list[FileChange]:
    """Return what brings the receipt on disk to `receipt`: receipt.json, pristine blobs, git's exclude file.

    `blobs` holds the bytes of each pristine that is not kept yet, by sha256. An empty receipt deletes all of it.
    Reads the state there is now; raises UnhangError `bad-receipt` for a blob that is there with other bytes.
    """
    raise NotImplementedError
