"""How a lock file is read: known by its content, of a bounded size, and damage in one line."""

import os
from pathlib import Path

import pytest

from support.lock_files import NAMES, read, uv, uv_package
from unhang.errors import UnhangError
from unhang.pins import files, values


def error(path: Path) -> UnhangError:
    with pytest.raises(UnhangError) as raised:
        files.read(str(path), NAMES)
    assert "\n" not in raised.value.message
    return raised.value


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("other.lock", uv(uv_package("verl", "0.7.1"))),
        ("uv.lock", uv(uv_package("verl", "0.7.1")).encode("utf-8-sig")),
        ("requirements.lock", "verl==0.7.1\n"),
        ("frozen", "verl==0.7.1\n"),
        ("windows.txt", "verl==0.7.1\r\n".encode("utf-16")),
        ("mac.txt", b"# an old Mac\rverl==0.7.1\r"),
        ("sbom", '{"bomFormat": "CycloneDX", "components": [{"name": "verl", "version": "0.7.1"}]}'),
    ],
)
def test_a_format_is_known_by_its_content(name: str, text: str | bytes, tmp_path: Path) -> None:
    assert [pin.version for pin in read(tmp_path / name, text)] == ["0.7.1"]


@pytest.mark.parametrize(
    "name", ["uv.lock", "poetry.lock", "pdm.lock", "pylock.toml", "conda-lock.yml", "a.txt", "b.json"]
)
@pytest.mark.parametrize("data", [b"\xff\xfe\xd8\x00", b"\x80abc", b"[[package]]\nname = 1\n", b"a = [" * 10_000, b"<"])
def test_damage_is_one_line_and_never_an_answer(name: str, data: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(data)
    assert error(tmp_path / name).code == "bad-lock"


@pytest.mark.parametrize(
    "more", ["version = 7", "source = 1", "dependencies = 1", "dependencies = [1]", "resolution-markers = [1]"]
)
def test_a_value_of_another_kind_is_damage(more: str, tmp_path: Path) -> None:
    (tmp_path / "uv.lock").write_text(f'version = 1\n[[package]]\nname = "verl"\n{more}\n')
    assert "is of type" in error(tmp_path / "uv.lock").message or "of type int" in error(tmp_path / "uv.lock").message


def test_a_file_that_is_none_or_too_large_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert error(tmp_path / "pipe").message.endswith("it is no regular file")
    assert error(tmp_path / "gone").code == "unreadable"
    assert error(tmp_path).code in ("bad-lock", "unreadable")
    monkeypatch.setattr(files, "LARGEST", 100)
    (tmp_path / "uv.lock").write_text("#" * 101)
    assert "MiB" in error(tmp_path / "uv.lock").message


@pytest.mark.parametrize(
    ("name", "head"),
    [
        ("uv.lock", "version = 99"),
        ("poetry.lock", '[metadata]\nlock-version = "9.1"'),
        ("pdm.lock", '[metadata]\nlock_version = "9.1"'),
    ],
)
def test_a_version_of_a_format_that_nobody_knows_is_refused(name: str, head: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(f'{head}\n[[package]]\nname = "verl"\nversion = "0.7.1"\n')
    assert "its format has version 9" in error(tmp_path / name).message


def test_so_many_pins_are_no_lock_file(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("".join(f"verl==0.{number}\n" for number in range(values.MOST + 1)))
    assert f"over {values.MOST} pins of verl" in error(tmp_path / "a.txt").message
