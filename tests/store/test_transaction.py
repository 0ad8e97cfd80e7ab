"""A set of files is old or new, at whatever operation the writer is killed, fails or is interrupted."""

import errno
import itertools
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.transactions import (
    KILLED,
    ORIGINAL,
    Blow,
    Case,
    die,
    die_halfway,
    finish,
    go,
    make_apply,
    make_revert,
    no_leftovers,
    strike,
    struck,
)  # fmt: skip
from unhang.errors import UnhangError
from unhang.store import disk, state
from unhang.store.lock import exclusive
from unhang.store.state import interrupted
from unhang.store.transaction import FileChange, commit

MAKERS = [make_apply, make_revert]


def test_a_change_to_the_same_bytes_touches_nothing(tmp_path: Path) -> None:
    path = tmp_path / "x.py"
    path.write_bytes(b"same")
    before = path.stat()
    with exclusive(str(tmp_path / ".unhang")):
        commit([FileChange(str(path), b"same", b"same")], state_dir=str(tmp_path / ".unhang"))
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert [path.name for path in tmp_path.iterdir()] == ["x.py"]


# Refused


def test_a_relative_path_and_a_file_that_is_listed_twice_are_refused(tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to(tmp_path)
    twice = [str(tmp_path / name) for name in ("x", "alias/x")]
    outside = [str(tmp_path.parent / "x.py")]
    for paths, why in ((["./x.py"], "not an absolute path"), (outside, "below"), (twice, "twice")):
        with exclusive(str(tmp_path / ".unhang")), pytest.raises(ValueError, match=why):
            commit([FileChange(path, None, b"") for path in paths], state_dir=str(tmp_path / ".unhang"))


def piped(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


RECEIPT = ".unhang/receipt.json"


@pytest.mark.parametrize(
    ("name", "hurt", "code"),
    [
        ("c/four.py", lambda path: path.write_bytes(b"edited\n"), "changed-underneath"),
        ("c/four.py", lambda path: path.symlink_to(path.rename(path.with_suffix(".real"))), "changed-underneath"),
        ("c/four.py", piped, "changed-underneath"),
        ("c/four.py", Path.unlink, "vanished"),
        ("c/four.py", lambda path: shutil.rmtree(path.parent), "vanished"),
        (RECEIPT, lambda path: (path.parent.mkdir(parents=True), path.write_text("theirs")), "changed-underneath"),
    ],
)
def test_a_file_that_is_not_as_planned_stops_all(
    tmp_path: Path, name: str, hurt: Callable[[Path], object], code: str
) -> None:
    case = make_apply(tmp_path)
    hurt(tmp_path / name)
    before = case.names() | {f"{os.path.dirname(name)}/.gitignore"} if name == RECEIPT else case.names()
    with pytest.raises(UnhangError) as caught:
        go(case)
    assert (caught.value.code, caught.value.path) == (code, str(tmp_path / name))
    assert caught.value.hint
    assert case.names() == before
    assert (tmp_path / "a/one.py").read_bytes() == b"old 0\n"
    assert name != RECEIPT or (tmp_path / name).read_text() == "theirs"


def test_a_change_at_the_last_moment_rolls_back_everything(tmp_path: Path) -> None:
    case = make_apply(tmp_path)
    last = tmp_path / "c" / "four.py"

    def edit_after_the_first_replace(operation: Any, *arguments: Any, **options: Any) -> Any:
        result = operation(*arguments, **options)
        if operation is os.replace and arguments[1] == str(tmp_path / "a" / "one.py"):
            last.write_bytes(b"edited\n")
        return result

    disk.run = edit_after_the_first_replace
    before = case.names()
    with exclusive(case.state), pytest.raises(UnhangError) as caught:
        commit(case.changes, state_dir=case.state)
    assert (caught.value.code, caught.value.path) == ("changed-underneath", str(last))
    assert case.look() == {**case.old, str(last): b"edited\n"}
    assert case.names() == before


# Done


@pytest.mark.parametrize("make", MAKERS)
def test_all_is_done_and_nothing_else_is_left(tmp_path: Path, make: Callable[[Path], Case]) -> None:
    case = make(tmp_path)
    others = {p for p in case.names() if not str(tmp_path / p).startswith(case.state)}
    bytecode = tmp_path / "a" / "__pycache__"
    for name in ("one", "other"):
        (bytecode / f"{name}.cpython-312.pyc").write_bytes(b"stale, or of another module")
    go(case)
    assert os.listdir(bytecode) == ["other.cpython-312.pyc"]
    assert case.look() == case.new
    ours = {f".unhang/{name}" for name in ("pristine", "pristine/aa", "receipt.json", ".gitignore")}
    assert case.names() == others | (ours | {".unhang"} if make is make_apply else set())
    assert not interrupted(case.state)


@pytest.mark.parametrize("mode", [0o444, 0o600, 0o4755])
def test_mode_and_owner_are_kept_and_other_hardlinks_keep_their_bytes(tmp_path: Path, mode: int) -> None:
    case = make_apply(tmp_path)
    path, other = tmp_path / "a" / "one.py", tmp_path / "cache.py"
    if os.geteuid() == 0:
        os.chown(path, 1234, 2345)
    path.chmod(mode)
    os.link(path, other)
    before = path.stat()
    go(case)
    now, kept = path.stat(), other.stat()
    assert (path.read_bytes(), other.read_bytes()) == (b"new bytes 0\n", b"old 0\n")
    assert (stat.S_IMODE(now.st_mode), now.st_uid, now.st_gid) == (mode, before.st_uid, before.st_gid)
    assert (kept.st_ino, kept.st_mtime_ns, kept.st_nlink) == (before.st_ino, before.st_mtime_ns, 1)


# Killed, failing and interrupted at every operation


def kill_everywhere(top: Path, make: Callable[[Path], Case], blow: Blow) -> None:
    ends = {"old": 0, "new": 0}
    for number in itertools.count():
        case = make(top / str(number))
        if struck(case, number, blow) != KILLED:
            break  # there is no operation of this number
        now = case.look()
        assert all(now[path] in (case.old[path], case.new[path]) for path in now), f"a torn file at {number}"
        before = interrupted(case.state)
        assert (finish(case) is not None) == before
        no_leftovers(case)
        assert not list(case.top.glob(".unhang-*"))
        ends["old" if case.look() == case.old else "new"] += 1
        # The same command succeeds now.
        if case.look() == case.old:
            go(case)
        assert case.look() == case.new
    assert case.look() == case.new
    assert min(ends.values()) > 10, ends


@pytest.mark.parametrize("blow", [die, pytest.param(die_halfway, marks=pytest.mark.slow)])
@pytest.mark.parametrize("make", [make_apply, pytest.param(make_revert, marks=pytest.mark.slow)])
def test_killed_at_every_operation(in_memory: Path, make: Callable[[Path], Case], blow: Blow) -> None:
    kill_everywhere(in_memory, make, blow)


def no_link(*_: Any, **__: Any) -> None:
    raise OSError(errno.EPERM, "no hardlinks here")


@pytest.mark.slow
def test_killed_at_every_operation_without_hardlinks(in_memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", no_link)
    kill_everywhere(in_memory, make_apply, die_halfway)


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


@pytest.mark.parametrize(
    ("error", "code"),
    [(OSError(errno.EIO, "broken"), "write-failed"), (OSError(errno.ENOSPC, "full"), "disk-full"),
     (KeyboardInterrupt(), None)],
)  # fmt: skip
def test_failing_at_every_operation(in_memory: Path, error: BaseException, code: str | None) -> None:
    def fail(*_: Any) -> None:
        raise error

    raised = 0
    for number in itertools.count():
        case = make_apply(in_memory / str(number))
        operations = strike(number, fail)
        try:
            go(case)
        except UnhangError as caught:
            raised += 1
            assert (caught.code, bool(caught.path), bool(caught.hint)) == (code, True, True), number
            assert case.look() == case.old, number
        except KeyboardInterrupt:
            raised += 1
            assert code is None
        finally:
            disk.run = ORIGINAL
        assert case.look() in (case.old, case.new), number
        finish(case)  # if the clean-up failed
        no_leftovers(case)
        if len(operations) <= number:
            break  # there is no operation of this number
    assert raised > number // 2


@pytest.mark.parametrize("again", [OSError(errno.EIO, "broken"), KeyboardInterrupt()])
def test_a_rollback_that_fails_says_that_a_journal_is_left(tmp_path: Path, again: BaseException) -> None:
    case, errors = make_apply(tmp_path), [KeyboardInterrupt(), again]

    def run(operation: Any, *arguments: Any, **options: Any) -> Any:
        if operation is os.replace and (arguments[1].endswith("four.py") or len(errors) == 1):
            raise errors.pop(0)
        return operation(*arguments, **options)

    disk.run = run
    with (
        exclusive(case.state),
        pytest.raises(UnhangError, match=r"rolling back failed too .*a journal is left") as caught,
    ):
        commit(case.changes, state_dir=case.state)
    disk.run = ORIGINAL
    assert (caught.value.code, interrupted(case.state)) == ("interrupted", True)
    assert finish(case)
    assert case.look() in (case.old, case.new)


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
