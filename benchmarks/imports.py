"""Measure how long each part of LibCST takes to import, and whether a part can be imported alone."""

from __future__ import annotations

import re
import statistics
import subprocess
import sys
import time
from typing import NamedTuple

RUNS = 7
_ROW = re.compile(r"import time: +(\d+) \| +(\d+) \| +(\S+)")
# The parts of LibCST, by prefix. A module counts for the first one that matches.
PARTS = ("libcst._nodes", "libcst.metadata", "libcst._parser", "libcst")
# The public ways to import as little of it as possible.
WAYS = ("import libcst", "from libcst import parse_statement", "import libcst.native")


class Breakdown(NamedTuple):
    """Milliseconds that each part of LibCST takes by itself, and that each way to import some of it takes."""

    parts: dict[str, float]
    ways: dict[str, float]


def breakdown() -> Breakdown:
    """Return the medians of several runs."""
    runs = [_parts() for _ in range(RUNS)]
    parts = {part: statistics.median(run[part] for run in runs) for part in runs[0]}
    took = [{way: _process(way) for way in WAYS} for _ in range(RUNS)]  # alternating, so that noise hits all
    return Breakdown(parts, {way: statistics.median(run[way] for run in took) for way in WAYS})


def _parts() -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", "import libcst"], capture_output=True, text=True, check=True
    )
    found = dict.fromkeys((*PARTS, "the standard library and others"), 0.0)
    after_start = done.stderr.partition("| site\n")[2]
    for own, _, name in _ROW.findall(after_start):
        part = next((part for part in PARTS if name == part or name.startswith(f"{part}.")), None)
        found[part or "the standard library and others"] += int(own) / 1000
    return found


def _process(code: str) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return (time.perf_counter() - start) * 1000
