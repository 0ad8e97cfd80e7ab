"""Overlays on disk: what is refused, what stays after a failure, and several writers at once."""

import errno
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support import environments, overlays
from support.overlays import FIX, LOOK, job
from unhang.deliver import overlay_folder
from unhang.deliver.overlay import Overlay
from unhang.errors import UnhangError
from unhang.find.overlays import MARK, STORE
from unhang.store import disk

OLD, NEW = (Overlay(name * 16, MARK + name.encode(), {"a": b"1", "modules/b": b"2"}, ()) for name in "ab")


def refused(folder: Path) -> str:
    with pytest.raises(UnhangError) as caught:
        overlay_folder.write(str(folder), NEW)
    return caught.value.code


@pytest.mark.parametrize(
    ("name", "overlay"), [("notes.txt", False), ("sitecustomize.py", False), ("sitecustomize.py", True)]
)  # fmt: skip
def test_a_folder_with_anything_else_is_refused(name: str, overlay: bool, tmp_path: Path) -> None:
    if overlay:
        overlay_folder.write(str(tmp_path), OLD)
    (tmp_path / name).write_text("theirs")
    before = overlays.contents(tmp_path)
    assert refused(tmp_path) == "not-empty"
    assert overlays.contents(tmp_path) == before
    assert refused(tmp_path / name) == "not-a-folder"
    assert refused(tmp_path / "a:b") == "bad-option"


def test_a_damaged_overlay_is_written_again(tmp_path: Path) -> None:
    assert overlay_folder.write(str(tmp_path), OLD)
    assert not overlay_folder.write(str(tmp_path), OLD)
    (tmp_path / STORE / OLD.identity / "a").write_bytes(b"damaged")
    assert overlay_folder.write(str(tmp_path), OLD)
    assert overlay_folder._holds(str(tmp_path), OLD)


@pytest.mark.parametrize("left", ["lock", "new-0123/a", "new-hook", f"{OLD.identity}/manifest.json"])
def test_what_a_killed_run_left_is_removed_by_one_that_has_nothing_to_write(left: str, tmp_path: Path) -> None:
    assert overlay_folder.write(str(tmp_path), NEW)
    environments.write(tmp_path / STORE, {left: ""})
    assert not overlay_folder.write(str(tmp_path), NEW)
    assert [path.name for path in (tmp_path / STORE).iterdir()] == [NEW.identity]
    assert overlay_folder._holds(str(tmp_path), NEW)


def test_whichever_operation_fails_the_folder_has_the_old_overlay_or_the_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = []
    for failing in range(1, 100):
        raised = False
        folder = tmp_path / str(failing)
        overlay_folder.write(str(folder), OLD)
        left = iter(range(1, 1000))

        def run(operation: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            if next(left) == failing:  # noqa: B023
                raise OSError(errno.ENOSPC, "No space left on device")
            return operation(*args, **kwargs)

        with monkeypatch.context() as patched:
            patched.setattr(disk, "run", run)
            try:
                overlay_folder.write(str(folder), NEW)
            except UnhangError as error:
                raised = True
                assert error.code == "disk-full"
        holds = [overlay_folder._holds(str(folder), it) for it in (OLD, NEW)]
        assert any(holds)
        assert raised != holds[1], "an error says that the new one is not in place"
        if next(left) <= failing:
            break  # there is no operation of this number
        held.append(holds[1])
        assert overlay_folder.write(str(folder), NEW) != holds[1], "the next run does what is left to do"
        assert overlay_folder._holds(str(folder), NEW)
        assert [path.name for path in (folder / STORE).iterdir()] == [NEW.identity]
    assert held == sorted(held)
    assert set(held) == {False, True}, "some failed before the rename that counts, some after it"


def test_an_interpreter_that_cannot_compile_the_hook_is_no_error(tmp_path: Path) -> None:
    overlay_folder.write(str(tmp_path), NEW)
    before = overlays.contents(tmp_path)
    overlay_folder.compile_hook(str(tmp_path), "/bin/false")
    overlay_folder.compile_hook(str(tmp_path), str(tmp_path / "nothing"))
    assert overlays.contents(tmp_path) == before


def test_several_runs_at_once_all_succeed(site: Path, tmp_path: Path) -> None:
    overlay = tmp_path / "overlay"
    command = [sys.executable, "-m", "unhang", "overlay", str(overlay), *FIX, "--target", str(site)]
    running = [subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd="/") for _ in range(4)]
    errors = [process.communicate(timeout=600)[1].decode() for process in running]
    assert [process.returncode for process in running] == [0] * 4, errors
    assert sum("written" in error for error in errors) == 1
    assert len(list(overlay.glob(".unhang-overlay/*"))) == 1
    assert job(LOOK, overlay, site).out.startswith(str(overlay))
