"""How the state of each collected shape is settled."""

from pathlib import Path
from typing import Any

import pytest

from support.fake_index import AFFECTED, CLEAN, PARALLEL
from unhang.compat.sweep import as_written, settle
from unhang.compat.sweep.cache import Cache
from unhang.compat.sweep.collect import Collection
from unhang.compat.sweep.gather import targets
from unhang.compat.sweep.learnt import Learnt
from unhang.compat.sweep.sources import Release, content
from unhang.shapes.catalog import Target
from unhang.survey.classify import State

(MTP,) = (target for target in targets() if target.fix == "mtp-cp-deadlock")
WARMUP = next(target for target in targets() if target.file == PARALLEL)


@pytest.fixture
def learnt(tmp_path: Path) -> Learnt:
    return Learnt(Cache(tmp_path))


def collected(learnt: Learnt, target: Target, text: str) -> Collection:
    """A release of the target's upstream with this file."""
    collection = Collection([target], learnt)
    collection.release(Release(target.upstream, "0.1", False, {target.file: content(text.encode())}))
    return collection


def test_a_pull_request_is_collected_if_it_fixes_the_defect(learnt: Learnt, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(as_written, "applied", lambda diff, data: data.replace(b"number = 0", b"number = 1"))
    collection = collected(learnt, MTP, CLEAN)
    for state, notes in {"not-affected": [""], "fixed": ["", "as written"]}.items():
        monkeypatch.setattr(learnt, "state", lambda *_, state=state, **__: State(state, None, (), ""))
        settle.as_written(collection, learnt, MTP, "diff", "as written")
        assert [row.note for row in collection.rows.values()] == notes


def test_a_pull_request_that_leaves_another_defect_is_not_collected(
    learnt: Learnt, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its shape is affected, and our rewrite of it is not what our rewrite of the untouched file is."""
    monkeypatch.setattr(as_written, "applied", lambda diff, data: data.replace(b"number = 0", b"number = 5"))
    collection = collected(learnt, WARMUP, AFFECTED)
    settle.as_written(collection, learnt, WARMUP, "diff", "as written")
    assert len(collection.rows) == 1


@pytest.mark.parametrize(
    ("state", "rows", "undecided", "by_person"),
    [(None, 0, 1, 0), ("fixed", 1, 0, 1), ("drifted", 0, 0, 0)],
)
def test_a_person_decides_what_evidence_leaves_open_or_leaves_it_without_a_verdict(
    learnt: Learnt, monkeypatch: pytest.MonkeyPatch, state: str | None, rows: int, undecided: int, by_person: int
) -> None:
    monkeypatch.setattr(learnt, "state", lambda *_, **__: State("undecided", None, (), "the stand-ins do not fit"))
    collection = collected(learnt, MTP, CLEAN)
    ((fix, _, shape),) = collection.rows
    decisions = [{"fix": fix, "shape": shape, "state": state, "why": "read, not run"}] if state else []
    said: list[Any] = []
    done = settle.settle(collection, learnt, decisions, said.append)
    assert [step() for step in said] == ["deciding what each shape is: 1 of 1"]
    assert (len(done.rows), len(done.undecided), len(done.by_person)) == (rows, undecided, by_person)
    assert [row["note"] for row in done.rows] == ["read, not run"] * rows
