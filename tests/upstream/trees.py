"""Two copies of an upstream's tree at a ref, one of them to patch: from a clone, a URL or an sdist."""

import hashlib
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from filelock import FileLock

from unhang.errors import UnhangError

CACHE = Path.home() / ".cache" / "unhang" / "upstream"
SIDES = ("before", "after")
_HINT = "--clone PATH_OR_URL, or {variable}, names a clone that has it"


class Trees(NamedTuple):
    """Two equal trees, and where they come from."""

    before: Path
    after: Path
    origin: str


def made(folder: str | Path) -> Path:
    """Make a folder and return its absolute path, because tests run in the trees."""
    path = Path(folder).resolve()
    path.mkdir(parents=True, exist_ok=True)
    return path


@contextmanager
def of_clone(where: str, refs: Sequence[str], cache: Path, variable: str) -> Iterator[Trees]:
    """Yield two worktrees at the first of these refs that a clone (a path or a URL) has, and remove them.

    Only that commit is fetched, into a repository of ours in the cache, and from a URL only the blobs that it needs.
    The clone itself is never written to. Raises UnhangError ``fetch-failed``, ``no-ref`` or ``no-git``.
    """
    try:
        import git
    except ImportError as error:  # GitPython also raises it without git
        raise UnhangError("no-git", f"this needs git, and GitPython: {error}", hint="install git") from error
    is_path = os.path.isdir(where)
    url = Path(where).resolve().as_uri() if is_path else where
    folder = made(cache / "clones" / hashlib.sha256(url.encode()).hexdigest()[:16])
    hint = _HINT.format(variable=variable)
    with tempfile.TemporaryDirectory(prefix="unhang-trees-") as temporary:
        places = Path(temporary).resolve()
        with FileLock(f"{folder}.lock"):  # two runs may use the same clone
            repo = git.Repo.init(folder, bare=True)
            try:
                repo.git.worktree("prune")
                commit = _fetched(repo, url, _names(git.Git(where), refs) if is_path else refs)
                for side in SIDES:
                    repo.git.worktree("add", "--detach", str(places / side), commit)
            except git.GitError as error:
                said = str(getattr(error, "stderr", "") or error).strip().splitlines()
                why = next((line.strip() for line in said if "fatal: " in line), "".join(said[-1:]))
                code = "no-ref" if "find remote ref" in why else "fetch-failed"
                raise UnhangError(code, f"{where} gives no {' or '.join(refs)}: {why}", hint=hint) from error
        try:
            yield Trees(places / "before", places / "after", f"{where}, commit {commit[:12]}")
        finally:
            with FileLock(f"{folder}.lock"):
                for side in SIDES:
                    repo.git.worktree("remove", "--force", str(places / side))
            repo.close()


@contextmanager
def of_sdist(project: str, version: str, sha256: str, cache: Path) -> Iterator[Trees]:
    """Yield the sdist of a release, unpacked twice, and remove both copies. The cached sdist must have this sha256.

    Raises UnhangError ``fetch-failed``, also where pip gets an sdist with another digest.
    """
    archive = _sdist(project, version, sha256, made(cache / "sdists"))
    with tempfile.TemporaryDirectory(prefix="unhang-trees-") as temporary:
        places = Path(temporary).resolve()
        for side in SIDES:
            with tarfile.open(archive) as packed:
                packed.extractall(places / side, filter="data")
        (before,), (after,) = ([*(places / side).iterdir()] for side in SIDES)
        yield Trees(before, after, f"the sdist {archive.name} of the package index, sha256 {sha256[:12]}")


def refs_of(ref: str, about: Mapping[str, Any]) -> list[str]:
    """Return the refs that a user may mean, likeliest first: a tag, a branch, a commit or a version."""
    if ref.startswith("refs/") or (len(ref) == 40 and not set(ref) - set("0123456789abcdef")):
        return [ref]
    tagged = [] if ref.startswith(about["tag"]) else [f"refs/tags/{about['tag']}{ref}"]
    return [f"refs/tags/{ref}", *tagged, f"refs/heads/{ref}", ref]


def _fetched(repo: Any, url: str, refs: Sequence[str]) -> str:
    """Fetch the first of these refs that exists, and return its commit."""
    import git

    options = {"url": url, "promisor": "true", "partialclonefilter": "blob:none"}
    with repo.config_writer() as config:
        for name, value in options.items():
            config.set_value('remote "origin"', name, value)
    for ref in refs:
        try:
            repo.git.fetch("origin", "--depth=1", "--no-tags", "--filter=blob:none", ref)
        except git.GitCommandError as error:
            if ref == refs[-1] or "find remote ref" not in str(error.stderr):
                raise
            continue
        return str(repo.git.rev_parse("FETCH_HEAD^{commit}"))
    raise AssertionError("no refs")


def _names(clone: Any, refs: Sequence[str]) -> list[str]:
    """Return the full hash of the first of these refs in a local clone, whose branches may be remote ones.

    git itself is asked: GitPython's ``Repo`` does not see that a clone without a config file is bare.
    """
    import git

    for ref in [*refs, *(f"refs/remotes/origin/{ref}" for ref in refs[-1:])]:
        try:
            return [str(clone.rev_parse("--verify", "--quiet", f"{ref}^{{commit}}"))]
        except git.GitCommandError:
            continue
    return list(refs)  # the fetch reports the error


def _sdist(project: str, version: str, sha256: str, folder: Path) -> Path:
    """Return the archive from the cache, or download it with pip."""
    for archive in folder.glob(f"*-{version}.tar.*"):
        if hashlib.sha256(archive.read_bytes()).hexdigest() == sha256:
            return archive
    with tempfile.TemporaryDirectory(dir=folder) as fresh:
        wanted = Path(fresh) / "wanted.txt"
        wanted.write_text(f"{project}=={version} --hash=sha256:{sha256}\n", encoding="utf-8")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary=:all:"]
        # pip builds the metadata of an sdist, and must not create an environment for that
        options = ["--no-build-isolation", "--require-hashes", "--dest", fresh, "--requirement", str(wanted)]
        done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
        found = [*Path(fresh).glob("*.tar.*")]
        if done.returncode or not found:
            why = done.stderr.strip() or "pip downloaded nothing"
            raise UnhangError("fetch-failed", why, hint="check the connection to the package index, or give --clone")
        kept = folder / found[0].name
        os.replace(found[0], kept)
    return kept
