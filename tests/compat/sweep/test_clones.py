"""What is read from a clone, on made-up repositories."""

from pathlib import Path

import pytest

from support.fake_clone import BROKEN, UPSTREAMS, git, repository
from support.fake_index import BATCH, CLEAN, ENGINE, UNCLEAR
from unhang.compat.sweep import clones, sources
from unhang.errors import UnhangError

pytest.importorskip("git")


@pytest.mark.parametrize("kind", ["mirror", "mirror, no config", "work", "url", "url of a server that sends all"])
def test_history_is_every_content_with_its_first_and_last_commit(kind: str, tmp_path: Path) -> None:
    origin = repository(tmp_path / "origin")
    where = f"file://{origin}"
    if kind.startswith("url of"):
        git(origin, "config", "uploadpack.allowFilter", "false")
        git(origin, "config", "uploadpack.allowAnySHA1InWant", "false")
    elif kind != "url":
        git(tmp_path, "clone", "-q", *(["--mirror"] if kind.startswith("mirror") else []), str(origin), "copy")
        where = str(tmp_path / "copy")
    if kind == "mirror, no config":
        (tmp_path / "copy" / "config").unlink()
    repo = clones.open_clone(where, tmp_path / "cache")
    clone = clones.newest(repo, UPSTREAMS["verl"], ())
    assert repo.bare is (kind not in ("work", "mirror, no config"))
    assert clone.refs == {f"refs/heads/{name}": git(origin, "rev-parse", name) for name in ("main", "dev")}
    if kind == "url":
        missing = repo.git.rev_list("--objects", "--all", "--missing=print")
        assert "?" in missing, "no blob is in it before one is asked for"
    seen, commits = clones.history(clone, UPSTREAMS["verl"], [ENGINE])
    assert commits == 6
    texts = [UNCLEAR, CLEAN, BROKEN, CLEAN.replace("0", "2"), CLEAN.replace("0", "3")]
    assert [item.content.data.decode() for item in seen] == texts
    names = git(origin, "log", "--reverse", "--format=%h", "--abbrev=9", "main").split()
    assert seen[1][2:] == (f"2026-01-02 {names[1]}", f"2026-01-05 {names[4]}", True)
    assert [item.supported for item in seen] == [False, True, True, True, True]
    assert [path for path, _ in clones.tips(clone, UPSTREAMS["verl"], [ENGINE, "no/such.py"])] == [ENGINE]


def test_blobs_are_fetched_in_one_go(tmp_path: Path) -> None:
    origin = repository(tmp_path / "origin")
    repo = clones.open_clone(f"file://{origin}", tmp_path / "cache")
    blobs = [git(origin, "rev-parse", f"{commit}:{ENGINE}") for commit in ("main", "main~1", "dev")]
    reader = clones.Reader(repo)
    reader.prefetch(blobs)
    origin.rename(tmp_path / "away")
    reader.prefetch(blobs)
    assert [reader.content(blob) is None for blob in blobs] == [False] * 3, "nothing is left to ask the origin for"
    assert reader.content(f"main~1:{ENGINE}") == reader.content(blobs[1])
    assert reader.content("main:verl") is None, "a folder"
    assert reader.content("main:no/such") is None


def test_trees_are_the_tagged_releases_that_no_wheel_has(tmp_path: Path) -> None:
    origin = repository(tmp_path / "origin")
    for tag in ("core_v0.9.0", "core_v0.16.0", "core_v0.16.0rc1", "core_v0.17.0", "core_vnext", "v0.15.0"):
        git(origin, "tag", *(["-am", "a tag object"] if tag == "core_v0.16.0" else []), tag)
    entry = {**UPSTREAMS["megatron-core"], "refs": ["refs/tags/*"]}
    clone = clones.newest(clones.open_clone(str(origin), tmp_path), entry, ())
    found = {item.version: item for item in clones.trees(clone, "megatron-lm", entry, [ENGINE, BATCH], ["0.17.0"])}
    assert sorted(found) == ["0.16.0", "0.16.0rc1"]
    release = found["0.16.0"]
    assert (release.upstream, release.files[BATCH]) == ("megatron-lm", None)
    assert release.files[ENGINE] == sources.content(CLEAN.encode())


@pytest.mark.parametrize("where", ["{}/nowhere", "file://{}/nowhere", "{}"])
def test_what_is_no_clone_is_refused_by_name(where: str, tmp_path: Path) -> None:
    place = where.format(tmp_path)
    with pytest.raises(UnhangError) as caught:
        clones.open_clone(place, tmp_path / "cache")
    assert (caught.value.code, place in caught.value.message) == ("clone-failed", True)


def test_a_clone_that_lacks_a_pull_request_says_how_to_fetch_it(tmp_path: Path) -> None:
    origin = repository(tmp_path / "origin")
    pulls = ["refs/pull/7/head"]
    with pytest.raises(UnhangError) as caught:
        clones.newest(clones.open_clone(str(origin), tmp_path, pulls), UPSTREAMS["verl"], pulls)
    assert caught.value.hint == "run this there: git fetch origin refs/pull/7/head:refs/pull/7/head"
    git(origin, "update-ref", "refs/pull/7/head", "dev")
    clones.open_clone(f"file://{origin}", tmp_path)
    for where in (str(origin), f"file://{origin}"):  # a clone of ours is brought up to date
        clone = clones.newest(clones.open_clone(where, tmp_path, pulls), UPSTREAMS["verl"], pulls)
        assert clone.pulls == {"refs/pull/7/head": git(origin, "rev-parse", "dev")}


@pytest.mark.parametrize("where", ["{}", "file://{}"])
def test_a_clone_that_lacks_a_frozen_commit_says_how_to_fetch_it(where: str, tmp_path: Path) -> None:
    origin = repository(tmp_path / "origin")
    main, gone = git(origin, "rev-parse", "main"), "1" * 40
    repo = clones.open_clone(where.format(origin), tmp_path)
    with pytest.raises(UnhangError) as caught:
        clones.at(repo, {"refs/heads/main": main, "refs/tags/v1": gone})
    assert f"lacks 1 of the 2 commits that the sweep reads: {gone} (refs/tags/v1)" in caught.value.message
    assert caught.value.hint is not None
    assert caught.value.hint.startswith(f"run this there: git fetch origin {gone}; ")
    with pytest.raises(UnhangError, match="no commits of it are on record"):
        clones.at(repo, {})
    with pytest.raises(UnhangError, match="reads no refs/heads/dev"):
        clones.at(repo, {"refs/heads/main": main}).commit("refs/heads/dev")
