"""Builds the wheel of a rewritten release: a local version, changed and added files, all other files unchanged."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from unhang.deliver import archive
from unhang.deliver.archive import bad_wheel
from unhang.deliver.wheel import Wheel, is_version
from unhang.store import dist_info
from unhang.tell.local_version import local_version


class Named(NamedTuple):
    """How a rewritten wheel is called."""

    file: str
    version: str


def named(wheel: Wheel, generation: int) -> Named:
    """Return the file name and the version of the wheel, once rewritten."""
    version = local_version(wheel.version, generation)
    return Named(f"{wheel.distribution}-{version}-{wheel.tags}.whl", version)


def repack(
    wheel: Wheel,
    version: str,
    changed: Mapping[str, bytes],
    added: Mapping[str, bytes],
    removed: Collection[str] = (),
) -> bytes:
    """Return the archive of the wheel as of this version, with files changed and removed (by name in it) and added.

    The names of those added are below its .dist-info folder; they replace what another rewrite has added.
    Raises UnhangError ``bad-wheel`` if its METADATA and its file name differ in the version, or if an added file needs
    a folder where the wheel has a file, or the other way round.
    """
    old = wheel.dist_info.removesuffix(".dist-info")
    new = f"{old.rpartition('-')[0]}-{version}"
    prefixes = {f"{old}.dist-info/": f"{new}.dist-info/", f"{old}.data/": f"{new}.data/"}
    by_name = {member.name: member for member in wheel.members}
    metadata, record = (f"{wheel.dist_info}/{file}" for file in ("METADATA", "RECORD"))
    extra = {f"{wheel.dist_info}/{name}": content for name, content in added.items()}
    if clash := archive.file_as_folder({name for name in by_name if not name.endswith("/")} | {*extra}):
        raise bad_wheel(wheel.path, f"with what unhang adds to it, {clash!r} would be both a file and a folder")
    contents = {**changed, metadata: _metadata(wheel, archive.read(wheel.path, by_name[metadata]), version)}
    rows = dist_info.without(archive.read(wheel.path, by_name[record]), removed)
    # a wheel that was rewritten before has rows for them
    unlisted = [name for name in extra if dist_info.row(rows, name) is None]
    rows = dist_info.update(_with_rows(rows, record, unlisted), {**contents, **extra})
    rows = _renamed_rows(rows, prefixes)
    members = []
    for member in wheel.members:
        if member.name != record and member.name not in extra and member.name not in removed:
            name, content = _renamed(member.name, prefixes), contents.get(member.name)
            members.append(
                member._replace(name=name) if content is None else archive.replaced(member, name, content)
            )  # fmt: skip
    # The specification recommends RECORD as the last member.
    last = {**extra, record: rows}
    members += [archive.replaced(by_name[record], _renamed(name, prefixes), data) for name, data in last.items()]
    return archive.dump(members)


def _metadata(wheel: Wheel, data: bytes, version: str) -> bytes:
    """Return METADATA with this version, and its other bytes unchanged."""
    head = re.split(rb"\r?\n\r?\n", data, maxsplit=1)[0]
    found = re.search(rb"^Version:[ \t]*([^\r\n]*?)[ \t]*$", head.replace(b"\r", b" "), re.MULTILINE | re.IGNORECASE)
    if found is None or not is_version(found[1].decode("utf-8", "replace"), wheel.version):
        raise bad_wheel(wheel.path, f"its METADATA does not have the version {wheel.version}")
    return data[: found.start(1)] + version.encode() + data[found.end(1) :]


def _renamed_rows(record: bytes, prefixes: Mapping[str, str]) -> bytes:
    """Return RECORD with the files of the renamed folders under their new names."""
    rows = [row.decode("utf-8", "surrogateescape") for row in record.splitlines(keepends=True)]
    return "".join(_renamed(row, prefixes) for row in rows).encode("utf-8", "surrogateescape")


def _with_rows(record: bytes, own: str, added: Iterable[str]) -> bytes:
    """Return RECORD with rows for the added files, which ``dist_info.update`` fills in, before its own row ``own``."""
    rows = []
    for row in record.splitlines(keepends=True):
        if row.startswith(f"{own},".encode()):
            end = "\r\n" if row.endswith(b"\r\n") else "\n"
            rows += [f"{name},sha256=,0{end}".encode() for name in added]
        rows.append(row)
    return b"".join(rows)


def _renamed(name: str, prefixes: Mapping[str, str]) -> str:
    for old, new in prefixes.items():
        if name.startswith(old):
            return new + name[len(old) :]
    return name
