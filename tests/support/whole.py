"""Whole runs of `unhang` on an environment, each in a forked child that can be killed at any operation on the disk.

Each run writes files of three packages for four fixes: more of them would add operations, and no kind of these.

To `unhang` the child looks like the environment's own interpreter (`sys.prefix` is the folder, and the folder's `site`
is on `sys.path`). So a run is as in an image's build, but does not have to start an interpreter.
"""

import contextlib
import importlib.util
import io
import json
import marshal
import os
import py_compile
import shutil
import sys
from collections.abc import Iterator
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import unhang.rewrite.one_file
from support import cli
from support.transactions import Blow, status, strike
from unhang.cli.main import main
from unhang.shapes import catalog
from unhang.store import state

RELEASES = (("verl", "0.7.1"), ("megatron-core", "0.17.1"), ("ms-swift", "4.6.0"))
ENGINE = "verl/workers/engine/megatron/transformer_impl.py"
MPU = "swift/megatron/utils/megatron_lm_utils.py"
# The modes of the bytecode here; other files have none.
COMPILED = {ENGINE: py_compile.PycInvalidationMode.UNCHECKED_HASH, MPU: py_compile.PycInvalidationMode.TIMESTAMP}
Tree = dict[str, "bytes | None"]


class Ran(NamedTuple):
    """The result of a run; `operations` are the names of those that changed the disk, if it was not killed."""

    code: int
    out: str
    operations: tuple[str, ...]


def tree(folder: Path) -> Tree:
    """Return the bytes of every file below a folder, outside __pycache__; a link's text, and None for a folder."""
    found: Tree = {}
    for path in folder.rglob("*"):
        if "__pycache__" not in path.parts:
            data = b"-> " + os.fsencode(os.readlink(path)) if path.is_symlink() else None
            found[str(path.relative_to(folder))] = data if data or path.is_dir() else path.read_bytes()
    return found


def stale_bytecode(site: Path) -> list[str]:
    """Return the bytecode that an import would run although it is not what the source compiles to."""
    stale = []
    for path in site.rglob("__pycache__/*.pyc"):
        source = Path(importlib.util.source_from_cache(str(path)))
        data, stat = path.read_bytes(), source.stat()
        flags = int.from_bytes(data[4:8], "little")
        stamp = (int.from_bytes(data[8:12], "little"), int.from_bytes(data[12:16], "little"))
        if flags == 0 and stamp != (int(stat.st_mtime) & 0xFFFFFFFF, stat.st_size & 0xFFFFFFFF):
            continue  # import compiles it anew
        if marshal.loads(data[16:]) != _code(source.read_bytes()):
            stale.append(str(path))
    return stale


@lru_cache(maxsize=16)
def _code(source: bytes) -> Any:
    return compile(source, "<source>", "exec", dont_inherit=True)


def run(prefix: Path, *arguments: str, blow: Blow | None = None, at: int = -1) -> Ran:
    """Run `unhang` in a child, with `blow` just before operation `at` (-1: never)."""
    return start(prefix, *arguments, blow=blow, at=at).wait()


class Started(NamedTuple):
    """A run in its child."""

    pid: int
    reader: int

    def wait(self) -> Ran:
        """Wait for the end, and return the result."""
        with open(self.reader) as pipe:
            text = pipe.read()
        code = status(self.pid)
        out, operations = json.loads(text) if text else ("", [])
        return Ran(code, out, tuple(operations))


def start(prefix: Path, *arguments: str, blow: Blow | None = None, at: int = -1, pause: float = 0) -> Started:
    """Start a run as `run` does, without waiting for it; `pause` (seconds) comes before each operation."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(reader)
            with open(os.devnull) as nothing:
                os.dup2(nothing.fileno(), 0)
            said, operations = io.StringIO(), strike(at, blow, pause)
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said), cli.four_fixes():
                _pretend(prefix)
                try:
                    code = main([*arguments])
                except BaseException as error:
                    print(f"{type(error).__name__}: {error}")
            with open(writer, "w") as pipe:
                json.dump([said.getvalue(), operations], pipe)
        finally:
            os._exit(code)
    os.close(writer)
    return Started(child, reader)


def _pretend(prefix: Path) -> None:
    """Look like the interpreter of this environment."""
    os.chdir(prefix)
    sys.prefix = str(prefix)
    sys.path[:0] = ["", str(prefix / "site")]
    sys.argv = ["-c"]
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX", "NO_COLOR", "FORCE_COLOR", "PYTHONPATH", "PYTHONPYCACHEPREFIX"):
        os.environ.pop(name, None)


@contextlib.contextmanager
def rewriting_once() -> Iterator[None]:
    """Remember the results of rewrites, which are pure functions, so that the children do not repeat them."""
    known = cache(unhang.rewrite.one_file.rewrite)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(unhang.rewrite.one_file, "rewrite", lambda data, steps: known(data, tuple(steps)))
        yield


class Stage(NamedTuple):
    """An environment that is laid out once; runs use a copy, always at the same path. One of its files is a link."""

    home: Path
    pristine: Tree
    applied: Tree
    """The environment after `apply`."""

    @property
    def shared(self) -> Path:
        """What the link leads to."""
        return self.home / "shared.py"

    def fresh(self, applied: bool) -> Path:
        """Return a new copy, pristine or as after `apply`."""
        copy = self.home / "now"
        shutil.rmtree(copy, ignore_errors=True)
        return Path(shutil.copytree(self.home / ("applied" if applied else "pristine"), copy, symlinks=True))


def stage(home: Path) -> Stage:
    """Return a stage below `home`."""
    with cli.four_fixes():
        site = cli.unpack_targets(home / "pristine" / "site", *RELEASES)
    for name, mode in COMPILED.items():
        py_compile.compile(str(site / name), doraise=True, invalidation_mode=mode)
    (site / ENGINE).rename(home / "shared.py")
    (site / ENGINE).symlink_to(home / "shared.py")
    # In this process, so that every child finds all modules imported and all rewrites done.
    warm_up = str(shutil.copytree(home / "pristine", home / "now", symlinks=True) / "site")
    said = io.StringIO()
    catalog.releases()  # it is kept for the process, and so for tests that need all fixes
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said), cli.four_fixes():
        assert [main([command, "--target", warm_up]) for command in ("check", "apply", "revert")] == [1, 0, 0]
    made = Stage(home, tree(home / "pristine"), {})
    ran = run(made.fresh(applied=False), "apply")
    assert ran.code == 0, ran.out
    shutil.copytree(home / "now", home / "applied", symlinks=True)
    assert made.pristine[f"site/{ENGINE}"] == b"-> " + os.fsencode(made.shared)
    return made._replace(applied=tree(home / "now"))


def interrupted(prefix: Path) -> bool:
    return state.interrupted(str(prefix / "site" / ".unhang"))
