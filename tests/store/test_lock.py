"""There is one writer at a time, a killed one blocks nobody, and a file system without locks is reported at once."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from typing import Any

import filelock
import pytest

from support.transactions import KILLED, in_child
from unhang.errors import UnhangError
from unhang.store import lock
from unhang.store.lock import exclusive
from unhang.store.recovery import recover
from unhang.store.transaction import FileChange, commit

# Python 3.12 and later warn where a test runner has threads; these children do little enough.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


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
        assert 0.2 < time.monotonic() - start < 3
    assert (caught.value.code, caught.value.path) == ("locked", state)
    assert list(tmp_path.iterdir()) == []


def test_a_dead_holder_does_not_block(tmp_path: Path) -> None:
    state = str(tmp_path / ".unhang")

    def child() -> None:
        with exclusive(state):
            os._exit(KILLED)

    assert in_child(child) == KILLED
    assert os.path.exists(os.path.join(state, "lock"))
    with exclusive(state, timeout=0.1):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_locks_is_reported_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    import fcntl

    def flock(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    start = time.monotonic()
    with pytest.raises(UnhangError) as caught, exclusive(str(tmp_path / ".unhang")):
        pass
    assert caught.value.code == "no-locks"
    assert str(tmp_path) in caught.value.message
    assert time.monotonic() - start < 5


def test_a_filelock_that_hides_the_failure_causes_no_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Older versions took any failure of flock for a lock that is held."""
    import fcntl

    def acquire(self: Any, timeout: float = 0, **_: Any) -> None:
        raise filelock.Timeout("lock")

    def flock(*_: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    (tmp_path / ".unhang").mkdir()
    (tmp_path / ".unhang" / "lock").touch()
    monkeypatch.setattr(filelock.FileLock, "acquire", acquire)
    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(UnhangError) as caught, exclusive(str(tmp_path / ".unhang")):
        pass
    assert caught.value.code == "no-locks"


@pytest.mark.parametrize("name", [".unhang", ".unhang/lock"])
def test_a_link_is_not_followed(tmp_path: Path, name: str) -> None:
    victim = tmp_path / "victim"
    link = tmp_path / name
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(victim)
    if name.endswith("lock"):
        victim.write_text("precious")
    else:
        victim.mkdir()
    with pytest.raises(UnhangError) as caught, exclusive(str(tmp_path / ".unhang")):
        pass
    assert (caught.value.code, caught.value.path) == ("bad-state", str(link))
    assert (victim.read_text() if victim.is_file() else list(victim.iterdir())) in ("precious", [])


def test_a_soft_lock_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "_new", lambda path: filelock.SoftFileLock(path))
    with pytest.raises(UnhangError) as caught, exclusive(str(tmp_path / ".unhang")):
        pass
    assert caught.value.code == "no-locks"


def test_thirty_two_writers_each_add_one(in_memory: Path) -> None:
    """Each reads, adds one, commits and removes the state folder, which the others need at the same time."""
    counter, state = in_memory / "counter.py", str(in_memory / "share" / "unhang")
    counter.write_bytes(b"0")
    rounds = 4

    def child() -> None:
        for _ in range(rounds):
            with exclusive(state):
                recover(state)
                now = counter.read_bytes()
                commit([FileChange(str(counter), now, b"%d" % (int(now) + 1))], state_dir=state)

    children = []
    for _ in range(32):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                child()
                code = 0
            except BaseException:
                import traceback

                traceback.print_exc()
            finally:
                os._exit(code)
        children.append(pid)
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children] == [0] * 32
    assert counter.read_bytes() == b"%d" % (32 * rounds)
    assert [path.name for path in in_memory.rglob("*")] == ["counter.py"]
