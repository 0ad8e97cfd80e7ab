"""What is gathered from the index and the clones."""

from pathlib import Path

import pytest

from support.fake_clone import UPSTREAMS, git, repository
from support.fake_index import CLEAN, ENGINE
from unhang.compat import upstreams
from unhang.compat.sweep import as_written, clones, gather, settle
from unhang.compat.sweep.cache import Cache
from unhang.compat.sweep.collect import Collection
from unhang.compat.sweep.learnt import Learnt
from unhang.shapes import catalog


def test_the_files_of_the_targets_are_wanted_once() -> None:
    found = gather.wanted(gather.targets())
    assert set(found) == set(catalog.releases())
    assert {ENGINE, "verl/utils/seqlen_balancing.py"} <= set(found["verl"]), "what a target depends on too"
    assert all(len(set(paths)) == len(paths) for paths in found.values())


def test_a_clone_is_named_by_an_argument_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in clones.variables().values():
        monkeypatch.delenv(variable, raising=False)
    assert gather.clone_places([]) == {}
    monkeypatch.setenv(clones.variables()["verl"], "/environment")
    monkeypatch.setenv(clones.variables()["ms-swift"], "/swift")
    assert gather.clone_places(["verl=/argument"]) == {"verl": "/argument", "ms-swift": "/swift"}


def test_a_pull_request_as_written_is_collected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("git")
    origin = repository(tmp_path / "origin")
    git(origin, "checkout", "-qb", "pull")
    (origin / ENGINE).write_text(CLEAN.replace("number = 0", "number = 7"))
    git(origin, "commit", "-qam", "pull", day="2026-01-07")
    git(origin, "update-ref", "refs/pull/7/head", "pull")
    git(origin, "checkout", "-q", "main")
    (mtp,) = (target for target in gather.targets() if target.fix == "mtp-cp-deadlock")
    monkeypatch.setattr(upstreams, "projects", lambda: UPSTREAMS)
    pull = as_written.Pull(mtp, "verl", "refs/pull/7/head", "as written")
    monkeypatch.setattr(as_written, "pulls", lambda: [pull])
    cache = Cache(tmp_path / "cache")
    learnt = Learnt(cache)
    collection = Collection(gather.targets(), learnt)
    opened = gather.open_clones({"verl": str(origin)}, cache, newest=True)
    assert gather.history(collection, opened) == 6
    collected = []
    monkeypatch.setattr(settle, "as_written", lambda *arguments: collected.append(arguments[2:]))
    gather.pull_requests(collection, learnt, opened)
    ((target, diff, note),) = collected
    assert (target, note) == (mtp, "as written")
    assert "+        number = 7" in diff
