"""Unpickle plain data: a pickle that names a class or a function is refused, so nothing in it can run."""

from __future__ import annotations

import io
import pickle
from typing import NoReturn

_AHEAD = 1 << 17  # without a buffer to look ahead into, it reads one byte after the other


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> NoReturn:
        raise ValueError(f"it names {module}.{name}, and data has no code")


def loads(data: bytes) -> object:
    """Return what a pickle holds, made of dictionaries, lists, tuples, strings and numbers.

    Raises ValueError, with the reason, for a pickle that is broken, breaks off, or names anything to import. A hostile
    one can still ask for memory or time without end: call this in a process that has limits.
    """
    try:
        return _Unpickler(io.BufferedReader(io.BytesIO(data), _AHEAD)).load()
    except MemoryError:
        raise
    except Exception as error:  # on broken data it raises nearly anything
        raise ValueError(str(error) or type(error).__name__) from None
