"""Zip archives: members that could do harm are refused, all others are copied byte for byte."""

import stat
import zipfile
from pathlib import Path

import pytest

from support.wheel_files import demo
from unhang.deliver import archive
from unhang.errors import UnhangError


def reason(path: Path) -> str:
    """Return why an archive cannot be loaded."""
    with pytest.raises(UnhangError) as caught:
        archive.load(str(path))
    assert caught.value.code == "bad-wheel"
    return caught.value.message


LINK = zipfile.ZipInfo("demo/link")
LINK.create_system, LINK.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
LEADS_OUT = "would lead out of the folder"
HOSTILE = {
    "climbs": ("../outside.py", LEADS_OUT),
    "climbs inside": ("demo/../../outside.py", LEADS_OUT),
    "absolute": ("/tmp/outside.py", LEADS_OUT),
    "backslash": ("..\\outside.py", LEADS_OUT),
    "drive": ("C:/outside.py", LEADS_OUT),
    "empty part": ("demo//outside.py", LEADS_OUT),
    "newline": ("demo/a\nb.py", "unprintable characters"),
    "link": (LINK, "a link or a device"),
    "file as folder": ("demo.py/x.py", "both a file and a folder"),
    "deep": ("d/" * 3000 + "x.py", "lies too deep"),
    "long": ("x" * 256 + ".py", "a name that is too long"),
    "duplicate": ("demo.py", "two members called 'demo.py'"),
}


@pytest.mark.filterwarnings("ignore:Duplicate name:UserWarning")
@pytest.mark.parametrize(("member", "expected"), HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_member_is_refused(member: str | zipfile.ZipInfo, expected: str, tmp_path: Path) -> None:
    path = demo(tmp_path)
    with zipfile.ZipFile(path, "a") as opened:
        opened.writestr(member, b"")
    assert expected in reason(path)


ENTRIES = {
    "encrypted": ({"flag_bits": 1}, "is encrypted"),
    "compression": ({"compress_type": zipfile.ZIP_BZIP2}, "unsupported compression"),
    "bomb": ({"file_size": 1 << 30}, "unpacks to more than"),
    "overlap": ({"header_offset": 0}, "overlaps another"),
}


@pytest.mark.parametrize(("entry", "expected"), ENTRIES.values(), ids=ENTRIES)
def test_a_hostile_entry_of_the_central_directory_is_refused(
    entry: dict[str, int], expected: str, tmp_path: Path
) -> None:
    path = demo(tmp_path)
    with zipfile.ZipFile(path, "a") as opened:
        opened.writestr("demo/a", b"x" * 99)
        for field, value in entry.items():
            setattr(opened.getinfo("demo/a"), field, value)
    assert expected in reason(path)


def test_a_member_with_a_false_size_is_damaged(tmp_path: Path) -> None:
    path = demo(tmp_path)
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as opened:
        opened.writestr("demo/bomb", bytes(1 << 24))
        opened.getinfo("demo/bomb").file_size = 10  # for the central directory
    member = archive.load(str(path))[-1]
    with pytest.raises(UnhangError, match="member 'demo/bomb' is damaged"):
        archive.read(str(path), member)


def test_half_an_archive_is_refused(tmp_path: Path) -> None:
    path = demo(tmp_path)
    path.write_bytes(path.read_bytes()[:200])
    assert "not a readable zip archive" in reason(path)
