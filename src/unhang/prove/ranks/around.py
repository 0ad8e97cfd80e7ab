"""Stand-ins for the modules of a package that a proof does not run for real, around those that it does."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
from types import ModuleType
from typing import TYPE_CHECKING, Any
from unittest.mock import MagicMock

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence


class Around(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds a stand-in for each module of a package but the real ones. It belongs at the head of ``sys.meta_path``."""

    def __init__(self, package: str, real: Collection[str], stand_in: Callable[[str], ModuleType]) -> None:
        """Take the package's name, the full names of the modules to run for real, and what makes a stand-in."""
        self._package, self._real, self._stand_in = package, real, stand_in

    def find_spec(self, fullname: str, path: Sequence[str] | None = None, target: object = None) -> Any:
        """Return the spec of a stand-in, in whose folder the real modules are found; None for other modules."""
        if not f"{fullname}.".startswith(f"{self._package}.") or fullname in self._real:
            return None
        name = fullname.rpartition(".")[2]
        real = importlib.machinery.PathFinder.find_spec(fullname) if path is None else None
        folders = list(real.submodule_search_locations or ()) if real else [f"{folder}/{name}" for folder in path or ()]
        spec = importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        spec.submodule_search_locations = folders
        return spec

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        """Return the stand-in."""
        return self._stand_in(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: a stand-in makes its names when they are asked for."""


class Filled(ModuleType):
    """A stand-in with every name."""

    def __init__(self, name: str, make: Callable[[str], Any] = lambda _: MagicMock()) -> None:
        """Take the module's name, and what makes each of those in it."""
        super().__init__(name)
        self._make = make

    def __getattr__(self, name: str) -> Any:
        """Return what is made; names with two underscores are absent, as imports ask for these."""
        if name.startswith("__"):
            raise AttributeError(name)
        return self._make(name)


def any_module(name: str) -> ModuleType:
    """Return a stand-in with every name, each a class from which others can be derived."""
    return Filled(name, lambda inner: _AnyClass(inner, (), {}))


class _AnyClass(type):
    """A class with every name, that can be called with anything."""

    def __call__(cls, *_: Any, **__: Any) -> Any:
        return MagicMock()

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock()
