"""Run `unhang` as other users, who are subject to permissions, unlike root."""

import contextlib
import io
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from support import cli
from support.transactions import fork, status
from unhang.cli.main import main

VERL = ("verl", "0.7.1")


class User(NamedTuple):
    """A user without a name, as in many containers."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()


ROOT = User(0, 0)


def run(user: User, *words: object, umask: int = 0o022) -> cli.Ran:
    """Run the command in a child as this user, who need not be able to read our modules."""
    reader, writer = os.pipe()

    def child() -> None:
        os.umask(umask)
        os.chdir("/")
        os.setgroups(user.groups)
        os.setgid(user.gid)
        os.setuid(user.uid)
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main([str(word) for word in words])
        with open(writer, "w") as pipe:
            json.dump([code, out.getvalue(), err.getvalue()], pipe)

    pid = fork(child)
    os.close(writer)
    with open(reader) as pipe:
        text = pipe.read()
    assert status(pid) == 0, text
    return cli.Ran(*json.loads(text))


@contextlib.contextmanager
def site_for_all() -> Iterator[Path]:
    """Give a site-packages with verl in a folder that every user may enter, unlike those of pytest."""
    if os.geteuid() != 0:
        pytest.skip("only root can become other users")
    with tempfile.TemporaryDirectory() as top:
        os.chmod(top, 0o755)
        warm = cli.unpack_targets(Path(top, "warm"), VERL)  # so that the children have the modules, and the rewrites
        for words in ("check",), ("apply",), ("check",), ("revert", "--fix", "mtp-cp-deadlock"), ("revert",):
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                assert main([*words, "--target", str(warm)]) in (0, 1)
        yield cli.unpack_targets(Path(top, "site"), VERL)
