"""Where fixes and upstreams come from: the folders of unhang's own parts, and the upstreams that are data in one."""

from __future__ import annotations

import os
from functools import cache

from unhang.errors import UnhangError
from unhang.records import Upstream

TYPE_CHECKING = False  # `typing` is slow to import
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))


@cache
def upstreams() -> Mapping[str, Upstream]:
    """Return the upstreams by name, in the order in which lists have them."""
    import json  # here: `--help` should be fast

    found = []
    where = folder("upstreams")
    for name in os.listdir(where):
        if name.endswith(".json"):
            found.append(_upstream(name.removesuffix(".json"), json.loads(read(os.path.join(where, name)))))
    found.sort(key=lambda one: (one.about.get("place", float("inf")), one.name))
    return {one.name: one for one in found}


@cache
def modules() -> Mapping[str, Upstream]:
    """Return the upstreams by their import names, in the same order."""
    return {one.module: one for one in upstreams().values()}


def names() -> tuple[str, ...]:
    """Return the names of all upstreams, in order."""
    return tuple(upstreams())


def below_namespace(file: str) -> str:
    """Return the path of an upstream's file below the namespace package that it is in, if it is in one."""
    starts = (f"{one.above.replace('.', '/')}/" for one in upstreams().values() if one.above)
    return next((file.removeprefix(start) for start in starts if file.startswith(start)), file)


def _upstream(name: str, about: Mapping[str, Any]) -> Upstream:
    return Upstream(
        name, about["import-name"], about["distribution"], tuple(about["marks"]), about["version"], about.get("within"),
        about,
    )  # fmt: skip


def read(path: str) -> bytes:
    """Return a file's bytes, with half of the system calls that an opened file needs. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(descriptor).st_size
        data = os.read(descriptor, size)
        while len(data) < size and (more := os.read(descriptor, size - len(data))):
            data += more
        return data
    finally:
        os.close(descriptor)


@cache
def folder(name: str) -> str:
    """Return the folder of one of unhang's parts without importing it: beside this file, or elsewhere if editable.

    Raises UnhangError ``broken-install`` if there is none.
    """
    beside = os.path.join(_HERE, name)
    if os.path.isdir(beside):
        return beside
    import importlib.util

    spec = importlib.util.find_spec(f"unhang.{name}")
    if spec is None or not spec.submodule_search_locations:  # the wheel always contains all of them
        raise UnhangError("broken-install", f"unhang's own folder {name} is missing", hint="reinstall unhang")
    return next(iter(spec.submodule_search_locations))
