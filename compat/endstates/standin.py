"""Stand-ins: each declares the names and arguments that it knows, and any other one is a gap.

A function under test cannot catch a gap as it catches an error, and one that it catches all the same is on record.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from types import FunctionType
from typing import Any

GAPS: list[str] = []
"""What the stand-ins lacked since this list was cleared."""


class Gap(BaseException):
    """A function asks a stand-in for something that it does not declare: nothing is shown of the function."""


def gap(name: str) -> Gap:
    """Return a gap, which is on record from now on."""
    GAPS.append(name)
    return Gap(name)


def strict(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function; a call with arguments that it does not declare is a gap, and no error."""

    def called(*positional: Any, **named: Any) -> Any:
        try:
            return function(*positional, **named)
        except TypeError as error:
            if error.__traceback__ and error.__traceback__.tb_next is None:  # it never began
                raise gap(f"{name}: {error}") from None
            raise

    return called


class StandIn:
    """What a function uses of an object or a module: these attributes, and the methods of a subclass.

    ``absent`` are the names that it lacks, as some releases do: ``hasattr`` is false of them.
    """

    def __init__(self, name: str, absent: Collection[str] = (), /, **attributes: Any) -> None:
        """Take the name that a gap is told with, and the attributes; a function among these is ``strict``."""
        of = vars(self)
        of["_name"], of["_absent"] = name, absent
        for key, value in attributes.items():
            of[key] = strict(f"{name}.{key}", value) if type(value) is FunctionType else value

    def __init_subclass__(cls) -> None:
        for key, value in list(vars(cls).items()):
            if type(value) is FunctionType and not key.startswith("__"):
                setattr(cls, key, strict(f"{cls.__name__}.{key}", value))

    def __getattr__(self, name: str) -> Any:
        of = vars(self)
        if name.startswith("__") or name in of.get("_absent", ()):
            raise AttributeError(name)
        raise gap(f"{of.get('_name', type(self).__name__)}.{name}")


class Globals(dict[str, Any]):
    """The globals of a function. A name that its file binds and these lack is a gap; any other one is unbound."""

    def __init__(self, names: Mapping[str, Any], bound: Collection[str]) -> None:
        super().__init__(names)
        self._bound = bound

    def __missing__(self, name: str) -> Any:
        if name in self._bound:
            raise gap(name)
        raise KeyError(name)
