"""How the numbers of ranks are shown. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def ranges(ranks: Iterable[int]) -> str:
    """Return rank numbers such as ``0-3, 8``; with a stride where there is one: ``0-12 by 4``."""
    parts: list[str] = []
    todo = sorted(ranks)
    while todo:
        step = todo[1] - todo[0] if len(todo) > 1 else 1
        length = 1
        while length < len(todo) and todo[length] - todo[length - 1] == step:
            length += 1
        if length < 3:
            length = 1
        run, todo = todo[:length], todo[length:]
        parts.append(f"{run[0]}-{run[-1]}" + ("" if step == 1 else f" by {step}") if length > 1 else str(run[0]))
    return ", ".join(parts)
