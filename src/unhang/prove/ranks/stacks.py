"""Python stacks of a rank, innermost frame first, each frame as its site."""

from __future__ import annotations

import itertools
import os
import re
import traceback
from typing import TYPE_CHECKING

from .sites import site

if TYPE_CHECKING:
    from collections.abc import Sequence

_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # all of the proofs


def place(stack: Sequence[str]) -> str:
    """Return the innermost frame outside of torch, and the collective of torch that it is in.

    A collective that the proof itself issues is named as the harness's own.
    """
    ours = site(os.path.join(_HERE, ""), 0, "").partition(":")[0]
    job = list(itertools.takewhile(lambda frame: not frame.startswith(f"{ours}ranks/gloo.py"), stack))
    outside = [frame for frame in job if not frame.startswith(("torch/", ours, "threading.py", "typing_extensions.py"))]
    inside = [_function(frame) for frame in job if "distributed_c10d.py" in frame and " in wrapper" not in frame]
    own = [_function(frame) for frame in job if frame.startswith(ours) and "/ranks/meet.py" not in frame]
    if inside and own and not outside:
        return f"the harness's own {inside[0]}, in {own[0]}"
    where = next(iter(outside), stack[0] if stack else "?")
    return f"{inside[0]} at {where}" if inside and stack[0] != where else where


def _function(frame: str) -> str:
    return frame.rpartition(" in ")[2]


def of_error(error: BaseException) -> list[str]:
    """Return the frames that an exception passed through."""
    walked = traceback.walk_tb(error.__traceback__)
    return [site(frame.f_code.co_filename, line, frame.f_code.co_name) for frame, line in walked][::-1]


def of_dump(text: str) -> list[str]:
    """Return the stack that is in a collective, of all that faulthandler writes; else the main thread's."""
    stacks: list[list[str]] = []
    for line in text.splitlines():
        if "most recent call first" in line:
            stacks.append([])
        elif stacks and (found := re.match(r'\s+File "(.*)", line (\d+) in (.*)', line)):
            stacks[-1].append(site(found[1], int(found[2]), found[3]))
    collective = [stack for stack in stacks if any("distributed_c10d.py" in frame for frame in stack)]
    return next(iter(collective), stacks[-1] if stacks else [])
