"""Wheels: what is read of them, what is refused, and how they are unpacked."""

import hashlib
import os
import zipfile
from pathlib import Path

import pytest

from support.wheel_files import DEMO, ENGINE, INFO, demo
from unhang.deliver import wheel
from unhang.errors import UnhangError


def reason(path: Path) -> str:
    """Return why a wheel cannot be loaded."""
    with pytest.raises(UnhangError) as caught:
        wheel.load(str(path))
    assert caught.value.code == "bad-wheel"
    return caught.value.message


def test_name_version_tags_and_digest(tmp_path: Path) -> None:
    path = demo(tmp_path, name="demo-1.0-7-py3-none-any.whl")
    loaded = wheel.load(str(path))
    assert (loaded.distribution, loaded.version, loaded.tags) == ("demo", "1.0", "7-py3-none-any")
    assert (loaded.dist_info, loaded.file) == (INFO, path.name)
    assert loaded.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("name", "extra", "expected"),
    [
        ("demo.whl", None, "its name is not that of a wheel"),
        ("demo-1.1-py3-none-any.whl", None, "one .dist-info folder, of demo 1.1"),
        ("other-1.0-py3-none-any.whl", None, "one .dist-info folder, of other 1.0"),
        (DEMO, "other-1.dist-info/METADATA", f"it has ['{INFO}', 'other-1.dist-info']"),
        (DEMO, f"{INFO}/RECORD.jws", "it is signed"),
        (DEMO, f"{INFO}/RECORD.p7s", "it is signed"),
        (DEMO, "demo-1.0.data/purelib/demo.py", "are installed as the same file"),
        (DEMO, "demo-1.0.data/platlib/demo.py/a.py", "is installed where others need a folder"),
        (DEMO, "other-1.0.data/purelib/a.py", "nobody can tell where"),
        (DEMO, f"demo-1.0.data/data/lib/python3.12/site-packages/{ENGINE}", "nobody can tell where"),
    ],
)
def test_a_false_name_a_signature_and_what_installers_disagree_on_are_refused(
    name: str, extra: str | None, expected: str, tmp_path: Path
) -> None:
    assert expected in reason(demo(tmp_path, name=name, add={extra: b""} if extra else None))


def test_a_missing_file_a_pipe_and_a_wheel_without_record_are_refused(tmp_path: Path) -> None:
    assert "no such file" in reason(tmp_path / DEMO)
    os.mkfifo(tmp_path / DEMO)
    assert "no such file" in reason(tmp_path / DEMO)
    (tmp_path / DEMO).unlink()
    with zipfile.ZipFile(tmp_path / DEMO, "w") as archive:
        archive.writestr(f"{INFO}/METADATA", b"")
    assert f"it has no {INFO}/RECORD, {INFO}/WHEEL" in reason(tmp_path / DEMO)


@pytest.mark.parametrize(
    ("text", "same"), [("1.0", True), ("1.0.0", True), ("1.0rc1", False), ("nonsense", False)]
)  # fmt: skip
def test_versions_are_compared_as_pep_440_does(text: str, same: bool) -> None:
    assert wheel.is_version(text, "1.0") == same
