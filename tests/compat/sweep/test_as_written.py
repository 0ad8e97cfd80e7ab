"""Upstream's pull requests as written: the hunks of one function, applied to files that differ elsewhere."""

import shutil
from pathlib import Path

import pytest

from support.fake_clone import git
from unhang.compat.sweep import as_written, clones

pytest.importorskip("git")
GAP = "\n".join(f"x{number} = {number}" for number in range(20))
BASE = f"import b\n{GAP}\n\n\ndef f():\n    return 1\n\n\n{GAP}\n\n\ndef g():\n    return 1\n"


@pytest.mark.skipif(shutil.which("patch") is None, reason="GNU patch is needed to apply a pull request")
def test_the_hunks_of_one_function_are_taken_and_applied_whole_or_not_at_all(tmp_path: Path) -> None:
    origin = tmp_path / "origin"
    origin.mkdir()
    git(origin, "init", "-q")
    pull = BASE.replace("import b", "import a").replace("return 1", "return 2")
    for branch, text in (("main", BASE), ("pull", pull)):
        git(origin, "checkout", "-qB", branch)
        (origin / "m.py").write_text(text)
        git(origin, "add", ".")
        git(origin, "commit", "-qm", branch)
    git(origin, "update-ref", "refs/pull/7/head", "pull")
    git(origin, "checkout", "-q", "main")
    (origin / "m.py").write_text(BASE.replace("import b", "import c"))
    git(origin, "commit", "-qam", "later")
    ref, entry = "refs/pull/7/head", {"refs": ["refs/heads/main"]}
    clone = clones.newest(clones.open_clone(str(origin), tmp_path), entry, [ref])
    diff = as_written.hunks(clone, ref, "m.py", "f")
    assert (diff.count("\n@@ "), "import" in diff) == (1, False)
    data = BASE.replace("import b", "import d").encode()
    assert as_written.applied(diff, data) == data.replace(b"return 1", b"return 2", 1)
    assert as_written.applied(diff, BASE.replace("return 1", "return 3").encode()) is None
