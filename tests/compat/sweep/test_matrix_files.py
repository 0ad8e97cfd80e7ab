"""The files of the matrix: sorted, and written all or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

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
