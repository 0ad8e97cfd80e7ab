"""Reads a wheel, checks it, and unpacks it as an installer does."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from unhang.deliver import archive
from unhang.deliver.archive import Member, bad_wheel
from unhang.errors import UnhangError
from unhang.find.metadata import installed
from unhang.shapes import catalog
from unhang.store.receipt import sha256


class Wheel(NamedTuple):
    """A wheel that was checked."""

    path: str
    sha256: str
    distribution: str
    """As its file name has it, and likewise the next two."""
    version: str
    tags: str
    dist_info: str
    """The name of that folder."""
    members: tuple[Member, ...]

    def installed(self) -> dict[str, Member]:
        """Return the files that an installer puts into site-packages, by their path there."""
        return {installed(member.name): member for member in self.members if not member.name.endswith("/")}

    @property
    def file(self) -> str:
        """The file name."""
        return os.path.basename(self.path)


def load(path: str) -> Wheel:
    """Read and check a wheel. Raises UnhangError ``bad-wheel`` if it is invalid, hostile or signed; OSError."""
    name = os.path.basename(path)
    try:
        project, version, _, _ = parse_wheel_filename(name)
    except InvalidWheelFilename as error:
        raise bad_wheel(path, f"its name is not that of a wheel: {error}") from error
    if not os.path.isfile(path):  # opening a pipe would block
        raise UnhangError("bad-wheel", f"{path}: no such file", path=path, hint="give a wheel or a requirement")
    members = archive.load(path)
    names = {member.name for member in members}
    folders = {name.partition("/")[0] for name in names if "/" in name}
    found = sorted(folder for folder in folders if folder.endswith(".dist-info"))
    if len(found) != 1 or not _is_of(found[0], project, version):
        raise bad_wheel(path, f"it must have one .dist-info folder, of {project} {version}; it has {found}")
    if missing := {f"{found[0]}/{file}" for file in ("METADATA", "WHEEL", "RECORD")} - names:
        raise bad_wheel(path, f"it has no {', '.join(sorted(missing))}")
    if names & {f"{found[0]}/RECORD.jws", f"{found[0]}/RECORD.p7s"}:
        raise bad_wheel(path, "it is signed, and the rewrite would break the signature")
    _check_data(path, found[0], members)
    with open(path, "rb") as file:
        digest = sha256(file.read())
    distribution, text, tags = name.removesuffix(".whl").split("-", 2)
    return Wheel(path, digest, distribution, text, tags, found[0], members)


def unpack(wheel: Wheel, folder: str) -> None:
    """Unpack the wheel's files into an empty folder, as into site-packages.

    Raises UnhangError ``bad-wheel`` for damaged members; OSError.
    """
    for name, member in wheel.installed().items():
        path = os.path.join(folder, *name.split("/"))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "xb") as file:
            file.write(archive.read(wheel.path, member))


def is_version(text: str, version: str) -> bool:
    """Return whether the text is this version, however it is spelled: ``1.0`` is ``1.0.0``."""
    try:
        return Version(text) == Version(version)
    except InvalidVersion:
        return False


def _check_data(path: str, dist_info: str, members: Sequence[Member]) -> None:
    """Raise UnhangError ``bad-wheel`` if installers may disagree on what the wheel puts into site-packages."""
    data = f"{dist_info.removesuffix('.dist-info')}.data"
    files = tuple(f"/{target.file}" for fix in catalog.fixes().values() for target in fix.functions)
    places: dict[str, str] = {}
    for name in (member.name for member in members if not member.name.endswith("/")):
        top, _, below = name.partition("/")
        place = installed(name)
        if top.endswith(".data") and (top != data or (place == name and below.endswith(files))):
            raise bad_wheel(path, f"nobody can tell where an installer puts its member {name!r}")
        if place in places:
            raise bad_wheel(path, f"its members {places[place]!r} and {name!r} are installed as the same file")
        places[place] = name
    if clash := archive.file_as_folder(places):
        raise bad_wheel(path, f"its member {places[clash]!r} is installed where others need a folder")


def _is_of(dist_info: str, project: str, version: Version) -> bool:
    name, _, text = dist_info.removesuffix(".dist-info").rpartition("-")
    return canonicalize_name(name) == project and is_version(text, str(version))
