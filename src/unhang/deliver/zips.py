"""Zip archives, as wheels are: looked through for what no wheel holds, and written again byte for byte.

The standard library's writer would compress every member anew, which another zlib does otherwise: here a member's
compressed bytes are copied as they stand.
"""

from __future__ import annotations

import copy
import os
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from unhang.errors import UnhangError

_LOCAL, _CENTRAL, _END = "<4s5H3L2H", "<4s4B4H3L5H2L", "<4s4H2LH"
_HAS_DESCRIPTOR, _IS_UTF8, _IS_ENCRYPTED = 0x8, 0x800, 0x1
# Upstreams' wheels unpack to tens of megabytes, and have hundreds of files.
_MOST_BYTES, _MOST_MEMBERS = 1 << 30, 50_000


class Member(NamedTuple):
    """One file or folder of an archive."""

    name: str
    info: zipfile.ZipInfo
    raw: bytes
    """Its bytes as they are stored: compressed, mostly."""
    extra: bytes
    """The extra fields of its local header."""


def load(path: str) -> tuple[Member, ...]:
    """The members of an archive, in order. Raises UnhangError ``bad-wheel`` for all that could do harm when unpacked:
    names that lead out, links, duplicates, members that overlap or would fill the disk; OSError as ``open`` does.
    """
    try:
        with zipfile.ZipFile(path) as archive, open(path, "rb") as file:
            if sum(info.file_size for info in archive.infolist()) > _MOST_BYTES:
                raise _bad(path, f"it unpacks to more than {_MOST_BYTES >> 20} MiB")
            if len(archive.infolist()) > _MOST_MEMBERS:
                raise _bad(path, f"it has more than {_MOST_MEMBERS} members")
            size, last = os.fstat(file.fileno()).st_size, 0
            for info in sorted(archive.infolist(), key=lambda info: info.header_offset):
                if info.header_offset < last or info.header_offset + info.compress_size > size:
                    raise _bad(path, f"its member {info.filename!r} overlaps another")
                last = info.header_offset + 30 + info.compress_size
            members = tuple(_member(path, info, file.fileno()) for info in archive.infolist())
    except (zipfile.BadZipFile, struct.error, NotImplementedError, UnicodeDecodeError) as error:
        raise _bad(path, f"it is no zip archive that can be read: {error}") from error
    _look_through(path, members)
    return members


def data(path: str, member: Member) -> bytes:
    """A member's own bytes. Raises UnhangError ``bad-wheel`` where they are not what its archive says of them."""
    info = member.info
    found = member.raw
    if info.compress_type == zipfile.ZIP_DEFLATED:
        try:
            found = zlib.decompressobj(-15).decompress(member.raw, info.file_size + 1)
        except zlib.error as error:
            raise _bad(path, f"its member {member.name!r} is damaged: {error}") from error
    if len(found) != info.file_size or zlib.crc32(found) != info.CRC:
        raise _bad(path, f"its member {member.name!r} is damaged: size or checksum differs")
    return found


def renamed(member: Member, name: str) -> Member:
    """The same member under another name."""
    return member._replace(name=name)


def replaced(member: Member, name: str, content: bytes) -> Member:
    """A member of other bytes, with the attributes and the time of this one.

    It is not compressed: then the archive is the same whatever zlib is at work.
    """
    info = copy.copy(member.info)
    info.compress_type, info.CRC = zipfile.ZIP_STORED, zlib.crc32(content)
    info.file_size = info.compress_size = len(content)
    return Member(name, info, content, member.extra)


def dump(members: Iterable[Member]) -> bytes:
    """The archive of these members, in this order. The same members make the same bytes."""
    body, directory, count = bytearray(), bytearray(), 0
    for member in members:
        count += 1
        info, start = member.info, len(body)
        flags = (info.flag_bits & ~_HAS_DESCRIPTOR) | (0 if member.name.isascii() else _IS_UTF8)
        name = member.name.encode()
        year, month, day, hour, minute, second = info.date_time
        date, time = (year - 1980) << 9 | month << 5 | day, hour << 11 | minute << 5 | second // 2
        told = (flags, info.compress_type, time, date, info.CRC, info.compress_size, info.file_size, len(name))
        extra, central_extra = _without_zip64(member.extra), _without_zip64(info.extra)
        body += struct.pack(_LOCAL, b"PK\3\4", info.extract_version, *told, len(extra)) + name + extra + member.raw
        lengths = len(central_extra), len(info.comment), 0
        attributes = info.internal_attr, info.external_attr, start
        versions = info.create_version, info.create_system, info.extract_version, 0
        directory += struct.pack(_CENTRAL, b"PK\1\2", *versions, *told, *lengths, *attributes)
        directory += name + central_extra + info.comment
    end = struct.pack(_END, b"PK\5\6", 0, 0, count, count, len(directory), len(body), 0)
    return bytes(body + directory + end)


def _member(path: str, info: zipfile.ZipInfo, descriptor: int) -> Member:
    head = os.pread(descriptor, 30, info.header_offset)
    *_, name_length, extra_length = fields = struct.unpack(_LOCAL, head)
    rest = os.pread(descriptor, name_length + extra_length, info.header_offset + 30)
    encoding = "utf-8" if info.flag_bits & _IS_UTF8 else "cp437"
    if fields[0] != b"PK\3\4" or rest[:name_length] != info.orig_filename.encode(encoding):
        raise _bad(path, f"its member {info.filename!r} has another name in its own header")
    raw = os.pread(descriptor, info.compress_size, info.header_offset + 30 + len(rest))
    return Member(info.orig_filename, info, raw, rest[name_length:])


def _look_through(path: str, members: Sequence[Member]) -> None:
    files: set[str] = set()
    folders: set[str] = set()
    for member in members:
        name, info = member.name, member.info
        parts = name.rstrip("/").split("/")
        if name.startswith("/") or {"", ".", ".."} & set(parts) or "\\" in name or ":" in parts[0]:
            raise _bad(path, f"its member {name!r} could lead out of the folder that it is unpacked in")
        if not name.isprintable():
            raise _bad(path, f"its member {name!r} has a name that cannot be shown")
        if stat.S_IFMT(info.external_attr >> 16) not in (0, stat.S_IFREG, stat.S_IFDIR):
            raise _bad(path, f"its member {name!r} is a link or a device")
        if info.flag_bits & _IS_ENCRYPTED or info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise _bad(path, f"its member {name!r} is encrypted, or compressed as no wheel is")
        plain = "/".join(parts)
        if plain in files or plain in folders:
            raise _bad(path, f"it has two members called {name!r}")
        (folders if name.endswith("/") else files).add(plain)
    above = {"/".join(name.split("/")[:depth]) for name in files | folders for depth in range(1, name.count("/") + 1)}
    for name in sorted(files & (above | folders)):
        raise _bad(path, f"its member {name!r} is both a file and a folder")


def _without_zip64(extra: bytes) -> bytes:
    """Extra fields but for the one of sizes: those that are written here all fit."""
    kept, at = b"", 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, at)
        kept += b"" if kind == 1 else extra[at : at + 4 + length]
        at += 4 + length
    return kept


def _bad(path: str, why: str) -> UnhangError:
    return UnhangError("bad-wheel", f"{path}: {why}", path=path, hint="get this wheel from where it is published")
