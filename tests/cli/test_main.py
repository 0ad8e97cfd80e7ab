"""The process around a command: exit codes, and what becomes of errors."""

import re
from pathlib import Path

import pytest

import unhang
from support import cli, ptys
from unhang.cli import check_command
from unhang.cli.main import main
from unhang.errors import UnhangError


def test_help_version_and_wrong_usage_have_their_exit_codes() -> None:
    assert cli.unhang("--help").code == 0
    assert cli.unhang("--version").out == f"unhang {unhang.__version__}\n"
    assert cli.unhang("frobnicate").code == 2


def test_an_error_is_a_json_document_too(tmp_path: Path) -> None:
    ran = cli.unhang("check", "--target", tmp_path, "--output-format", "json")
    assert ran.code == 2
    assert ran.json["schema"] == 1
    assert list(ran.json["error"]) == ["code", "message", "path", "hint"]
    assert (ran.json["error"]["code"], ran.json["error"]["path"]) == ("no-upstream", str(tmp_path))


@pytest.mark.parametrize(("columns", "unbuffered"), [(80, ""), (40, "1")])
def test_on_a_terminal_every_line_fits_and_nothing_is_lost(
    columns: int, unbuffered: str, site: Path, tmp_path: Path
) -> None:
    source = site / "verl/workers/engine/megatron/transformer_impl.py"
    source.write_bytes(source.read_bytes().replace(b"self.is_mp_src_rank_with_outputs():", b"True:", 1))
    for command, is_wrapped_alone in (
        (("check", "--target", site, "--color", "never"), False),  # it has columns, which a log has not
        (("apply", "--target", site, "--color", "never", "--dry-run", "--require", "mtp-cp-deadlock"), False),
        (("check", "--target", tmp_path / "nothing here" / ("with a long path " * 5)), True),
        (("list",), True),
    ):
        piped = cli.unhang(*command)
        assert any(len(line) > 80 for line in (piped.out + piped.err).splitlines()), "a log is not wrapped"
        code, text = ptys.unhang(*command, columns=columns, env={"PYTHONUNBUFFERED": unbuffered})
        assert code == piped.code
        assert (text.split() == (piped.out + piped.err).split()) is is_wrapped_alone
        for line in text.splitlines():
            assert len(line) <= columns or re.match(r" *(?:--> )?(\S+|`?unhang .*)$", line), line


@pytest.mark.parametrize(
    ("environment", "longest", "coloured"),
    [({"COLUMNS": "120"}, 120, True), ({"COLUMNS": "120", "TERM": "dumb"}, 120, False), ({}, 78, True)],
)
def test_a_terminal_may_be_told_its_width_and_be_dumb(
    environment: dict[str, str], longest: int, coloured: bool, pristine: Path
) -> None:
    _, text = ptys.unhang(
        "check", "--target", pristine, "--fix", "sft-packed-seq-broadcast", columns=80, env=environment
    )
    assert ("\x1b[" in text) is coloured
    lines = re.sub(r"\x1b\[\d*m", "", text).splitlines()
    assert max(len(line) for line in lines if "changes numbers: " in line) == longest


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (UnhangError("disk-full", "no space"), 2, "error[disk-full]: no space"),
        (PermissionError(13, "Permission denied", "/site/a.py"), 2, "error[io]: Permission denied\n  in: /site/a.py"),
        (OSError("no such device"), 2, "error[io]: no such device"),
        (KeyboardInterrupt(), 130, "interrupted: nothing is half done"),
        (KeyboardInterrupt("2 files are patched"), 130, "interrupted: 2 files are patched"),
        (
            ZeroDivisionError("oops\non two lines"),
            2,
            "error[internal]: this is a bug in unhang: ZeroDivisionError: oops on two lines (at unhang.cli.main:",
        ),
    ],
)
@pytest.mark.parametrize("debug", ["", "1"])
def test_each_exception_has_its_exit_code_and_message(
    error: BaseException,
    code: int,
    message: str,
    debug: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fails(options: object) -> int:
        raise error

    monkeypatch.setattr(check_command, "run", fails)
    monkeypatch.setenv("UNHANG_DEBUG", debug)
    assert main(["check"]) == code
    out, err = capsys.readouterr()
    assert (out, message in err) == ("", True)
    assert ("Traceback" in err) is (bool(debug) and code == 2)
    assert ("nothing was changed" in err) is isinstance(error, (OSError, ZeroDivisionError))
