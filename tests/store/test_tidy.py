"""What a killed run left is removed, if there is anything and this user may write."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.transactions import KILLED, die, in_child, make_apply
from unhang.store import lock, state
from unhang.store.lock import exclusive
from unhang.store.tidy import tidy


def test_nothing_is_made_where_nothing_was_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "_acquire", None)  # it would raise
    assert tidy(str(tmp_path / "share" / "unhang")) is None
    assert list(tmp_path.iterdir()) == []


def test_the_lock_of_a_killed_run_is_removed(tmp_path: Path) -> None:
    case = make_apply(tmp_path)

    def child() -> None:
        with exclusive(case.state):
            die(None, ())

    before = case.names()
    assert in_child(child) == KILLED
    assert state.littered(case.state)
    assert tidy(case.state) is None
    assert case.names() == before


def test_a_journal_that_cannot_be_trusted_stays(tmp_path: Path) -> None:
    (tmp_path / "lock").touch()
    (tmp_path / state.READY).write_text("{")
    assert tidy(str(tmp_path)) is None
    assert (tmp_path / state.READY).read_text() == "{"
