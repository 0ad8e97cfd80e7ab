"""Clones of the upstreams, by path or URL: which commit had which content. Objects are read in bulk."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from packaging.version import InvalidVersion, Version

from unhang.compat import upstreams
from unhang.compat.sweep.sources import Content, Release, content
from unhang.errors import UnhangError

if TYPE_CHECKING:
    from git import Repo

NEWEST = "to read what the clones have now, and review it: --newest"


class Clone(NamedTuple):
    """A clone of an upstream, and the commits that are read in it. Nothing newer is read."""

    repo: Repo
    refs: Mapping[str, str]
    """The commit of each branch and tag, by ``refs/heads/...`` or ``refs/tags/...``."""
    pulls: Mapping[str, str]
    """The commit of each pull request as written, by ``refs/pull/...``."""

    def commit(self, ref: str) -> str:
        """Return the commit of a ref. Raises UnhangError ``clone-failed`` if it is not read."""
        found = self.refs.get(ref) or self.pulls.get(ref)
        if found is None:
            raise UnhangError("clone-failed", f"{self.repo.common_dir}: the sweep reads no {ref}", hint=NEWEST)
        return found


class Seen(NamedTuple):
    """One content of a target file in history, and the first and the last commit that introduced it."""

    path: str
    content: Content
    first: str
    """Date and short name of the commit."""
    last: str
    supported: bool
    """Whether the first commit has the floor version or a later one."""


def variables() -> Mapping[str, str]:
    """Return the environment variables that name the clones, by upstream."""
    return {name: entry["clone"] for name, entry in upstreams.projects().items() if "clone" in entry}


def open_clone(where: str, cache: Path, refs: Sequence[str] = ()) -> Repo:
    """Return the repository at a path; for a URL, an up-to-date bare clone of it in the cache folder.

    That clone has all branches and tags, and these refs. If the server can filter, its blobs are fetched when they are
    needed. Raises UnhangError ``no-git``, or ``clone-failed`` if there is no repository.
    """
    try:
        import git
    except ImportError as error:  # GitPython raises it also if git is missing
        raise UnhangError(
            "no-git", f"reading history needs git and GitPython: {error}", hint="install git, and pip install gitpython"
        ) from error
    try:
        if os.path.isdir(where):
            return opened(where)
        return _own_clone(where, cache / "clones" / hashlib.sha256(where.encode()).hexdigest()[:16], refs)
    except (git.GitError, OSError) as error:
        hint = "name a clone with all branches and tags, or a URL that git can clone"
        raise UnhangError("clone-failed", f"{where}: {error}", hint=hint) from error


def opened(where: str) -> Repo:
    """Return the repository at a path. Raises GitError and OSError."""
    import git

    repo = git.Repo(where)
    if not os.path.exists(os.path.join(repo.common_dir, "config")):
        # without it, GitPython takes a bare clone for the .git of the folder above, and runs git there
        repo.git.update_environment(GIT_DIR=repo.git_dir)
    return repo


def newest(repo: Repo, entry: Mapping[str, Any], pulls: Sequence[str]) -> Clone:
    """Return a clone in which an upstream's refs and these pull requests are read as they are now.

    Raises UnhangError ``clone-failed`` if it lacks a pull request.
    """
    return Clone(repo, _commits(repo, entry["refs"]), pulled(repo, pulls))


def pulled(repo: Repo, pulls: Sequence[str]) -> dict[str, str]:
    """Return the commit of each of these pull requests. Raises UnhangError ``clone-failed`` if the clone lacks one."""
    found = _commits(repo, pulls) if pulls else {}
    if lost := [ref for ref in pulls if ref not in found]:
        hint = f"run this there: git fetch origin {' '.join(f'{ref}:{ref}' for ref in lost)}"
        raise UnhangError("clone-failed", f"{repo.common_dir} lacks {', '.join(lost)}", hint=hint)
    return found


def at(repo: Repo, commits: Mapping[str, str]) -> Clone:
    """Return a clone in which these commits, by ref, are read. Raises UnhangError ``clone-failed`` if it lacks one."""
    if not commits:
        raise UnhangError("clone-failed", f"{repo.common_dir}: no commits of it are on record", hint=NEWEST)
    found = looked_up(repo, "%(objecttype)", commits.values())
    if missing := [item for item, kind in zip(commits.items(), found) if kind != "commit"]:
        ref, commit = missing[0]
        lacks = f"lacks {len(missing)} of the {len(commits)} commits that the sweep reads: {commit} ({ref})"
        fetch = f"git fetch origin {' '.join(sorted({commit for _, commit in missing})[:9])}"
        raise UnhangError("clone-failed", f"{repo.common_dir} {lacks}", hint=f"run this there: {fetch}; {NEWEST}")
    pulls = {ref: commit for ref, commit in commits.items() if ref.startswith("refs/pull/")}
    return Clone(repo, {ref: commit for ref, commit in commits.items() if ref not in pulls}, pulls)


def looked_up(repo: Repo, what: str, names: Iterable[str]) -> list[str]:
    """Return for each object's name what ``git cat-file --batch-check`` has in this format; "... missing" if nothing.

    The clone is asked, not its server.
    """
    with tempfile.TemporaryFile() as lines:
        lines.write("".join(f"{name}\n" for name in names).encode())
        lines.seek(0)
        found: str = repo.git.cat_file(f"--batch-check={what}", istream=lines, env={"GIT_NO_LAZY_FETCH": "1"})
    return found.splitlines()


def _own_clone(url: str, folder: Path, refs: Sequence[str]) -> Repo:
    """Create or update a bare clone of our own, without blobs if the server can filter."""
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
    """Reads a repository's objects through one ``git cat-file --batch`` process."""

    def __init__(self, repo: Repo) -> None:
        self._repo = repo
        self._contents: dict[str, Content] = {}

    def content(self, name: str) -> Content | None:
        """Return a blob, by its own name or as ``COMMIT:PATH``; None if there is no blob of this name."""
        if name not in self._contents:
            try:
                _, kind, _, data = self._repo.git.get_object_data(name)
            except ValueError:  # GitPython, for a name that does not exist
                return None
            if "blob" not in str(kind):  # bytes, although typed as str
                return None
            self._contents[name] = content(data)
        return self._contents[name]

    def prefetch(self, blobs: Iterable[str]) -> None:
        """Fetch the blobs that a clone of ours has left out, all at once: one by one takes minutes."""
        if not self._repo.config_reader().get_value('remote "origin"', "promisor", False):
            return
        options = ("--no-tags", "--no-write-fetch-head", "--filter=blob:none", "--stdin")
        with tempfile.TemporaryFile() as names:
            names.write("".join(f"{blob}\n" for blob in sorted(blobs)).encode())
            names.seek(0)
            # as git does it for missing blobs: otherwise the server assumes that we have all blobs of our commits
            git = self._repo.git(c="fetch.negotiationAlgorithm=noop")
            git.fetch("origin", *options, istream=names)


def in_tree(entry: Mapping[str, Any], path: str) -> str:
    """Return where an upstream's repository has a file; ``path`` is as on the import path."""
    return f"{entry['folder']}/{path}" if "folder" in entry else path


def introduced(clone: Clone, paths: Sequence[str]) -> list[tuple[tuple[str, str], str, str]]:
    """Return commit (day, name), path and blob of every content of these files that a commit brought."""
    options = ("--full-history", "--format=C %H %cs", "--raw", "--no-abbrev", "--no-renames", "-m")
    return list(_introduced(clone.repo.git.log(*options, *clone.refs.values(), "--", *paths).splitlines()))


def together(clone: Clone, places: Sequence[str]) -> dict[tuple[str, ...], list[str]]:
    """Return the commits by the blobs that they have in these places of the repository; "" where there is none.

    The newest commit is the first.
    """
    commits = clone.repo.git.rev_list(*clone.refs.values()).split()
    objects = (f"{commit}:{place}" for commit in commits for place in places)
    blobs = iter(looked_up(clone.repo, "%(objectname)", objects))
    alike: dict[tuple[str, ...], list[str]] = {}
    for commit, *row in zip(commits, *[blobs] * len(places)):
        alike.setdefault(tuple("" if blob.endswith(" missing") else blob for blob in row), []).append(commit)
    return alike


def pairs(clone: Clone, entry: Mapping[str, Any], paths: Sequence[str]) -> Iterator[tuple[Content, ...]]:
    """Yield each combination of contents of these files that a commit has. All of them were read before."""
    reader = Reader(clone.repo)
    for blobs in together(clone, [in_tree(entry, path) for path in paths]):
        found = [reader.content(blob) if blob else None for blob in blobs]
        if all(found):
            yield tuple(one for one in found if one is not None)


def history(clone: Clone, entry: Mapping[str, Any], paths: Sequence[str]) -> tuple[list[Seen], int]:
    """Return every content of these files in a clone, oldest first, and how many commits changed one.

    ``entry`` is what the upstream's file in upstreams/ says.
    """
    wanted = {in_tree(entry, path): path for path in paths}
    states = in_tree(entry, entry["version"]["file"])
    touched = introduced(clone, [*wanted, states])
    reader = Reader(clone.repo)
    reader.prefetch({blob for _, _, blob in touched})
    places: dict[tuple[str, str], set[tuple[str, str]]] = {}
    for commit, path, blob in touched:
        if path in wanted:
            places.setdefault((wanted[path], blob), set()).add(commit)
    seen = []
    for (path, blob), commits in sorted(places.items(), key=lambda item: (min(item[1]), item[0])):
        found = reader.content(blob)
        if found is not None:
            (day, first), (last_day, last) = min(commits), max(commits)
            version = _version(reader.content(f"{first}:{states}"))
            supported = version >= Version(entry["floor"])
            seen.append(Seen(path, found, f"{day} {first[:9]}", f"{last_day} {last[:9]}", supported))
    return seen, len(set().union(*places.values()))


def trees(
    clone: Clone, upstream: str, entry: Mapping[str, Any], paths: Sequence[str], published: Iterable[str]
) -> Iterator[Release]:
    """Yield an upstream's tagged releases, from the floor on, that exist only as source trees.

    ``published`` are the versions that a wheel carries.
    """
    reader, in_wheels = Reader(clone.repo), {*map(Version, published)}
    prefix = f"refs/tags/{entry['tree-tags']}"
    for ref, commit in clone.refs.items():
        if not ref.startswith(prefix):
            continue
        try:
            version = Version(ref.removeprefix(prefix))
        except InvalidVersion:
            continue
        if version >= Version(entry["floor"]) and version not in in_wheels:
            files = {path: reader.content(f"{commit}:{in_tree(entry, path)}") for path in paths}
            yield Release(upstream, str(version), False, files)


def tips(clone: Clone, entry: Mapping[str, Any], paths: Sequence[str]) -> Iterator[tuple[str, Content]]:
    """Yield the files, by path, at the tips of the development branches. Raises UnhangError ``clone-failed``."""
    reader = Reader(clone.repo)
    for branch in entry["tips"]:
        for path in paths:
            found = reader.content(f"{clone.commit(f'refs/heads/{branch}')}:{in_tree(entry, path)}")
            if found is not None:
                yield path, found


def _commits(repo: Repo, globs: Sequence[str]) -> dict[str, str]:
    """Return the commits of the refs that match these globs, by ref.

    In a clone with a work tree, the branches are the remote-tracking ones.
    """
    heads, remotes = "refs/heads/", "refs/heads/"
    if not repo.bare and repo.remotes:
        remotes = "refs/remotes/origin/"
        globs = [remotes + glob.removeprefix(heads) if glob.startswith(heads) else glob for glob in globs]
    # of a tag that is an object of its own, the last is the commit
    found = repo.git.for_each_ref("--format=%(refname) %(objectname) %(*objectname)", *globs)
    rows = map(str.split, found.splitlines())
    return {re.sub(f"^{remotes}", heads, ref): commits[-1] for ref, *commits in rows}


def _introduced(log: Iterable[str]) -> Iterator[tuple[tuple[str, str], str, str]]:
    """Yield commit (day, name), path and blob for each line of a raw log that introduces a content."""
    commit = ("", "")
    for line in log:
        if line.startswith("C "):
            _, name, day = line.split()
            commit = day, name
        elif line.startswith(":"):
            fields, path = line.split("\t")
            blob = fields.split()[3]
            if set(blob) != {"0"}:
                yield commit, path, blob


def _version(file: Content | None) -> Version:
    """Return the version in an upstream's version file; 0 if there is none."""
    text = "" if file is None else file.data.decode(errors="replace")
    parts = dict(re.findall(r"^(MAJOR|MINOR|PATCH|PRE_RELEASE) = ['\"]?(\w*)", text, re.M))
    plain = re.search(r"\d+\.\d+(\.\d+)?", text)
    whole = "{MAJOR}.{MINOR}.{PATCH}{PRE_RELEASE}"
    try:
        return Version(whole.format(**parts) if parts else plain.group() if plain else "0")
    except (InvalidVersion, KeyError):
        return Version("0")
