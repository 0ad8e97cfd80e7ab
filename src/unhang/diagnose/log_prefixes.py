"""Which rank or process wrote a line of a log: what launchers and torch put before it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import NamedTuple

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_LINE = (
    r"(?:\[rank\d|Traceback|[ ]{2}|[\w.]+(?:Error|Exception)|\d{4}-\d\d|\[[EWIF]\d|Process[ ]\d|Thread[ ]|Fatal[ ]P|"
    r"terminate[ ]|During[ ]|The[ ]above|KeyboardI|OutOf|\#\d|NCCL[ ]version|Job[ ]summary|Communicators\.|INCOMPLETE|"
    r"DEAD|Attaching[ ]|Stack[ ]dump|$)"
)  # what follows what could as well be no prefix
# What launchers put before a line.
_PREFIX = re.compile(
    r"""
    \[(?!rank\d)[a-zA-Z_][\w.-]{0,40}?(?P<local>\d{1,7})\]:[ ]?        # torchrun: role and local rank
    | (?!\d{1,7}:[ ]\[[^\]]+\]$)                                         # not what Horovod says of a rank
        (?:[ ]{1,6}(?=\d{1,7}:[ ]LINE))?(?P<task>\d{1,7}):(?:[ ]|$)       # srun --label, which aligns the numbers
    | \[(?:[\w.@-]{0,80}\d,)?(?P<process>\d{1,7})\]                     # mpirun --tag-output
        (?:\[[\w.:-]{1,80}\])?<std(?:out|err)>:[ ]?                    # --output tag-detailed: host and process
    | \[(?P<prepended>\d{1,7})\][ ](?!\[\d{4}-)                          # mpiexec -prepend-rank
    | \((?:[\w.:<>-]{1,80}(?:\[rank=(?P<actor>\d{1,7})\]|[ ]rank=(?P<worker>\d{1,7}))?[ ])?pid=\d{1,9}   # Ray, vLLM
        (?:,[ ]ip=[\w.:]{1,40})?\)[ ]?
    | \[pod/[^\]]{1,200}\][ ]?                                         # kubectl logs --prefix
    | (?:[a-z0-9][a-z0-9-]{0,62}[ ])?                                   # stern -A: namespace
        [a-z0-9.-]{1,80}-[a-z0-9]{1,12}[ ][a-z0-9][a-z0-9-]{0,40}[ ](?:\u203a[ ])?  # stern: pod, container
        (?=LINE)
    | [\w.-]{1,80}[ ]{1,40}\|[ ]                                        # docker compose
    | [\w.-]{1,80}:[ ](?=\[[a-z_]{1,40}\d{1,7}\]:|\d{1,7}:[ ])         # pdsh, before another one
    | [a-z][a-z0-9.-]{0,80}\d:[ ](?=LINE)                              # pdsh, as DeepSpeed calls it
    | (?P<time>
        >[ ]?                                                           # a reply that quotes
        | ERROR[ ]\d\d-\d\d[ ]\d\d:\d\d:\d\d[ ]\[[\w./]{1,80}:\d{1,6}\][ ]     # vLLM's logger
        | \d{4}-\d\d-\d\dT[\d:.,]{1,30}(?:Z|[+-]\d\d:?\d\d)[ ]          # kubectl logs --timestamps
            (?:std(?:out|err)[ ][FP][ ])?                              # a file in a node's /var/log/pods
        | \[?(?:\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[\d.,]{0,10}|CTIME)\]?[ ]    # ts
            (?=LINE|\d{1,7}:[ ]|\[[\w.@,-]{1,99}\][:<]|\([^)]{0,120}pid=\d)(?![ ]*[A-Z]{4,8}\b)
        | \[?[A-Z][a-z]{2}[ ]CTIME[ ]\d{4}\]?                          # mpirun --timestamp-output
            (?:<std(?:out|err)>:[ ]?|(?=\[[\w.@,-]{1,99}\][<\[]))
      )
    """.replace("LINE", _LINE).replace("CTIME", r"[A-Z][a-z]{2}[ ][ \d]\d[ ]\d\d:\d\d:\d\d"),
    re.VERBOSE,
)
_RANK = re.compile(r"\[rank(\d{1,7})\]:[ ]?")
# torch up to 2.2 says the rank in the group instead: in the default group it is the same.
_OLD_RANK = re.compile(r"\[Rank (\d{1,7})\] (?:Watchdog caught|NCCL watchdog|Timeout at NCCL)")
_PREFIXES = 200  # columns
_TIME = re.compile(
    r"(?:\d{4}-(\d\d)-(\d\d)[T ]|[EWIF](\d\d?)(\d\d) )(\d\d):(\d\d):(\d\d(?:[.,]\d{1,9})?)"  # ISO, glog's, torch's
)


class Speaker(NamedTuple):
    """Who says a line."""

    launcher: str  # what launchers put before it
    task: int | None  # the number in that: the rank, or the node, or the rank on its node
    rank: int | None  # what torch puts before it: the rank, surely


def time_in(line: str) -> float | None:
    """Return the first time in a line, in seconds since the year began, every month with 31 days."""
    found = _TIME.search(line)
    if found is None:
        return None
    month, day = (int(found[at] or found[at + 2]) for at in (1, 2))
    return ((month * 31 + day) * 24 + int(found[5])) * 3600 + int(found[6]) * 60 + float(found[7].replace(",", "."))


def _unwrapped(line: str) -> tuple[str, str]:
    """Return the labels and the line within JSON, as stern, logcli and runtimes write it; else the line alone."""
    try:
        wrapped = json.loads(line)
    except (ValueError, RecursionError):
        return "", line
    text = next((wrapped[key] for key in ("line", "log", "message") if key in wrapped), None)
    pod = " ".join(str(wrapped[key]) for key in ("podName", "containerName") if key in wrapped)
    labels = pod or wrapped.get("labels") or wrapped.get("stream") or ""
    return (str(labels), text.rstrip("\n")) if isinstance(text, str) else ("", line)


def of(line: str) -> tuple[Speaker, str]:
    """Return who says a line, and what, without colours."""
    return next(each(line))


def each(line: str) -> Iterator[tuple[Speaker, str]]:
    """Yield who says each line of an entry, and what: one within JSON may have several."""
    launcher, text = _unwrapped(line) if line.startswith('{"') else ("", line)
    for part in text.split("\n"):
        yield _of(launcher, _ESCAPES.sub("", part))


def _of(launcher: str, line: str) -> tuple[Speaker, str]:
    task, at = None, 0
    while (found := _PREFIX.match(line, at)) and at < _PREFIXES:
        if (last := found.lastgroup) != "time":
            launcher += found[0].strip()
            task = int(found[last]) if last else task
        at = found.end()
    if found := _RANK.search(line, at):
        return Speaker(launcher, task, int(found[1])), line[found.end() :]
    text = line[at:]
    found = None if launcher or "[PG " in text else _OLD_RANK.search(text)
    return Speaker(launcher, task, int(found[1]) if found else None), text
