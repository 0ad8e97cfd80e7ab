"""The archive of a rewritten wheel: names, METADATA, RECORD, notice."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from support.wheel_files import INFO, demo, records
from unhang.deliver import wheel
from unhang.deliver.repack import Repacked, repack
from unhang.errors import UnhangError

NEW = "demo-1.0+unhang.1.dist-info"
CHANGED = {"demo.py": b"changed\n"}


def repacked(path: Path, generation: int = 1) -> Repacked:
    return repack(wheel.load(str(path)), CHANGED, "notice\n", generation)


def written(path: Path, generation: int = 1) -> Path:
    """Write the rewritten wheel beside the wheel; return its path."""
    made = repacked(path, generation)
    (path.parent / made.file).write_bytes(made.data)
    return path.parent / made.file


def test_the_data_folder_is_renamed_and_the_build_tag_kept(tmp_path: Path) -> None:
    add = {"demo-1.0.data/scripts/go": b"#!python\n"}
    path = written(demo(tmp_path, name="demo-1.0-7-py3-none-any.whl", add=add))
    assert path.name == "demo-1.0+unhang.1-7-py3-none-any.whl"
    assert "demo-1.0+unhang.1.data/scripts/go" in records(path)
    assert "demo-1.0+unhang.1.data/scripts/go" in zipfile.ZipFile(path).namelist()


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_record_is_exact_and_keeps_its_line_ends(end: str, tmp_path: Path) -> None:
    names = ["demo.py", *(f"{INFO}/{name}" for name in ("METADATA", "WHEEL"))]
    hashes = "".join(f"{name},sha256=x,1{end}" for name in names)
    path = written(demo(tmp_path, add={f"{INFO}/RECORD": f"{hashes}{INFO}/RECORD,,{end}".encode()}))
    with zipfile.ZipFile(path) as archive:
        assert archive.read(f"{NEW}/RECORD").count(end.encode()) == 5
    assert records(path)["demo.py"] == ("sha256=f4sd_EZrYknwbL5VyRdN8leOd1TaeT_e0kTvXLoqOPE", "8")
    assert records(path)[f"{NEW}/WHEEL"] == ("sha256=x", "1"), "not changed"


def test_a_wheel_that_was_rewritten_before_gets_one_notice_and_one_suffix(tmp_path: Path) -> None:
    again = written(written(demo(tmp_path)), generation=2)
    assert again.name == "demo-1.0+unhang.2-py3-none-any.whl"
    names = zipfile.ZipFile(again).namelist()
    assert [name.rpartition("/")[2] for name in names].count("UNHANG-NOTICE.txt") == 1
    assert sorted(records(again)) == sorted(names)


def test_metadata_of_another_version_is_refused(tmp_path: Path) -> None:
    path = demo(tmp_path, add={f"{INFO}/METADATA": b"Name: demo\nVersion: 1.1\n"})
    with pytest.raises(UnhangError, match=r"its METADATA does not have the version 1\.0"):
        repacked(path)
