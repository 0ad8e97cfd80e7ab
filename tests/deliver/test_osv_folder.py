"""The folder of advisories: what osv-scanner reads is what the files say, and nothing of anybody else's is lost."""

import zipfile
from pathlib import Path

import pytest

from unhang.deliver import osv_folder
from unhang.errors import UnhangError

TWO = {"x_unhang-a": '{"id": "a"}\n', "x_unhang-b": '{"id": "b"}\n'}
ZIPS = ("osv-scanner/PyPI/all.zip", "osv-scalibr/PyPI/all.zip")


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_zip_of_each_release_of_osv_scanner_has_every_advisory(tmp_path: Path) -> None:
    osv_folder.write(str(tmp_path / "new" / "out"), TWO)
    for name in ZIPS:
        with zipfile.ZipFile(tmp_path / "new" / "out" / name) as archive:
            assert archive.testzip() is None
            assert {item.filename: archive.read(item).decode() for item in archive.infolist()} == {
                f"{key}.json": text for key, text in TWO.items()
            }
            assert {(item.date_time, item.compress_type) for item in archive.infolist()} == {((1980, 1, 1, 0, 0, 0), 0)}


def test_a_second_run_replaces_the_first(tmp_path: Path) -> None:
    osv_folder.write(str(tmp_path), TWO)
    before = files(tmp_path)
    assert {*before} == {*ZIPS, "x_unhang-a.json", "x_unhang-b.json"}
    osv_folder.write(str(tmp_path), {"x_unhang-a": TWO["x_unhang-a"]})
    assert {*files(tmp_path)} == {*ZIPS, "x_unhang-a.json"}
    (tmp_path / ".x_unhang-b.json.new").write_text("of a killed run")
    osv_folder.write(str(tmp_path), TWO)
    assert files(tmp_path) == before


def test_a_folder_with_something_else_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.json").write_text("mine")
    with pytest.raises(UnhangError) as caught:
        osv_folder.write(str(tmp_path), TWO)
    assert (caught.value.code, files(tmp_path)) == ("not-empty", {"notes.json": b"mine"})
    cache = tmp_path / "cache"  # of osv-scanner itself
    (cache / "osv-scanner" / "PyPI").mkdir(parents=True)
    (cache / "osv-scanner" / "PyPI" / "all.zip").write_text("everybody's")
    with pytest.raises(UnhangError) as caught:
        osv_folder.write(str(cache), TWO)
    assert (caught.value.code, files(cache)) == ("not-empty", {"osv-scanner/PyPI/all.zip": b"everybody's"})
    with pytest.raises(UnhangError) as caught:
        osv_folder.write(str(tmp_path / "notes.json"), TWO)
    assert caught.value.code == "not-a-folder"
