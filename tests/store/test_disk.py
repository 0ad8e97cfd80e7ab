"""Every change to the disk passes `disk.run`, and what the disk refuses is explained, with a way out."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.transactions import Case, go, in_child, make_apply
from unhang.errors import UnhangError
from unhang.store import disk
from unhang.store.lock import exclusive
from unhang.store.transaction import FileChange, commit

# Python 3.12 and later warn where a test runner has threads; these children do little enough.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


def test_same_size_and_second_never_looks_unchanged(tmp_path: Path) -> None:
    path, state = tmp_path / "x.py", str(tmp_path / ".unhang")
    seconds = []
    path.write_bytes(b"a = 0")
    for number in range(4):
        seconds.append(int(path.stat().st_mtime))
        with exclusive(state):
            commit([FileChange(str(path), b"a = %d" % number, b"a = %d" % (number + 1))], state_dir=state)
    assert len({*seconds, int(path.stat().st_mtime)}) == 5


def test_every_change_to_the_disk_passes_run(tmp_path: Path) -> None:
    """Otherwise the tests that kill a run at each operation would miss some."""
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
            if on not in (case.state, os.path.join(case.state, "lock")):  # filelock makes the lock itself
                escaped.append((event, arguments))

        disk.run = run
        sys.addaudithook(audit)
        go(case)
        seen = list(escaped)
        open(tmp_path / "noticed", "w").close()  # the watch works
        assert not seen, seen
        assert len(escaped) == 1

    assert in_child(child) == 0


def as_nobody(work: Callable[[], Any]) -> int:
    """Run as a user who is subject to permissions, unlike root."""

    def child() -> None:
        if os.geteuid() == 0:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
        work()

    return in_child(child)


@pytest.fixture
def open_top() -> Iterator[Path]:
    """A folder that other users may enter, unlike those of pytest."""
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
    assert (other.stat().st_uid, stat.S_IMODE(other.stat().st_mode)) == (65534, 0o755)  # and no setuid bit


def mounted(top: Path, setup: str, case: Case, after: str = "") -> subprocess.CompletedProcess[str]:
    """Commit `case` in a process with its own mounts; skip the test if this machine does not allow them."""
    script = textwrap.dedent(
        f"""
        import sys
        from unhang.errors import UnhangError
        from unhang.store.lock import exclusive
        from unhang.store.transaction import FileChange, commit
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
    """A real tmpfs with `room` free pages: if they suffice, the transaction succeeds."""
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
