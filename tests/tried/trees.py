"""Copies of releases to try patches on: the Python files and the record of a wheel, without its libraries."""

from __future__ import annotations

import ast
import difflib
import io
import keyword
import os
import shutil
import subprocess
import tokenize
import zipfile
from collections.abc import Iterable, Mapping
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


def reduced(tree: Path, files: Iterable[str], folder: Path) -> Path:
    """Return a copy of a tree that has the records, these files, and of the packages what is at their top."""
    tops = [path.relative_to(tree).as_posix() for path in (*tree.glob("*/*.py"), *tree.glob("megatron/*/*.py"))]
    records = [path.relative_to(tree).as_posix() for path in tree.glob("*.dist-info/*") if path.is_file()]
    for name in {*tops, *records, *files}:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(tree / name, path)
    return folder


def write(root: Path, texts: Mapping[str, str]) -> None:
    """Give files of a tree these texts, where they have others."""
    for name, text in texts.items():
        data = text.encode("utf-8", "surrogateescape")
        if (root / name).read_bytes() != data:
            (root / name).write_bytes(data)


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


def drifted(before: str, after: str) -> str:
    """Return a file as a release may have changed it: one name is another one, in a line that a patch takes away.

    Where it takes none away, it is the nearest one above what it adds. Where such a line has no name, a string changes.
    What changes is code: no comment, and no docstring.
    """
    old, new = before.splitlines(), after.splitlines()
    changes = difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    taken = [row for how, first, last, _, _ in changes if how in ("replace", "delete") for row in range(first, last)]
    above = [row for how, first, *_ in changes if how == "insert" for row in range(first - 1, -1, -1)]
    rows = before.splitlines(keepends=True)
    for wanted in (tokenize.NAME, tokenize.STRING):
        for row in (*taken, *above):
            changed = "".join((*rows[:row], _renamed(rows[row], wanted), *rows[row + 1 :]))
            if code(changed) not in ("", code(before)):
                return changed
    raise ValueError("no line can change")


def code(text: str) -> str:
    """Return what of a file is code, without docstrings, in a form to compare; empty if it does not parse."""
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return ""
    for node in ast.walk(tree):
        if isinstance(body := getattr(node, "body", None), list):
            body[:] = [it for it in body if not (isinstance(it, ast.Expr) and isinstance(it.value, ast.Constant))]
    return ast.dump(tree)


def _renamed(line: str, kind: int) -> str:
    """Return a line with its last name, or its last string, changed; the same line if it has none."""
    tokens: list[tokenize.TokenInfo] = []
    with suppress(tokenize.TokenError):  # the statement goes on in the next line
        tokens.extend(tokenize.generate_tokens(io.StringIO(line.strip() + "\n").readline))
    found = [it for it in tokens if it.type == kind and not keyword.iskeyword(it.string)]
    if not found:
        return line
    end = len(line) - len(line.lstrip()) + found[-1].end[1] - (kind == tokenize.STRING)
    return f"{line[:end]}_{line[end:]}"
