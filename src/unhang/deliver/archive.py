"""Reads and writes a wheel's zip archive: checks it for hostile members, and copies members byte for byte.

The standard library would compress every member again, and the result would depend on the zlib in use. Here the
compressed bytes are copied.
"""

from __future__ import annotations

import copy
import os
import stat
import struct
import zipfile
import zlib
from collections.abc import Collection, Sequence
from typing import NamedTuple

from unhang.errors import UnhangError

_LOCAL, _CENTRAL, _END = "<4s5H3L2H", "<4s4B4H3L5H2L", "<4s4H2LH"
_HAS_DESCRIPTOR, _IS_UTF8, _IS_ENCRYPTED = 0x8, 0x800, 0x1
# Limits far above the upstreams' wheels, which have hundreds of files and unpack to tens of megabytes.
_MOST_BYTES, _MOST_MEMBERS = 1 << 30, 50_000
_DEEPEST, _LONGEST = 100, 1024


class Member(NamedTuple):
    """One file or folder of an archive."""

    name: str
    info: zipfile.ZipInfo
    raw: bytes
    """Its bytes as stored, usually compressed."""
    extra: bytes
    """The extra fields of its local header."""


def load(path: str) -> tuple[Member, ...]:
    """Return the members of an archive, in order.

    Raises UnhangError ``bad-wheel`` if unpacking it could do harm (paths that lead out of the folder, links, duplicate
    or overlapping members, too much data), and OSError.
    """
    try:
        with zipfile.ZipFile(path) as archive, open(path, "rb") as file:
            if sum(info.file_size for info in archive.infolist()) > _MOST_BYTES:
                raise bad_wheel(path, f"it unpacks to more than {_MOST_BYTES >> 20} MiB")
            if len(archive.infolist()) > _MOST_MEMBERS:
                raise bad_wheel(path, f"it has more than {_MOST_MEMBERS} members")
            size, last = os.fstat(file.fileno()).st_size, 0
            for info in sorted(archive.infolist(), key=lambda info: info.header_offset):
                if info.header_offset < last or info.header_offset + info.compress_size > size:
                    raise bad_wheel(path, f"member {info.filename!r} overlaps another")
                last = info.header_offset + 30 + info.compress_size
            members = tuple(_member(path, info, file.fileno()) for info in archive.infolist())
    except (zipfile.BadZipFile, struct.error, NotImplementedError, ValueError, OverflowError) as error:
        raise bad_wheel(path, f"not a readable zip archive: {error}") from error
    _check(path, members)
    return members


def read(path: str, member: Member) -> bytes:
    """Return a member's content, uncompressed. Raises UnhangError ``bad-wheel`` if its size or checksum is wrong."""
    info, content = member.info, member.raw
    if info.compress_type == zipfile.ZIP_DEFLATED:
        try:
            content = zlib.decompressobj(-15).decompress(member.raw, info.file_size + 1)
        except zlib.error as error:
            raise bad_wheel(path, f"member {member.name!r} is damaged: {error}") from error
    if len(content) != info.file_size or zlib.crc32(content) != info.CRC:
        raise bad_wheel(path, f"member {member.name!r} is damaged: size or checksum differs")
    return content


def replaced(member: Member, name: str, content: bytes) -> Member:
    """Return a member with this name and content, and the attributes and the time of the given one.

    It is not compressed, so that the archive does not depend on the zlib in use.
    """
    info = copy.copy(member.info)
    info.compress_type, info.CRC = zipfile.ZIP_STORED, zlib.crc32(content)
    info.file_size = info.compress_size = len(content)
    return Member(name, info, content, member.extra)


def dump(members: Sequence[Member]) -> bytes:
    """Return the bytes of an archive of these members, in this order. Equal members give equal bytes."""
    body, directory = bytearray(), bytearray()
    for member in members:
        info, start = member.info, len(body)
        flags = (info.flag_bits & ~_HAS_DESCRIPTOR) | (0 if member.name.isascii() else _IS_UTF8)
        name = member.name.encode()
        year, month, day, hour, minute, second = info.date_time
        date, time = (year - 1980) << 9 | month << 5 | day, hour << 11 | minute << 5 | second // 2
        common = (flags, info.compress_type, time, date, info.CRC, info.compress_size, info.file_size, len(name))
        extra, central_extra = _without_zip64(member.extra), _without_zip64(info.extra)
        body += struct.pack(_LOCAL, b"PK\3\4", info.extract_version, *common, len(extra)) + name + extra + member.raw
        lengths = len(central_extra), len(info.comment), 0
        attributes = info.internal_attr, info.external_attr, start
        versions = info.create_version, info.create_system, info.extract_version, 0
        directory += struct.pack(_CENTRAL, b"PK\1\2", *versions, *common, *lengths, *attributes)
        directory += name + central_extra + info.comment
    end = struct.pack(_END, b"PK\5\6", 0, 0, len(members), len(members), len(directory), len(body), 0)
    return bytes(body + directory + end)


def bad_wheel(path: str, reason: str) -> UnhangError:
    """Return the error for a wheel that is damaged or hostile."""
    return UnhangError("bad-wheel", f"{path}: {reason}", path=path, hint="download the wheel again from its publisher")


def _member(path: str, info: zipfile.ZipInfo, descriptor: int) -> Member:
    """Read a member, with its local header, which must name it as the central directory does."""
    head = os.pread(descriptor, 30, info.header_offset)
    *_, name_length, extra_length = fields = struct.unpack(_LOCAL, head)
    rest = os.pread(descriptor, name_length + extra_length, info.header_offset + 30)
    encoding = "utf-8" if info.flag_bits & _IS_UTF8 else "cp437"
    if fields[0] != b"PK\3\4" or rest[:name_length] != info.orig_filename.encode(encoding):
        raise bad_wheel(path, f"member {info.filename!r} has another name in its local header")
    raw = os.pread(descriptor, info.compress_size, info.header_offset + 30 + len(rest))
    return Member(info.orig_filename, info, raw, rest[name_length:])


def _check(path: str, members: Sequence[Member]) -> None:
    """Raise UnhangError ``bad-wheel`` if unpacking these members could do harm."""
    files: set[str] = set()
    folders: set[str] = set()
    for member in members:
        name, info = member.name, member.info
        parts = name.rstrip("/").split("/")
        if len(parts) > _DEEPEST or len(name.encode()) > _LONGEST or max(len(part.encode()) for part in parts) > 255:
            raise bad_wheel(path, f"member {name[:80]!r}... has a name that is too long, or lies too deep")
        if name.startswith("/") or {"", ".", ".."} & set(parts) or "\\" in name or ":" in parts[0]:
            raise bad_wheel(path, f"member {name!r} would lead out of the folder that it is unpacked into")
        if not name.isprintable() or not _is_path(name):
            raise bad_wheel(path, f"member {name!r} has a name with unprintable characters")
        if stat.S_IFMT(info.external_attr >> 16) not in (0, stat.S_IFREG, stat.S_IFDIR):
            raise bad_wheel(path, f"member {name!r} is a link or a device")
        if info.flag_bits & _IS_ENCRYPTED or info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise bad_wheel(path, f"member {name!r} is encrypted, or uses an unsupported compression")
        plain = "/".join(parts)
        if plain in files or plain in folders:
            raise bad_wheel(path, f"it has two members called {name!r}")
        (folders if name.endswith("/") else files).add(plain)
    if clash := file_as_folder(files, folders):
        raise bad_wheel(path, f"member {clash!r} is both a file and a folder")


def file_as_folder(files: Collection[str], folders: Collection[str] = ()) -> str | None:
    """Return the first of these files that others need as a folder."""
    paths = {*files, *folders}
    above = {"/".join(path.split("/")[:depth]) for path in paths for depth in range(1, path.count("/") + 1)}
    return min(set(files) & {*above, *folders}, default=None)


def _is_path(name: str) -> bool:
    """Return whether the file system's encoding can hold a name: ASCII cannot hold every one."""
    try:
        os.fsencode(name)
    except UnicodeEncodeError:
        return False
    return True


def _without_zip64(extra: bytes) -> bytes:
    """Return the extra fields without the ZIP64 one: the sizes written here fit the ordinary header."""
    kept, at = b"", 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, at)
        kept += b"" if kind == 1 else extra[at : at + 4 + length]
        at += 4 + length
    return kept
