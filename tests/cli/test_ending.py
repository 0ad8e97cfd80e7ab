"""Whatever fails after the commit: the user hears what is in place, and the exit code is that of this."""

import errno
import io
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support import cli
from support.wheel_files import ENGINE
from unhang.cli import ending
from unhang.cli.main import main
from unhang.deliver import overlay_folder, wheel_report
from unhang.errors import STDOUT, UnhangError
from unhang.store import disk, state
from unhang.tell import console

DONE = {
    "apply": "1 file is patched",
    "revert": "1 file is reverted",
    "overlay": "the overlay is in place",
    "wheel": "1 wheel is written",
}
"""The commands that write, and what is true after their commit."""


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Lay out two upstreams, with only the files that unhang reads, and a wheel of each."""
    folder = tmp_path_factory.mktemp("untouched")
    for name, version in ("verl", "0.7.1"), ("ms-swift", "4.6.0"):
        site = cli.unpack_targets(folder / ("site" if name == "verl" else name), (name, version))
        (record,) = site.glob("*.dist-info/RECORD")
        files = [str(path.relative_to(site)) for path in site.rglob("*") if path.is_file()]
        record.write_text("".join(f"{file},,\n" for file in files))
        with zipfile.ZipFile(folder / f"{name.replace('-', '_')}-{version}-py3-none-any.whl", "w") as wheel:
            for file in files:
                wheel.write(site / file, file)
    return folder


def prepared(command: str, untouched: Path, place: Path) -> list[str]:
    """Copy the upstream, patched for `revert`; return the arguments that make the command write."""
    shutil.copytree(untouched, place)
    target = ["--target", str(place / "site")]
    if command == "revert":
        cli.applied(*target)
    out = str(place / "out")
    (wheel,) = map(str, place.glob("verl-*"))
    return [command, *{"overlay": [out, *target], "wheel": [wheel, "-o", out]}.get(command, target)]


def is_done(command: str, place: Path) -> bool:
    if command == "wheel":
        return len(list((place / "out").glob("*+unhang*.whl"))) == 1
    if command == "overlay":
        return (place / "out" / "sitecustomize.py").exists()
    return (b"# unhang " in (place / "site" / ENGINE).read_bytes()) == (command == "apply")


def shell(arguments: list[str], how: str, **env: str) -> tuple[int, str]:
    """Run unhang with its streams redirected by a shell; return its exit code and stderr."""
    reader, writer = os.pipe()
    os.close(reader)  # a process that reads would have to be gone before this one writes
    line = f'"$@" {f">&{writer}" if how == PIPE else how}'
    command = ["bash", "-c", line, "bash", *cli.COMMAND, *arguments]
    neutral = {**{name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}, **env}
    streams: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "pass_fds": (writer,)}
    done = subprocess.run(command, check=False, cwd="/", env=neutral, **streams)
    os.close(writer)
    return done.returncode, done.stderr.decode()


FULL, CLOSED, PIPE = ">/dev/full", ">&-", "| what reads nothing"
WHY = {FULL: "No space left on device", CLOSED: "Bad file descriptor"}


@pytest.mark.slow
@pytest.mark.parametrize("how", [FULL, CLOSED, PIPE, "2>/dev/full", ">&- 2>&-"])
@pytest.mark.parametrize("command", DONE)
def test_what_is_in_place_counts_and_not_where_the_report_went(
    command: str, how: str, untouched: Path, tmp_path: Path
) -> None:
    code, err = shell(prepared(command, untouched, tmp_path / "x"), how)
    assert (code, is_done(command, tmp_path / "x")) == (0, True), err
    told = f"error[io]: {DONE[command]}, but cannot write to stdout: {WHY[how]}" if how in WHY else ""
    assert [line for line in err.splitlines() if "error" in line] == ([told] if told else [])
    assert "nothing was changed" not in err
    assert "Traceback" not in err


@pytest.mark.parametrize("how", [FULL, CLOSED, PIPE])
@pytest.mark.parametrize("command", ["check", "diff", "list", "explain", "matrix", "completion", "--help"])
def test_a_command_that_only_prints_fails_where_it_cannot(command: str, how: str, untouched: Path) -> None:
    options = {"explain": ["mtp-cp-deadlock"], "check": ["--target", str(untouched / "site")], "completion": ["zsh"]}
    options["diff"] = options["check"]
    code, err = shell([command, *options.get(command, [])], how)
    lines = [line for line in err.splitlines() if not line.startswith("environment: ")]
    told = [f"error[io]: cannot write to stdout: {WHY[how]}", "  hint: nothing was changed"] if how in WHY else []
    assert (code, lines) == (2 if how in WHY else 141, told)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "encoding"), [("caf\u00e9", "ascii"), ("caf\udce9", "utf-8")])
@pytest.mark.parametrize("command", [*DONE, "check", "diff"])
def test_a_path_that_the_output_cannot_hold_is_escaped(
    command: str, encoding: str, name: str, untouched: Path, tmp_path: Path
) -> None:
    ran = cli.unhang(*prepared(command, untouched, tmp_path / name), env={"PYTHONIOENCODING": encoding})
    assert (ran.code, "error" in ran.err) == (1 if command in ("check", "diff") else 0, False), ran.err
    assert name.encode("ascii", "backslashreplace").decode() in ran.out + ran.err
    assert command not in DONE or is_done(command, tmp_path / name)
    if command == "diff":
        subprocess.run(["patch", "-sp1", "-d", tmp_path / name / "site"], input=ran.out.encode("latin-1"), check=True)


def fails(error: BaseException) -> Callable[..., Any]:
    def call(*_: object, **__: object) -> Any:
        raise error

    return call


UNREADABLE = UnhangError("unreadable", "cannot be read")
STEPS = [
    ("apply", ending, "again", UNREADABLE),
    ("apply", ending, "again", PermissionError(errno.EACCES, "Permission denied", "/a.py")),
    ("revert", ending, "again", UNREADABLE),
    *((command, console, "results", KeyError("x")) for command in ("apply", "revert", "overlay")),
    ("apply", console, "applied", KeyError("x")),
    ("revert", console, "reverted", KeyError("x")),
    ("overlay", overlay_folder, "compile_hook", KeyError("x")),
    ("wheel", wheel_report, "text", KeyError("x")),
]


@pytest.mark.slow
@pytest.mark.parametrize("interrupted", [False, True])
@pytest.mark.parametrize(("command", "module", "step", "error"), STEPS)
def test_a_step_that_fails_after_the_commit_is_named(
    command: str,
    module: Any,
    step: str,
    error: Exception,
    interrupted: bool,
    untouched: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = prepared(command, untouched, tmp_path / "x")
    monkeypatch.setattr(module, step, fails(KeyboardInterrupt() if interrupted else error))
    assert (main(arguments), is_done(command, tmp_path / "x")) == (130 if interrupted else 0, True)
    err = capsys.readouterr().err
    if interrupted:
        assert err.splitlines()[-1] == f"interrupted: {DONE[command]}"
    else:
        why = "this is a bug in unhang: KeyError: 'x' (at unhang." if isinstance(error, KeyError) else ""
        assert f"]: {DONE[command]}, but {why or getattr(error, 'message', 'Permission denied')}" in err
        assert ("please report it, with the traceback that UNHANG_DEBUG=1 prints" in err) == bool(why)
    assert "nothing was changed" not in err
    assert "Traceback" not in err


def test_without_a_second_look_the_plan_says_what_is_in_place(
    untouched: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [*prepared("apply", untouched, tmp_path / "x"), "--output-format", "json"]
    monkeypatch.setattr(ending, "again", fails(UNREADABLE))
    assert main([*arguments, "--require", "mtp-cp-deadlock"]) == 0
    ran = cli.Ran(0, *capsys.readouterr())
    assert [(result["verdict"], result["changed"]) for result in ran.json["results"]] == [("applied", True)]


@pytest.mark.parametrize("command", ["apply", "revert"])
@pytest.mark.parametrize(("name", "code"), [(state.DONE, 1), (state.LOCK, 0)])
def test_what_could_not_be_tidied_is_named(
    command: str,
    name: str,
    code: int,
    untouched: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = prepared(command, untouched, tmp_path / "x")
    left = tmp_path / "x" / "site" / ".unhang" / name

    def run(operation: Any, *given: Any, **options: Any) -> Any:
        if operation is os.unlink and given[0] == str(left):
            raise OSError(errno.EIO, "Input/output error")
        return operation(*given, **options)

    with monkeypatch.context() as patch:
        patch.setattr(disk, "run", run)
        assert main([*arguments, "--output-format", "json"]) == code
    ran = cli.Ran(code, *capsys.readouterr())
    assert (left.exists(), is_done(command, tmp_path / "x")) == (True, True)
    assert (ran.json["interrupted"], f"cannot write {left}: Input/output error" in ran.err) == (bool(code), True)
    assert (f"`unhang apply --target {tmp_path / 'x' / 'site'}`" in ran.err) == bool(code), ran.err
    check = cli.unhang("check", "--target", tmp_path / "x" / "site", "--output-format", "json")
    assert check.json["interrupted"] == bool(code)
    assert cli.unhang(*arguments).code in (0, 1)
    assert not left.exists()


def test_an_old_overlay_that_stays_is_named(
    untouched: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = prepared("overlay", untouched, tmp_path / "x")
    old = tmp_path / "x" / "out" / ".unhang-overlay" / "old"
    old.mkdir(parents=True)
    monkeypatch.setattr(shutil, "rmtree", fails(OSError(errno.EIO, "Input/output error")))
    assert (main(arguments), is_done("overlay", tmp_path / "x")) == (0, True)
    assert f"note: {old} could not be removed" in capsys.readouterr().err


def test_the_wheels_before_one_that_fails_are_reported(
    untouched: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command, *rest = prepared("wheel", untouched, tmp_path / "x")
    arguments = [command, rest[0], str(next(untouched.glob("ms_swift-*"))), *rest[1:]]

    def run(operation: Any, *given: Any, **options: Any) -> Any:
        if operation is os.replace and "ms_swift" in given[1]:
            raise OSError(errno.ENOSPC, "No space left on device")
        return operation(*given, **options)

    monkeypatch.setattr(disk, "run", run)
    assert main([*arguments, "--output-format", "json"]) == 1
    ran = cli.Ran(1, *capsys.readouterr())
    assert [wheel["output"]["written"] for wheel in ran.json["wheels"]] == [True]
    assert ran.json["error"]["code"] == "disk-full"
    assert "error[disk-full]" in ran.err
    assert is_done("wheel", tmp_path / "x")


def test_nothing_more_is_printed_on_a_stdout_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first step notices it; the next ones flush it too."""
    guard = ending.Ending("1 file is patched")
    closed = io.StringIO()
    closed.flush = fails(OSError(errno.ENOSPC, "full", STDOUT))  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stdout", closed)
    for _ in range(2):
        with guard:
            sys.stdout.flush()
    assert sys.stdout is not closed
