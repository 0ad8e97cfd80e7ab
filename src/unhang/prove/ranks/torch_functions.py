"""The functions of ``torch.distributed``, by name, and the modules that have them."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

Place = tuple[dict[str, Any], str, str]
"""A module's names, one of them, and the function of torch's that it stands for."""


def find(name: str) -> Any:
    """A function by its name; None where this torch does not have it."""
    import torch.distributed as dist

    return getattr(dist, name, None) or getattr(dist.distributed_c10d, name, None)


def places(names: Iterable[str]) -> list[Place]:
    """Where the modules that are imported have these functions, under whatever name of their own.

    To be called before the fork that replaces them: looking at all there is would have the fork copy its memory.
    """
    originals = {id(real): name for name in names if (real := find(name)) is not None}
    found: list[Place] = []
    for module in list(sys.modules.values()):
        # not vars(): a module that loads itself late would do so
        has = object.__getattribute__(module, "__dict__") if isinstance(module, ModuleType) else {}
        if originals.keys().isdisjoint(map(id, has.values())):  # of thousands of modules, nearly all
            continue
        found += [(has, own, originals[id(value)]) for own, value in has.items() if id(value) in originals]
    return found
