"""Which files are the bytecode of a source."""

import os
from pathlib import Path

import pytest

from support import pycs
from unhang.find.bytecode import NO_CACHES, Caches, cached, caches, folders, header
from unhang.records import Environment, Installation, Search


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "mod.py"
    path.write_text("VALUE = 1\n")
    return path


def test_the_bytecode_of_every_interpreter_is_meant_and_that_of_other_modules_is_not(source: Path) -> None:
    folder = source.parent / "__pycache__"
    folder.mkdir()
    for name in (
        *pycs.OF_MOD, "module.cpython-312.pyc", "mod.other.cpython-312.pyc", "mod.py", "mod.pyc",
        "mod.cpython-312.pyc.1234", "mod.1.nbi", "a-mod.cpython-312.pyc", "mod2.cpython-312.pyc",
    ):  # fmt: skip
        (folder / name).touch()
    assert {*cached(str(source))} == {str(folder / name) for name in pycs.OF_MOD}


def test_a_module_that_is_a_link_has_its_bytecode_beside_the_link(source: Path, tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    link = tmp_path / "site" / "mod.py"
    link.symlink_to(source)
    beside = pycs.unchecked(link, b"")
    pycs.unchecked(source, b"")
    assert cached(str(link)) == [str(beside)]


def test_below_a_prefix_each_name_of_the_folder_counts(source: Path, tmp_path: Path) -> None:
    real, alias = tmp_path / "real", tmp_path / "alias"
    (real / "verl").mkdir(parents=True)
    alias.symlink_to("real")
    where = Installation("verl", "1", str(alias), str(real), str(alias / "verl"), "source", None, ())
    search = Search(Environment("python", "/", "--python"), (where,), (), pycache_prefix="/cache", cache_tag="x")
    expected = {f"/cache{real}/verl", f"/cache{alias}/verl"}
    for folder in real, alias:
        found = folders(str(folder / "verl" / "mod.py"), caches(search))
        assert (found[0], {*found[1:]}) == (str(folder / "verl" / "__pycache__"), expected)
    assert caches(search._replace(pycache_prefix=None)) == NO_CACHES
    assert folders("/x/RECORD", Caches("/cache", ())) == []


def test_no_header_is_read_of_what_an_import_ignores(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "short").write_bytes(b"x" * 15)
    (tmp_path / "long").write_bytes(bytes(range(20)))
    names = "pipe", "folder", "short", "nothing"
    assert [header(str(tmp_path / name)) for name in names] == [b""] * 4, "and a pipe does not block"
    assert header(str(tmp_path / "long")) == bytes(range(16))
