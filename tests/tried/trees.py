"""Copies of releases to try patches on: the Python files and the record of a wheel, without its libraries."""

from __future__ import annotations

import difflib
import io
import keyword
import os
import shutil
import subprocess
import tokenize
import zipfile
from contextlib import suppress
from pathlib import Path

from support import environments
from tried.originals import Upstream

CACHE = Path(os.environ.get("UNHANG_WHEELS") or Path.home() / ".cache" / "unhang" / "wheels") / "of-others"
LIMIT = 500_000_000  # bytes
_PLATFORMS = ("manylinux_2_34_x86_64", "manylinux_2_28_x86_64", "any")


def wheel(upstream: Upstream) -> Path:
    """Return a release's wheel, downloading it if the cache lacks it. Raises CalledProcessError where pip fails."""
    folder = CACHE / f"{upstream.project}-{upstream.version}"
    if not (found := sorted(folder.glob("*.whl"))):
        folder.mkdir(parents=True, exist_ok=True)
        platforms = [word for platform in _PLATFORMS for word in ("--platform", platform)]
        command = [environments.pip_python(), "-m", "pip", "download", "--disable-pip-version-check", "-q", "--no-deps"]
        command += ["--only-binary=:all:", "--python-version", "3.12", *platforms, "--dest", str(folder)]
        subprocess.run([*command, f"{upstream.project}=={upstream.version}"], check=True, timeout=600)
        found = sorted(folder.glob("*.whl"))
    assert found[-1].stat().st_size <= LIMIT
    return found[-1]


def unpacked(upstream: Upstream, folder: Path) -> Path:
    """Unpack a release's Python files and its record below the folder, and return it."""
    with zipfile.ZipFile(wheel(upstream)) as archive:
        names = [it for it in archive.namelist() if it.endswith(".py") or ".dist-info/" in it]
        archive.extractall(folder, names)
    return folder


def copied(tree: Path, folder: Path) -> Path:
    """Return a copy of a tree whose files are its own."""
    return Path(shutil.copytree(tree, folder))


def contents(root: Path) -> dict[str, str]:
    """Return the text of each Python file of a tree, by its path in it."""
    return {
        path.relative_to(root).as_posix(): path.read_bytes().decode("utf-8", "surrogateescape")
        for path in root.rglob("*.py")
    }


def diff(before: dict[str, str], after: dict[str, str]) -> str:
    """Return what changed between two trees, as a diff that ``git apply`` takes."""
    rows: list[str] = []
    for path in sorted(after):
        if before.get(path) != after[path]:
            old, new = before.get(path, "").splitlines(keepends=True), after[path].splitlines(keepends=True)
            rows += difflib.unified_diff(old, new, f"a/{path}", f"b/{path}")
    return "".join(rows)


def drifted(text: str, row: int) -> str:
    """Return a file with one name of this line changed, or a string where it has no name, as a release may do.

    The file still parses, or parsed before neither. ``row`` is counted from 1.
    """
    rows = text.splitlines(keepends=True)
    line = rows[row - 1]
    tokens: list[tokenize.TokenInfo] = []
    with suppress(tokenize.TokenError):  # the statement goes on in the next line
        tokens.extend(tokenize.generate_tokens(io.StringIO(line.strip() + "\n").readline))
    indent = len(line) - len(line.lstrip())
    for wanted in (tokenize.NAME, tokenize.STRING):
        found = [it for it in tokens if it.type == wanted and not keyword.iskeyword(it.string)]
        if found:
            end = indent + found[-1].end[1] - (wanted == tokenize.STRING)
            rows[row - 1] = f"{line[:end]}_{line[end:]}"
            return "".join(rows)
    raise ValueError(f"nothing to change in line {row}")


def first_change(before: str, after: str) -> int:
    """Return the number of the first line that a patch takes away, or above which it adds one; from 1."""
    old, new = before.splitlines(), after.splitlines()
    for how, first, last, _, _ in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if how in ("replace", "delete"):
            return next(number + 1 for number in range(first, last) if old[number].strip())
        if how == "insert":
            return next(number + 1 for number in range(first - 1, -1, -1) if old[number].strip())
    raise ValueError("nothing changes")
