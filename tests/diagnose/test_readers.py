"""Files are read in processes of their own: what one file does to its reader, it does to no other."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from unhang.diagnose import readers

MODULE = """
import os, signal, sys, time
kept = []
def act(file):
    what = os.path.basename(file).split("-")[0]
    if what == "killed": os.kill(os.getpid(), signal.SIGKILL)
    if what == "crashed": os.abort()
    if what == "left": os._exit(0)
    if what == "slow": time.sleep(600)
    if what == "large": kept.append(bytearray(5 << 30))
    if what == "wrong": raise KeyError("x")
    if what == "long": return b"x" * (200 << 20)
    return what, os.getpid()
"""


Act = Callable[[str], object]


@pytest.fixture
def act(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Act]:
    (tmp_path / "actor.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    import actor  # type: ignore[import-not-found]

    yield actor.act
    del sys.modules["actor"]


WRONG = {
    "killed": "ended the process",
    "crashed": "ended the process",
    "left": "ended the process",
    "large": "takes more than 1 GiB of memory",
    "wrong": "a bug in unhang: KeyError",
    "long": "more than a diagnosis can hold",
}


def test_what_a_file_does_to_its_reader_costs_no_other_file(act: Act) -> None:
    sizes = {f"{what}-{number}": 0 for number in range(6) for what in [*(WRONG if number < 2 else ()), "fine"]}
    found = dict(readers.answers(act, sizes))
    assert found.keys() == sizes.keys()
    for file, answer in found.items():
        what = file.partition("-")[0]
        if what == "fine":
            assert answer[0] == "fine"
        else:
            assert isinstance(answer, readers.NoAnswer)
            assert WRONG[what] in str(answer)


def test_a_file_that_keeps_its_reader_is_given_up(act: Act, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "PATIENCE_S", 0.5)
    found = {file: str(answer) for file, answer in readers.answers(act, {"slow-1": 0, "slow-2": 1000})}
    assert found == dict.fromkeys(("slow-1", "slow-2"), "reading it takes too long")


def test_no_process_and_no_core_stays_and_nothing_of_the_working_directory_is_imported(
    act: Act, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, names = (
        tmp_path / "dumps",
        {f"{name}.py" for name in ("pickle", "multiprocessing", "unhang", "site", "gzip")},
    )
    folder.mkdir()
    for name in names:
        (folder / name).write_text(f"open({str(tmp_path / 'imported')!r}, 'w').close()")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    answers = readers.answers(act, {"fine-1": 0, "crashed-1": 0, "slow-1": 0, "slow-2": 0})
    process = next(answer for _, answer in answers if not isinstance(answer, readers.NoAnswer))[1]
    answers.close()  # type: ignore[attr-defined]
    with pytest.raises(ProcessLookupError):  # it was waited for
        os.kill(process, 0)
    assert {*os.listdir(folder)} == names
    assert not (tmp_path / "imported").exists()


@pytest.mark.parametrize("writes", [True, False])
def test_bytecode_is_written_where_ours_is(
    act: Act, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes: bool
) -> None:
    shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)
    monkeypatch.setattr(sys, "dont_write_bytecode", not writes)
    assert dict(readers.answers(act, {"fine": 0}))["fine"][0] == "fine"
    assert (tmp_path / "__pycache__").exists() is writes


def test_the_largest_file_is_begun_first(act: Act, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "_cores", lambda: 1)
    assert [file for file, _ in readers.answers(act, {"a": 1, "b": 3, "c": 2})] == ["b", "c", "a"]
