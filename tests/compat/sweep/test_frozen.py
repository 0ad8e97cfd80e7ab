"""The list of the commits that the sweep reads."""

from pathlib import Path
from unittest.mock import Mock

from support.checkout import COMPAT
from unhang.compat.sweep import as_written, frozen, matrix_files
from unhang.compat.sweep.clones import Clone
from unhang.shapes import catalog


def test_the_list_moves_for_the_clones_that_are_given(tmp_path: Path) -> None:
    assert frozen.read(tmp_path) == {}
    swift = {"refs/tags/v1": "3" * 40}
    before = {"verl": {"refs/heads/main": "1" * 40, "refs/heads/gone": "2" * 40}, "ms-swift": swift}
    clone = Clone(Mock(), {"refs/heads/main": "4" * 40}, {"refs/pull/7/head": "5" * 40})
    after = frozen.moved(before, {"verl": clone})
    assert after == {"verl": {"refs/heads/main": "4" * 40}, "ms-swift": swift}
    matrix_files.write({str(tmp_path / frozen.NAME): matrix_files.swept(after)})
    assert frozen.read(tmp_path) == frozen.branches(tmp_path) == after


def test_the_pull_requests_of_a_fix_are_with_its_facts() -> None:
    """So two fixes with a pull request each have no line of a file in common."""
    found = frozen.read(COMPAT)
    for pull in as_written.pulls():
        commit = catalog.facts(pull.target.fix)["pulls"][pull.ref]
        assert found[pull.project][pull.ref] == commit
    assert not [ref for refs in frozen.branches(COMPAT).values() for ref in refs if ref.startswith("refs/pull/")]
