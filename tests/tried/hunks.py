"""slime's patch of Megatron-LM, on the commit that its Dockerfile names: which of its hunks become part of a fix."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from support import environments
from support.pages import table
from tried import steps, trees
from tried.clones import commit, shown
from tried.page import why

PATCH, DOCKERFILE = "docker/patch/latest/megatron.patch", "docker/Dockerfile"
_COMMIT = re.compile(r"^ARG MEGATRON_COMMIT=([0-9a-f]{40})$", re.M)
_FIX = "slime"


class File(NamedTuple):
    """What came of the part of the patch that is about one file."""

    name: str
    hunks: int
    left: Mapping[str, str]
    """Why a hunk is left to a person, by its header."""
    ends: str
    """What else stopped it; empty if nothing did."""

    @property
    def fit(self) -> int:
        """How many of its hunks are in a fix."""
        return 0 if self.ends else self.hunks - len(self.left)


def slime(slime_clone: str, megatron_clone: str, folder: Path) -> str:
    """Return the table, as Markdown: a fix is begun from the part of each file."""
    patch = shown(slime_clone, f"HEAD:{PATCH}").decode()
    (at,) = _COMMIT.findall(shown(slime_clone, f"HEAD:{DOCKERFILE}").decode())
    root, version = _tree(megatron_clone, at, patch, folder / "megatron")
    found = [_file(number, text, root, version, folder) for number, text in enumerate(_parts(patch))]
    alike = _as_one(patch, root, version, folder)
    hunks, fit = sum(it.hunks for it in found), sum(it.fit for it in found)
    whole = sum(it.fit == it.hunks for it in found)
    head = (
        f"`{PATCH}` of slime at {commit(slime_clone, 'HEAD')}, on Megatron-LM's commit `{at[:9]}` ({version} by its "
        f"package_info.py): **{fit} of {hunks} hunks** are in a fix, and {whole} of {len(found)} files as a whole. "
        f"Begun as one fix from the whole patch, and applied to that tree with `unhang apply`, it gives {alike} of "
        f"{len(found)} files as `git apply` does, byte for byte, but for its own comments."
    )
    rows = [(f"`{it.name}`", f"{it.fit} of {it.hunks}", _why(it)) for it in found]
    return f"{head}\n\n{table(('file', 'hunks in a fix', 'what is left, and why'), rows)}"


def _tree(clone: str, at: str, patch: str, root: Path) -> tuple[Path, str]:
    """Write the files that the patch is about, as they are in the commit, and return the folder and the version."""
    info = shown(clone, f"{at}:megatron/core/package_info.py")
    parts = dict(re.findall(r"^(MAJOR|MINOR|PATCH|PRE_RELEASE) = '?(\w*)", info.decode(), re.M))
    version = "{MAJOR}.{MINOR}.{PATCH}{PRE_RELEASE}".format(**parts)
    environments.tree(root, version)
    (root / "megatron/core/package_info.py").write_bytes(info)
    for name in re.findall(r"^--- a/(.+)$", patch, re.M):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(shown(clone, f"{at}:{name}"))
    return root, version


def _parts(patch: str) -> list[str]:
    return [part for part in re.split(r"^(?=diff --git )", patch, flags=re.M) if part.startswith("diff --git ")]


def _file(number: int, text: str, root: Path, version: str, folder: Path) -> File:
    name = text.partition(" b/")[2].partition("\n")[0]
    headers = re.findall(r"^@@ [^@]+ @@", text, re.M)
    diff = folder / f"slime-{number}.diff"
    diff.write_text(text, encoding="utf-8")
    command = ["new", f"{_FIX}-{number}", "--pack", str(folder / f"pack-{number}"), "--source", str(root)]
    ran = steps.unhang(*command, "--upstream", f"megatron-core=={version}", "--from-patch", str(diff))
    left: dict[str, str] = {}
    for line in re.findall(r"^left to you: (.+)$", ran.text, re.M):
        header = next((it for it in headers if it in line), "")
        left.setdefault(header or line, line.partition(f"{header}: ")[2] if header else line)
    begun = (folder / f"pack-{number}" / "pack.json").exists()
    return File(name, len(headers), left, "" if begun else steps.said(ran))


def _as_one(patch: str, root: Path, version: str, folder: Path) -> int:
    """Return how many files the whole patch gives, as one fix, as git gives them. Both work on copies."""
    git, ours, diff, pack = folder / "git", folder / "ours", folder / "slime.diff", folder / "pack-slime"
    diff.write_text(patch, encoding="utf-8")
    for copy in (git, ours):
        trees.copied(root, copy)
    steps.run("git", "apply", str(diff), cwd=git)
    command = ["--pack", str(pack), "--source", str(ours)]
    steps.unhang("new", _FIX, *command, "--upstream", f"megatron-core=={version}", "--from-patch", str(diff))
    steps.unhang("apply", *command, "--fix", _FIX)
    wanted, got = trees.contents(git), trees.contents(ours)
    names = re.findall(r"^--- a/(.+)$", patch, re.M)
    return sum(wanted[name] == re.sub(r"^ *# unhang .*\n", "", got[name], flags=re.M) for name in names)


def _why(file: File) -> str:
    if file.ends:
        return why(file.ends)
    return "; ".join(why(reason) for reason in file.left.values())
