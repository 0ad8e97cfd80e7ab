"""What `apply` says where it may not write: every file, beside the error that names the first."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import pytest

from unhang.errors import UnhangError
from unhang.tell import console


class File(NamedTuple):
    path: str


class Planned(NamedTuple):
    files: list[File]


@pytest.fixture
def planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Planned:
    """Three files; the folder of the second may be written. Root may write anywhere, so this is told, not tried."""
    monkeypatch.setattr(os, "access", lambda path, mode: path.endswith("/two"))
    return Planned([File(f"/{name}/file.py") for name in ("one", "two", "three")])


def test_each_file_that_cannot_be_replaced_is_named(planned: Planned, capsys: pytest.CaptureFixture[str]) -> None:
    console.refused(UnhangError("not-writable", "no"), planned)  # type: ignore[arg-type]
    assert capsys.readouterr().err.splitlines() == [
        "not writable here: /one/file.py",
        "not writable here: /three/file.py",
    ]


def test_another_error_is_not_about_who_may_write(planned: Planned, capsys: pytest.CaptureFixture[str]) -> None:
    console.refused(UnhangError("disk-full", "no"), planned)  # type: ignore[arg-type]
    console.refused(UnhangError("not-writable", "no"), None)
    assert capsys.readouterr().err == ""
