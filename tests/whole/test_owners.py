"""Several users share an environment: what one writes, the others can read, and take back where they may write."""

import errno
import fcntl
import os
import re
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support import cli, users
from support.transactions import in_child
from support.users import ROOT, User
from unhang.cli.main import main
from unhang.find import notices
from unhang.store import disk

GROUP = 4321
ANN, BOB = User(1001, 1001, (GROUP,)), User(1002, 1002, (GROUP,))
STRANGER = User(1003, 1003)


@pytest.fixture
def site() -> Iterator[Path]:
    with users.site_for_all() as made:
        yield made


def owned(site: Path, uid: int, gid: int, mode: int) -> Path:
    """Give all of a site-packages to a user and a group, with these permissions."""
    for path in (site, *site.rglob("*")):
        os.chown(path, uid, gid)
        path.chmod(mode if path.is_dir() else mode & 0o666)
    return site


def state(site: Path) -> dict[str, tuple[int, int, int]]:
    """Return mode, owner and group of everything in the state folder."""
    there = (site / ".unhang", *(site / ".unhang").rglob("*"))
    return {
        path.name if len(path.name) < 64 else "PRISTINE": (stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid)
        for path in there
        for found in [path.lstat()]
    }


@pytest.mark.slow
@pytest.mark.parametrize("umask", [0o077, 0o000, 0o027])
@pytest.mark.parametrize("mode", [0o755, 0o2775, 0o750, 0o700])
def test_the_state_takes_owner_group_and_mode_from_its_root_whatever_the_umask(
    site: Path, umask: int, mode: int
) -> None:
    owned(site, 1001, GROUP, mode)
    before = cli.tree(site)
    assert users.run(ROOT, "apply", "--target", site, umask=umask).code == 0
    file, folder = (mode & 0o666, 1001, GROUP), (mode, 1001, GROUP)
    wanted = {".unhang": folder, "pristine": folder, "PRISTINE": file, "receipt.json": file, ".gitignore": file}
    assert state(site) == wanted
    reader = BOB if mode & 0o040 else ANN
    for command in ("check", "diff"):
        assert users.run(reader, command, "--target", site).code == 0
    # a receipt that an earlier run left unreadable is right again after the next write
    (site / ".unhang/receipt.json").chmod(0o600)
    assert users.run(ROOT, "revert", "--target", site, "--fix", "mtp-cp-deadlock", umask=umask).code == 0
    assert (not (site / ".unhang").exists()) or state(site) == wanted
    users.run(ROOT, "revert", "--target", site, umask=umask)
    assert cli.tree(site) == before


SHARED = [
    *((mode, *pair) for mode in (0o775, 0o2775) for pair in ((ANN, ROOT), (ANN, BOB), (ROOT, ANN), (BOB, ANN))),
    (0o777, STRANGER, ROOT),
    (0o777, ANN, STRANGER),
    (0o755, ROOT, ANN),  # as a container's build patches as root, and the job is the owner
]


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "first", "then"), SHARED)
def test_a_group_writable_environment_is_shared_by_its_group_and_by_root(
    site: Path, mode: int, first: User, then: User
) -> None:
    owned(site, ANN.uid if mode == 0o755 else 0, GROUP, mode)
    before = {name: digest for name, (_, digest) in cli.tree(site).items()}
    ran = users.run(first, "apply", "--target", site, umask=0o077)
    patched = re.search(r"patched (\d+ files)", ran.out + ran.err)
    assert (ran.code, patched is not None) == (0, True), ran
    assert users.run(then, "check", "--target", site, "--require", "mtp-cp-deadlock").code == 0
    assert users.run(STRANGER, "check", "--target", site).code == 0
    ran = users.run(then, "revert", "--target", site, umask=0o077)
    assert (ran.code, patched is not None and f"reverted {patched[1]}" in ran.err) == (0, True), ran.err
    assert {name: digest for name, (_, digest) in cli.tree(site).items()} == before
    assert users.run(first, "apply", "--target", site, umask=0o077).code == 0


def test_a_run_of_one_member_that_was_killed_is_settled_by_another(site: Path) -> None:
    owned(site, 0, GROUP, 0o2775)
    before = {name: digest for name, (_, digest) in cli.tree(site).items()}

    def child() -> None:
        def run(operation: Any, *arguments: Any, **options: Any) -> Any:
            if operation is os.replace:
                os._exit(9)
            return operation(*arguments, **options)

        disk.run = run
        os.umask(0o077)
        os.chdir("/")
        os.setgroups(ANN.groups)
        os.setgid(ANN.gid)
        os.setuid(ANN.uid)
        main(["apply", "--target", str(site)])

    assert in_child(child) == 9
    ran = users.run(BOB, "revert", "--target", site)
    assert "An earlier run was interrupted" in ran.err, ran.err
    assert {name: digest for name, (_, digest) in cli.tree(site).items()} == before


@pytest.mark.parametrize("mode", [0o755, 0o1775])
def test_the_state_of_somebody_who_may_not_write_there_is_not_used(site: Path, mode: int) -> None:
    assert users.run(ROOT, "apply", "--target", site).code == 0
    os.chown(site / ".unhang", STRANGER.uid, GROUP)
    owned(site / "verl", 0, GROUP, mode)
    site.chmod(mode)
    os.chown(site, 0, GROUP)
    before = cli.tree(site)
    ran = users.run(ROOT, "revert", "--target", site)
    assert (ran.code, "error[bad-state]" in ran.err, cli.tree(site)) == (2, True, before)
    assert f"chown -R root {site}/.unhang" in ran.err
    assert "delete" not in ran.err
    subprocess.run(["chown", "-R", "root", site / ".unhang"], check=True)
    assert users.run(ROOT, "revert", "--target", site).code == 0, "as the hint says"


@pytest.mark.slow
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOLCK, errno.EPERM])
def test_a_file_system_that_refuses_locks_is_left_as_it_was(
    site: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    before = cli.tree(site)
    monkeypatch.setattr(fcntl, "flock", flock)
    ran = users.run(ROOT, "apply", "--target", site)
    assert (ran.code, "error[no-locks]" in ran.err, "hint: mount it with locks" in ran.err) == (2, True, True), ran.err
    assert cli.tree(site) == before


def test_a_file_system_that_refuses_modes_is_left_as_it_was(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fchmod(*_: Any) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "fchmod", fchmod)
    before = cli.tree(site)
    ran = users.run(ROOT, "apply", "--target", site)
    assert (ran.code, "error[not-writable]" in ran.err, "hint: " in ran.err) == (2, True, True), ran.err
    assert cli.tree(site) == before


# What we may not read


@pytest.mark.slow
@pytest.mark.parametrize("closed", ["verl", "verl/version", "verl/workers", "verl/workers/engine/megatron", "."])
@pytest.mark.parametrize("more", [(), ("--allow-none",)])
def test_what_we_may_not_read_is_unreadable_and_nothing_else(site: Path, closed: str, more: tuple[str, ...]) -> None:
    """It was called a namesake, and then nothing was left to do."""
    cli.unpack_targets(site, ("ms-swift", "4.6.0"))
    (site / closed).chmod(0o700)
    for command in "check", "apply", "revert", "diff":
        ran = users.run(ANN, command, "--target", site, "--fix", "mtp-cp-deadlock", *more)
        assert (ran.code, "error[unreadable]" in ran.err) == (2, True), (command, ran)
        assert "read it" in ran.err
        assert "not the verl framework" not in ran.err + ran.out


@pytest.mark.parametrize("command", ["apply", "revert"])
def test_a_record_that_we_may_not_read_stops_what_would_write_it(site: Path, command: str) -> None:
    owned(site, ANN.uid, ANN.gid, 0o755)
    if command == "revert":
        cli.applied("--target", site)
    record = site / "verl-0.7.1.dist-info/RECORD"
    os.chown(record, 0, 0)
    record.chmod(0o600)
    before = cli.tree(site)
    ran = users.run(ANN, command, "--target", site)
    assert (ran.code, "error[unreadable]" in ran.err, str(record) in ran.err) == (2, True, True), ran
    assert ("hint: nothing was changed" in ran.err, cli.tree(site)) == (True, before)


def test_what_nobody_asked_for_may_be_closed(site: Path) -> None:
    (site / "swift").mkdir(mode=0o700)
    assert users.run(ANN, "check", "--target", site).code == 2
    assert users.run(ANN, "check", "--target", site, "--upstream", "verl").code == 1


def test_megatron_in_a_closed_folder_is_unreadable(site: Path) -> None:
    cli.unpack_targets(site, ("megatron-core", "0.17.1"))
    (site / "megatron").chmod(0o700)
    ran = users.run(ANN, "check", "--target", site)
    assert (ran.code, "error[unreadable]" in ran.err) == (2, True), ran


def test_a_closed_folder_of_the_path_is_named(site: Path) -> None:
    """Nothing that the other folders lack can be called missing."""
    closed = site.parent / "closed"
    closed.mkdir(mode=0o700)
    path = [str(closed), str(site)]
    assert list(notices.unread(path, {})) == []

    def look() -> None:
        os.setgid(ANN.gid)
        os.setuid(ANN.uid)
        (said,) = notices.unread(path, {"verl"})
        assert str(closed) in said
        with pytest.raises(PermissionError):
            list(notices.unread(path, ()))

    assert in_child(look) == 0


# What we may not write: `apply --dry-run` says why, in the words of `apply`


def read_only(site: Path) -> None:
    if subprocess.run(["mount", "--bind", site, site], check=False).returncode:
        pytest.skip("this machine allows no mounts")
    subprocess.run(["mount", "-o", "remount,ro,bind", site], check=True)


def immutable(site: Path, *, what: str = "verl/workers/engine/megatron/transformer_impl.py") -> None:
    if subprocess.run(["chattr", "+i", site / what], capture_output=True, check=False).returncode:
        pytest.skip("this file system has no attributes")


def full(site: Path) -> None:
    with open(site / "ballast", "wb", buffering=0) as file:
        file.write(bytes(shutil.disk_usage(site).free))


def sticky(site: Path) -> None:
    for path in (site, *site.rglob("*")):
        if path.is_dir():
            path.chmod(0o1777)


REFUSALS = {
    "read-only": (read_only, ROOT),
    "an immutable file": (immutable, ROOT),
    "an immutable folder": (lambda site: immutable(site, what="verl/workers/engine/megatron"), ROOT),
    "an immutable root": (lambda site: immutable(site, what="."), ROOT),
    "full": (full, ROOT),
    "no permission": (lambda site: None, STRANGER),
    "no permission below": (lambda site: site.chmod(0o777), STRANGER),
    "sticky": (sticky, STRANGER),
}


@pytest.mark.slow
@pytest.mark.parametrize("how", REFUSALS)
def test_a_dry_run_says_what_apply_would(site: Path, how: str) -> None:
    refuse, user = REFUSALS[how]
    mounted = []
    try:
        if how == "full":
            kept = site.rename(site.with_name("kept"))
            site.mkdir()
            if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "x", site], check=False).returncode:
                pytest.skip("this machine allows no tmpfs mounts")
            shutil.copytree(kept, site, dirs_exist_ok=True)
        refuse(site)
        before = cli.tree(site)
        dry, real = (users.run(user, "apply", "--target", site, *more) for more in (["--dry-run"], []))
    finally:
        subprocess.run(["chattr", "-R", "-i", site], capture_output=True, check=False)
        while subprocess.run(["umount", site], capture_output=True, check=False).returncode == 0:
            mounted.append(site)
    assert (dry.code, real.code) == (2, 2), (dry, real)
    if how == "full":  # which file is the first without room depends on what is written first
        assert ("error[disk-full]" in dry.err, "error[disk-full]" in real.err) == (True, True)
    else:
        assert dry.err == real.err
        assert "error[not-writable]" in dry.err
        assert f"`unhang overlay --target {site} unhang-overlay`" in dry.err
    assert mounted or cli.tree(site) == before
