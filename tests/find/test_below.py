"""Copies deep in a folder: what a project vendors is found, and the search has bounds."""

import os
from pathlib import Path
from typing import Any

import pytest

from unhang.find import below
from unhang.plugins import packs


def vendor(root: Path, module: str = "megatron.core") -> Path:
    """Lay out what a copy of this module is known by; return its root."""
    for mark in packs.modules()[module].marks:
        path = root.joinpath(*module.split("."), mark)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return root


def found(top: Path, *modules: str) -> list[str]:
    return [str(Path(root).relative_to(top)) for root in below.roots(str(top), modules or [*packs.modules()])]


def test_what_is_vendored_is_found_the_highest_first(tmp_path: Path) -> None:
    for place in ("third_party/Megatron-LM", "src", "a/b/c/d", "src/inside/another"):
        vendor(tmp_path / place)
    vendor(tmp_path / "b", "verl")
    assert found(tmp_path) == ["b", "src", "third_party/Megatron-LM", "a/b/c/d"]
    assert found(tmp_path, "verl") == ["b"]
    assert found(tmp_path, "swift") == []
    (tmp_path / "b/verl/protocol.py").unlink()
    assert found(tmp_path, "verl") == [], "a namesake"


def test_the_search_has_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = vendor(tmp_path / "elsewhere")
    top = tmp_path / "top"
    vendor(top)  # the folder itself has been looked at
    for place in (".git", ".venv", "node_modules/x", "__pycache__", "a/b/c/d/e"):
        vendor(top / place)
    (vendor(top / "venv/lib").parent / "pyvenv.cfg").touch()
    (top / "link").symlink_to(elsewhere)
    (top / "loop").symlink_to(top)
    assert found(top) == []
    (top / "venv/pyvenv.cfg").unlink()
    assert found(top) == ["venv/lib"]
    monkeypatch.setattr(below, "_MOST", 8)
    assert found(top) == []


def test_a_folder_that_cannot_be_listed_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vendor(tmp_path / "b")
    genuine = os.scandir

    def refusing(folder: Any) -> Any:
        if folder == str(tmp_path / "a"):
            raise PermissionError
        return genuine(folder)

    (tmp_path / "a").mkdir()
    monkeypatch.setattr(os, "scandir", refusing)
    assert found(tmp_path) == ["b"]
