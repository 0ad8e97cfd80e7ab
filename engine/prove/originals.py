"""The functions of ``torch.distributed``, by name, and whatever modules have them."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


def find(name: str) -> Any:
    """A function by its name; None where this torch does not have it."""
    import torch.distributed as dist

    return getattr(dist, name, None) or getattr(dist.distributed_c10d, name, None)


def replace(others: Mapping[str, Any]) -> None:
    """Put others in the place of these functions, under whatever name a module that is imported already has them."""
    instead = {id(find(name)): other for name, other in others.items()}
    for module in list(sys.modules.values()):
        # not vars(): a module that loads itself late would do so
        names = object.__getattribute__(module, "__dict__") if isinstance(module, ModuleType) else {}
        for name in [name for name, value in names.items() if id(value) in instead]:
            names[name] = instead[id(names[name])]
