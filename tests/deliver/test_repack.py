"""The archive of a rewritten wheel: names, METADATA, RECORD, notice."""

import zipfile
from pathlib import Path

import pytest

from support.wheel_files import INFO, demo, records
from unhang.deliver import wheel
from unhang.deliver.repack import named, repack
from unhang.errors import UnhangError

NEW = "demo-1.0+unhang.1.dist-info"
CHANGED = {"demo.py": b"changed\n"}


ADDED = {"UNHANG-NOTICE.txt": b"notice\n", "sboms/unhang.cdx.json": b"{}\n"}


def written(path: Path, generation: int = 1) -> Path:
    """Write the rewritten wheel beside the wheel; return its path."""
    loaded = wheel.load(str(path))
    name, version = named(loaded, generation)
    (path.parent / name).write_bytes(repack(loaded, version, CHANGED, ADDED))
    return path.parent / name


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
        assert archive.read(f"{NEW}/RECORD").count(end.encode()) == 6
    assert records(path)["demo.py"] == ("sha256=f4sd_EZrYknwbL5VyRdN8leOd1TaeT_e0kTvXLoqOPE", "8")
    assert records(path)[f"{NEW}/WHEEL"] == ("sha256=x", "1"), "not changed"


def test_a_wheel_that_was_rewritten_before_gets_each_added_file_once_and_one_suffix(tmp_path: Path) -> None:
    again = written(written(demo(tmp_path)), generation=2)
    assert again.name == "demo-1.0+unhang.2-py3-none-any.whl"
    names = zipfile.ZipFile(again).namelist()
    assert names[-3:] == [f"demo-1.0+unhang.2.dist-info/{name}" for name in (*ADDED, "RECORD")]
    assert len(names) == len({*names}) == 6
    assert sorted(records(again)) == sorted(names)


def test_an_sbom_of_the_wheel_itself_stays_as_it_is(tmp_path: Path) -> None:
    path = written(demo(tmp_path, add={f"{INFO}/sboms/": b"", f"{INFO}/sboms/auditwheel.cdx.json": b"theirs"}))
    assert zipfile.ZipFile(path).read(f"{NEW}/sboms/auditwheel.cdx.json") == b"theirs"
    assert f"{NEW}/sboms/unhang.cdx.json" in records(path)


def test_an_added_file_that_record_does_not_list_yet_gets_a_row(tmp_path: Path) -> None:
    record = f"demo.py,,\n{INFO}/RECORD,,\n".encode()
    path = written(demo(tmp_path, add={f"{INFO}/UNHANG-NOTICE.txt": b"", f"{INFO}/RECORD": record}))
    assert records(path)[f"{NEW}/UNHANG-NOTICE.txt"][1] == "7"


@pytest.mark.parametrize("name", ["sboms", "UNHANG-NOTICE.txt/a"])
def test_a_file_in_the_way_of_an_added_one_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(UnhangError, match="would be both a file and a folder"):
        written(demo(tmp_path, add={f"{INFO}/{name}": b""}))


def test_metadata_of_another_version_is_refused(tmp_path: Path) -> None:
    path = demo(tmp_path, add={f"{INFO}/METADATA": b"Name: demo\nVersion: 1.1\n"})
    with pytest.raises(UnhangError, match=r"its METADATA does not have the version 1\.0"):
        written(path)
