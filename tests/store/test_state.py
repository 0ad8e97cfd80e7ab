"""A look at the state folder shows whether a run was interrupted or left anything, and loads nothing slow."""

import subprocess
import sys
from pathlib import Path

import pytest

from unhang.store import state


def test_looking_imports_nothing_slow() -> None:
    code = (
        "import sys; before = set(sys.modules)  # an editable install may load some by itself\n"
        "from unhang.store.receipt import load; from unhang.store.state import interrupted\n"
        "load('/nonexistent'); interrupted('/nonexistent'); print(*(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
    slow = {"dataclasses", "pathlib", "tempfile", "inspect", "filelock", "subprocess", "libcst", "ast", "logging"}
    slow |= {"unhang.store.transaction", "unhang.store.journal", "unhang.store.lock"}
    assert not slow & set(done.stdout.split())


# What is left


@pytest.mark.parametrize(
    ("names", "is_left"),
    [("", True), ("lock", True), (".gitignore", True), (".gitignore lock journal.tmp", True),
     ("receipt.json lock .gitignore", True), ("receipt.json journal.tmp", True), ("receipt.json", False),
     ("receipt.json pristine .gitignore", False), ("notes.txt", False)],
)  # fmt: skip
def test_a_lock_a_draft_or_a_folder_with_nothing_that_counts_is_litter(
    tmp_path: Path, names: str, is_left: bool
) -> None:
    for name in names.split():
        (tmp_path / name).touch()
    assert state.littered(str(tmp_path)) is is_left


@pytest.mark.parametrize("stage", [state.INTENT, state.READY, state.DONE])
def test_a_journal_of_any_stage_is_an_interrupted_run(tmp_path: Path, stage: str) -> None:
    assert not state.interrupted(str(tmp_path / "missing"))
    assert not state.interrupted(str(tmp_path))
    (tmp_path / stage).symlink_to("nowhere")
    assert state.interrupted(str(tmp_path))
