"""Two trees at a ref of a made-up clone, by path and by URL, or of a made-up sdist; and what cannot be fetched."""

from __future__ import annotations

import hashlib
import tarfile
from pathlib import Path

import pytest
from git import Repo

from support import cli
from unhang.errors import UnhangError
from upstream import selection, trees

MEGATRON = selection.upstream("megatron-lm")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone with a release, tagged as Megatron-LM tags, and a commit on main after it."""
    folder = tmp_path / "clone"
    with Repo.init(folder, initial_branch="main") as repo:
        for number, text in enumerate(("released", "newer")):
            (folder / "file.py").write_text(text)
            repo.git.add("file.py")
            repo.git(c=["user.name=us", "user.email=us@here"]).commit("-m", text)
            if not number:
                repo.git.tag("core_v1.2.0")
                repo.git.branch("core_r1.2.0")
    return folder


def texts(where: str, ref: str, cache: Path) -> set[str]:
    """Return the contents of both trees at a ref."""
    with trees.of_clone(where, trees.refs_of(ref, MEGATRON), cache, "A_VARIABLE") as both:
        assert both.before != both.after
        return {(side / "file.py").read_text() for side in both[:2]}


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_a_tag_a_version_a_branch_and_a_commit(clone: Path, tmp_path: Path, scheme: str) -> None:
    with Repo(clone) as repo:
        commit = repo.tags[0].commit.hexsha
    for ref in ("core_v1.2.0", "1.2.0", "core_r1.2.0", commit):
        assert texts(f"{scheme}{clone}", ref, tmp_path / "cache") == {"released"}
    assert texts(f"{scheme}{clone}", "main", tmp_path / "cache") == {"newer"}
    if not scheme:
        assert texts(str(clone), commit[:9], tmp_path / "cache") == {"released"}


def test_a_branch_that_only_the_remote_of_a_clone_has(clone: Path, tmp_path: Path) -> None:
    with Repo.clone_from(str(clone), tmp_path / "second") as second:
        assert "core_r1.2.0" not in second.heads
    assert texts(str(tmp_path / "second"), "core_r1.2.0", tmp_path / "cache") == {"released"}


def test_a_bare_clone_without_a_config_file(clone: Path, tmp_path: Path) -> None:
    with Repo.clone_from(str(clone), tmp_path / "bare", mirror=True) as bare:
        (Path(bare.git_dir) / "config").unlink()
    assert texts(str(tmp_path / "bare"), "core_r1.2.0", tmp_path / "cache") == {"released"}
    with pytest.raises(UnhangError, match="remote ref core_v9") as caught:
        texts(str(tmp_path / "bare"), "core_v9", tmp_path / "cache")
    assert "\n" not in caught.value.message


def test_the_clone_is_unchanged_and_the_trees_are_removed(clone: Path, tmp_path: Path) -> None:
    before = cli.tree(clone)
    cache = tmp_path / "cache"
    with trees.of_clone(str(clone), ["main"], cache, "A_VARIABLE") as both:
        (both.after / "file.py").write_text("patched")
        (both.after / "new").write_text("")
        assert (both.before / "file.py").read_text() == "newer"
        places = both[:2]
    assert cli.tree(clone) == before
    assert not any(place.exists() for place in places)
    assert [path.name for path in cache.iterdir()] == ["clones"]
    assert texts(str(clone), "main", cache) == {"newer"}


def test_a_moved_branch_is_fetched_again_but_only_its_last_commit(clone: Path, tmp_path: Path) -> None:
    with trees.of_clone(f"file://{clone}", ["main"], tmp_path / "cache", "A_VARIABLE"):
        (repository,) = (tmp_path / "cache" / "clones").glob("*[!k]")
        with Repo(repository) as ours:
            assert ours.git.rev_list("--count", "--all", "FETCH_HEAD") == "1"
    (clone / "file.py").write_text("newest")
    with Repo(clone) as repo:
        repo.git(c=["user.name=us", "user.email=us@here"]).commit("-am", "newest")
    assert texts(f"file://{clone}", "main", tmp_path / "cache") == {"newest"}


@pytest.mark.parametrize(
    ("where", "code", "why"),
    [
        ("{}/clone", "no-ref", "core_v9.9.9"),
        ("file://{}/clone", "no-ref", "core_v9.9.9"),
        ("file://{}/nowhere", "fetch-failed", "nowhere"),
        ("{}", "fetch-failed", ""),
    ],
)
def test_what_is_no_clone_or_lacks_the_ref_is_an_error_with_a_hint(
    clone: Path, tmp_path: Path, where: str, code: str, why: str
) -> None:
    with pytest.raises(UnhangError) as caught:
        texts(where.format(clone.parent), "core_v9.9.9", tmp_path / "cache")
    assert caught.value.code == code
    assert why in caught.value.message
    assert "A_VARIABLE" in str(caught.value.hint)


def test_a_cached_sdist_of_the_right_digest_is_unpacked_twice(tmp_path: Path) -> None:
    (tmp_path / "file.py").write_text("released")
    (tmp_path / "sdists").mkdir()
    archive = tmp_path / "sdists" / "made_up-1.0.tar.gz"
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(tmp_path / "file.py", "made_up-1.0/file.py")
    sha256 = hashlib.sha256(archive.read_bytes()).hexdigest()
    with trees.of_sdist("made-up", "1.0", sha256, tmp_path) as both:
        assert {(side / "file.py").read_text() for side in both[:2]} == {"released"}
        assert both.before != both.after
        assert "sdist" in both.origin
    assert not both.after.exists()


@pytest.mark.parametrize(
    ("ref", "expected"),
    [
        ("core_v0.17.1", ["refs/tags/core_v0.17.1", "refs/heads/core_v0.17.1", "core_v0.17.1"]),
        ("0.17.1", ["refs/tags/0.17.1", "refs/tags/core_v0.17.1", "refs/heads/0.17.1", "0.17.1"]),
        ("refs/pull/1/head", ["refs/pull/1/head"]),
        ("a" * 40, ["a" * 40]),
    ],
)
def test_what_a_ref_may_mean(ref: str, expected: list[str]) -> None:
    assert trees.refs_of(ref, MEGATRON) == expected
