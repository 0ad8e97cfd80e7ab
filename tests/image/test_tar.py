import struct
import tarfile

import pytest

from support import made_images as make
from unhang.errors import UnhangError
from unhang.image import tar
from unhang.image.stream import Reader


def members(data: bytes) -> list[tar.Member]:
    return list(tar.members(Reader(iter([data]))))


def error(data: bytes) -> str:
    with pytest.raises(UnhangError) as caught:
        members(data)
    assert caught.value.code == "bad-image"
    return caught.value.message


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_members_are_as_tarfile_has_them(form: int) -> None:
    long = "/".join(["folder" * 3] * 8)
    data = make.tar(
        ("./a/", None), ("/a/b.py", b"x" * 700), (f"{long}/e", b""), ("l", (make.LINK, "../../a")),
        ("h", (make.HARD, "a/b.py")), ("p", (make.PIPE, "")), ("d", (make.DEVICE, "")), form=form,
    )  # fmt: skip
    found = members(data)
    assert [(it.path, it.kind, it.size, it.target) for it in found] == [
        ("a", tar.FOLDER, 0, ""), ("a/b.py", tar.FILE, 700, ""), (f"{long}/e", tar.FILE, 0, ""),
        ("l", tar.LINK, 0, "../../a"), ("h", tar.HARD, 0, "a/b.py"), ("p", tar.OTHER, 0, ""), ("d", tar.OTHER, 0, ""),
    ]  # fmt: skip


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_very_long_names_are_read(form: int) -> None:
    name, target = "d/" * 150 + "é", "t/" * 200
    assert members(make.tar((name, (make.LINK, target)), form=form))[0][::3] == (name, target)


def test_a_reader_may_leave_the_data_of_a_member() -> None:
    reader = Reader(iter([make.tar(("a", b"12345"), ("b", b"67890"))]))
    seen = [(it.path, reader.read(number)) for number, it in enumerate(tar.members(reader), 2)]
    assert seen == [("a", b"12"), ("b", b"678")]


@pytest.mark.parametrize("name", ["../x", "a/../../x", "/..", "a\n/../b"])
def test_a_member_outside_is_an_error(name: str) -> None:
    assert error(make.tar((name, b""))).startswith("a layer has a file outside of the image")


def sparse(extended: bool) -> bytes:
    """Return a sparse file of GNU's old format, and a file after it."""
    header = bytearray(make.tar(("s.py", b"12345678"), form=tarfile.GNU_FORMAT)[:512])
    header[156:157], header[482] = b"S", extended
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header) + bytes(512 * extended) + b"12345678".ljust(512, b"\0") + make.tar(("after", b"x"))


@pytest.mark.parametrize("extended", [False, True])
def test_a_sparse_file_is_passed_over(extended: bool) -> None:
    assert [it[:2] for it in members(sparse(extended))] == [("s.py", tar.OTHER), ("after", tar.FILE)]


def pax(records: bytes) -> bytes:
    info = tarfile.TarInfo("x")
    info.type, info.size = tarfile.XHDTYPE, len(records)
    return info.tobuf(tarfile.USTAR_FORMAT) + records.ljust(-(-len(records) // 512) * 512, b"\0") + make.tar(("a", b""))


def test_a_sparse_file_of_pax_is_one_too() -> None:
    assert members(pax(b"22 GNU.sparse.major=1\n"))[0].kind == tar.OTHER


@pytest.mark.parametrize(
    "records", [b"99 path=x\n", b"0 path=x\n", b"nonsense", b"9" * 400, b"13 size=-999\n", b"14 size=99x99\n"]
)
def test_an_odd_pax_header_is_an_error(records: bytes) -> None:
    assert error(pax(records)).startswith("a layer is no tar archive")


def test_a_header_of_any_size_is_not_read() -> None:
    info = tarfile.TarInfo("x")
    info.type, info.size = tarfile.XHDTYPE, 1 << 40
    assert error(info.tobuf(tarfile.GNU_FORMAT)) == f"a layer has a header of {1 << 40} bytes"
    assert error(make.tar(("a/" * 3000, b""))).startswith("a layer has a path of ")
    assert error(make.tar(("a", (make.LINK, "a/" * 3000)))).startswith("a layer has a link that leads nowhere")
    assert error(make.tar(("a", (make.LINK, "")))).startswith("a layer has a link that leads nowhere")


def test_a_name_that_no_system_has_is_an_error() -> None:
    assert error(pax(b"12 path=a\0b\n")).startswith("a layer has a path that no system has")
    with pytest.raises(UnhangError, match="no system has"):
        tar.plain("\ud800")


def test_what_is_no_archive_is_an_error() -> None:
    assert error(b"x" * 2000).startswith("a layer is no tar archive")
    assert error(make.tar(("a", b"x" * 5000))[:2000]) == "a layer is cut off"
    hidden = make.tar(("a", b""))[:1024] + make.tar(("b", b""))
    assert error(hidden) == "a layer has something after its end"
    negative = bytearray(make.tar(("a", b""))[:512])
    negative[124:136] = struct.pack(">Bxxxq", 0xFF, -4096)
    negative[125:128] = b"\xff" * 3
    negative[148:156] = b" " * 8
    negative[148:156] = b"%06o\0 " % sum(negative)
    assert error(bytes(negative)).startswith("a layer is no tar archive")
