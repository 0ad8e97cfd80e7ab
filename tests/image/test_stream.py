import gzip
import hashlib
import sys
from collections.abc import Iterator

import pytest

from unhang.errors import UnhangError
from unhang.image import stream
from unhang.image.stream import Reader, checked, plain

TEXT = bytes(range(256)) * 9000


def pieces(data: bytes, size: int = 7777) -> Iterator[bytes]:
    return (data[at : at + size] for at in range(0, len(data), size))


def error(data: bytes) -> str:
    with pytest.raises(UnhangError) as caught:
        plain(pieces(data)).finish()
    return f"{caught.value.code}: {caught.value.message}"


@pytest.mark.parametrize(
    "data", [TEXT, gzip.compress(TEXT), gzip.compress(TEXT[:5]) + gzip.compress(TEXT[5:]) + bytes(99)]
)
def test_bytes_are_read_as_they_are_or_decompressed(data: bytes) -> None:
    reader = plain(pieces(data))
    assert (reader.peek(3), reader.read(5)) == (TEXT[:3], TEXT[:5])
    reader.skip(1000)
    assert reader.position == 1005
    assert b"".join(reader.rest()) == TEXT[1005:]


def test_zstd_needs_a_library_and_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("compression", "compression.zstd", "backports", "backports.zstd"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UnhangError, match="zstd") as caught:
        plain(iter([b"\x28\xb5\x2f\xfd" + TEXT]))
    assert (caught.value.code, "pip install 'unhang[image]'" in str(caught.value.hint)) == ("no-zstd", True)


def test_zstd_is_read_with_it() -> None:
    zstd = pytest.importorskip("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")
    reader = plain(pieces(zstd.compress(TEXT[:9]) + zstd.compress(TEXT[9:])))
    assert b"".join(reader.rest()) == TEXT
    assert error(zstd.compress(TEXT)[:-3]) == "bad-image: a layer is cut off"


def test_what_is_cut_off_or_damaged_is_an_error() -> None:
    packed = gzip.compress(TEXT)
    assert error(packed[:-9]) == "bad-image: a layer is cut off"
    assert error(packed[:500] + bytes(200) + packed[700:]).startswith("bad-image: a layer cannot be decompressed")
    assert error(packed + b"more").startswith("bad-image: a layer cannot be decompressed")
    with pytest.raises(UnhangError, match="cut off"):
        Reader(iter([b"123"])).skip(4)


def test_a_bomb_is_an_error_long_before_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "_FREE", 1 << 20)
    given = 0
    with pytest.raises(UnhangError, match="more than 200 times its size") as caught:  # noqa: PT012
        for part in plain(iter([gzip.compress(bytes(1 << 28), 9)])).rest():
            given += len(part)
    assert caught.value.code == "image-too-large"
    assert given < 1 << 27


def test_a_digest_is_checked_at_the_end() -> None:
    digest = hashlib.sha256(TEXT).hexdigest()
    assert b"".join(checked(pieces(TEXT), digest, "x")) == TEXT
    with pytest.raises(UnhangError, match="x does not have its digest"):
        list(checked(pieces(TEXT[1:]), digest, "x"))
