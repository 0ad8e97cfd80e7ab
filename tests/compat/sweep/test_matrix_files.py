"""The files of the matrix: sorted, and written all or not at all."""

import json
from pathlib import Path

import pytest

from unhang.compat.sweep import matrix_files
from unhang.compat.sweep.outlines import Packed


def test_a_write_that_fails_leaves_the_old_files(tmp_path: Path) -> None:
    paths = [str(tmp_path / name) for name in ("one.json", "two.json")]
    matrix_files.write(dict.fromkeys(paths, "old"))
    with pytest.raises(UnicodeEncodeError):
        matrix_files.write(dict(zip(paths, ("new", "\udc80"))))
    assert [Path(path).read_text() for path in paths] == ["old", "old"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.json", "two.json"], "and nothing else"


def test_each_entry_is_on_a_line_in_order() -> None:
    shapes = {"f 2": {"state": "ours"}, "f 1": {"state": "fixed"}}
    releases: dict[str, list[str | None]] = {"verl 0.10": ["1"], "verl 0.9": [None]}
    text = matrix_files.facts(
        matrix_files.Facts({"verl": ["a.py::f"]}, {}, {"b": {"g": None, "f": "1"}, "a": {}}, shapes, releases, Packed())
    )
    document = json.loads(text)
    assert (document["schema"], document["shapes"], document["pulls"]) == (1, shapes, {})
    assert [[*document[name]] for name in ("files", "shapes", "releases")] == [
        ["a", "b"],
        ["f 1", "f 2"],
        ["verl 0.9", "verl 0.10"],
    ]
    lines = text.splitlines()
    assert {' "b": {"f": "1", "g": null}', ' "f 1": {"state": "fixed"},', ' "verl 0.10": ["1"]'} < {*lines}
