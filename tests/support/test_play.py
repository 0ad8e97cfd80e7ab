"""The scene of a fix on one release, of which nothing is on record. No torch runs here."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from support import play, sources
from unhang.compat.sweep import trees
from unhang.judge import rows, scene
from unhang.plugins import packs
from unhang.rewrite.one_file import Step, rewrite
from unhang.shapes import catalog

FIX, SWIFT = "resume-data-order", "ms-swift==4.6.0"


@pytest.fixture
def wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, str]]:
    """What is wrong in the settings, by side and setting; a test may add to it. The release is a folder."""
    source = sources.wheel(FIX, "4.6.0")
    path = tmp_path / source.target.file
    path.parent.mkdir(parents=True)
    path.write_bytes(source.data)
    said: dict[str, dict[str, str]] = {rows.BEFORE: {}, rows.AFTER: {}}

    def played(fix: str, texts: Mapping[str, object], *_: object) -> dict[str, Any]:
        return {name: {"wrong": said[name], "ran": 9, "open": []} for name in texts}

    monkeypatch.setattr(trees, "unpacked", lambda *_: tmp_path)
    monkeypatch.setattr(rows, "played", played)
    monkeypatch.setattr(catalog, "facts", None)
    return said


def test_it_tells_how_each_setting_ends_on_both_sides(
    wrong: dict[str, dict[str, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    every = [case.name for case in scene.of(FIX).GRID]
    bad = next(case.name for case in scene.of(FIX).GRID if not case.is_control)
    wrong[rows.BEFORE][bad] = "the mean is 2, due 3"
    assert play.main([FIX, SWIFT]) == 0
    out = capsys.readouterr().out
    assert f"  {bad}: untouched the mean is 2, due 3; rewritten right\n" in out
    assert [line for line in out.splitlines() if "; rewritten right" in line] == [
        f"  {name}: untouched {wrong[rows.BEFORE].get(name, 'right')}; rewritten right" for name in every
    ]


def test_what_a_sweep_would_leave_undecided_is_a_problem(
    wrong: dict[str, dict[str, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    wrong[rows.AFTER]["no such setting"] = "hung"
    assert play.main([FIX, SWIFT]) == 1
    assert "  PROBLEM: worse with no such setting: hung\n" in capsys.readouterr().out


def test_a_line_of_the_rewrite_that_is_too_long_is_a_problem(
    wrong: dict[str, dict[str, str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(packs.upstreams()["ms-swift"].about, "line-length", 60)
    assert play.main([FIX, SWIFT]) == 1
    assert " columns, 60 at most\n" in capsys.readouterr().out


def test_without_torch_it_says_how_to_get_it(
    wrong: dict[str, dict[str, str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def played(*_: object) -> dict[str, Any]:
        raise scene.NoTorchError("no torch here")

    monkeypatch.setattr(rows, "played", played)
    assert play.main([FIX, SWIFT]) == 2
    assert "without nox's -R" in capsys.readouterr().err


def test_a_function_that_the_release_does_not_have_is_told(
    wrong: dict[str, dict[str, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert play.main(["mean-metric-dtype", SWIFT]) == 0
    assert capsys.readouterr().out.count("  this release does not have it\n") == 2


def test_nothing_that_is_played_is_no_success(capsys: pytest.CaptureFixture[str]) -> None:
    assert play.main(["no-such-fix", SWIFT]) == 2
    assert play.main([FIX, "ms-swift==0.0"]) == 2
    assert play.main([FIX, "verl==0.9.1"]) == 2
    assert "pins no ms-swift 0.0" in capsys.readouterr().err


def test_a_release_that_is_right_in_every_setting_needs_no_rewrite(
    wrong: dict[str, dict[str, str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = sources.wheel(FIX, "4.6.0")
    (tmp_path / source.target.file).write_bytes(rewrite(source.data, [Step(source.target, None)]).data)
    assert play.main([FIX, SWIFT]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == ["  right in every setting: it needs no rewrite"]
    wrong[rows.BEFORE][scene.of(FIX).GRID[0].name] = "hung"
    assert play.main([FIX, SWIFT]) == 1
    assert "  the codemod refuses it: " in capsys.readouterr().out
