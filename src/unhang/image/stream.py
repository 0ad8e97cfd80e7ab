"""Bytes that are read once, forward: as they are or decompressed, with their digest checked, and never without end."""

from __future__ import annotations

import hashlib
import sys
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import IO, TYPE_CHECKING

from unhang.errors import UnhangError

if TYPE_CHECKING:
    from typing import Any

CHUNK = 1 << 20
Chunk = bytes | memoryview
_RATIO = 200  # of what is decompressed to what was read; real layers have less than 20
_FREE = 1 << 30  # bytes that any layer may have
_PIECE = 1 << 14  # bytes that are decompressed at once: what is after the end of a member is copied
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


def bad(what: str, hint: str = "make it again: docker save IMAGE -o FILE") -> UnhangError:
    """Return the error of an image that cannot be read: damaged, hostile, or none at all."""
    return UnhangError("bad-image", what, hint=hint)


def too_large(what: str) -> UnhangError:
    """Return the error of an image that is larger than any real one."""
    return UnhangError(
        "image-too-large", what, hint="if you trust it, unpack it yourself, and name its site-packages: --target DIR"
    )


class Reader:
    """Reads chunks forward."""

    def __init__(self, chunks: Iterator[Chunk]) -> None:
        self._chunks = chunks
        self._left = memoryview(b"")
        self.position = 0
        """The bytes that were read or passed over."""

    def peek(self, size: int) -> bytes:
        """Return the next bytes, which are still to be read; fewer at the end."""
        while len(self._left) < size and (more := next(self._chunks, b"")):
            self._left = memoryview(bytes(self._left) + bytes(more))
        return bytes(self._left[:size])

    def parts(self, size: int) -> Iterator[memoryview]:
        """Yield the next bytes; fewer at the end."""
        while size > 0:
            if not self._left:
                self._left = memoryview(next(self._chunks, b""))
                if not self._left:
                    return
            part = self._left[:size]
            self._left = self._left[len(part) :]
            self.position += len(part)
            size -= len(part)
            yield part

    def read(self, size: int) -> bytes:
        """Return the next bytes; fewer at the end."""
        return b"".join(self.parts(size))

    def skip(self, size: int) -> None:
        """Pass over bytes. Raises UnhangError ``bad-image`` if there are fewer."""
        to = self.position + size
        for _ in self.parts(size):
            pass
        if self.position != to:
            raise bad("a layer is cut off")

    def rest(self) -> Iterator[memoryview]:
        """Yield all that is left."""
        return self.parts(sys.maxsize)

    def finish(self) -> None:
        """Read to the end: only then is a digest checked."""
        for _ in self.rest():
            pass


def of_file(file: IO[bytes]) -> Iterator[bytes]:
    """Yield a file's bytes."""
    while chunk := file.read(CHUNK):
        yield chunk


def hashed(chunks: Iterator[Chunk], into: hashlib._Hash) -> Iterator[Chunk]:
    """Yield these bytes, and hash each chunk in a thread while the next is read: it takes longer than to read it."""
    with ThreadPoolExecutor(1) as beside:
        last: Future[None] | None = None
        for chunk in chunks:
            if last is not None:
                last.result()
            last = beside.submit(into.update, chunk)
            yield chunk


def checked(chunks: Iterator[Chunk], digest: str, what: str) -> Iterator[Chunk]:
    """Yield these bytes. Raises UnhangError ``bad-image`` at their end if they do not have this sha256."""
    found = hashlib.sha256()
    yield from hashed(chunks, found)
    if found.hexdigest() != digest:
        raise bad(f"{what} does not have its digest: it is damaged, or somebody has changed it")


def plain(chunks: Iterator[Chunk]) -> Reader:
    """Return a reader of these bytes, decompressed if they are gzip or zstd.

    It raises UnhangError ``bad-image``, ``image-too-large`` for a bomb, and ``no-zstd`` if nothing here reads that.
    """
    reader = Reader(chunks)
    head = reader.peek(len(_ZSTD))
    if head.startswith(_GZIP):
        return Reader(_inflated(reader.rest(), _Gzip, zlib.error))
    if head == _ZSTD:
        zstd = _zstd()
        return Reader(_inflated(reader.rest(), zstd.ZstdDecompressor, zstd.ZstdError))
    return reader


class _Gzip:
    """zlib's decompressor, as those of zstd and later Pythons are."""

    def __init__(self) -> None:
        self._engine = zlib.decompressobj(31)
        self._left = b""
        self._has_more = False

    def decompress(self, data: bytes, most: int) -> bytes:
        out = self._engine.decompress(self._left + data, most)
        self._left, self._has_more = self._engine.unconsumed_tail, len(out) == most
        return out

    @property
    def needs_input(self) -> bool:
        return not (self._left or self._has_more)

    @property
    def eof(self) -> bool:
        return self._engine.eof

    @property
    def unused_data(self) -> bytes:
        return self._engine.unused_data


def _inflated(chunks: Iterator[memoryview], new: Callable[[], Any], failure: type[Exception]) -> Iterator[bytes]:
    """Yield what these bytes are decompressed; several members or frames may follow each other."""
    engine, is_begun, taken, given = new(), False, 0, 0
    for chunk in chunks:
        taken += len(chunk)
        for at in range(0, len(chunk), _PIECE):
            left = bytes(chunk[at : at + _PIECE])
            while left or not engine.needs_input:
                if not is_begun and not (left := left.lstrip(b"\0")):
                    break  # zeros after a member
                try:
                    out = engine.decompress(left, CHUNK)
                except failure as error:
                    raise bad(f"a layer cannot be decompressed: {error}") from None
                left, is_begun = b"", True
                given += len(out)
                if given > _FREE + _RATIO * taken:
                    raise too_large(f"a layer decompresses to more than {_RATIO} times its size")
                if out:
                    yield out
                if engine.eof:
                    left, engine, is_begun = engine.unused_data, new(), False
    if is_begun:
        raise bad("a layer is cut off")


def _zstd() -> Any:
    for name in ("compression.zstd", "backports.zstd"):  # that of Python 3.14, and the same for others
        with suppress(ImportError):
            return __import__(name, fromlist=["ZstdDecompressor"])
    hint = "install it beside unhang: pip install 'unhang[image]', or use Python 3.14"
    raise UnhangError("no-zstd", "a layer is compressed with zstd, which this Python cannot read", hint=hint)
