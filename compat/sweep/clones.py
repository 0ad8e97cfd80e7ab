"""Clones of the upstreams, by path or URL: what was in them at which commit. No checkout, and objects read in bulk."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from packaging.version import InvalidVersion, Version

from unhang.compat.sweep.sources import Content, Release, content
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


def open_clone(where: str, cache: Path, refs: Sequence[str] = ()) -> Repo:
    """The repository at a path; for a URL, a bare clone of it in this folder, brought up to date.

    Such a clone has all branches and tags, and these refs; its blobs are fetched as they are needed, where the server
    can do that. Raises UnhangError ``no-git``, or ``clone-failed`` where there is no repository, or no such ref.
    """
    try:
        import git
    except ImportError as error:  # GitPython raises it too where there is no git
        raise UnhangError(
            "no-git", f"reading history needs git, and GitPython: {error}", hint="pip install gitpython, and git"
        ) from error
    hint = "name a clone, or a URL that git can clone, which has all branches and tags"
    try:
        if os.path.isdir(where):
            repo = git.Repo(where)
            hint = f"run this there: git fetch origin {' '.join(f'{ref}:{ref}' for ref in refs)}"
        else:
            repo = _own_clone(where, cache / "clones" / hashlib.sha256(where.encode()).hexdigest()[:16], refs)
        for ref in refs:
            repo.git.rev_parse("--verify", "--quiet", f"{ref}^{{commit}}")
    except (git.GitError, OSError) as error:
        raise UnhangError("clone-failed", f"{where}: {error}", hint=hint) from error
    return repo


def _own_clone(url: str, folder: Path, refs: Sequence[str]) -> Repo:
    """A bare clone of ours, which is made or brought up to date, as few blobs in it as the server lets us have."""
    import git

    repo = git.Repo.init(folder, bare=True)
    options = {"url": url, "promisor": "true", "partialclonefilter": "blob:none"}
    with repo.config_writer() as config:
        for name, value in options.items():
            config.set_value('remote "origin"', name, value)
    wanted = [f"+{ref}:{ref}" for ref in ("refs/heads/*", "refs/tags/*", *refs)]
    repo.git.fetch("origin", "--prune", "--no-tags", "--filter=blob:none", *wanted)
    return repo


class Reader:
    """Reads the contents of a repository's objects, by one ``git cat-file --batch`` for all of them."""

    def __init__(self, repo: Repo) -> None:
        self._repo = repo
        self._contents: dict[str, Content] = {}

    def content(self, name: str) -> Content | None:
        """A blob, by its own name or as ``COMMIT:PATH``; None where there is none of this name."""
        if name not in self._contents:
            try:
                _, kind, _, data = self._repo.git.get_object_data(name)
            except ValueError:  # of GitPython, for a name that leads nowhere
                return None
            if "blob" not in str(kind):  # which it gives as bytes, though typed as str
                return None
            self._contents[name] = content(data)
        return self._contents[name]

    def prefetch(self, blobs: Iterable[str]) -> None:
        """Have those of these blobs that a clone of ours has left out sent in one go: one by one takes minutes."""
        if not self._repo.config_reader().get_value('remote "origin"', "promisor", False):
            return
        options = ("--no-tags", "--no-write-fetch-head", "--filter=blob:none", "--stdin")
        with tempfile.TemporaryFile() as asked:
            asked.write("".join(f"{blob}\n" for blob in sorted(blobs)).encode())
            asked.seek(0)
            # as git itself fetches what is left out: else the server takes what our commits have for ours already
            git = self._repo.git(c="fetch.negotiationAlgorithm=noop")
            git.fetch("origin", *options, istream=asked)


def history(repo: Repo, about: Mapping[str, Any], paths: Sequence[str]) -> tuple[list[Seen], int]:
    """Every content that these files had on the refs of an upstream, oldest first, and how many commits touched one.

    ``about`` is the upstream's entry in upstreams.json. No checkout; one ``git log``, and one process for the contents.
    """
    options = ("--full-history", "--format=C %H %cs", "--raw", "--no-abbrev", "--no-renames", "-m")
    log = repo.git.log(*options, *_refs(repo, about["refs"]), "--", *paths, about["version-file"]).splitlines()
    touched = list(_touched(log))
    reader = Reader(repo)
    reader.prefetch({blob for _, _, blob in touched})
    places: dict[tuple[str, str], set[tuple[str, str]]] = {}
    for commit, path, blob in touched:
        if path in paths:
            places.setdefault((path, blob), set()).add(commit)
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


def branch_ref(repo: Repo, branch: str) -> str:
    """The ref that upstream's branch of this name has here. Raises UnhangError ``clone-failed`` if there is none."""
    names = _refs(repo, [f"refs/heads/{branch}"])
    if not names:
        raise UnhangError("clone-failed", f"{repo.common_dir} has no branch {branch}", hint="fetch it into there")
    return names[0]


def tips(repo: Repo, about: Mapping[str, Any], paths: Sequence[str]) -> Iterator[tuple[str, Content]]:
    """The files, with their paths, as the development branches have them. Raises UnhangError ``clone-failed``."""
    reader = Reader(repo)
    for branch in about["tips"]:
        for path in paths:
            found = reader.content(f"{branch_ref(repo, branch)}:{path}")
            if found is not None:
                yield path, found


def _refs(repo: Repo, globs: Sequence[str]) -> list[str]:
    """The refs that these globs of branches and tags name: in a clone to work in, branches are remote ones."""
    heads, remotes = "refs/heads/", "refs/remotes/origin/"
    if not repo.bare and repo.remotes:
        globs = [remotes + glob.removeprefix(heads) if glob.startswith(heads) else glob for glob in globs]
    names: list[str] = repo.git.for_each_ref("--format=%(refname)", *globs).split()
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
    whole = "{MAJOR}.{MINOR}.{PATCH}{PRE_RELEASE}"
    try:
        return Version(whole.format(**parts) if parts else plain.group() if plain else "0")
    except (InvalidVersion, KeyError):
        return Version("0")
