"""Names every module that a proof cannot import, at once: each one gets a stand-in, and the import goes on.

The stand-ins are only to find out what else is missing. Nothing is proved with them.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def names(prepare: Callable[[], None], error: BaseException) -> list[str]:
    """Return the top-level modules whose absence stops ``prepare``, which has ended with this error, in order.

    The list is empty if it ended for another reason. A module that is there, but lacks a part, is not missing.
    """
    missing: list[str] = []
    finder = _Finder(missing)
    sys.meta_path.append(finder)
    try:
        while (name := _absent(error)) and name not in missing:
            missing.append(name)
            try:
                prepare()
            except Exception as next_error:
                error = next_error
            else:
                break
    finally:
        sys.meta_path.remove(finder)
    return missing


def stand_in(package: str) -> None:
    """Give a package, and each module of it, a stand-in with every name, for the life of this process."""
    sys.meta_path.append(_Finder([package]))
    sys.modules[package] = _Module(package)


def _absent(error: BaseException | None) -> str:
    """Return the top-level module that is not there, of an error or what caused it; empty if that is no such error."""
    while error is not None:
        if isinstance(error, ModuleNotFoundError) and error.name:
            top = error.name.partition(".")[0]
            return "" if top in sys.modules else top
        error = error.__cause__
    return ""


class _Anything(type):
    def __getattr__(cls, name: str) -> Any:
        return _made(name)


def _made(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return _Anything(name, (), {"__init__": lambda self, *_, **__: None, "__call__": lambda self, *_, **__: self})


class _Module(ModuleType):
    __version__ = "99.0"
    __path__: list[str] = []  # noqa: RUF012 - so that it has submodules

    def __getattr__(self, name: str) -> Any:
        return _made(name)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, missing: list[str]) -> None:
        self._missing = missing

    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:
        found = name.partition(".")[0] in self._missing
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if found else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """It has nothing to run."""
