"""Public patches, each tried on the wheel that it was made for: ``python -m tried.patches FOLDER [--write-docs]``.

``patches.json`` names them: repository, path, commit, digest, and the release. FOLDER has the clones of the
repositories, each as ORG+NAME/repo. A patch is whole where the pack of it gives what ``git apply`` gives of all
sections whose files the wheel has, but for lines of ours, and where ``unhang revert`` gives the wheel's bytes again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import NamedTuple

from support.pages import fill, table
from tried.steps import run, unhang

PAGE = Path(__file__).resolve().parents[2] / "docs" / "from-git-apply.md"
LIST = Path(__file__).with_name("patches.json")
MARK = b"# unhang "


class Source(NamedTuple):
    """Where a patch is, and the release that it is for."""

    repository: str
    path: str
    commit: str
    sha256: str
    name: str
    version: str


class Came(NamedTuple):
    """What came of a patch."""

    source: Source
    what: str
    """``whole``, or what else."""
    functions: int = 0
    texts: int = 0


def sources() -> list[Source]:
    """Return the patches of the list."""
    return [Source(**row) for row in json.loads(LIST.read_text())]


def read(source: Source, clones: Path) -> bytes:
    """Return a patch; raise ValueError if it is another one."""
    clone = clones / source.repository.replace("/", "+") / "repo"
    words = ("git", "-C", str(clone), "cat-file", "blob", f"{source.commit}:{source.path}")
    data = subprocess.run(words, capture_output=True, check=True).stdout
    if hashlib.sha256(data).hexdigest() != source.sha256:
        raise ValueError(f"{source.repository} {source.path} is another patch")
    return data


def wheel(source: Source, folder: Path) -> Path | None:
    """Download the wheel of a release for the first Python that has one; None if none has."""
    for python in ("3.11", "3.12", "3.9", "3.13"):
        platforms = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64", "any")
        words = [word for name in platforms for word in ("--platform", name)]
        words += ["--no-deps", "--only-binary=:all:", "--python-version", python, "-d", str(folder)]
        wanted = f"{source.name}=={source.version}"
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "-q", *words, wanted], capture_output=True, check=False
        )
        if found := sorted(folder.glob("*.whl")):
            return found[0]
    return None


def tree(folder: Path) -> dict[str, bytes]:
    """Return the files of a folder, without git's and ours."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(it.relative_to(folder)): it.read_bytes() for it in files if not {".git", ".unhang"} & {*it.parts}}


def given(patch: Path, folder: Path) -> str:
    """Apply to a folder, as git does, the sections of a patch for files that it has; return why git refuses."""
    names = {*tree(folder)}
    content = patch.read_text(encoding="utf-8", errors="surrogateescape")
    headers = re.findall(r"^\+\+\+ (\"?[^\t\n]+)", content, re.MULTILINE)
    paths = [re.sub(r"\s+\d{4}-.*", "", it).strip('"') for it in headers]
    for strip in (1, 2, 0, 3):
        there = ["/".join(path.split("/")[strip:]) for path in paths]
        if there := [path for path in there if path in names]:
            words = (f"-p{strip}", *(f"--include={path}" for path in there), str(patch))
            done = run("git", "apply", *words, cwd=folder)
            return done.text if done.code else ""
    return "the wheel has none of its files"


def came(source: Source, data: bytes, work: Path) -> Came:
    """Try one patch."""
    found = wheel(source, work / "wheels")
    if found is None:
        return Came(source, "no wheel")
    patch, pack = work / "change.patch", work / "pack"
    patch.write_bytes(data)
    ours, theirs = work / "ours", work / "theirs"
    for folder in (ours, theirs):
        with zipfile.ZipFile(found) as archive:
            archive.extractall(folder)
    if why := given(patch, theirs):
        return Came(source, f"git refuses: {why.splitlines()[0]}")
    begun = unhang("new", "tried", "--pack", str(pack), "--upstream", str(found), "--from-patch", str(patch))
    if begun.code:
        line = next((it for it in begun.text.splitlines() if it.startswith(("error", "left to you"))), begun.text)
        return Came(source, f"refused: {line.partition(': ')[2]}"[:160])
    before = tree(ours)
    here = ("--pack", str(pack), "--target", str(ours))
    applied, checked = unhang("apply", *here, "--require", "tried"), unhang("check", *here)
    differs = [it for it, data in tree(theirs).items() if ".dist-info/" not in it and without_marks(ours / it) != data]
    reverted = unhang("revert", *here)
    if applied.code or checked.code:
        return Came(source, "refused by apply")
    if differs or reverted.code or tree(ours) != before:
        return Came(source, f"WRONG: {', '.join(differs) or 'not reverted'}")
    targets = json.loads((pack / "patches" / "tried" / "manifest.json").read_text())["targets"]
    return Came(source, "whole", *(sum(kind in it for it in targets) for kind in ("function", "text")))


def without_marks(path: Path) -> bytes:
    """Return a file without the lines of ours."""
    return b"".join(row for row in path.read_bytes().splitlines(keepends=True) if MARK not in row)


def text(every: list[Came]) -> str:
    """Return the part of the page that says what came of all of them."""
    taken = [it for it in every if not it.what.startswith(("no wheel", "git refuses"))]
    whole, wrong = (sum(it.what.startswith(word) for it in taken) for word in ("whole", "WRONG"))
    head = (
        f"Of {len(taken)} public patches that `git apply` takes on the wheel that they were made for, **{whole} became "
        f"packs whole**: the same bytes except for our comments, and the wheel's own bytes after `revert`. {wrong} "
        "gave anything else."
    )
    names = sorted({it.source.repository for it in taken})
    sums = [_sums(name, [it for it in taken if it.source.repository == name]) for name in names]
    others = [
        (f"{it.source.repository} `{it.source.path}`", f"{it.source.name} {it.source.version}", it.what)
        for it in sorted(taken) if it.what != "whole"
    ]  # fmt: skip
    by_source = table(("repository", "patches", "whole", "functions", "other lines"), sums)
    listed = "`tests/tried/patches.json` names each, with its commit and digest. Those that did not become one:"
    return f"{head}\n\n{by_source}\n\n{listed}\n\n{table(('patch', 'release', 'became'), others)}"


def _sums(name: str, every: list[Came]) -> tuple[str, ...]:
    whole = sum(it.what == "whole" for it in every)
    numbers = len(every), whole, sum(it.functions for it in every), sum(it.texts for it in every)
    return (name, *map(str, numbers))


def main() -> int:
    """Try all patches; return 1 if one is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tried.patches", description=__doc__)
    parser.add_argument("clones", type=Path)
    parser.add_argument("--write-docs", action="store_true")
    parser.add_argument("--results", type=Path, help="go on after what this file has of an earlier run")
    options = parser.parse_args()
    known = json.loads(options.results.read_text()) if options.results and options.results.exists() else {}
    every = []
    for source in sources():
        if source.sha256 not in known:
            with tempfile.TemporaryDirectory(prefix="unhang-tried-") as folder:
                known[source.sha256] = came(source, read(source, options.clones), Path(folder))[1:]
            print(source.repository, source.path, source.name, source.version, known[source.sha256][0], flush=True)
            if options.results:
                options.results.write_text(json.dumps(known))
        every.append(Came(source, *known[source.sha256]))
    if options.write_docs:
        fill(PAGE, "<!-- patches: written by python -m tried.patches -->", "<!-- end of patches -->", text(every))
    return int(any(it.what.startswith("WRONG") for it in every))


if __name__ == "__main__":
    sys.exit(main())
