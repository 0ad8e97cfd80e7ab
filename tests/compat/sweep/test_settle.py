"""How the state of each collected shape is settled."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.fake_index import AFFECTED, CLEAN, ENGINE, PARALLEL, UNCLEAR
from unhang.compat.sweep import as_written
from unhang.compat.sweep.cache import Cache
from unhang.compat.sweep.clones import Seen
from unhang.compat.sweep.collect import Collection
from unhang.compat.sweep.gather import targets
from unhang.compat.sweep.learnt import Learnt
from unhang.compat.sweep.settle import as_written as collect_as_written
from unhang.compat.sweep.settle import settle
from unhang.compat.sweep.sources import Release, content
from unhang.shapes.catalog import Target

(MTP,) = (target for target in targets() if target.fix == "mtp-cp-deadlock")
WARMUP = next(target for target in targets() if target.file == PARALLEL)


@pytest.fixture
def learnt(tmp_path: Path) -> Learnt:
    return Learnt(Cache(tmp_path))


def collected(learnt: Learnt, target: Target, *texts: str) -> Collection:
    """Releases 0.1, 0.2 ... of the target's upstream with these files."""
    collection = Collection([target], learnt)
    for number, text in enumerate(texts, 1):
        files = {target.file: content(text.encode())}
        collection.release(Release(target.upstream, f"0.{number}", False, files))
    return collection


def test_evidence_decides_an_affected_shape(learnt: Learnt) -> None:
    collection = collected(learnt, WARMUP, AFFECTED)
    done = settle(collection, learnt, [], [])
    ((key, result),) = done.results.items()
    (row,) = done.rows
    assert (row["state"], row["shape"], row["result"]) == ("affected", key[2], result)
    assert (row["first"], row["last"]) == ("megatron-core 0.1", "megatron-core 0.1")
    assert (done.undecided, done.by_person) == ([], [])


def test_an_older_rewrite_of_it_is_superseded(learnt: Learnt) -> None:
    collection = collected(learnt, WARMUP, AFFECTED)
    (key,) = collection.rows
    older = {"fix": key[0], "function": key[1], "pristine": key[2], "shape": "0" * 16}
    superseded, affected = settle(collection, learnt, [], [older]).rows
    assert (superseded["shape"], superseded["state"]) == ("0" * 16, "superseded")
    assert (superseded["result"], superseded["names"]) == (affected["result"], affected["names"])


def test_a_person_decides_what_evidence_does_not(learnt: Learnt) -> None:
    collection = collected(learnt, MTP, UNCLEAR)
    (key,) = collection.rows
    done = settle(collection, learnt, [], [])
    assert done.rows == []
    assert done.undecided[0].startswith(f"{' '.join(key)}, verl 0.1: ")
    decision = {"fix": key[0], "shape": key[2], "state": "not-affected", "why": "a person looked at it"}
    done = settle(collection, learnt, [decision], [])
    assert (done.undecided, done.by_person) == ([], [key[2]])
    assert (done.rows[0]["state"], done.rows[0]["note"]) == ("not-affected", "a person looked at it")


def test_an_undecided_shape_below_the_floor_is_left_out(learnt: Learnt) -> None:
    collection = Collection([MTP], learnt)
    collection.history([Seen(ENGINE, content(UNCLEAR.encode()), "2026-01-01 a", "2026-01-01 a", False)])
    done = settle(collection, learnt, [], [])
    assert (done.rows, done.undecided) == ([], [])


def test_commits_count_before_releases_as_its_place(learnt: Learnt) -> None:
    collection = collected(learnt, MTP, CLEAN)
    collection.history([Seen(ENGINE, content(CLEAN.encode()), "2026-01-01 a", "2026-01-05 b", True)])
    (row,) = settle(collection, learnt, [], []).rows
    assert (row["first"], row["last"]) == ("2026-01-01 a", "2026-01-05 b")


def test_a_pull_request_that_leaves_another_defect_is_not_collected(
    learnt: Learnt, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its shape is affected, and our rewrite of it is not what our rewrite of the untouched file is."""
    monkeypatch.setattr(as_written, "applied", lambda diff, data: data.replace(b"number = 0", b"number = 5"))
    collection = collected(learnt, WARMUP, AFFECTED)
    collect_as_written(collection, learnt, WARMUP, "diff", "as written")
    assert len(collection.rows) == 1


def test_a_pull_request_that_fixes_it_is_collected(learnt: Learnt, monkeypatch: pytest.MonkeyPatch) -> None:
    class Fixed:
        state = "fixed"

    monkeypatch.setattr(as_written, "applied", lambda diff, data: data.replace(b"return 0", b"return 1"))
    monkeypatch.setattr(learnt, "state", lambda found, target: Fixed)
    collection = collected(learnt, MTP, CLEAN)
    collect_as_written(collection, learnt, MTP, "diff", "as written")
    assert [row.note for row in collection.rows.values()] == ["", "as written"]
