"""The releases that a diff is tried on: in an environment, in a wheel, or at a commit of a clone."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from packaging.utils import canonicalize_name

from unhang.deliver import archive, download, wheel
from unhang.errors import UnhangError
from unhang.find import metadata
from unhang.judge.observe import file_of
from unhang.plugins import packs
from unhang.records import Installation, Request, Upstream
from unhang.survey import search


class Release(NamedTuple):
    """A release whose files can be read."""

    project: str
    """The name of the upstream that it is of; its files may be of others that this one's wheels hold."""
    version: str
    where: str
    """What it was read from, for people."""
    files: Callable[[], Iterable[str]]
    """Its files, as paths below the folder on the import path."""
    read: Callable[[str], bytes | None]
    """A file's bytes; None if it has none of this path."""
    unconfirmed: Callable[[str], str] = lambda _: ""
    """Why it is not known that a file is as it was installed; empty if it is known, or nothing says it."""

    def lay_out(self, folder: str) -> None:
        """Write the release's files below a folder, which has them already if anything is in it."""
        if os.listdir(folder):
            return
        for file in self.files():
            if not {"", ".", ".."}.isdisjoint(file.split("/")):
                continue
            path = os.path.join(folder, *file.split("/"))
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as written:
                written.write(self.read(file) or b"")

    def text(self, file: str) -> str | None:
        """Return a file's text with the line ends ``\\n``; None if it has none."""
        data = self.read(file)
        return None if data is None else data.decode("utf-8", "surrogateescape").replace("\r\n", "\n")


def named(requirement: str, folder: str, request: Request) -> Release:
    """Return the release that ``NAME==VERSION`` or the path of a wheel names: the environment's own, if it has that.

    Else it is downloaded into the folder. Raises UnhangError ``bad-option``, ``no-upstream``, and as
    ``download.fetch``, ``wheel.load`` and, if the request names an environment, as ``search.find``.
    """
    if requirement.endswith(".whl"):
        return of_wheel(wheel.load(requirement))
    name, _, version = requirement.partition("==")
    if not version:
        hint = "name one release as NAME==VERSION, or by the path of a wheel"
        raise UnhangError("bad-option", f"{requirement!r} does not say which release", hint=hint)
    there = (it for it in installed(request) if it.project == project(name) and wheel.is_version(it.version, version))
    if (found := next(there, None)) is not None:
        return found
    known = packs.upstreams().get(canonicalize_name(name))
    wanted = f"{known.distribution if known else name}=={version}"
    (path,) = download.fetch([wanted], download.Options(None, ()), folder).paths
    return of_wheel(wheel.load(path))


def project(name: str) -> str:
    """Return the upstream whose wheels hold the one of this name, or of this distribution."""
    known, plain = packs.upstreams(), canonicalize_name(name)
    if plain in known:
        return known[plain].within or plain
    return next((it.within or it.name for it in known.values() if canonicalize_name(it.distribution) == plain), plain)


def of_wheel(source: wheel.Wheel) -> Release:
    """Return the release that a wheel is. Raises UnhangError ``no-upstream`` if it is none of an upstream."""
    name = project(source.distribution)
    if name not in packs.upstreams():
        raise UnhangError("no-upstream", f"{source.file} is none of {', '.join(packs.names())}")
    members = source.installed()

    def read(file: str) -> bytes | None:
        return archive.read(source.path, members[file]) if file in members else None

    return Release(name, source.version, source.file, lambda: members, read)


def installed(request: Request) -> Iterator[Release]:
    """Yield what the environment of a request has. Raises UnhangError as ``search.find`` if the request names one."""
    try:
        found = search.find(request).installations
    except UnhangError:
        if request.python or request.target or request.source:
            raise
        return
    for name in dict.fromkeys(project(it.upstream) for it in found):
        mine = [it for it in found if project(it.upstream) == name]
        if mine[0].version:
            yield _installed(name, mine)


def _installed(name: str, copies: Sequence[Installation]) -> Release:
    places = {it.upstream: it for it in copies}

    def read(file: str) -> bytes | None:
        place = places.get(of_file(name, file))
        try:
            with open(file_of(place, file) if place else os.devnull, "rb") as opened:
                return opened.read() if place else None
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None

    def files() -> Iterator[str]:
        for place in copies:
            if packs.upstreams()[place.upstream].is_file:
                yield f"{packs.upstreams()[place.upstream].module.replace('.', '/')}.py"
                continue
            above = "/".join(packs.upstreams()[place.upstream].parts)
            for folder, _, names in os.walk(place.package_dir):
                inner = os.path.relpath(folder, place.package_dir).replace(os.sep, "/")
                yield from ("/".join(filter(None, (above, inner.strip("."), it))) for it in names)

    def unconfirmed(file: str) -> str:
        place, data = places.get(of_file(name, file)), read(file)
        if not (place and place.record) or data is None or metadata.confirms(place.record, file, data):
            return ""
        is_known = metadata.has_hash(place.record, file)
        return (
            "was edited since it was installed" if is_known else "has no sha256 and size in the RECORD of its package"
        )

    return Release(name, copies[0].version or "", copies[0].root, files, read, unconfirmed)


def of_clone(clone: str, revision: str, upstream: Upstream) -> Release:
    """Return the release at a tag or commit of a clone. Raises UnhangError ``no-commit``."""
    try:
        sha = _git(clone, "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}").decode().strip()
    except (OSError, subprocess.CalledProcessError) as error:
        raise UnhangError("no-commit", f"{revision} is not a commit of this clone", path=clone) from error
    every = _git(clone, "ls-tree", "-r", "-z", "--name-only", sha).decode("utf-8", "surrogateescape").split("\0")
    start = "/".join(upstream.parts)
    above = next((it[: -len(f"{start}/__init__.py")] for it in every if it.endswith(f"{start}/__init__.py")), "")
    paths = {it.removeprefix(above): it for it in every if it.startswith(above)}

    def read(file: str) -> bytes | None:
        return _git(clone, "cat-file", "blob", f"{sha}:{paths[file]}") if file in paths else None

    return Release(project(upstream.name), revision, f"{clone} at {sha[:12]}", lambda: paths, read)


def _git(clone: str, *words: str) -> bytes:
    done = subprocess.run(["git", "-C", clone, *words], stdin=subprocess.DEVNULL, capture_output=True, check=True)
    return done.stdout


def of_file(name: str, file: str) -> str:
    """Return the upstream of a file in a project's release: that whose package it is in, else the project's own."""
    known = packs.upstreams().values()
    inside = (it.name for it in known if name in (it.name, it.within) and it.holds(file))
    return next(inside, name)


def places(release: Release, path: str) -> list[tuple[str, str]]:
    """Return where a release may have a file of a diff, each with its text: there, or below another folder.

    A path that leads out of its folder is in none.
    """
    if not {"", ".", ".."}.isdisjoint(path.split("/")):
        return []
    for start in range(path.count("/") + 1):  # a repository may have its packages in a folder, such as src/
        place = path.split("/", start)[-1]
        is_module = start < 2 and any(it.holds(place) for it in packs.upstreams().values())
        if ("/" in place or is_module) and (text := release.text(place)) is not None:
            return [(place, text)]
    named = (it for it in release.files() if it.endswith(f"/{path.rpartition('/')[2]}"))
    return [(it, release.text(it) or "") for it in named]
