"""The state folder is removed when it holds nothing that counts, and it hides itself from git."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from support.receipts import A, entry, save
from support.transactions import KILLED, Case, die, die_halfway, finish, make_apply, make_revert, struck
from unhang.errors import UnhangError
from unhang.store import folder, state
from unhang.store.lock import exclusive
from unhang.store.receipt import Receipt, merge


def test_a_file_in_its_place_is_reported_and_stays(tmp_path: Path) -> None:
    (tmp_path / ".unhang").write_text("mine")
    with pytest.raises(UnhangError) as caught, exclusive(str(tmp_path / ".unhang")):
        pass
    assert caught.value.code == "bad-state"
    assert (tmp_path / ".unhang").read_text() == "mine"


# Git


def git(folder: Path, *arguments: str) -> str:
    if shutil.which("git") is None:
        pytest.skip("no git here")
    identity = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    done = subprocess.run(
        ["git", *identity, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    top = tmp_path / "checkout"
    top.mkdir()
    git(top, "init", "--quiet")
    (top / ".gitignore").write_text("__pycache__\n")
    git(top, "add", ".")
    git(top, "commit", "--quiet", "-m", "first")
    return top


def status(folder: Path) -> list[str]:
    return git(folder, "status", "--porcelain", "--untracked-files=all").splitlines()


def test_git_does_not_see_the_state_folder(checkout: Path) -> None:
    state = checkout / ".unhang"
    before = sorted(checkout.rglob("*"))
    with exclusive(str(state)):
        assert status(checkout) == []
    save(state, merge(None, [entry()]), A)
    assert (state / "receipt.json").exists()
    assert status(checkout) == []
    save(state, Receipt("", ()))
    assert sorted(checkout.rglob("*")) == before


@pytest.mark.slow
@pytest.mark.parametrize("make", [make_apply, pytest.param(make_revert, marks=pytest.mark.slow)])
def test_git_does_not_see_it_wherever_a_run_is_killed(
    checkout: Path, in_memory: Path, make: Callable[[Path], Case]
) -> None:
    """Except for one operation each: an empty .gitignore when it is made, the lock when the folder is removed."""
    top = Path(shutil.copytree(checkout, in_memory / "now"))
    case = make(top)
    git(top, "add", ".")
    git(top, "commit", "--quiet", "-m", "second")
    shutil.copytree(top, in_memory / "before")
    seen, number, found = set(), 0, KILLED
    while found == KILLED:
        shutil.rmtree(top)
        shutil.copytree(in_memory / "before", top)
        found = struck(case, number, die)
        untracked = {line[3:] for line in status(top) if line.startswith("??")}
        # The temporary files beside the sources are visible until the next run removes them.
        ours = frozenset(name for name in untracked if "/.unhang-" not in name)
        assert ours <= ({".unhang/.gitignore"} if make is make_apply else {".unhang/lock"}), number
        seen.add(ours)
        finish(case)
        assert not any(line.startswith("??") for line in status(top)), number
        number += 1
    assert number > 60
    assert len(seen) == 2


# Its .gitignore


def test_a_folder_of_an_earlier_run_is_hidden_too(tmp_path: Path) -> None:
    state = tmp_path / ".unhang"
    save(state, merge(None, [entry()]), A)
    for spoil in (lambda: (state / ".gitignore").unlink(), lambda: (state / ".gitignore").write_bytes(b"")):
        spoil()
        with exclusive(str(state)):
            assert (state / ".gitignore").read_bytes() == b"*"
        assert (state / ".gitignore").read_bytes() == b"*"


def test_the_users_own_gitignore_stays_and_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / ".unhang").mkdir()
    (tmp_path / ".unhang" / ".gitignore").symlink_to(tmp_path / "victim")
    with exclusive(str(tmp_path / ".unhang")):
        pass
    assert list(tmp_path.iterdir()) == []
    (tmp_path / ".unhang").mkdir()
    (tmp_path / ".unhang" / ".gitignore").write_text("!receipt.json\n")
    save(tmp_path / ".unhang", merge(None, [entry()]), A)
    assert (tmp_path / ".unhang" / ".gitignore").read_text() == "!receipt.json\n"


def test_an_empty_gitignore_with_another_name_is_replaced_and_that_other_name_stays_empty(tmp_path: Path) -> None:
    outside, hidden = tmp_path / "outside", tmp_path / ".unhang"
    outside.touch()
    hidden.mkdir()
    (hidden / ".gitignore").hardlink_to(outside)
    folder.hide(str(hidden))
    assert (outside.read_bytes(), (hidden / ".gitignore").read_bytes()) == (b"", b"*")


def test_a_folder_can_stay_visible(tmp_path: Path) -> None:
    with exclusive(str(tmp_path / "store"), hidden=False):
        assert [path.name for path in (tmp_path / "store").iterdir()] == ["lock"]


@pytest.mark.parametrize("blow", [die, die_halfway])
def test_killed_while_it_makes_or_removes_the_folder(in_memory: Path, blow: Callable[..., None]) -> None:
    number, found = 0, KILLED
    while found == KILLED:
        case = Case(in_memory, str(in_memory / ".unhang"), [])
        found = struck(case, number, blow, finish)
        if found == KILLED and any(in_memory.iterdir()):
            assert state.littered(case.state), number
        finish(case)
        assert list(in_memory.iterdir()) == []
        assert not state.littered(case.state)
        number += 1
    assert number > 10
