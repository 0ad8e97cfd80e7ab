"""Two branches of a clone, each with a made-up fix: their merge, and what settles it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.checkout import REPOSITORY
from support.fake_clone import git

pytestmark = pytest.mark.skipif(not (REPOSITORY / ".git").exists(), reason="this is no clone")

MODEL = "mtp-cp-deadlock"
# the two are neighbours in every list, and beside their model: whatever both change, git finds in one place
IDS = (f"{MODEL}-a", f"{MODEL}-b")
PARTS = (
    "patches/{id}/manifest.json",
    "patches/{id}/page.md",
    "patches/{id}/drawing.json",
    "codemods/{module}.py",
    "compat/data/{id}.json",
    "src/unhang/prove/fixes/{module}.py",
    "tests/fixes/test_{module}.py",
)
LISTS = {"docs/my-job-hangs.md", "docs/my-numbers-are-wrong.md"}
PAGES = {"README.md", "docs/architecture.md", "docs/matrix.svg", *LISTS}


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """The checkout as it is, as a repository with one commit."""
    listed = git(REPOSITORY, "ls-files", "--cached", "--others", "--exclude-standard").splitlines()
    for name in listed:
        if os.path.lexists(REPOSITORY / name):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(REPOSITORY / name, tmp_path / name, follow_symlinks=False)
    git(tmp_path, "init", "-q")
    commit(tmp_path, "as it is")
    return tmp_path


def commit(clone: Path, subject: str) -> None:
    git(clone, "add", "-A")
    git(clone, "commit", "-qm", subject)


def run(clone: Path, module: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run a module of the clone, as its sessions do."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(clone / "src"), str(clone / "tests")])}
    command = [sys.executable, "-m", module, *options]
    return subprocess.run(command, cwd=clone, env=env, capture_output=True, text=True, check=False)


def write_pages(clone: Path) -> None:
    """What `nox -s pages` does."""
    for module in "unhang.compat.sweep.pages", "support.architecture":
        done = run(clone, module)
        assert done.returncode == 0, done.stderr


def add(clone: Path, fix: str) -> None:
    """Add a fix, all of whose parts say what those of its model say; commit it with the pages."""
    for part in PARTS:
        before, after = (clone / part.format(id=name, module=name.replace("-", "_")) for name in (MODEL, fix))
        text = before.read_text(encoding="utf-8")
        after.parent.mkdir(exist_ok=True)
        after.write_text(text.replace(MODEL, fix).replace(MODEL.replace("-", "_"), fix.replace("-", "_")))
    changes = clone / "CHANGELOG.md"
    changes.write_text(changes.read_text().replace("\n- ", f"\n- `{fix}` is new.\n- ", 1))
    write_pages(clone)
    commit(clone, f"Add {fix}")


@pytest.mark.slow
def test_two_branches_with_a_fix_each_conflict_in_pages_alone_which_are_written_anew(clone: Path) -> None:
    for fix in IDS:
        git(clone, "checkout", "-qb", fix, "main")
        add(clone, fix)
    with pytest.raises(subprocess.CalledProcessError):
        git(clone, "merge", "-q", IDS[0])
    conflicts = {*git(clone, "diff", "--name-only", "--diff-filter=U").splitlines()}
    assert conflicts
    assert conflicts <= PAGES
    write_pages(clone)
    assert not [name for name in PAGES if "<<<<<<<" in (clone / name).read_text(encoding="utf-8")]
    for module, option in ("unhang.compat.sweep.pages", "--check"), ("unhang.compat.sweep.lint", "--sample=0"):
        done = run(clone, module, option)
        assert done.returncode == 0, done.stdout + done.stderr
    assert all(f"- `{fix}` is new.\n" in (clone / "CHANGELOG.md").read_text() for fix in IDS)
    rows = (clone / "README.md").read_text().splitlines()
    assert [row.split("`")[1] for row in rows if row.startswith(f"| `{MODEL}")] == [MODEL, *IDS]
    assert {line.split()[0] for line in run(clone, "unhang", "list").stdout.splitlines() if line} >= {*IDS}
