"""There is one writer at a time, a killed one blocks nobody, and a file system without locks is reported at once."""

import errno
import fcntl
import os
import time
from pathlib import Path
from typing import Any

import pytest

from support.transactions import KILLED, fork, in_child, status
from unhang.errors import UnhangError
from unhang.store import disk
from unhang.store.lock import exclusive
from unhang.store.recovery import recover
from unhang.store.transaction import FileChange, commit


def test_a_transaction_needs_the_lock(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="exclusive"):
        commit([], state_dir=str(tmp_path))
    with pytest.raises(RuntimeError, match="exclusive"):
        recover(str(tmp_path))


def test_waiting_ends(tmp_path: Path) -> None:
    state = str(tmp_path / ".unhang")
    with exclusive(state):
        start = time.monotonic()
        with pytest.raises(UnhangError) as caught, exclusive(state, timeout=0.3):
            pass
        assert 0.2 < time.monotonic() - start < 60
    assert (caught.value.code, caught.value.path) == ("locked", state)
    assert list(tmp_path.iterdir()) == []


def test_a_dead_holder_does_not_block(tmp_path: Path) -> None:
    state = tmp_path / ".unhang"

    def child() -> None:
        with exclusive(str(state)):
            os._exit(KILLED)

    assert in_child(child) == KILLED
    assert (state / "lock").exists()
    with exclusive(str(state), timeout=0.1):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_lock_that_another_run_replaced_is_opened_again(tmp_path: Path) -> None:
    path, opened = tmp_path / ".unhang" / "lock", []

    def run(operation: Any, *arguments: Any, **options: Any) -> Any:
        result = operation(*arguments, **options)
        if operation is os.open and arguments[0] == str(path):
            opened.append(result)
            if len(opened) == 1:
                path.rename(tmp_path / "before")
                path.touch()
        return result

    disk.run = run
    with exclusive(str(tmp_path / ".unhang")):
        assert os.path.samestat(os.fstat(opened[-1]), path.stat())
    assert len(opened) == 2


def test_a_folder_that_the_run_before_was_removing_is_hidden(tmp_path: Path) -> None:
    state = tmp_path / ".unhang"

    def run(operation: Any, *arguments: Any, **options: Any) -> Any:
        if operation is os.open and arguments[0] == str(state / "lock"):
            (state / ".gitignore").unlink()  # its clean-up, between our making of the folder and our lock
        return operation(*arguments, **options)

    disk.run = run
    with exclusive(str(state)):
        assert (state / ".gitignore").read_bytes() == b"*"


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_locks_is_reported_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def flock(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    start = time.monotonic()
    with pytest.raises(UnhangError) as caught, exclusive(str(tmp_path / ".unhang")):
        pass
    assert caught.value.code == "no-locks"
    assert str(tmp_path) in caught.value.message
    assert list(tmp_path.iterdir()) == [], "no lock is left"
    assert time.monotonic() - start < 60


@pytest.mark.parametrize("name", [".unhang", ".unhang/lock"])
def test_a_link_is_not_followed(tmp_path: Path, name: str) -> None:
    (tmp_path / "victim").mkdir()
    link = tmp_path / name
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(tmp_path / "victim")
    with pytest.raises(UnhangError) as caught, exclusive(str(tmp_path / ".unhang")):
        pass
    assert (caught.value.code, caught.value.path) == ("bad-state", str(link))
    assert list((tmp_path / "victim").iterdir()) == []


def test_thirty_two_writers_each_add_one(in_memory: Path) -> None:
    """Each reads, adds one, commits and removes the state folder, which the others need at the same time."""
    counter, state = in_memory / "counter.py", str(in_memory / ".unhang")
    counter.write_bytes(b"0")

    def child() -> None:
        for _ in range(4):
            with exclusive(state):
                recover(state)
                now = counter.read_bytes()
                commit([FileChange(str(counter), now, b"%d" % (int(now) + 1))], state_dir=state)

    children = [fork(child) for _ in range(32)]
    assert [status(pid) for pid in children] == [0] * 32
    assert counter.read_bytes() == b"%d" % (32 * 4)
    assert [path.name for path in in_memory.rglob("*")] == ["counter.py"]


@pytest.mark.parametrize("at", range(3))
def test_a_run_that_cannot_make_its_lock_leaves_nothing(tmp_path: Path, at: int) -> None:
    """The folder, its .gitignore and the lock are made one after the other."""
    made = []

    def run(operation: Any, *arguments: Any, **options: Any) -> Any:
        if operation in (os.mkdir, os.open):
            made.append(operation)
            if len(made) > at:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return operation(*arguments, **options)

    disk.run = run
    with pytest.raises(UnhangError) as caught, exclusive(str(tmp_path / ".unhang")):
        pass
    assert (caught.value.code, list(tmp_path.iterdir())) == ("disk-full", [])
