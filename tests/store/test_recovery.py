"""What a killed run left is finished or rolled back, and no other file is changed."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from support.transactions import (
    KILLED,
    ORIGINAL,
    SPREAD,
    count,
    die,
    finish,
    go,
    make_apply,
    no_leftovers,
    stop_in_the_middle,
    struck,
)  # fmt: skip
from unhang.errors import UnhangError
from unhang.store import disk, journal, state
from unhang.store.lock import exclusive
from unhang.store.recovery import recover
from unhang.store.state import interrupted
from unhang.store.transaction import FileChange, commit

# Python 3.12 and later warn where a test runner has threads; these children do little enough.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


def test_a_new_run_does_not_start_before_recovery(tmp_path: Path) -> None:
    case = stop_in_the_middle(tmp_path)
    assert interrupted(case.state)
    with exclusive(case.state), pytest.raises(UnhangError) as caught:
        commit([], state_dir=case.state)
    assert caught.value.code == "interrupted"


def test_asking_whether_a_run_was_interrupted_changes_nothing(tmp_path: Path) -> None:
    case = stop_in_the_middle(tmp_path)
    before = case.names()
    assert interrupted(case.state)
    assert case.names() == before


def test_recovery_goes_forward(tmp_path: Path) -> None:
    case = stop_in_the_middle(tmp_path)
    assert "now finished" in (finish(case) or "")
    assert case.look() == case.new


def test_recovery_goes_back_if_a_file_was_edited_since(tmp_path: Path) -> None:
    case = stop_in_the_middle(tmp_path)
    edited = case.changes[4].path
    Path(edited).write_bytes(b"mine")
    assert "rolled back" in (finish(case) or "")
    assert case.look() == {**case.old, edited: b"mine"}
    assert not interrupted(case.state)


def test_recovery_goes_forward_if_a_new_file_was_edited_since(tmp_path: Path) -> None:
    case = stop_in_the_middle(tmp_path)
    edited = case.changes[0].path
    Path(edited).write_bytes(b"mine")
    assert "now finished" in (finish(case) or "")
    assert case.look() == {**case.new, edited: b"mine"}


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


def test_bytecode_that_was_written_meanwhile_is_deleted(tmp_path: Path) -> None:
    case = stop_in_the_middle(tmp_path)
    stale = tmp_path / "a" / "__pycache__" / "one.cpython-313.opt-2.pyc"
    stale.write_bytes(b"stale")
    finish(case)
    assert not stale.exists()


@pytest.mark.parametrize("stage", [state.INTENT, state.READY, state.DONE])
@pytest.mark.parametrize(("old", "new"), [("now", "evil"), ("now", None), (None, "now"), ("evil", "now")])
def test_a_journal_has_no_power_without_the_files_beside(
    tmp_path: Path, stage: str, old: str | None, new: str | None
) -> None:
    """A checkout may contain a journal, but no temporary files outside of it."""
    victim = tmp_path / "home" / ".profile"
    victim.parent.mkdir()
    victim.write_bytes(b"now")
    state = tmp_path / "checkout" / ".unhang"
    state.mkdir(parents=True)
    digests: dict[str | None, str | None] = {text: journal.digest(text.encode()) for text in ("now", "evil")}
    digests[None] = None
    files = [{"path": str(victim), "old": digests[old], "new": digests[new], "prune": True}]
    # The second file makes rolling forward impossible, so that recovery would roll back.
    for extra in ([], [{"path": str(tmp_path / "x"), "old": None, "new": digests["evil"], "prune": False}]):
        content = {"schema": 1, "token": "0" * 16, "files": files + extra, "made": []}
        (state / stage).write_text(json.dumps(content))
        with exclusive(str(state)), contextlib.suppress(UnhangError):
            recover(str(state))
        assert victim.read_bytes() == b"now"
        state.mkdir(exist_ok=True)


def test_killed_again_while_recovering(in_memory: Path) -> None:
    total = count(make_apply, in_memory / "count")
    others = make_apply(in_memory / "fresh").names()
    deaths = 0
    for number in range(20, total - SPREAD, 9):
        for second in range(0, 60, 7):
            top = in_memory / f"{number}-{second}"
            case = make_apply(top)
            assert struck(case, number, die) == KILLED
            deaths += struck(case, second, die, finish) == KILLED
            finish(case)
            no_leftovers(case, others)
    assert deaths > 20


def fail_from(number: int) -> Any:
    """Return a `disk.run` that fails from operation `number` on, as after a remount."""
    done = [0]

    def run(operation: Any, *arguments: Any, **options: Any) -> Any:
        done[0] += 1
        if done[0] > number:
            raise OSError(errno.EROFS, "remounted read-only")
        return operation(*arguments, **options)

    return run


def test_a_disk_that_fails_for_good_is_reported_and_recovered_from(in_memory: Path) -> None:
    total = count(make_apply, in_memory / "count")
    others = make_apply(in_memory / "fresh").names()
    codes = set()
    for number in range(0, total, 3):
        case = make_apply(in_memory / str(number))
        disk.run = fail_from(number)
        try:
            go(case)
        except UnhangError as caught:
            codes.add(caught.code)
        disk.run = ORIGINAL
        finish(case)
        no_leftovers(case, others)
    assert {"not-writable", "interrupted"} <= codes


def test_killed_at_random_while_others_work(in_memory: Path) -> None:
    """Real SIGKILLs, while other writers wait."""
    case = make_apply(in_memory)
    others = case.names()
    there = [True]
    dice = random.Random(os.environ.get("UNHANG_SEED", "0"))

    def flip() -> None:
        """Apply and revert in turn, for ever."""
        while there:
            with exclusive(case.state):
                recover(case.state)
                changes = case.changes
                if case.look() == case.new:
                    changes = [FileChange(c.path, c.after, c.before, c.before is None) for c in changes]
                commit(changes, state_dir=case.state)

    killed = 0
    deadline = time.monotonic() + float(os.environ.get("UNHANG_SOAK_S", "2"))
    while time.monotonic() < (deadline if killed > 10 else deadline + 60):  # a slow machine needs more time
        children = []
        for _ in range(3):
            pid = os.fork()
            if pid == 0:
                try:
                    flip()
                finally:
                    os._exit(1)  # only an error leads here
            children.append(pid)
        for pid in children:
            time.sleep(dice.uniform(0, 0.08))
            os.kill(pid, signal.SIGKILL)
        for pid in children:
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
            killed += 1
        now = case.look()
        assert all(now[path] in (case.old[path], case.new[path]) for path in now)
        finish(case)
        no_leftovers(case, others)
    assert killed > 10
