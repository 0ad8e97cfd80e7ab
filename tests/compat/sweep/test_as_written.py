"""Upstream's pull requests as written: the hunks of one function, applied to files that differ elsewhere."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from support.fake_clone import git
from unhang.compat.sweep import as_written, clones

pytest.importorskip("git")
GAP = "\n".join(f"x{number} = {number}" for number in range(20))
BASE = f"import b\n{GAP}\n\n\ndef f():\n    return 1\n\n\n{GAP}\n\n\ndef g():\n    return 1\n"


@pytest.fixture
def diff(tmp_path: Path) -> str:
    """What a pull request that changes an import, f and g does to f."""
    if shutil.which("patch") is None:
        pytest.skip("GNU patch is needed to apply a pull request")
    origin = tmp_path / "origin"
    origin.mkdir()
    git(origin, "init", "-q")
    for branch, text in (
        ("main", BASE),
        ("pull", BASE.replace("import b", "import a").replace("return 1", "return 2")),
    ):
        git(origin, "checkout", "-qB", branch)
        (origin / "m.py").write_text(text)
        git(origin, "add", ".")
        git(origin, "commit", "-qm", branch)
    git(origin, "update-ref", "refs/pull/7/head", "pull")
    git(origin, "checkout", "-q", "main")
    (origin / "m.py").write_text(BASE.replace("import b", "import c"))
    git(origin, "commit", "-qam", "later")
    return as_written.hunks(clones.open_clone(str(origin), tmp_path), "refs/pull/7/head", "m.py", "f")


def test_only_the_hunks_of_the_function_are_taken(diff: str) -> None:
    assert diff.count("\n@@ ") == 1
    assert "+    return 2" in diff
    assert "import" not in diff


def test_a_diff_is_applied_whole_or_not_at_all(diff: str) -> None:
    data = BASE.replace("import b", "import d").encode()
    assert as_written.applied(diff, data) == data.replace(b"return 1", b"return 2", 1)
    assert as_written.applied(diff, BASE.replace("return 1", "return 3").encode()) is None
