"""Each root has a lock, a recovery and a failure of its own, and what a killed run left is removed."""

from pathlib import Path

import pytest

from support.transactions import KILLED, die, in_child, make_apply, stop_in_the_middle
from unhang.errors import UnhangError
from unhang.find.bytecode import NO_CACHES
from unhang.store import lock, state
from unhang.store.lock import exclusive
from unhang.store.roots import locked, tidy


def _fail(error: Exception) -> None:
    raise error


def test_a_root_that_fails_stops_no_other(tmp_path: Path) -> None:
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / ".unhang").write_text("a file")
    case = stop_in_the_middle(tmp_path / "good")
    with locked([str(tmp_path / "good"), str(tmp_path / "bad")], NO_CACHES) as held:
        assert {root: error.code for root, error in held.failed.items()} == {str(tmp_path / "bad"): "bad-state"}
        assert ["finished" in sentence for sentence in held.recovered] == [True]
        assert (tmp_path / "good" / ".unhang" / "lock").exists()
        with held.failing(str(tmp_path / "good")):
            _fail(UnhangError("disk-full", "no space"))
        with held.failing("/another"):
            _fail(KeyError("a bug, in one root"))
    assert [error.code for error in held.failed.values()] == ["bad-state", "disk-full", "internal"]
    assert case.look() == case.new
    assert not (tmp_path / "good" / ".unhang" / "lock").exists()


def test_locks_are_taken_in_the_order_of_the_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken, real = [], lock._acquire

    def acquire(path: str, timeout: float, hidden: bool) -> int:
        taken.append(path)
        return real(path, timeout, hidden)

    monkeypatch.setattr(lock, "_acquire", acquire)
    roots = [tmp_path / name for name in ("b", "a", "c")]
    for root in roots:
        root.mkdir()
    with locked(map(str, roots), NO_CACHES):
        pass
    assert taken == [str(root / ".unhang") for root in sorted(roots)]


def test_nothing_is_made_where_nothing_was_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "_acquire", None)  # it would raise
    assert tidy([str(tmp_path)], NO_CACHES) == ()
    assert list(tmp_path.iterdir()) == []


def test_the_lock_of_a_killed_run_is_removed(tmp_path: Path) -> None:
    case = make_apply(tmp_path)

    def child() -> None:
        with exclusive(case.state):
            die(None, ())

    before = case.names()
    assert in_child(child) == KILLED
    assert state.littered(case.state)
    assert tidy([str(tmp_path)], NO_CACHES) == ()
    assert case.names() == before


def test_a_journal_that_cannot_be_trusted_stays(tmp_path: Path) -> None:
    (tmp_path / ".unhang").mkdir()
    (tmp_path / ".unhang" / state.READY).write_text("{")
    assert tidy([str(tmp_path)], NO_CACHES) == ()
    assert (tmp_path / ".unhang" / state.READY).read_text() == "{"
