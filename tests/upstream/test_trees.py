"""Two trees at a ref of a made-up clone, by path and by URL, or of a made-up sdist; and what cannot be fetched."""

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
    with Repo.init(tmp_path / "clone", initial_branch="main") as repo:
        for text in "released", "newer":
            commit(repo, text)
            if text == "released":
                repo.git.tag("core_v1.2.0")
                repo.git.branch("core_r1.2.0")
                repo.git.update_ref("refs/pull/1/head", "HEAD")
    return tmp_path / "clone"


def commit(repo: Repo, text: str) -> None:
    (Path(repo.working_dir) / "file.py").write_text(text)
    repo.git.add("file.py")
    repo.git(c=["user.name=us", "user.email=us@here"]).commit("-m", text)


def texts(where: str | Path, ref: str, cache: Path) -> set[str]:
    with trees.of_clone(str(where), trees.refs_of(ref, MEGATRON), cache, "A_VARIABLE") as both:
        assert both.before != both.after
        return {(side / "file.py").read_text() for side in both[:2]}


def test_a_tag_a_version_a_branch_and_a_commit(clone: Path, tmp_path: Path) -> None:
    """Also of a clone whose remote has the branch, and of a bare one without a config file."""
    with Repo(clone) as repo, repo.clone(str(tmp_path / "second")), repo.clone(str(tmp_path / "bare"), mirror=True):
        hexsha = repo.tags[0].commit.hexsha
    (tmp_path / "bare/config").unlink()
    for where in clone, f"file://{clone}":
        for ref in ("core_v1.2.0", "1.2.0", "core_r1.2.0", "refs/pull/1/head", hexsha):
            assert texts(where, ref, tmp_path / "cache") == {"released"}
        assert texts(where, "main", tmp_path / "cache") == {"newer"}
    for where, ref in (clone, hexsha[:9]), (tmp_path / "second", "core_r1.2.0"), (tmp_path / "bare", "core_r1.2.0"):
        assert texts(where, ref, tmp_path / "cache") == {"released"}


def test_the_clone_is_unchanged_and_the_trees_are_removed(clone: Path, tmp_path: Path) -> None:
    """And of a moved branch only the last commit is fetched."""
    before, cache = cli.tree(clone), tmp_path / "cache"
    with trees.of_clone(f"file://{clone}", ["main"], cache, "A_VARIABLE") as both:
        (both.after / "file.py").write_text("patched")
        (both.after / "new").write_text("")
        assert (both.before / "file.py").read_text() == "newer"
        with Repo(next((cache / "clones").glob("*[!k]"))) as ours:
            assert ours.git.rev_list("--count", "--all", "FETCH_HEAD") == "1"
    assert cli.tree(clone) == before
    assert not any(place.exists() for place in both[:2])
    with Repo(clone) as repo:
        commit(repo, "newest")
    assert texts(f"file://{clone}", "main", cache) == {"newest"}
    assert [path.name for path in cache.iterdir()] == ["clones"]


def test_what_is_no_clone_or_lacks_the_ref_is_an_error_with_a_hint(clone: Path, tmp_path: Path) -> None:
    for where, code in (
        (clone, "no-ref"),
        (f"file://{clone}", "no-ref"),
        (f"file://{clone}s", "fetch-failed"),
        (tmp_path, "fetch-failed"),
    ):
        with pytest.raises(UnhangError) as caught:
            texts(where, "core_v9", tmp_path / "cache")
        assert (caught.value.code, "A_VARIABLE" in str(caught.value.hint)) == (code, True)
        assert "\n" not in caught.value.message


def test_a_cached_sdist_of_the_right_digest_is_unpacked_twice(tmp_path: Path) -> None:
    (tmp_path / "file.py").write_text("released")
    archive = trees.made(tmp_path / "sdists") / "made_up-1.0.tar.gz"
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(tmp_path / "file.py", "made_up-1.0/file.py")
    with trees.of_sdist("made-up", "1.0", hashlib.sha256(archive.read_bytes()).hexdigest(), tmp_path) as both:
        assert {(side / "file.py").read_text() for side in {*both[:2]}} == {"released"}
        assert (both.before != both.after, "sdist" in both.origin) == (True, True)
    assert not both.after.exists()
