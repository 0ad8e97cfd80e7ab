"""What a killed run left is finished or rolled back, and no other file is changed."""

import contextlib
import errno
import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from support.transactions import ORIGINAL, finish, go, make_apply, no_leftovers, stop_in_the_middle
from unhang.errors import UnhangError
from unhang.find.bytecode import NO_CACHES
from unhang.store import disk, journal, state
from unhang.store.lock import exclusive
from unhang.store.recovery import recover
from unhang.store.roots import tidy
from unhang.store.state import interrupted
from unhang.store.transaction import commit


def test_a_new_run_does_not_start_before_recovery(tmp_path: Path) -> None:
    case = stop_in_the_middle(tmp_path)
    assert interrupted(case.state)
    with exclusive(case.state), pytest.raises(UnhangError) as caught:
        commit([], state_dir=case.state)
    assert caught.value.code == "interrupted"


@pytest.mark.parametrize(("edited", "how"), [(None, "finished"), (0, "finished"), (4, "rolled back")])
def test_recovery_keeps_what_was_edited_since(tmp_path: Path, edited: int | None, how: str) -> None:
    """It finishes the run if only new files were edited, and rolls it back if an old one was."""
    case = stop_in_the_middle(tmp_path)
    mine = {} if edited is None else {case.changes[edited].path: b"mine"}
    for path, data in mine.items():
        Path(path).write_bytes(data)
    stale = tmp_path / "a" / "__pycache__" / "one.cpython-313.opt-2.pyc"
    stale.write_bytes(b"an import wrote it meanwhile")
    assert f"now {how}" in " ".join(tidy([str(tmp_path)], NO_CACHES))
    assert case.look() == {**(case.new if how == "finished" else case.old), **mine}
    assert not interrupted(case.state)
    assert not stale.exists()


def test_recovery_goes_back_if_a_new_file_was_lost(tmp_path: Path) -> None:
    case = stop_in_the_middle(tmp_path)
    (lost,) = (tmp_path / "c").glob(".unhang-*.new")
    lost.write_bytes(b"garbage")
    assert "rolled back" in (finish(case) or "")
    assert case.look() == case.old


def test_recovery_changes_nothing_if_it_can_do_neither(tmp_path: Path) -> None:
    case = stop_in_the_middle(tmp_path)
    for index in (0, 4):
        Path(case.changes[index].path).write_bytes(b"mine")
    before = (case.look(), case.names())
    with exclusive(case.state), pytest.raises(UnhangError) as caught:
        recover(case.state)
    assert caught.value.code == "cannot-recover"
    assert (case.look(), case.names()) == before


@pytest.mark.parametrize("stage", [state.INTENT, state.READY, state.DONE])
@pytest.mark.parametrize(("old", "new"), [("now", "evil"), ("now", None), (None, "now"), ("evil", "now")])
def test_a_journal_has_no_power_without_the_files_beside(
    tmp_path: Path, stage: str, old: str | None, new: str | None
) -> None:
    """A checkout may contain a journal, but none reaches out of it, or has power without the temporary files."""
    victim = tmp_path / "checkout" / "home" / ".profile"
    victim.parent.mkdir(parents=True)
    victim.write_bytes(b"now")
    state = tmp_path / "checkout" / ".unhang"
    state.mkdir()
    digests: dict[str | None, str | None] = {text: journal.digest(text.encode()) for text in ("now", "evil")}
    digests[None] = None
    files = [{"path": "home/.profile", "old": digests[old], "new": digests[new], "prune": True}]
    # The second file makes rolling forward impossible, so that recovery would roll back.
    for extra in ([], [{"path": "x", "old": None, "new": digests["evil"], "prune": False}]):
        content = {"schema": 1, "token": "0" * 16, "files": files + extra, "made": []}
        (state / stage).write_text(json.dumps(content))
        with exclusive(str(state)), contextlib.suppress(UnhangError):
            recover(str(state))
        assert victim.read_bytes() == b"now"
        state.mkdir(exist_ok=True)


def test_a_disk_that_fails_for_good_is_reported_and_recovered_from(in_memory: Path) -> None:
    """As after a remount."""
    codes = set()
    left = [0]

    def run(operation: Any, *arguments: Any, **options: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.EROFS, "remounted read-only")
        return operation(*arguments, **options)

    for number in itertools.count(0, 3):
        case = make_apply(in_memory / str(number))
        disk.run, left[0] = run, number
        try:
            go(case)
        except UnhangError as caught:
            codes.add(caught.code)
        disk.run = ORIGINAL
        finish(case)
        no_leftovers(case)
        if left[0] >= 0:
            break  # all operations succeeded
    assert {"not-writable", "interrupted"} <= codes
