"""Clones of the upstreams, by path or URL: what was in them at which commit. No checkout, and objects read in bulk."""

from __future__ import annotations

import hashlib
import io
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from packaging.version import InvalidVersion, Version

from unhang.compat.sources import Content, Release, content
from unhang.errors import UnhangError

if TYPE_CHECKING:
    from git import Repo

VARIABLES = {
    "megatron-core": "UNHANG_MEGATRON_CLONE",
    "verl": "UNHANG_VERL_CLONE",
    "ms-swift": "UNHANG_SWIFT_CLONE",
}


class Seen(NamedTuple):
    """One content of a target file in history, and the first and the last commit that brought it."""

    path: str
    content: Content
    first: str
    """Date and short name of the commit."""
    last: str
    supported: bool
    """Whether the first of them has the floor version, or a later one."""


def open_clone(where: str, cache: Path) -> Repo:
    """The repository at a path; for a URL, a bare clone of it in this folder, brought up to date.

    Its blobs are fetched as they are needed, where the server can do that. Raises UnhangError ``clone-failed``.
    """
    try:
        import git
    except ImportError as error:  # GitPython raises it too where there is no git
        raise UnhangError(
            "no-git", f"reading history needs git, and GitPython: {error}", hint="pip install 'unhang[git]'"
        ) from error
    try:
        if os.path.isdir(where):
            return git.Repo(where)
        folder = cache / "clones" / hashlib.sha256(where.encode()).hexdigest()[:16]
        if folder.exists():
            repo = git.Repo(folder)
            repo.git.fetch("--prune", "origin")
            return repo
        options = ["--filter=blob:none", "--config=remote.origin.fetch=+refs/*:refs/*"]
        return git.Repo.clone_from(where, folder, multi_options=options, allow_unsafe_options=True, bare=True)
    except (git.GitError, OSError) as error:
        raise UnhangError("clone-failed", f"{where}: {error}", hint="name a clone, or a URL that git can clone") from error


class Reader:
    """Reads the contents of a repository's objects, by one ``git cat-file --batch`` for all of them."""

    def __init__(self, repo: Repo) -> None:
        self._repo = repo
        self._contents: dict[str, Content] = {}

    def content(self, name: str) -> Content | None:
        """A blob, by its own name or as ``COMMIT:PATH``; None where there is none of this name."""
        try:
            sha = name if ":" not in name else self._repo.git.get_object_header(name)[0]
            if sha not in self._contents:
                self._contents[sha] = content(self._repo.git.get_object_data(sha)[3])
        except ValueError:
            return None
        return self._contents[sha]

    def prefetch(self, blobs: Iterable[str]) -> None:
        """Have the missing ones of these blobs sent in one go, in a clone that has left them out."""
        config = self._repo.config_reader()
        if not config.get_value('remote "origin"', "promisor", False):
            return
        wanted = "\n".join(sorted({*blobs})).encode()
        self._repo.git.fetch(
            "origin", "--no-tags", "--no-write-fetch-head", "--filter=blob:none", "--stdin", istream=io.BytesIO(wanted)
        )


def history(repo: Repo, about: Mapping[str, Any], paths: Sequence[str]) -> tuple[list[Seen], int]:
    """Every content that these files had on the refs of an upstream, oldest first, and how many commits touched one.

    ``about`` is the upstream's entry in upstreams.json.
    """
    options = ("--full-history", "--format=C %H %cs", "--raw", "--no-abbrev", "--no-renames", "-m")
    log = repo.git.log(*options, *_refs(repo, about["refs"]), "--", *paths).splitlines()
    places: dict[tuple[str, str], set[tuple[str, str]]] = {}
    for commit, path, blob in _touched(log):
        places.setdefault((path, blob), set()).add(commit)
    reader = Reader(repo)
    reader.prefetch(blob for _, blob in places)
    seen = []
    for (path, blob), commits in sorted(places.items(), key=lambda item: (min(item[1]), item[0])):
        found = reader.content(blob)
        if found is not None:
            (day, first), (last_day, last) = min(commits), max(commits)
            version = _version(reader.content(f"{first}:{about['version-file']}"))
            supported = version >= Version(about["floor"])
            seen.append(Seen(path, found, f"{day} {first[:9]}", f"{last_day} {last[:9]}", supported))
    return seen, len(set().union(*places.values()))


def trees(repo: Repo, about: Mapping[str, Any], paths: Sequence[str], beside: Iterable[str]) -> Iterator[Release]:
    """The releases of Megatron-LM that exist only as source trees: those tagged, from the floor on.

    ``beside`` are versions that it has been published under: a wheel is what people install.
    """
    reader, published = Reader(repo), {*map(Version, beside)}
    for ref in repo.git.for_each_ref("--format=%(refname)", f"refs/tags/{about['tree-tags']}*").split():
        try:
            version = Version(ref.removeprefix(f"refs/tags/{about['tree-tags']}"))
        except InvalidVersion:
            continue
        if version >= Version(about["floor"]) and version not in published:
            files = {path: reader.content(f"{ref}:{path}") for path in paths}
            yield Release("megatron-lm", str(version), False, files)


def tips(repo: Repo, about: Mapping[str, Any], paths: Sequence[str]) -> Iterator[tuple[str, Content]]:
    """The files, with their paths, as the development branches have them now."""
    reader = Reader(repo)
    for branch in about["tips"]:
        for path in paths:
            found = reader.content(f"refs/heads/{branch}:{path}")
            if found is not None:
                yield path, found


def _refs(repo: Repo, globs: Sequence[str]) -> list[str]:
    names: list[str] = repo.git.for_each_ref("--format=%(refname)", *globs).split()
    if not names:
        raise UnhangError("clone-failed", f"{repo.common_dir} has none of {', '.join(globs)}", hint="fetch them into it")
    return names


def _touched(log: Iterable[str]) -> Iterator[tuple[tuple[str, str], str, str]]:
    """Commit (day, name), path and blob of each line of a raw log that brings a content."""
    commit = ("", "")
    for line in log:
        if line.startswith("C "):
            _, name, day = line.split()
            commit = day, name
        elif line.startswith(":"):
            told, path = line.split("\t")
            blob = told.split()[3]
            if set(blob) != {"0"}:
                yield commit, path, blob


def _version(file: Content | None) -> Version:
    """The version that an upstream's own version file gives; 0 where it gives none."""
    text = "" if file is None else file.data.decode(errors="replace")
    parts = dict(re.findall(r"^(MAJOR|MINOR|PATCH|PRE_RELEASE) = ['\"]?(\w*)", text, re.M))
    plain = re.search(r"\d+\.\d+(\.\d+)?", text)
    try:
        return Version("{MAJOR}.{MINOR}.{PATCH}{PRE_RELEASE}".format(**parts) if parts else plain.group() if plain else "0")
    except (InvalidVersion, KeyError):
        return Version("0")
