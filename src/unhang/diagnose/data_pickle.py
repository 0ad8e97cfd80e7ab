"""Unpickle plain data: a pickle that names a class or a function is refused, so nothing in it can run."""

from __future__ import annotations

import pickle
from typing import NoReturn


class _File:
    """A file in memory, all of which an unpickler can look ahead at: else it asks for small parts."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def peek(self, _: int) -> memoryview | bytes:
        return memoryview(self._data)[self._at :] if self._at else self._data

    def read(self, size: int) -> bytes:
        begin, self._at = self._at, min(self._at + size, len(self._data))
        return self._data[begin : self._at]

    def readline(self) -> bytes:
        return self.read((self._data.find(b"\n", self._at) + 1 or len(self._data)) - self._at)


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> NoReturn:
        raise ValueError(f"it names {module}.{name}, and data has no code")


def loads(data: bytes) -> object:
    """Return what a pickle holds, made of dictionaries, lists, tuples, strings and numbers.

    Raises ValueError, with the reason, for a pickle that is broken, breaks off, or names anything to import. A hostile
    one can still ask for memory or time without end: call this in a process that has limits.
    """
    try:
        return _Unpickler(_File(data)).load()
    except MemoryError:
        raise
    except Exception as error:  # on broken data it raises nearly anything
        raise ValueError(str(error) or type(error).__name__) from None
