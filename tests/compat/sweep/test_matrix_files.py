"""The files of the matrix: sorted, and written all or not at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from unhang.compat.index import Offer
from unhang.compat.sweep import matrix_files


def test_a_write_that_fails_leaves_the_old_files(tmp_path: Path) -> None:
    paths = [str(tmp_path / name) for name in ("one.json", "two.json")]
    matrix_files.write(dict.fromkeys(paths, "old"))
    with pytest.raises(UnicodeEncodeError):
        matrix_files.write(dict(zip(paths, ("new", "\udc80"))))
    assert [Path(path).read_text() for path in paths] == ["old", "old"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.json", "two.json"], "and nothing else"


def test_each_entry_is_on_a_line() -> None:
    rows = [{"fix": "a", "shape": "1"}, {"fix": "a", "shape": "2"}]
    text = matrix_files.shapes(rows)
    assert json.loads(text) == {"schema": 1, "shapes": rows}
    assert text.splitlines()[1:3] == [' {"fix": "a", "shape": "1"},', ' {"fix": "a", "shape": "2"}']
    text = matrix_files.files({"b": {"g": None, "f": "1"}, "a": {}})
    assert [*json.loads(text)["files"]] == ["a", "b"]
    assert text.splitlines()[2] == ' "b": {"f": "1", "g": null}'


def test_the_wheels_are_grouped_by_project() -> None:
    made: list[Any] = [Offer(project, "1.0", False, "f.whl", "00", "3.12", None) for project in ("verl", "ms-swift")]  # type: ignore[arg-type]
    row = {"version": "1.0", "file": "f.whl", "sha256": "00", "python": "3.12", "yanked": False}
    assert json.loads(matrix_files.wheels(made)) == {"schema": 1, "wheels": {"ms-swift": [row], "verl": [row]}}
