"""Run `unhang` in a process, as users do, and lay out upstreams to run it on."""

import hashlib
import json
import os
import posix
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, NamedTuple
from unittest.mock import patch

from support import wheels
from unhang.cli.main import main
from unhang.find import metadata
from unhang.shapes import catalog
from unhang.tell import terminal

# Under `--cov`, coverage measures each process that has this variable, and saves what it measured in os._exit. Only the
# processes that `python` starts are measured: some tests check what a process imports, others fork a thousand children.
COVERAGE = {name: os.environ.pop(name) for name in ("COVERAGE_PROCESS_CONFIG",) if name in os.environ}
os._exit = posix._exit
# These could select another environment or other fixes, or colour the output.
_NEUTRAL = (
    "CI",
    "GITHUB_ACTIONS",
    "TF_BUILD",
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
    "NO_COLOR",
    "FORCE_COLOR",
    "COLUMNS",
    "PYTHONPATH",
    "UNHANG_REQUIRE",
    "UNHANG_SKIP",
    "UNHANG_ACCEPT",
    "UNHANG_PACKS",
)

FOUR = ("empty-expert-hang", "expert-dp-warmup", "mtp-cp-deadlock", "sft-packed-seq-broadcast")
"""The fixes that the commands are tested with. A new one would add lines and counts to what these tests expect."""
_WITH_FOUR = f"""
from unhang.find import own_path
own_path.settle()
from unhang.shapes import catalog
every = catalog.fixes
catalog.fixes = lambda: {{name: every()[name] for name in {FOUR}}}
from unhang.cli import main
main.run()
"""
COMMAND = (sys.executable, "-c", _WITH_FOUR)
"""The installed command, with these fixes."""


class Ran(NamedTuple):
    """The result of a run."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The stdout, which must be one JSON document."""
        return json.loads(self.out)


def unhang(
    *arguments: str | os.PathLike[str],
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout_s: float = 600,
) -> Ran:
    """Run the installed command, with four fixes."""
    return python(*COMMAND[1:], *arguments, cwd=cwd, env=env, timeout_s=timeout_s)


def called(*arguments: str | os.PathLike[str], env: Mapping[str, str] | None = None) -> Ran:
    """Run the command in this process, with four fixes: a new process takes half a second to load LibCST.

    What only a process shows, as what is imported, is for ``unhang``.
    """
    with four_fixes():
        return called_with_all(*arguments, env=env)


@contextmanager
def four_fixes() -> Iterator[None]:
    """Let this process, and those that it forks, know four fixes."""
    four = {name: catalog.fix(name) for name in FOUR}
    with patch.object(catalog, "fixes", lambda: four):
        yield


def called_with_all(*arguments: str | os.PathLike[str], env: Mapping[str, str] | None = None) -> Ran:
    """Run the command in this process, with every fix."""
    metadata.read.cache_clear()  # a process knows nothing of earlier runs
    with ExitStack() as stack:
        out, err = (
            stack.enter_context(TemporaryFile("w+", encoding="utf-8", errors="backslashreplace")) for _ in range(2)
        )
        stack.enter_context(patch.dict(os.environ, environ(env), clear=True))
        stack.enter_context(patch.multiple(terminal.settings, color="auto", quiet=False, verbose=False))
        stack.enter_context(redirect_stdout(out))
        stack.enter_context(redirect_stderr(err))
        code = main([*map(str, arguments)])
        for stream in out, err:
            stream.seek(0)
        return Ran(code, *(bytes(stream.buffer.read()).decode("latin-1") for stream in (out, err)))


def applied(*arguments: str | os.PathLike[str]) -> None:
    """Bring the four fixes into place, as set-up."""
    ran = called("apply", *arguments)
    assert ran.code == 0, ran.out + ran.err


def installed(*arguments: str | os.PathLike[str], cwd: Path | None = None, env: Mapping[str, str] | None = None) -> Ran:
    """Run the installed command as it is, with every fix: for what is compared with this process."""
    return python("-m", "unhang", *arguments, cwd=cwd, env=env)


def python(
    *arguments: str | os.PathLike[str],
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout_s: float = 600,
) -> Ran:
    """Run this Python, which has the installed package."""
    done = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        cwd=cwd or "/",
        env=environ(env),
        check=False,
        timeout=timeout_s,
    )
    return Ran(done.returncode, done.stdout.decode("latin-1"), done.stderr.decode("latin-1"))


def environ(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return our environment variables without those that matter to the command, and with these."""
    neutral = {name: value for name, value in os.environ.items() if name not in _NEUTRAL}
    return {**neutral, **COVERAGE, **(more or {})}


def unpack(folder: Path, *releases: tuple[str, str]) -> Path:
    """Lay out real releases in a folder, as `pip install --target` does, and return the folder."""
    for project, version in releases:
        with zipfile.ZipFile(wheels.fetch(project, version)) as wheel:
            wheel.extractall(folder)
    return folder


def unpack_targets(folder: Path, *releases: tuple[str, str]) -> Path:
    """Lay out only those files of real releases that unhang reads, which is much faster; return the folder."""
    for project, version in releases:
        with zipfile.ZipFile(wheels.fetch(project, version)) as wheel:
            wheel.extractall(folder, [name for name in wheel.namelist() if _is_read(name)])
    return folder


def _is_read(name: str) -> bool:
    parts = name.split("/")
    is_mark = len(parts) <= 3 and parts[-1] in (
        "__init__.py",
        "package_info.py",
        "protocol.py",
        "version",
        "version.py",
    )
    is_target = any(name == target.file for fix in catalog.fixes().values() for target in fix.functions)
    return is_mark or is_target or parts[0].endswith(".dist-info")


def tree(folder: Path) -> dict[str, tuple[int, str]]:
    """Return the mode and sha256 of every file and folder below a folder, without __pycache__."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if "__pycache__" not in path.parts:
            data = b"/" if path.is_dir() else path.read_bytes()
            found[str(path.relative_to(folder))] = (path.lstat().st_mode, hashlib.sha256(data).hexdigest())
    return found


def verdicts(ran: Ran) -> dict[tuple[str, str, str], str]:
    return {(item["upstream"], item["fix"], item["file"]): item["verdict"] for item in ran.json["results"]}
