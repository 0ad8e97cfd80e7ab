"""The functions of ``torch.distributed``, and how to replace one wherever it is held."""

from __future__ import annotations

import inspect
from types import FunctionType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def find(name: str) -> Any:
    """Return a function by its name; None where this torch does not have it."""
    import torch.distributed as dist

    return getattr(dist, name, None) or getattr(dist.distributed_c10d, name, None)


def replace(name: str, by: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function call ``by``, also where a partial, a class or a default argument holds it; return what it was.

    It lasts for the life of the process, so use it in a fork.
    """
    function = find(name)
    for cell in function.__closure__ or ():
        if inspect.isfunction(cell.cell_contents):  # what a decorator of torch wraps
            was: Callable[..., Any] = cell.cell_contents
            cell.cell_contents = by
            return was
    copy = FunctionType(function.__code__, function.__globals__, name, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    ours = f"_unhang_{name}"
    function.__globals__[ours] = by
    made: dict[str, Any] = {}
    exec(f"def {name}(*args, **kwargs): return {ours}(*args, **kwargs)", made)  # noqa: S102
    function.__code__, function.__defaults__, function.__kwdefaults__ = made[name].__code__, None, None
    return copy
