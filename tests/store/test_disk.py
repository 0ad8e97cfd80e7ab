"""Every change to the disk passes `disk.run`, and what the disk refuses is explained, with a way out."""

import os
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.transactions import Case, go, in_child, make_apply
from unhang.errors import UnhangError
from unhang.store import disk
from unhang.store.lock import exclusive
from unhang.store.transaction import FileChange, commit


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
    watched = {f"os.{name}" for name in "rename remove rmdir mkdir link symlink chmod chown utime truncate".split()}

    def child() -> None:
        inside: list[bool] = []
        escaped = []

        def run(operation: Any, *arguments: Any, **options: Any) -> Any:
            inside.append(True)
            try:
                return operation(*arguments, **options)
            finally:
                inside.pop()

        def audit(event: str, arguments: tuple[Any, ...]) -> None:
            writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
            if not inside and (writes or event in watched):
                escaped.append((event, arguments))

        disk.run = run
        sys.addaudithook(audit)
        go(case)
        assert not escaped, escaped
        open(tmp_path / "noticed", "w").close()  # the watch works
        assert len(escaped) == 1

    assert in_child(child) == 0


def as_nobody(work: Callable[[], Any]) -> int:
    """Run as a user who is subject to permissions, unlike root."""

    def child() -> None:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        work()

    return in_child(child)


@pytest.fixture
def case() -> Iterator[Case]:
    """A transaction over files of the user nobody, in a folder that this user may enter, unlike those of pytest."""
    if os.geteuid() != 0:
        pytest.skip("needs root to make files of another owner")
    with tempfile.TemporaryDirectory() as top:
        made = make_apply(Path(top))
        for path in [made.top, *made.top.rglob("*")]:
            os.chown(path, 65534, 65534)
        yield made


@pytest.mark.parametrize("closed", [".", "c", "c/__pycache__"])
def test_no_permission_names_the_place_and_its_owner(case: Case, closed: str) -> None:
    shut = case.top / closed
    os.chown(shut, 0, 0)
    before = case.names()

    def attempt() -> None:
        with pytest.raises(UnhangError, match="belongs to root, this is") as caught:
            go(case)
        assert caught.value.code == "not-writable"
        assert (caught.value.path or "").startswith(str(shut))
        assert (caught.value.hint or "").startswith("run this as root, or choose ")

    assert as_nobody(attempt) == 0
    assert case.look() == case.old
    assert case.names() == before


def test_a_file_of_another_owner_in_a_folder_of_ours(case: Case) -> None:
    other = case.top / "a" / "one.py"
    os.chown(other, 0, 0)
    other.chmod(0o4755)
    assert as_nobody(lambda: go(case)) == 0
    assert case.look() == case.new
    assert (other.stat().st_uid, stat.S_IMODE(other.stat().st_mode)) == (65534, 0o755)  # and no setuid bit
