"""The list of the commits that the sweep reads."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

from unhang.compat.sweep import frozen, matrix_files
from unhang.compat.sweep.clones import Clone


def test_the_list_moves_for_the_clones_that_are_given(tmp_path: Path) -> None:
    assert frozen.read(tmp_path) == {}
    swift = {"refs/tags/v1": "3" * 40}
    before = {"verl": {"refs/heads/main": "1" * 40, "refs/heads/gone": "2" * 40}, "ms-swift": swift}
    clone = Clone(Mock(), {"refs/heads/main": "4" * 40}, {"refs/pull/7/head": "5" * 40})
    after = frozen.moved(before, {"verl": clone})
    assert after == {
        "verl": {"refs/heads/main": "4" * 40, "refs/pull/7/head": "5" * 40},
        "ms-swift": swift,
    }
    matrix_files.write({str(tmp_path / frozen.NAME): matrix_files.swept(after)})
    assert frozen.read(tmp_path) == after
