"""Builds the wheel of a rewritten release: a local version, the changed files, a notice, all other files unchanged."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from typing import NamedTuple

from unhang.deliver import archive
from unhang.deliver.archive import bad_wheel
from unhang.deliver.wheel import Wheel, is_version
from unhang.local_version import local_version
from unhang.store import dist_info

NOTICE = "UNHANG-NOTICE.txt"


class Repacked(NamedTuple):
    """A rewritten wheel."""

    file: str
    """Its file name."""
    version: str
    data: bytes


def repack(wheel: Wheel, changed: Mapping[str, bytes], notice: str, generation: int) -> Repacked:
    """Return the wheel with these files (by name in the wheel) changed and the notice added.

    Raises UnhangError ``bad-wheel`` if its METADATA and its file name differ in the version.
    """
    version = local_version(wheel.version, generation)
    old = wheel.dist_info.removesuffix(".dist-info")
    new = f"{old.rpartition('-')[0]}-{version}"
    prefixes = {f"{old}.dist-info/": f"{new}.dist-info/", f"{old}.data/": f"{new}.data/"}
    by_name = {member.name: member for member in wheel.members}
    metadata, record, note = (f"{wheel.dist_info}/{file}" for file in ("METADATA", "RECORD", NOTICE))
    note_data = notice.encode()
    contents = {**changed, metadata: _metadata(wheel, archive.read(wheel.path, by_name[metadata]), version)}
    rows = dist_info.update(archive.read(wheel.path, by_name[record]), {**contents, note: note_data})
    rows = _renamed_rows(rows, prefixes)
    if note not in by_name:  # a wheel that was rewritten before has a row for it
        rows = _with_row(rows, f"{new}.dist-info/", note_data)
    members = []
    for member in wheel.members:
        if member.name not in (record, note):
            name, content = _renamed(member.name, prefixes), contents.get(member.name)
            members.append(
                member._replace(name=name) if content is None else archive.replaced(member, name, content)
            )  # fmt: skip
    # The specification recommends RECORD as the last member.
    members.append(archive.replaced(by_name[record], _renamed(note, prefixes), note_data))
    members.append(archive.replaced(by_name[record], _renamed(record, prefixes), rows))
    return Repacked(f"{wheel.distribution}-{version}-{wheel.tags}.whl", version, archive.dump(members))


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


def _with_row(record: bytes, dist_info: str, notice: bytes) -> bytes:
    """Return RECORD with a row for the notice, before the row of RECORD itself."""
    rows = []
    for row in record.splitlines(keepends=True):
        if row.startswith(f"{dist_info}RECORD,".encode()):
            digest = base64.urlsafe_b64encode(hashlib.sha256(notice).digest()).rstrip(b"=").decode()
            end = "\r\n" if row.endswith(b"\r\n") else "\n"
            rows.append(f"{dist_info}{NOTICE},sha256={digest},{len(notice)}{end}".encode())
        rows.append(row)
    return b"".join(rows)


def _renamed(name: str, prefixes: Mapping[str, str]) -> str:
    for old, new in prefixes.items():
        if name.startswith(old):
            return new + name[len(old) :]
    return name
