"""A link is replaced by a file and put back, at whatever instant the run is killed; what it leads to stays."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.transactions import KILLED, Case, die, die_halfway, finish, go, struck
from unhang.errors import UnhangError
from unhang.store import disk, links
from unhang.store.disk import Link
from unhang.store.transaction import FileChange

OLD, NEW = b"old bytes\n", b"new bytes\n"


def lay_out(top: Path) -> Case:
    """One link becomes a file, and one file becomes a link."""
    (top / "site").mkdir()
    (top / "shared.py").write_bytes(OLD)
    os.utime(top / "shared.py", (1e9, 1e9))
    (top / "site/one.py").symlink_to("../shared.py")
    (top / "site/two.py").write_bytes(NEW)
    one, two = (str(top / "site" / name) for name in ("one.py", "two.py"))
    changes = [FileChange(one, Link("../shared.py"), NEW), FileChange(two, NEW, Link(str(top / "shared.py")))]
    return Case(top / "site", str(top / "site/.unhang"), changes)


def without_hardlinks(case: Case) -> None:
    """As on a file system that has none, or a kernel that protects links of other owners."""
    run = disk.run

    def refuse(operation: Any, *arguments: Any, **options: Any) -> Any:
        if operation is os.link:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        return run(operation, *arguments, **options)

    disk.run = refuse
    go(case)


@pytest.mark.slow
@pytest.mark.parametrize("blow", [die, die_halfway])
@pytest.mark.parametrize("work", [go, without_hardlinks])
def test_killed_at_every_operation_it_is_a_link_or_a_file(
    in_memory: Path, blow: Callable[..., None], work: Callable[[Case], None]
) -> None:
    number, found = 0, KILLED
    outcomes = set()
    while found == KILLED:
        top = in_memory / str(number)
        top.mkdir()
        case = lay_out(top)
        found = struck(case, number, blow, work)
        finish(case)
        assert case.look() in (case.old, case.new), number
        outcomes.add(case.look() == case.new)
        assert sorted(path.name for path in case.top.iterdir()) == ["one.py", "two.py"], number
        assert ((top / "shared.py").read_bytes(), (top / "shared.py").stat().st_mtime) == (OLD, 1e9)
        number += 1
    assert (number > 20, outcomes) == (True, {True, False})


def test_the_file_has_the_mode_of_the_content_and_the_owner_of_the_link(tmp_path: Path) -> None:
    case = lay_out(tmp_path)
    (tmp_path / "shared.py").chmod(0o640)
    if os.geteuid() == 0:
        os.chown(tmp_path / "site/one.py", 1234, 4321, follow_symlinks=False)
        os.chown(tmp_path / "site/two.py", 1234, 4321)
    go(case)
    one, two = ((tmp_path / "site" / name).lstat() for name in ("one.py", "two.py"))
    assert (one.st_mode & 0o777, one.st_mtime > 1e9) == (0o640, True)
    assert os.geteuid() != 0 or {(found.st_uid, found.st_gid) for found in (one, two)} == {(1234, 4321)}


@pytest.mark.parametrize("other", ["../elsewhere.py", "x" * 255])
def test_a_link_that_leads_elsewhere_by_now_stops_all(tmp_path: Path, other: str) -> None:
    case = lay_out(tmp_path)
    (tmp_path / "site/one.py").unlink()
    (tmp_path / "site/one.py").symlink_to(other)
    with pytest.raises(UnhangError) as caught:
        go(case)
    assert (caught.value.code, caught.value.path) == ("changed-underneath", str(tmp_path / "site/one.py"))
    assert os.readlink(tmp_path / "site/one.py") == other


def test_a_link_fits_only_the_bytes_that_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "shared.py").write_bytes(OLD)
    (tmp_path / "chain.py").symlink_to("shared.py")
    os.mkfifo(tmp_path / "pipe")
    path, beside = str(tmp_path / "x.py"), str(tmp_path / "y.py")
    for text, fits in (("shared.py", True), ("chain.py", True), ("pipe", False), ("gone", False), (".", False)):
        assert links.fits(path, text, {path: OLD}) is fits, text
        assert links.fits(path, text, {path: NEW}) is False, text
    assert links.fits(path, "./y.py", {path: OLD, beside: OLD}), "a link to another file that is put back"
    (tmp_path / "z").symlink_to("pipe")
    with pytest.raises(OSError, match="not a regular file"):
        links.read(str(tmp_path / "z"))
