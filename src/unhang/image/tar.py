"""The members of a tar archive, in one pass: ustar, pax and GNU, with an end to each header.

``tarfile`` reads a header of any size into memory.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from typing import NamedTuple

from unhang.image.stream import Reader, bad

FILE, FOLDER, LINK, HARD, OTHER = "file", "folder", "link", "hard link", "other"
_KINDS = {
    tarfile.REGTYPE: FILE, tarfile.AREGTYPE: FILE, tarfile.CONTTYPE: FILE, tarfile.DIRTYPE: FOLDER,
    tarfile.SYMTYPE: LINK, tarfile.LNKTYPE: HARD,
}  # fmt: skip
_NO_DATA = (tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE)
_BLOCK = 512
LONGEST_PATH = 4096  # characters, as in Linux
_LONGEST = 1 << 20  # bytes of a header
_NOTHING = bytes(_BLOCK)


class Member(NamedTuple):
    """One member of an archive."""

    path: str
    """Without a slash at its begin or end, empty for the top; it has no ``..``."""
    kind: str
    size: int
    target: str
    """Where a link leads, as it stands there."""


def members(reader: Reader) -> Iterator[Member]:
    """Yield the members; the reader is at the data of the one that was yielded last, as far as it has read none.

    Raises UnhangError ``bad-image`` for what is no archive.
    """
    more: dict[str, str] = {}  # what the headers before a member say of it
    while block := reader.read(_BLOCK):
        if block == _NOTHING:
            if reader.read(_BLOCK) not in (b"", _NOTHING):
                raise bad("a layer has something after its end")
            return
        try:
            header = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except (tarfile.TarError, ValueError) as error:
            raise bad(f"a layer is no tar archive: {error}") from None
        size = _size(more.get("size", str(header.size)))
        if header.type in (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE):
            more |= _records(_extension(reader, header.size))
        elif header.type == tarfile.GNUTYPE_LONGNAME:
            more["path"] = _text(_extension(reader, header.size).rstrip(b"\0"))
        elif header.type == tarfile.GNUTYPE_LONGLINK:
            more["linkpath"] = _text(_extension(reader, header.size).rstrip(b"\0"))
        elif header.type == tarfile.XGLTYPE:
            _extension(reader, header.size)
        else:
            size = 0 if header.type in _NO_DATA else size
            if header.type == tarfile.GNUTYPE_SPARSE:
                _pass_map(reader, block)
            kind = OTHER if "sparse" in more else _KINDS.get(header.type, OTHER)
            start = reader.position
            target = more.get("linkpath", header.linkname)
            if len(target) > LONGEST_PATH or not is_text(target) or (kind == LINK and not target):
                raise bad(f"a layer has a link that leads nowhere: {target[:80]!a}")
            yield Member(plain(more.get("path", header.name)), kind, size, target)
            reader.skip(start + size + -size % _BLOCK - reader.position)
            more = {}


def plain(name: str) -> str:
    """Return a path below the top, however it is written. Raises UnhangError ``bad-image`` if it leads out of it."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if not is_text(name):
        raise bad(f"a layer has a path that no system has: {name[:80]!a}")
    if len(name) > LONGEST_PATH:
        raise bad(f"a layer has a path of {len(name)} characters")
    if ".." in parts:
        raise bad(f"a layer has a file outside of the image: {name!a}")
    return "/".join(parts)


def is_text(text: str) -> bool:
    """Return whether a text can be a path or the value of a variable."""
    try:
        return b"\0" not in text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # a lone surrogate, which JSON can express
        return False


def _size(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 20):
        raise bad(f"a layer is no tar archive: a file has {text[:40]!a} bytes")
    return int(text)


def _extension(reader: Reader, size: int) -> bytes:
    if not 0 <= size <= _LONGEST:
        raise bad(f"a layer has a header of {size} bytes")
    data = reader.read(size)
    reader.skip(-size % _BLOCK)
    return data


def _records(data: bytes) -> dict[str, str]:
    """Return what matters here of a pax header."""
    found, at = {}, 0
    while at < len(data):
        space = data.find(b" ", at, at + 20)
        length = int(data[at:space]) if space > at and data[at:space].isdigit() else 0
        if not max(space - at, 0) < length <= len(data) - at:
            raise bad("a layer is no tar archive: it has a pax header that is none")
        name, _, value = data[space + 1 : at + length - 1].partition(b"=")
        at += length
        if name in (b"path", b"linkpath", b"size"):
            found[name.decode()] = _text(value)
        elif name.startswith(b"GNU.sparse."):
            found["sparse"] = ""
    return found


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _pass_map(reader: Reader, block: bytes) -> None:
    """Pass over the blocks that say where a sparse file has its data."""
    has_more = block[482]
    while has_more:
        block = reader.read(_BLOCK)
        if len(block) < _BLOCK:
            raise bad("a layer is cut off")
        has_more = block[504]
