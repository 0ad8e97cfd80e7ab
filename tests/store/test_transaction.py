"""A set of files is old or new, whatever kills, fails or interrupts the writer, and wherever it does."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import filelock  # before any fork: some of these run as a user who may not read it
import pytest

from unhang.errors import UnhangError
from unhang.records import Change
from unhang.store import disk, lock, state, transaction
from unhang.store.transaction import FileChange, commit, exclusive, interrupted, recover

# Of Python 3.12 and later, where a test runner has threads; our children do little enough.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")

KILLED = 9
ORIGINAL: Any = disk.run


class Case(NamedTuple):
    """A tree, and a transaction over it that changes, creates and deletes files."""

    top: Path
    state: str
    changes: list[FileChange]

    def look(self) -> dict[str, bytes | None]:
        return {change.path: disk.read(change.path) for change in self.changes}

    @property
    def old(self) -> dict[str, bytes | None]:
        return {change.path: change.before for change in self.changes}

    @property
    def new(self) -> dict[str, bytes | None]:
        return {change.path: change.after for change in self.changes}

    def names(self) -> set[str]:
        """All that is there, but for bytecode and the lock."""
        there = (path for path in self.top.rglob("*") if path.parent.name != "__pycache__" and path.name != "lock")
        return {str(path.relative_to(self.top)) for path in there}


def make_apply(top: Path) -> Case:
    """Five files in three folders are rewritten, and the receipt created where not even `share` was."""
    changes = []
    for number, name in enumerate(["a/one.py", "a/two.py", "b/three.py", "b/RECORD", "c/four.py"]):
        path = top / name
        (path.parent / "__pycache__").mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"old %d\n" % number)
        (path.parent / "__pycache__" / f"{path.stem}.cpython-312.pyc").write_bytes(b"stale")
        # Long ago, or yet to come: so that the number of operations is always the same.
        os.utime(path, (number * 1e9, number * 1e9))
        changes.append(FileChange(str(path), path.read_bytes(), b"new bytes %d\n" % number))
    state = top / "share" / "unhang"
    changes += [FileChange(str(state / name), None, name.encode()) for name in ("pristine/aa", "receipt.json")]
    return Case(top, str(state), changes)


def make_revert(top: Path) -> Case:
    """The way back: files rewritten, the receipt and its folder deleted."""
    case = make_apply(top)
    with exclusive(case.state):
        commit(case.changes, state_dir=case.state)
    return case._replace(changes=[FileChange(c.path, c.after, c.before, c.before is None) for c in case.changes])


MAKERS = [make_apply, make_revert]


def go(case: Case) -> None:
    with exclusive(case.state):
        commit(case.changes, state_dir=case.state)


def finish(case: Case) -> str | None:
    with exclusive(case.state):
        return recover(case.state)


def in_child(work: Callable[[], Any]) -> int:
    """Run in a child; return its exit status, 1 for an exception."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        except SystemExit as exit:
            code = int(exit.code or 0)
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


Blow = Callable[[Any, "tuple[Any, ...]"], None]


def strike(number: int, blow: Blow) -> list[int]:
    """Have `blow` fall just before operation `number`; return a list that counts the operations."""
    count = [0]

    def run(operation: Any, *arguments: Any, **options: Any) -> Any:
        if count[0] == number:
            count[0] += 1
            blow(operation, arguments)
        else:
            count[0] += 1
        return operation(*arguments, **options)

    disk.run = run
    return count


def struck(case: Case, number: int, blow: Blow, work: Callable[[Case], object] = go) -> int:
    """Run `work` in a child with `blow` before operation `number`; return its exit status."""

    def child() -> None:
        strike(number, blow)
        work(case)

    return in_child(child)


def die(operation: Any, arguments: tuple[Any, ...]) -> None:
    os._exit(KILLED)


def die_halfway(operation: Any, arguments: tuple[Any, ...]) -> None:
    if operation is os.write:
        os.write(arguments[0], arguments[1][: len(arguments[1]) // 2])
    os._exit(KILLED)


@pytest.fixture(autouse=True)
def _seam(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "run", disk.run)  # put back after each test


# Nothing to do, and nothing done


def test_nothing_leaves_nothing(tmp_path: Path) -> None:
    state = str(tmp_path / "share" / "unhang")
    assert not interrupted(state)
    with exclusive(state):
        assert recover(state) is None
        commit([], state_dir=state)
    assert list(tmp_path.iterdir()) == []


def test_a_share_folder_that_was_there_stays(tmp_path: Path) -> None:
    (tmp_path / "share").mkdir()
    with exclusive(str(tmp_path / "share" / "unhang")):
        pass
    assert [path.name for path in tmp_path.rglob("*")] == ["share"]


def test_a_share_folder_of_ours_stays_if_others_use_it(tmp_path: Path) -> None:
    with exclusive(str(tmp_path / "share" / "unhang")):
        (tmp_path / "share" / "jupyter").mkdir()
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["jupyter", "share"]


def test_a_change_to_the_same_bytes_touches_nothing(tmp_path: Path) -> None:
    path = tmp_path / "x.py"
    path.write_bytes(b"same")
    before = path.stat()
    with exclusive(str(tmp_path / ".unhang")):
        commit([Change(str(path), b"same", b"same")], state_dir=str(tmp_path / ".unhang"))
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert [path.name for path in tmp_path.iterdir()] == ["x.py"]


def test_no_lock_no_transaction(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="exclusive"):
        commit([], state_dir=str(tmp_path))
    with pytest.raises(RuntimeError, match="exclusive"):
        recover(str(tmp_path))


@pytest.mark.parametrize("path", ["relative.py", "./x.py"])
def test_a_relative_path_is_a_mistake(tmp_path: Path, path: str) -> None:
    with exclusive(str(tmp_path / ".unhang")), pytest.raises(ValueError, match="not an absolute path"):
        commit([FileChange(path, None, b"")], state_dir=str(tmp_path / ".unhang"))


def test_one_file_twice_is_a_mistake(tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to(tmp_path)
    twice = [FileChange(str(tmp_path / name), None, b"") for name in ("x", "alias/x")]
    with exclusive(str(tmp_path / ".unhang")), pytest.raises(ValueError, match="twice"):
        commit(twice, state_dir=str(tmp_path / ".unhang"))


def edited(path: Path) -> None:
    path.write_bytes(b"edited\n")


def linked(path: Path) -> None:
    path.rename(path.with_suffix(".real"))
    path.symlink_to(path.with_suffix(".real"))


def piped(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(
    ("hurt", "code"),
    [(edited, "changed-underneath"), (linked, "changed-underneath"), (piped, "changed-underneath"),
     (Path.unlink, "vanished"), (lambda path: shutil.rmtree(path.parent), "vanished")],
)  # fmt: skip
def test_a_file_that_is_not_as_planned_stops_all(tmp_path: Path, hurt: Callable[[Path], None], code: str) -> None:
    case = make_apply(tmp_path)
    hurt(tmp_path / "c" / "four.py")
    before = case.names()
    with exclusive(case.state), pytest.raises(UnhangError) as caught:
        commit(case.changes, state_dir=case.state)
    assert (caught.value.code, caught.value.path) == (code, str(tmp_path / "c" / "four.py"))
    assert caught.value.hint
    assert case.names() == before
    assert (tmp_path / "a" / "one.py").read_bytes() == b"old 0\n"


def test_a_file_that_should_not_be_there_stops_all(tmp_path: Path) -> None:
    case = make_apply(tmp_path)
    os.makedirs(case.state)
    Path(case.state, "receipt.json").write_bytes(b"theirs")
    with exclusive(case.state), pytest.raises(UnhangError) as caught:
        commit(case.changes, state_dir=case.state)
    assert caught.value.code == "changed-underneath"
    assert Path(case.state, "receipt.json").read_bytes() == b"theirs"
    assert (tmp_path / "a" / "one.py").read_bytes() == b"old 0\n"


def test_a_change_at_the_last_moment_takes_all_back(tmp_path: Path) -> None:
    case = make_apply(tmp_path)
    last = tmp_path / "c" / "four.py"

    def edit_after_the_first_replace(operation: Any, *arguments: Any, **options: Any) -> Any:
        result = operation(*arguments, **options)
        if operation is os.replace and arguments[1] == str(tmp_path / "a" / "one.py"):
            last.write_bytes(b"edited\n")
        return result

    disk.run = edit_after_the_first_replace
    before = case.names() - {"share"}
    with exclusive(case.state), pytest.raises(UnhangError) as caught:
        commit(case.changes, state_dir=case.state)
    assert (caught.value.code, caught.value.path) == ("changed-underneath", str(last))
    assert case.look() == {**case.old, str(last): b"edited\n"}
    assert case.names() == before


# Done


@pytest.mark.parametrize("make", MAKERS)
def test_all_is_done_and_nothing_else_left(tmp_path: Path, make: Callable[[Path], Case]) -> None:
    case = make(tmp_path)
    others = {p for p in case.names() if not str(tmp_path / p).startswith(case.state)} - {"share"}
    go(case)
    assert case.look() == case.new
    receipt = {
        "share",
        "share/unhang",
        "share/unhang/pristine",
        "share/unhang/pristine/aa",
        "share/unhang/receipt.json",
    }
    receipt.add("share/unhang/made-parent")
    assert case.names() == others | (receipt if make is make_apply else set())
    assert not interrupted(case.state)


@pytest.mark.parametrize("mode", [0o444, 0o644, 0o755, 0o600, 0o4755])
def test_mode_is_kept(tmp_path: Path, mode: int) -> None:
    case = make_apply(tmp_path)
    path = tmp_path / "a" / "one.py"
    path.chmod(mode)
    go(case)
    assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (b"new bytes 0\n", mode)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_owner_is_kept(tmp_path: Path) -> None:
    case = make_apply(tmp_path)
    path = tmp_path / "a" / "one.py"
    os.chown(path, 1234, 2345)
    go(case)
    assert (path.stat().st_uid, path.stat().st_gid) == (1234, 2345)


def test_other_names_of_a_hardlinked_file_keep_their_bytes(tmp_path: Path) -> None:
    case = make_apply(tmp_path)
    other = tmp_path / "cache.py"
    os.link(tmp_path / "a" / "one.py", other)
    before = other.stat()
    go(case)
    assert other.read_bytes() == b"old 0\n"
    assert (other.stat().st_ino, other.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert other.stat().st_nlink == 1


def test_stale_bytecode_goes_and_other_bytecode_stays(tmp_path: Path) -> None:
    case = make_apply(tmp_path)
    other = tmp_path / "a" / "__pycache__" / "other.cpython-312.pyc"
    other.write_bytes(b"fine")
    go(case)
    left = {path.name for path in tmp_path.rglob("*.pyc")}
    assert left == {"other.cpython-312.pyc", "RECORD.cpython-312.pyc"}  # RECORD is no module


def test_same_size_and_second_never_looks_unchanged(tmp_path: Path) -> None:
    path, state = tmp_path / "x.py", str(tmp_path / ".unhang")
    seconds = []
    path.write_bytes(b"a = 0")
    for number in range(4):
        seconds.append(int(path.stat().st_mtime))
        with exclusive(state):
            commit([Change(str(path), b"a = %d" % number, b"a = %d" % (number + 1))], state_dir=state)
    assert len({*seconds, int(path.stat().st_mtime)}) == 5


# Killed, failing and interrupted at every operation


def count(make: Callable[[Path], Case], top: Path) -> int:
    case = make(top)
    counted = strike(-1, die)
    go(case)
    disk.run = ORIGINAL
    return counted[0]


def no_leftovers(case: Case, others: set[str]) -> None:
    ours = {p for p in case.names() if ".unhang-" in p or "journal" in p}
    assert ours == set()
    assert not os.path.exists(os.path.join(case.state, "lock"))
    now = case.look()
    assert now in (case.old, case.new), "half a set"
    if now[os.path.join(case.state, "receipt.json")] is None:
        assert case.names() == others  # not even the folders


# Whether a file's time has to be moved on depends on the second it falls into: runs differ by so many operations.
SPREAD = 8


def kill_everywhere(top: Path, make: Callable[[Path], Case], blow: Blow) -> None:
    total = count(make, top / "count")
    others = make_apply(top / "fresh").names()
    ends = {"old": 0, "new": 0}
    for number in range(total + SPREAD):
        case = make(top / str(number))
        if struck(case, number, blow) != KILLED:
            assert number >= total - SPREAD
            assert case.look() == case.new
            break  # there is no operation of this number
        now = case.look()
        assert all(now[path] in (case.old[path], case.new[path]) for path in now), f"a torn file at {number}"
        before = interrupted(case.state)
        said = finish(case)
        assert (said is not None) == before
        no_leftovers(case, others)
        assert not list((top / str(number)).glob(".unhang*"))
        ends["old" if case.look() == case.old else "new"] += 1
        # And the same command goes through now.
        if case.look() == case.old:
            go(case)
            assert case.look() == case.new
    assert min(ends.values()) > 10, ends


@pytest.mark.parametrize("blow", [die, die_halfway])
@pytest.mark.parametrize("make", MAKERS)
def test_killed_at_every_operation(tmp_path: Path, make: Callable[[Path], Case], blow: Blow) -> None:
    kill_everywhere(tmp_path, make, blow)


def no_link(*_: Any, **__: Any) -> None:
    raise OSError(errno.EPERM, "no hardlinks here")


def test_killed_at_every_operation_without_hardlinks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", no_link)
    kill_everywhere(tmp_path, make_apply, die_halfway)


def test_without_hardlinks_a_failure_restores_the_mode_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", no_link)
    case = make_apply(tmp_path)
    (tmp_path / "a" / "one.py").chmod(0o444)

    def run(operation: Any, *arguments: Any, **options: Any) -> Any:
        if operation is os.replace and arguments[1].endswith("four.py"):
            raise OSError(errno.EIO, "broken")
        return operation(*arguments, **options)

    disk.run = run
    with exclusive(case.state), pytest.raises(UnhangError):
        commit(case.changes, state_dir=case.state)
    assert case.look() == case.old
    assert stat.S_IMODE((tmp_path / "a" / "one.py").stat().st_mode) == 0o444


def test_killed_again_while_recovering(tmp_path: Path) -> None:
    total = count(make_apply, tmp_path / "count")
    others = make_apply(tmp_path / "fresh").names()
    deaths = 0
    for number in range(20, total - SPREAD, 9):
        for second in range(0, 60, 7):
            top = tmp_path / f"{number}-{second}"
            case = make_apply(top)
            assert struck(case, number, die) == KILLED
            deaths += struck(case, second, die, finish) == KILLED
            finish(case)
            no_leftovers(case, others)
    assert deaths > 20


@pytest.mark.parametrize("error", [OSError(errno.EIO, "broken"), OSError(errno.ENOSPC, "full"), KeyboardInterrupt()])
def test_failing_at_every_operation(tmp_path: Path, error: BaseException) -> None:
    total = count(make_apply, tmp_path / "count")
    others = make_apply(tmp_path / "fresh").names()

    def fail(*_: Any) -> None:
        raise error

    raised = 0
    for number in range(total):
        case = make_apply(tmp_path / str(number))
        strike(number, fail)
        try:
            go(case)
        except (UnhangError, KeyboardInterrupt) as caught:
            raised += 1
            if isinstance(error, KeyboardInterrupt):
                assert caught is error
            else:
                assert isinstance(caught, UnhangError)
                assert isinstance(error, OSError)
                assert caught.code == ("disk-full" if error.errno == errno.ENOSPC else "write-failed"), number
                assert caught.path
                assert caught.hint
                assert case.look() == case.old, number
        finally:
            disk.run = ORIGINAL
        assert case.look() in (case.old, case.new), number
        finish(case)  # what could not be tidied after the end
        no_leftovers(case, others)
    assert raised > total // 2


def fail_from(number: int) -> Any:
    """The disk is remounted read-only before operation `number`."""
    done = [0]

    def run(operation: Any, *arguments: Any, **options: Any) -> Any:
        done[0] += 1
        if done[0] > number:
            raise OSError(errno.EROFS, "remounted read-only")
        return operation(*arguments, **options)

    return run


def test_a_disk_that_dies_says_interrupted_and_recovers(tmp_path: Path) -> None:
    total = count(make_apply, tmp_path / "count")
    others = make_apply(tmp_path / "fresh").names()
    codes = set()
    for number in range(0, total, 3):
        case = make_apply(tmp_path / str(number))
        disk.run = fail_from(number)
        try:
            go(case)
        except UnhangError as caught:
            codes.add(caught.code)
        disk.run = ORIGINAL
        finish(case)
        no_leftovers(case, others)
    assert {"not-writable", "interrupted"} <= codes


def test_every_change_to_the_disk_passes_the_seam(tmp_path: Path) -> None:
    """Else the tests above would miss one."""
    case = make_apply(tmp_path)
    watched = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.chmod", "os.chown"}
    watched |= {"os.utime", "os.truncate"}

    def child() -> None:
        inside, escaped = [0], []

        def run(operation: Any, *arguments: Any, **options: Any) -> Any:
            inside[0] += 1
            try:
                return operation(*arguments, **options)
            finally:
                inside[0] -= 1

        def audit(event: str, arguments: tuple[Any, ...]) -> None:
            writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
            if inside[0] or not (writes or event in watched):
                return
            on = arguments[0]
            on = os.readlink(f"/proc/self/fd/{on}") if isinstance(on, int) else str(on)
            if on not in (case.state, os.path.join(case.state, "lock")):  # filelock's; that folder is there by then
                escaped.append((event, arguments))

        disk.run = run
        sys.addaudithook(audit)
        go(case)
        seen = list(escaped)
        open(tmp_path / "noticed", "w").close()  # the watch works
        assert not seen, seen
        assert len(escaped) == 1

    assert in_child(child) == 0


def test_all_is_synced_before_the_first_replacement(tmp_path: Path) -> None:
    case = make_apply(tmp_path)
    log: list[tuple[str, str]] = []

    def run(operation: Any, *arguments: Any, **options: Any) -> Any:
        on = arguments[0]
        name = os.readlink(f"/proc/self/fd/{on}") if isinstance(on, int) else str(on)
        log.append((operation.__name__, name))
        return operation(*arguments, **options)

    disk.run = run
    go(case)
    ready = log.index(("rename", os.path.join(case.state, state.INTENT)))
    done = log.index(("rename", os.path.join(case.state, state.READY)))
    created = [name for what, name in log[:ready] if what == "open" and ".unhang-" in name and "made" not in name]
    linked = [name for what, name in log[:ready] if what == "link"]
    assert (len(created), len(linked)) == (5 + 2 + 2, 5)
    folders = {os.path.dirname(name) for name in created}
    for name in [*created, *folders]:
        assert log.index(("fsync", name)) < ready
    for folder in folders:
        last = max(
            i for i, (what, name) in enumerate(log[:ready]) if what != "fsync" and os.path.dirname(name) == folder
        )
        assert ("fsync", folder) in log[last:ready]
    replaced = [i for i, (what, _) in enumerate(log) if what == "replace"]
    assert len(replaced) == 7
    assert ready < min(replaced) < max(replaced) < done
    assert ("fsync", case.state) in log[ready : min(replaced)]
    for folder in folders:
        assert ("fsync", folder) in log[max(replaced) : done]
    stale = [i for i, (what, name) in enumerate(log) if what == "unlink" and name.endswith(".pyc")]
    assert len(stale) == 4
    assert ready < min(stale) < max(stale) < min(replaced)


# Recovery


def stop_in_the_middle(top: Path) -> Case:
    """Killed with two of the files replaced."""
    case = make_apply(top)
    left = [2]

    def run(operation: Any, *arguments: Any, **options: Any) -> Any:
        if operation is os.replace:
            if not left[0]:
                os._exit(KILLED)
            left[0] -= 1
        return operation(*arguments, **options)

    def child() -> None:
        disk.run = run
        go(case)

    assert in_child(child) == KILLED
    assert [case.look()[c.path] == c.after for c in case.changes] == [True, True] + [False] * 5
    return case


def test_a_new_run_does_not_start_before_recovery(tmp_path: Path) -> None:
    case = stop_in_the_middle(tmp_path)
    assert interrupted(case.state)
    with exclusive(case.state), pytest.raises(UnhangError) as caught:
        commit([], state_dir=case.state)
    assert caught.value.code == "interrupted"


def test_looking_changes_nothing(tmp_path: Path) -> None:
    case = stop_in_the_middle(tmp_path)
    before = case.names()
    assert interrupted(case.state)
    assert case.names() == before


def test_recovery_goes_forward(tmp_path: Path) -> None:
    case = stop_in_the_middle(tmp_path)
    assert "now finished" in (finish(case) or "")
    assert case.look() == case.new


def test_recovery_goes_back_where_a_file_was_edited_since(tmp_path: Path) -> None:
    case = stop_in_the_middle(tmp_path)
    edited = case.changes[4].path
    Path(edited).write_bytes(b"mine")
    assert "taken back" in (finish(case) or "")
    assert case.look() == {**case.old, edited: b"mine"}
    assert not interrupted(case.state)


def test_recovery_goes_forward_where_a_new_file_was_edited_since(tmp_path: Path) -> None:
    case = stop_in_the_middle(tmp_path)
    edited = case.changes[0].path
    Path(edited).write_bytes(b"mine")
    assert "now finished" in (finish(case) or "")
    assert case.look() == {**case.new, edited: b"mine"}


def test_recovery_goes_back_where_a_new_file_was_lost(tmp_path: Path) -> None:
    case = stop_in_the_middle(tmp_path)
    (lost,) = (tmp_path / "c").glob(".unhang-*.new")
    lost.write_bytes(b"garbage")
    assert "taken back" in (finish(case) or "")
    assert case.look() == case.old


def test_recovery_touches_nothing_where_it_can_do_neither(tmp_path: Path) -> None:
    case = stop_in_the_middle(tmp_path)
    for index in (0, 4):
        Path(case.changes[index].path).write_bytes(b"mine")
    before = (case.look(), case.names())
    with exclusive(case.state), pytest.raises(UnhangError) as caught:
        recover(case.state)
    assert caught.value.code == "cannot-recover"
    assert (case.look(), case.names()) == before


def test_bytecode_written_meanwhile_goes(tmp_path: Path) -> None:
    case = stop_in_the_middle(tmp_path)
    stale = tmp_path / "a" / "__pycache__" / "one.cpython-313.opt-2.pyc"
    stale.write_bytes(b"stale")
    finish(case)
    assert not stale.exists()


# Hostile journals


@pytest.mark.parametrize(
    "spoil",
    [
        lambda j: b"",
        lambda j: b"{",
        lambda j: b"[]",
        lambda j: b"\xff\xfe",
        lambda j: b"[" * 100_000,
        lambda j: {**j, "schema": 2},
        lambda j: {**j, "schema": True},
        lambda j: {**j, "token": "../../../../x"},
        lambda j: {**j, "files": None},
        lambda j: {**j, "files": [{**j["files"][0], "path": "a/one.py"}]},
        lambda j: {**j, "files": [{**j["files"][0], "path": "/tmp/../etc/passwd"}]},
        lambda j: {**j, "files": [{**j["files"][0], "path": "/"}]},
        lambda j: {**j, "files": [{**j["files"][0], "path": "/a\0b"}]},
        lambda j: {**j, "files": [{**j["files"][0], "old": "xyz"}]},
        lambda j: {**j, "files": [{**j["files"][0], "old": None, "new": None}]},
        lambda j: {**j, "files": [{"path": "/x"}]},
        lambda j: {**j, "files": j["files"] * 2},
        lambda j: {**j, "made": ["/home"]},
        lambda j: {**j, "made": "/"},
    ],
)
@pytest.mark.parametrize("stage", [state.INTENT, state.READY, state.DONE])
def test_a_journal_that_is_not_ours_is_refused(tmp_path: Path, stage: str, spoil: Callable[[Any], Any]) -> None:
    case = stop_in_the_middle(tmp_path)
    path = Path(case.state, state.READY)
    spoiled = spoil(json.loads(path.read_bytes()))
    path.unlink()
    Path(case.state, stage).write_bytes(spoiled if isinstance(spoiled, bytes) else json.dumps(spoiled).encode())
    before = (case.look(), case.names())
    with exclusive(case.state), pytest.raises(UnhangError) as caught:
        recover(case.state)
    assert (caught.value.code, caught.value.path) == ("bad-journal", str(Path(case.state, stage)))
    assert (case.look(), case.names()) == before


@pytest.mark.parametrize("stage", [state.INTENT, state.READY, state.DONE])
@pytest.mark.parametrize(("old", "new"), [("now", "evil"), ("now", None), (None, "now"), ("evil", "now")])
def test_a_journal_has_no_power_without_the_files_beside(
    tmp_path: Path, stage: str, old: str | None, new: str | None
) -> None:
    """A checkout may bring a journal, but nothing beside a file outside of it."""
    victim = tmp_path / "home" / ".profile"
    victim.parent.mkdir()
    victim.write_bytes(b"now")
    state = tmp_path / "checkout" / ".unhang"
    state.mkdir(parents=True)
    digests: dict[str | None, str | None] = {text: transaction._sha256(text.encode()) for text in ("now", "evil")}
    digests[None] = None
    files = [{"path": str(victim), "old": digests[old], "new": digests[new], "prune": True}]
    # The second makes going forward impossible, so that it would go back.
    for extra in ([], [{"path": str(tmp_path / "x"), "old": None, "new": digests["evil"], "prune": False}]):
        content = {"schema": 1, "token": "0" * 16, "files": files + extra, "made": []}
        (state / stage).write_text(json.dumps(content))
        with exclusive(str(state)), contextlib.suppress(UnhangError):
            recover(str(state))
        assert victim.read_bytes() == b"now"
        state.mkdir(exist_ok=True)


# The disk refuses


def as_nobody(work: Callable[[], Any]) -> int:
    """Run where permission bits hold: root is above them."""

    def child() -> None:
        if os.geteuid() == 0:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
        work()

    return in_child(child)


@pytest.fixture
def open_top() -> Iterator[Path]:
    """A folder that other users may enter, unlike pytest's."""
    top = Path(tempfile.mkdtemp(prefix="unhang-test-"))
    top.chmod(0o755)
    yield top
    shutil.rmtree(top)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make files of another owner")
@pytest.mark.parametrize("closed", ["state", "folder", "pycache"])
def test_no_permission_names_the_place_and_its_owner(open_top: Path, closed: str) -> None:
    case = make_apply(open_top)
    for path in [open_top, *open_top.rglob("*")]:
        os.chown(path, 65534, 65534)
    shut = {"state": open_top, "folder": open_top / "c", "pycache": open_top / "c" / "__pycache__"}[closed]
    os.chown(shut, 0, 0)
    before = case.names()

    def attempt() -> None:
        try:
            go(case)
        except UnhangError as error:
            assert error.code == "not-writable", error.code
            assert error.path, error.path
            assert error.path.startswith(str(shut)), error.path
            assert "belongs to root, this is" in error.message, error.message
            assert "as root" in (error.hint or "")
            raise SystemExit(42) from None

    assert as_nobody(attempt) == 42
    assert case.look() == case.old
    assert case.names() == before


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make files of another owner")
def test_a_file_of_another_owner_in_a_folder_of_ours(open_top: Path) -> None:
    case = make_apply(open_top)
    for path in [open_top, *open_top.rglob("*")]:
        os.chown(path, 65534, 65534)
    other = open_top / "a" / "one.py"
    os.chown(other, 0, 0)
    other.chmod(0o4755)
    assert as_nobody(lambda: go(case)) == 0
    assert case.look() == case.new
    assert (other.stat().st_uid, stat.S_IMODE(other.stat().st_mode)) == (65534, 0o755)  # never a setuid of one's own


def mounted(top: Path, setup: str, case: Case, after: str = "") -> subprocess.CompletedProcess[str]:
    """Commit `case` in a process with mounts of its own; skips where this machine does not allow them."""
    script = textwrap.dedent(
        f"""
        import sys
        from unhang.errors import UnhangError
        from unhang.store.transaction import FileChange, commit, exclusive
        changes = {[tuple(change) for change in case.changes]!r}
        changes = [FileChange(*change) for change in changes]
        look = lambda: [open(c.path, "rb").read() for c in changes if c.before is not None]
        before = look()
        try:
            with exclusive({case.state!r}):
                commit(changes, state_dir={case.state!r})
        except UnhangError as error:
            print(error.code, error.path, error.hint, sep="|")
        print("unchanged" if look() == before else "changed")
        """
    )
    (top / "script.py").write_text(script)
    trial = subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False)
    if trial.returncode:
        pytest.skip("this machine allows no mounts")
    command = (
        f"{setup} || exit 77; {sys.executable} {top / 'script.py'}; find {top} -name '.unhang*' -o -name 'journal*'"
    )
    done = subprocess.run(["unshare", "-m", "sh", "-c", command], capture_output=True, text=True, check=False)
    if done.returncode == 77:
        pytest.skip(f"this machine allows no such mount: {done.stderr}")
    return done


@pytest.mark.parametrize("room", [0, 1, 2, 4, 8, 16, 40])
def test_a_full_disk(tmp_path: Path, room: int) -> None:
    """A real tmpfs with so many pages left. Where it is enough, all goes in."""
    case = make_apply(tmp_path / "tree")
    case = case._replace(
        changes=[c._replace(after=(c.after or b"") * 1000) for c in case.changes if "share" not in c.path]
        + case.changes[5:]
    )
    small = tmp_path / "small"
    small.mkdir()
    moved = case._replace(
        state=case.state.replace(str(tmp_path / "tree"), str(small)),
        changes=[c._replace(path=c.path.replace(str(tmp_path / "tree"), str(small))) for c in case.changes],
    )
    setup = (
        f"mount -t tmpfs -o size=400k tmpfs {small} && cp -r {tmp_path}/tree/. {small} && "
        f"dd if=/dev/zero of={small}/filler bs=4k 2>/dev/null; truncate -s -{room * 4}k {small}/filler; true"
    )
    done = mounted(tmp_path, setup, moved)
    lines = done.stdout.splitlines()
    if room < 40:
        assert lines[0].startswith(f"disk-full|{small}"), done
        assert lines[1:] == ["unchanged"]
    else:
        assert lines == ["changed"], done


def test_a_read_only_mount(tmp_path: Path) -> None:
    case = make_apply(tmp_path / "tree")
    folder = tmp_path / "tree" / "b"
    done = mounted(tmp_path, f"mount --bind {folder} {folder} && mount -o remount,bind,ro {folder}", case)
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"not-writable|{folder}/three.py|run this where"), done
    assert lines[1:] == ["unchanged"]
    assert case.look() == case.old


# One at a time


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
def test_a_file_system_without_locks_is_named_at_once(
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


def test_a_library_that_hides_the_missing_lock_does_not_make_us_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """filelock before 3.2x took any failure of flock for a lock held elsewhere."""
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
def test_a_link_is_not_followed_out(tmp_path: Path, name: str) -> None:
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


def test_a_file_in_the_place_of_the_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / ".unhang").write_text("mine")
    with pytest.raises(UnhangError) as caught, exclusive(str(tmp_path / ".unhang")):
        pass
    assert caught.value.code == "write-failed"
    assert (tmp_path / ".unhang").read_text() == "mine"


def test_a_soft_lock_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "_new", lambda path: filelock.SoftFileLock(path))
    with pytest.raises(UnhangError) as caught, exclusive(str(tmp_path / ".unhang")):
        pass
    assert caught.value.code == "no-locks"


def test_thirty_two_writers_each_add_one(tmp_path: Path) -> None:
    """Each reads, adds one and commits, and leaves no state behind: the folders come and go under the others."""
    counter, state = tmp_path / "counter.py", str(tmp_path / "share" / "unhang")
    counter.write_bytes(b"0")
    rounds = 4

    def child() -> None:
        for _ in range(rounds):
            with exclusive(state):
                recover(state)
                now = counter.read_bytes()
                commit([Change(str(counter), now, b"%d" % (int(now) + 1))], state_dir=state)

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
    assert [path.name for path in tmp_path.rglob("*")] == ["counter.py"]


def test_killed_at_random_while_others_work(tmp_path: Path) -> None:
    """The soak beside the exhaustive test: real SIGKILLs, other writers waiting."""
    case = make_apply(tmp_path)
    others = case.names()
    there = [True]
    dice = random.Random(os.environ.get("UNHANG_SEED", "0"))

    def flip() -> None:
        """Apply or revert, whichever is next, for ever."""
        while there:
            with exclusive(case.state):
                recover(case.state)
                changes = case.changes
                if case.look() == case.new:
                    changes = [FileChange(c.path, c.after, c.before, c.before is None) for c in changes]
                commit(changes, state_dir=case.state)

    killed = 0
    deadline = time.monotonic() + float(os.environ.get("UNHANG_SOAK_S", "2"))
    while time.monotonic() < (deadline if killed > 10 else deadline + 60):  # a slow machine gets the time for some
        children = []
        for _ in range(3):
            pid = os.fork()
            if pid == 0:
                try:
                    flip()
                finally:
                    os._exit(1)  # only an error ends it
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
