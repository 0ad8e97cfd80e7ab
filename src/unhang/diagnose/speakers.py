"""Who says a line of a log: what launchers and torch put before it."""

from __future__ import annotations

import re
from typing import NamedTuple

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
# What launchers put before a line.
_PREFIX = re.compile(
    r"""
    \[(?!rank\d)[a-zA-Z_][\w.-]{0,40}?(?P<local>\d{1,7})\]:[ ]?        # torchrun: role and local rank
    | (?P<task>\d{1,7}):(?:[ ]|$)                                       # srun --label
    | \[[\w.@-]{0,80}\d,(?P<process>\d{1,7})\]<std(?:out|err)>:[ ]?    # mpirun --tag-output
    | \[(?P<prepended>\d{1,7})\][ ]                                      # mpiexec -prepend-rank
    | \((?:[\w.:<>-]{1,80}(?:\[rank=(?P<actor>\d{1,7})\])?[ ])?pid=\d{1,9}(?:,[ ]ip=[\w.:]{1,40})?\)[ ]?   # Ray
    | \[pod/[^\]]{1,200}\][ ]?                                         # kubectl logs --prefix
    | [\w.-]{1,80}[ ]{1,40}\|[ ]                                        # docker compose
    | [\w.-]{1,80}:[ ](?=\[[a-z_]{1,40}\d{1,7}\]:|\d{1,7}:[ ])         # pdsh, before another one
    | (?P<time>\d{4}-\d\d-\d\dT[\d:.,]{1,30}(?:Z|[+-]\d\d:?\d\d)[ ])  # kubectl logs --timestamps
    """,
    re.VERBOSE,
)
_RANK = re.compile(r"\[rank(\d{1,7})\]:[ ]?")
# torch up to 2.2 says the rank in the group instead: in the default group it is the same.
_OLD_RANK = re.compile(r"\[Rank (\d{1,7})\] (?:Watchdog caught|NCCL watchdog|Timeout at NCCL)")
_PREFIXES = 200  # columns


class Speaker(NamedTuple):
    """Who says a line."""

    launcher: str
    """What launchers put before it."""
    task: int | None
    """The number in that: the rank, or the node, or the rank on its node."""
    rank: int | None
    """What torch puts before it: the rank, surely."""


def of(line: str) -> tuple[Speaker, str]:
    """Return who says a line, and what, without colours."""
    line, launcher, task, at = _ESCAPES.sub("", line), "", None, 0
    while (found := _PREFIX.match(line, at)) and at < _PREFIXES:
        if found.lastgroup != "time":
            launcher += found[0].strip()
            task = int(found[found.lastgroup]) if found.lastgroup else task
        at = found.end()
    if found := _RANK.search(line, at):
        return Speaker(launcher, task, int(found[1])), line[found.end() :]
    text = line[at:]
    found = None if launcher or "[PG " in text else _OLD_RANK.search(text)
    return Speaker(launcher, task, int(found[1]) if found else None), text
