"""The functions of ``torch.distributed``, and the modules that have them by name."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

Place = tuple[dict[str, Any], str, str]
"""A module's namespace, a name in it, and the name of the torch function that it is bound to."""


def find(name: str) -> Any:
    """Return a function by its name; None where this torch does not have it."""
    import torch.distributed as dist

    return getattr(dist, name, None) or getattr(dist.distributed_c10d, name, None)


def places(names: Iterable[str]) -> list[Place]:
    """Return where imported modules have these functions, also under other names.

    Call it before the fork that replaces them: a scan of all modules in the fork would copy its memory.
    """
    originals = {id(real): name for name in names if (real := find(name)) is not None}
    found: list[Place] = []
    for module in list(sys.modules.values()):
        # not vars(), which would trigger a lazy module
        has = object.__getattribute__(module, "__dict__") if isinstance(module, ModuleType) else {}
        if originals.keys().isdisjoint(map(id, has.values())):  # of thousands of modules, nearly all
            continue
        found += [(has, own, originals[id(value)]) for own, value in has.items() if id(value) in originals]
    return found
