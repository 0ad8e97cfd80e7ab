"""Commit and tag of a checkout, read from the files that git wrote, without running git."""

import subprocess
from pathlib import Path

import pytest

from support import cli
from unhang.find import git_info
from unhang.records import Installation


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@t", "-c", "protocol.file.allow=always"]
    done = subprocess.run(["git", *identity, "-C", folder, *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def shown(root: Path) -> str | None:
    found = Installation("verl", None, str(root), str(root), str(root / "verl"), "source", None, ())
    return git_info.commits([found]).get(str(root))


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Make a checkout with one commit and no tag."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    git(folder, "commit", "-q", "--allow-empty", "-m", "x")
    return folder


def test_the_commit_and_its_printable_tags(checkout: Path) -> None:
    commit = git(checkout, "rev-parse", "HEAD")
    (checkout / ".git" / "refs" / "tags" / "v1\x1b[31m").write_text(commit)
    assert shown(checkout) == f"git {commit[:9]}"
    git(checkout, "tag", "lightweight")
    git(checkout, "checkout", "-q", "--detach")
    assert shown(checkout) == f"git {commit[:9]} (lightweight)"
    git(checkout, "commit", "-q", "--allow-empty", "-m", "y")
    assert shown(checkout) == f"git {git(checkout, 'rev-parse', 'HEAD')[:9]}", "the tag is of another commit"


def test_refs_that_are_packed_and_an_annotated_tag(checkout: Path) -> None:
    git(checkout, "tag", "-m", "a release", "core/v0.17.1")
    git(checkout, "pack-refs", "--all")
    assert shown(checkout) == f"git {git(checkout, 'rev-parse', 'HEAD')[:9]} (core/v0.17.1)"


def test_a_clone_a_worktree_and_a_submodule(checkout: Path, tmp_path: Path) -> None:
    git(checkout, "tag", "-m", "a release", "v1")
    expected = f"git {git(checkout, 'rev-parse', 'HEAD')[:9]} (v1)"
    git(tmp_path, "clone", "-q", f"file://{checkout}", "clone")
    git(checkout, "pack-refs", "--all")
    git(checkout, "worktree", "add", "-q", "--detach", str(tmp_path / "worktree"))
    (tmp_path / "outer").mkdir()
    git(tmp_path / "outer", "init", "-q")
    git(tmp_path / "outer", "submodule", "--quiet", "add", f"file://{checkout}", "inner")
    found = [shown(tmp_path / name) for name in ("clone", "worktree", "outer/inner")]
    assert found == [expected, expected, expected]


def test_nothing_is_shown_outside_of_git_and_before_the_first_commit(tmp_path: Path) -> None:
    assert shown(tmp_path) is None
    git(tmp_path, "init", "-q")
    assert shown(tmp_path) is None


@pytest.mark.parametrize(
    "head", ["ref: ../../../../etc/passwd", "ref: refs/../../secret", "ref: refs/heads/\0", "\x1b[31m", "", "f" * 39]
)
def test_a_hostile_head_shows_nothing(head: str, tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "HEAD").write_text(head)
    (tmp_path / "secret").write_text("a" * 40)
    assert shown(tmp_path) is None


def test_check_shows_the_commit_without_running_git(checkout: Path, tmp_path: Path) -> None:
    cli.unpack_targets(checkout, ("verl", "0.9.1"))
    git(checkout, "tag", "v0.9.1")
    (tmp_path / "ran").mkdir()
    git(checkout, "config", "core.fsmonitor", f"touch {tmp_path}/ran/it")
    ran = cli.unhang("check", "--source", checkout, env={"PATH": "/nonexistent"})
    assert f"verl 0.9.1  {checkout}  git {git(checkout, 'rev-parse', 'HEAD')[:9]} (v0.9.1)\n" in ran.out
    assert not [*(tmp_path / "ran").iterdir()]
