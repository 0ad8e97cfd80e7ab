"""A wheel rewritten: under a local version, with a notice, and every file that no rewrite touches as it was. Pure, but
for `load`.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
from collections.abc import Mapping
from typing import NamedTuple

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from unhang.deliver import zips
from unhang.deliver.zips import Member
from unhang.errors import UnhangError
from unhang.store import dist_info

NOTICE = "UNHANG-NOTICE.txt"
_OURS = re.compile(r"[+.]unhang\.[0-9]+")


class Wheel(NamedTuple):
    """A wheel, looked through."""

    path: str
    distribution: str
    """As its file name has it, and likewise the next two."""
    version: str
    tags: str
    dist_info: str
    """The name of that folder."""
    members: tuple[Member, ...]


def load(path: str) -> Wheel:
    """Read a wheel. Raises UnhangError ``bad-wheel`` where it is none, is signed, or could do harm; OSError."""
    name = os.path.basename(path)
    try:
        project, version, _, _ = parse_wheel_filename(name)
    except InvalidWheelFilename as error:
        raise _bad(path, f"its name is not that of a wheel: {error}") from error
    if not os.path.isfile(path):  # to open a pipe would wait for ever
        raise UnhangError("bad-wheel", f"{path}: no such file", path=path, hint="name a wheel, or what to download")
    members = zips.load(path)
    folders = {member.name.partition("/")[0] for member in members if "/" in member.name}
    found = [folder for folder in folders if folder.endswith(".dist-info")]
    if len(found) != 1 or not _is_of(found[0], project, version):
        raise _bad(path, f"it must have one .dist-info folder, of {project} {version}; it has {sorted(found)}")
    have = {member.name for member in members}
    if missing := {f"{found[0]}/{file}" for file in ("METADATA", "WHEEL", "RECORD")} - have:
        raise _bad(path, f"it has no {', '.join(sorted(missing))}")
    if have & {f"{found[0]}/RECORD.jws", f"{found[0]}/RECORD.p7s"}:
        raise _bad(path, "it is signed, and the signature would not hold")
    distribution, text, tags = name.removesuffix(".whl").split("-", 2)
    return Wheel(path, distribution, text, tags, found[0], members)


def local_version(version: str, generation: int) -> str:
    """The version of a rewritten release: ``0.17.1+unhang.1``; what was local before stays, an older such goes."""
    plain = plain_version(version)
    return f"{plain}{'.' if '+' in plain else '+'}unhang.{generation}"


def plain_version(version: str) -> str:
    """The version without ours in it: that of the release that was rewritten."""
    return _OURS.sub("", version, count=1)


def rewritten(wheel: Wheel, changed: Mapping[str, bytes], notice: str, generation: int) -> tuple[str, bytes]:
    """The file name and the bytes of the wheel with these files (by name) changed, and this notice in it.

    Raises UnhangError ``bad-wheel`` where its METADATA has another version than its name.
    """
    version = local_version(wheel.version, generation)
    folder = f"{wheel.dist_info.removesuffix('.dist-info').rpartition('-')[0]}-{version}"
    prefixes = {
        f"{wheel.dist_info}/": f"{folder}.dist-info/",
        f"{wheel.dist_info.removesuffix('.dist-info')}.data/": f"{folder}.data/",
    }
    by_name = {member.name: member for member in wheel.members}
    metadata, listed, note = (f"{wheel.dist_info}/{file}" for file in ("METADATA", "RECORD", NOTICE))
    new = {**changed, metadata: _metadata(wheel, zips.data(wheel.path, by_name[metadata]), version)}
    told = notice.encode()
    rows = dist_info.update(zips.data(wheel.path, by_name[listed]), {**new, note: told})
    new[listed] = _rows(rows, prefixes, f"{folder}.dist-info/", None if note in by_name else told)
    members = []
    for member in wheel.members:
        name = _moved(member.name, prefixes)
        if member.name == listed or (member.name == note):
            continue
        content = new.get(member.name)
        members.append(zips.renamed(member, name) if content is None else zips.replaced(member, name, content))
    # RECORD last, as the specification recommends, and the notice before it
    members.append(zips.replaced(by_name[listed], _moved(note, prefixes), told))
    members.append(zips.replaced(by_name[listed], _moved(listed, prefixes), new[listed]))
    return f"{wheel.distribution}-{version}-{wheel.tags}.whl", zips.dump(members)


def _metadata(wheel: Wheel, data: bytes, version: str) -> bytes:
    """METADATA with this version; its other bytes as they are."""
    head = re.split(rb"\r?\n\r?\n", data, maxsplit=1)[0]
    found = re.search(rb"^Version:[ \t]*([^\r\n]*?)[ \t]*$", head.replace(b"\r", b" "), re.MULTILINE | re.IGNORECASE)
    if found is None or not _is_version(found[1].decode("utf-8", "replace"), wheel.version):
        raise _bad(wheel.path, f"its METADATA does not say that it is version {wheel.version}")
    return data[: found.start(1)] + version.encode() + data[found.end(1) :]


def _rows(rows: bytes, prefixes: Mapping[str, str], dist_info: str, notice: bytes | None) -> bytes:
    """RECORD with its .dist-info files under their new names, and a row for the notice (None: it has one)."""
    out = []
    for row in rows.splitlines(keepends=True):
        row = _moved(row.decode("utf-8", "surrogateescape"), prefixes).encode("utf-8", "surrogateescape")
        if notice is not None and row.startswith(f"{dist_info}RECORD,".encode()):
            digest = base64.urlsafe_b64encode(hashlib.sha256(notice).digest()).rstrip(b"=").decode()
            end = "\r\n" if row.endswith(b"\r\n") else "\n"
            out.append(f"{dist_info}{NOTICE},sha256={digest},{len(notice)}{end}".encode())
        out.append(row)
    return b"".join(out)


def _moved(name: str, prefixes: Mapping[str, str]) -> str:
    for old, new in prefixes.items():
        if name.startswith(old):
            return new + name[len(old) :]
    return name


def _is_of(folder: str, project: str, version: Version) -> bool:
    name, _, text = folder.removesuffix(".dist-info").rpartition("-")
    return canonicalize_name(name) == project and _is_version(text, str(version))


def _is_version(text: str, version: str) -> bool:
    try:
        return Version(text) == Version(version)
    except InvalidVersion:
        return False


def _bad(path: str, why: str) -> UnhangError:
    return UnhangError("bad-wheel", f"{path}: {why}", path=path, hint="get this wheel from where it is published")
