"""Where the sweep takes upstream's sources from: pinned wheels in a folder, and clones. Nothing of them is kept."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from unhang import shape

if TYPE_CHECKING:
    from git import Repo

HERE = os.path.dirname(os.path.abspath(__file__))


class Release(NamedTuple):
    """The target files of one release of one upstream: path -> bytes, None where it has no such file."""

    upstream: str
    version: str
    yanked: bool
    files: Mapping[str, bytes | None]


class Commit(NamedTuple):
    """One content of a target file in history, and the first and last commit that had it."""

    upstream: str
    path: str
    data: bytes
    first: str
    """Date and short name of the commit."""
    last: str
    supported: bool
    """Whether the first of them has the floor version, or a later one."""


def load(name: str) -> Any:
    """A JSON file of this folder: ``wheels.json``, ``upstreams.json`` or ``decisions.json``."""
    with open(os.path.join(HERE, name), encoding="utf-8") as file:
        return json.load(file)


def pins() -> list[dict[str, Any]]:
    """The pinned wheels, each with ``project``, ``version``, ``file``, ``sha256``, ``python`` and ``yanked``."""
    wheels = load("wheels.json")["wheels"]
    return [{"project": project, **row} for project, rows in wheels.items() for row in rows]


def from_wheels(folder: str, wanted: Mapping[str, Sequence[str]]) -> Iterator[Release]:
    """The releases whose pinned wheels lie in a folder. ``wanted`` gives each upstream's target files.

    Raises ValueError for a wheel whose sha256 is not the one in wheels.json.
    """
    for pin in pins():
        path = os.path.join(folder, pin["file"])
        with open(path, "rb") as file:
            data = file.read()
        if hashlib.sha256(data).hexdigest() != pin["sha256"]:
            raise ValueError(f"{path} is not the wheel that compat/wheels.json names")
        with zipfile.ZipFile(path) as wheel:
            names = set(wheel.namelist())
            for upstream in _upstreams_of(pin["project"], names):
                files = {name: wheel.read(name) if name in names else None for name in wanted[upstream]}
                yield Release(upstream, pin["version"], pin["yanked"], files)


def _upstreams_of(project: str, names: Iterable[str]) -> list[str]:
    if project == "megatron-core" and any(name.startswith("megatron/training/") for name in names):
        return ["megatron-core", "megatron-lm"]
    return [project]


def from_trees(repo: Repo, trees: Mapping[str, str], files: Sequence[str]) -> Iterator[Release]:
    """The releases of megatron-lm that exist only as source trees: the trees at these tags."""
    for tag, version in trees.items():
        tree = repo.commit(tag).tree
        yield Release("megatron-lm", version, False, {path: _blob(tree, path) for path in files})


def _blob(tree: Any, path: str) -> bytes | None:
    try:
        data: bytes = tree[path].data_stream.read()
    except KeyError:
        return None
    return data


def history(
    repo: Repo, upstream: str, refs: Sequence[str], path: str, floor: str, version_file: str
) -> Iterator[Commit]:
    """Every content that a file had on these refs, oldest first."""
    names = repo.git.for_each_ref("--format=%(refname)", *refs).split()
    options = ("--format=C %H %cs", "--raw", "--no-abbrev", "--no-renames", "-m", "--reverse")
    log = repo.git.log(*options, *names, "--", path)
    seen: dict[str, list[str]] = {}
    where = ""
    for line in log.splitlines():
        if line.startswith("C "):
            commit, date = line.split()[1:]
            where = f"{date} {commit[:9]}"
        elif line.startswith(":"):
            blob = line.split()[3]
            if set(blob) != {"0"}:
                seen.setdefault(blob, []).append(where)
    for blob, places in sorted(seen.items(), key=lambda item: min(item[1])):
        first = min(places)
        data = repo.odb.stream(bytes.fromhex(blob)).read()
        supported = _at_least(repo, first.split()[1], version_file, floor)
        yield Commit(upstream, path, data, first, max(places), supported)


def _at_least(repo: Repo, commit: str, version_file: str, floor: str) -> bool:
    from packaging.version import Version

    data = _blob(repo.commit(commit).tree, version_file)
    if data is None:
        return False
    text = data.decode()
    parts = dict(re.findall(r"^(MAJOR|MINOR|PATCH|PRE_RELEASE) = ['\"]?(\w*)", text, re.M))
    plain = re.search(r"\d+\.\d+(\.\d+)?", text)
    version = "{MAJOR}.{MINOR}.{PATCH}{PRE_RELEASE}".format(**parts) if parts else plain.group() if plain else "0"
    return Version(version) >= Version(floor)


def as_written(repo: Repo, ref: str, path: str, function: str, data: bytes) -> bytes | None:
    """A file with a pull request's change of one function, applied by GNU patch; None where it does not apply whole."""
    base = repo.git.merge_base("main", ref)
    hunks = _of_function(
        repo.git.diff(base, ref, "--", path, strip_newline_in_stdout=False), repo, base, path, function
    )
    with tempfile.TemporaryDirectory() as folder:
        target = os.path.join(folder, "file.py")
        with open(target, "wb") as file:
            file.write(data)
        command = ["patch", "--silent", "--force", "--no-backup-if-mismatch", "--reject-file=-", target]
        done = subprocess.run(command, input=hunks.encode(), capture_output=True, check=False)
        with open(target, "rb") as file:
            result = file.read()
    return result if done.returncode == 0 else None


def _of_function(diff: str, repo: Repo, base: str, path: str, function: str) -> str:
    """The hunks of a diff that touch a function: those around it, such as sorted imports, are not the fix."""
    before = _blob(repo.commit(base).tree, path)
    (node,) = shape.find(shape.parse(before or b""), function)
    head, *hunks = re.split(r"^(?=@@ )", diff, flags=re.MULTILINE)
    mine = []
    for hunk in hunks:
        start, length = (int(number or 1) for number in re.match(r"@@ -(\d+)(?:,(\d+))?", hunk).groups())  # type: ignore[union-attr]
        if start < (node.end_lineno or 0) and start + length > node.lineno:
            mine.append(hunk)
    return head + "".join(mine)
