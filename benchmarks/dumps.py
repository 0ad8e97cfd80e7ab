"""`nox -s dumps`: what reading the dumps of a large job costs, beside bare unpickling and torchfrtrace.

`-- --torch PYTHON` names an interpreter that has torch and tabulate; without it there is no torchfrtrace.
`--write-docs` writes docs/maintainers/dumps.md and dumps.svg. It takes half an hour on two idle cores, most of it
torchfrtrace's, and 0.6 GB of `$TMPDIR`.
"""

from __future__ import annotations

import argparse
import math
import os
import platform
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from xml.etree.ElementTree import Element, SubElement, indent, tostring

import beside
from chart import STYLE, place
from chart import text as write

from support.recorder_dumps import as_pickle, dump, entry

DOCS = Path(__file__).parent.parent / "docs" / "maintainers"
OURS, BARE, THEIRS = "unhang", "bare unpickling", "torchfrtrace"


class Case(NamedTuple):
    """The dumps of a job."""

    ranks: int
    entries: int
    """In each dump."""
    frames: int
    """Of each entry."""
    stages: int = 1
    """Of a pipeline; where there are several, ranks send and receive."""


WHOLE = Case(1024, 2000, 20)
"""The goals are about these."""
PIPELINE = WHOLE._replace(stages=8)
CASES = [
    Case(32, 2000, 20), Case(128, 500, 20), Case(128, 2000, 20), Case(256, 2000, 0), Case(256, 2000, 20),
    Case(256, 2000, 80), Case(512, 2000, 20), Case(1024, 250, 20), Case(1024, 500, 20), Case(1024, 1000, 20), WHOLE,
    PIPELINE,
]  # fmt: skip
FOR_THEIRS = {Case(32, 2000, 20), Case(128, 500, 20), Case(128, 2000, 20), WHOLE}
LATE, WAITING, BATCHES = 5, 8, 16
"""The rank that never issued what its peers wait in; so many entries; the micro-batches of a pipeline's step."""
PATIENCE_S = 1800
ROUNDS = 3
"""So often both take turns where the goals are measured; the least counts."""
MOST_TIME, MOST_MB = 1.3, 300
"""The goals: processor time, as a multiple of bare unpickling's, and memory."""
_DIAGNOSE = """
import sys
from unhang.diagnose import fixes, intake, known
found = known.diagnose(intake.read(sys.argv[1:], lambda _: None))
known.answers(found, fixes.signatures(), known.Sources(()), {})
"""
_UNPICKLE = """
import os, pickle, sys
from multiprocessing import get_context
def load(path):
    with open(path, "rb") as file:
        pickle.load(file)
if __name__ == "__main__":
    with get_context("fork").Pool(len(os.sched_getaffinity(0))) as pool:
        for _ in pool.imap_unordered(load, [entry.path for entry in os.scandir(sys.argv[1])]):
            pass
        pool.close()
        pool.join()
"""


class Cost(NamedTuple):
    """What a command took, its children included."""

    wall_s: float
    processor_s: float
    peak_mb: float
    """The highest sum of all its processes, looked at 20 times a second."""


def lay_out(folder: Path, case: Case) -> None:
    """Write the dumps of a job: each rank has three groups and waits in its last entries, which one rank never issued.

    Pickling each takes far longer than reading it. So one dump of each kind is pickled, and its groups are replaced in
    the others of the kind.
    """
    is_piped = case.stages > 1
    stride = case.ranks // case.stages if is_piped else 8
    last = "PIPELINE_MODEL_PARALLEL_GROUP" if is_piped else "DATA_PARALLEL_GROUP_WITH_CP"
    groups = {"0": "default_pg", "900001": "TENSOR_MODEL_PARALLEL_GROUP", "900002": last}
    config = {name: (text, [900_003 + at]) for at, (name, text) in enumerate(groups.items())}
    kinds: dict[tuple[int, bool, bool], bytes] = {}
    folder.mkdir()
    for rank in range(case.ranks):
        side, place = rank // 8, rank % stride
        kind = (rank // stride, place < 8, rank == LATE) if is_piped else (0, True, rank == LATE)
        if kind not in kinds:
            issued = _of_stage(case, *kind[:2]) if is_piped else _alike(case)
            entries = _entries(case, [one for one in issued if not (kind[2] and one.waits)], groups)
            kinds[kind] = as_pickle(dump(entries, config, "2.9"))
        data = kinds[kind]
        for old, new in {
            "900001": str(1000 + side),
            "900002": str(2000 + place),
            "[900003]": list(range(case.ranks)),
            "[900004]": list(range(side * 8, side * 8 + 8)),
            "[900005]": list(range(place, case.ranks, stride)),
        }.items():
            data = data.replace(_pickled(old), _pickled(str(new)))
        (folder / f"nccl_trace_rank_{rank}").write_bytes(data)


class _Issued(NamedTuple):
    """An operation of a rank."""

    title: str
    group: str
    waits: bool


def _alike(case: Case) -> list[_Issued]:
    """Return what each rank issues without a pipeline."""
    last, names = case.entries - WAITING, ("0", "900001", "900002")
    return [
        _Issued(("all_reduce", "broadcast")[at % 2], "0" if at == last else names[at % 3], at >= last)
        for at in range(case.entries)
    ]


def _of_stage(case: Case, stage: int, is_held: bool) -> list[_Issued]:
    """Return the newest that each rank of a stage issues; the last micro-batch waits where the late rank holds it."""
    before, after = stage > 0, stage < case.stages - 1
    parts = [
        *[f"recv {stage}<-{stage - 1}"] * before, "all_reduce", *[f"send {stage}->{stage + 1}"] * after,
        *[f"recv {stage}<-{stage + 1}"] * after, "all_reduce", *[f"send {stage}->{stage - 1}"] * before,
    ]  # fmt: skip
    issued = []
    for left in range(case.entries // 4, -1, -1):  # four is the least that a stage issues of each
        waits = is_held and not left
        issued += [_Issued(one, "900002" if " " in one else "900001", waits) for one in parts]
        if left % BATCHES == 0:
            issued.append(_Issued("all_reduce", "0", not left))
    return issued


def _entries(case: Case, issued: Sequence[_Issued], groups: Mapping[str, str]) -> Sequence[Mapping[str, object]]:
    """Return the newest entries."""
    counts: Counter[str] = Counter()
    made = []
    for number, one in enumerate(issued):
        counts[one.group] += 1
        made.append(
            entry(
                number + 100_000,
                f"nccl:{one.title}",
                group=(one.group, groups[one.group]),
                seq=counts[one.group],
                p2p=" " in one.title,
                sizes=[[1024, 1 if " " in one.title else 1 + counts[one.group] % 3]],
                state="scheduled" if one.waits else "completed",
                frames=[(f"function_{number % 60}_{n}", f"/env/megatron/core/{n}.py", n) for n in range(case.frames)]
                or None,
            )
        )
    return made[-case.entries :]


def _pickled(what: str) -> bytes:
    return b"X" + struct.pack("<I", len(what)) + what.encode()


def cost(command: Sequence[str]) -> Cost | None:
    """Return what a command takes; None if it fails or takes too long."""
    begin, peak = time.perf_counter(), 0
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    while True:
        peak = max(peak, sum(map(_resident, _tree(child.pid))))
        pid, status, usage = os.wait4(child.pid, os.WNOHANG)
        taken = time.perf_counter() - begin
        if pid:
            child.returncode = os.waitstatus_to_exitcode(status)
            found = Cost(taken, usage.ru_utime + usage.ru_stime, peak / 2**20)
            return found if child.returncode == 0 else None
        if taken > PATIENCE_S:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            return None
        time.sleep(0.05)


def _tree(pid: int) -> Iterator[int]:
    """Yield a process, and all below it."""
    yield pid
    with suppress(OSError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            yield from _tree(int(child))


def _resident(pid: int) -> int:
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def measured(torch: str | None) -> dict[Case, dict[str, Cost | None]]:
    """Return what each reader takes for each job's dumps; None where it fails or takes too long."""
    found: dict[Case, dict[str, Cost | None]] = {}
    for case in CASES:
        with tempfile.TemporaryDirectory(prefix="unhang-dumps-") as work:
            folder = Path(work) / "dumps"
            lay_out(folder, case)
            commands = {
                BARE: [sys.executable, "-c", _UNPICKLE, str(folder)],
                OURS: [sys.executable, "-c", _DIAGNOSE, str(folder)],
            }
            if torch and case in FOR_THEIRS:
                commands[THEIRS] = [torch, "-m", "torch.distributed.flight_recorder.fr_trace", str(folder)]
            rounds = [
                {name: cost(commands[name]) for name in (BARE, OURS)} for _ in range(ROUNDS if case == WHOLE else 1)
            ]
            found[case] = {name: _least(one[name] for one in rounds) for name in (BARE, OURS)}
            if THEIRS in commands:
                found[case][THEIRS] = cost(commands[THEIRS])
            print(case, found[case], flush=True)
    return found


def _least(costs: Iterable[Cost | None]) -> Cost | None:
    return min((one for one in costs if one), key=lambda one: one.processor_s, default=None)


def page(found: Mapping[Case, Mapping[str, Cost | None]], said: str) -> str:
    """Return docs/maintainers/dumps.md: the costs, and what torchfrtrace and unhang say."""
    ours, bare, theirs = (found[WHOLE].get(name) for name in (OURS, BARE, THEIRS))
    assert ours is not None
    assert bare is not None
    rows = [
        "| ranks | entries | frames | stages | unhang | bare unpickling | torchfrtrace |",
        "| --: | --: | --: | --: | --: | --: | --: |",
        *(
            f"| {case.ranks:,} | {case.entries:,} | {case.frames} | {case.stages} | {_shown(costs[OURS])} | "
            f"{_shown(costs[BARE])} | {_shown(costs[THEIRS]) if THEIRS in costs else ''} |"
            for case, costs in found.items()
        ),
    ]
    goals = [
        "| goal | limit | measured |",
        "| --- | --: | --: |",
        f"| processor time, of bare unpickling | <= {MOST_TIME}x | {ours.processor_s / bare.processor_s:.2f}x |",
        f"| wall time, of bare unpickling | <= 2x | {ours.wall_s / bare.wall_s:.2f}x |",
        f"| memory of all processes | <= {MOST_MB} MB | {ours.peak_mb:,.0f} MB |",
        f"| wall time, of torchfrtrace | <= 1x | {_of(ours, theirs, found[WHOLE])} |",
    ]
    machine = f"{os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}"
    shown = {"goals": "\n".join(goals), "rows": "\n".join(rows), "said": said}
    return _PAGE.format(machine=machine, patience=PATIENCE_S, rounds=ROUNDS, **shown)


def _of(ours: Cost, theirs: Cost | None, costs: Mapping[str, Cost | None]) -> str:
    if theirs:
        return f"{ours.wall_s / theirs.wall_s:.3f}x"
    return f"<= {ours.wall_s / PATIENCE_S:.3f}x: it did not end" if THEIRS in costs else "not run"


def _shown(taken: Cost | None) -> str:
    if taken is None:
        return f"none in {PATIENCE_S} s"
    return f"{taken.wall_s:.1f} s, {taken.processor_s:.1f} s, {taken.peak_mb:,.0f} MB"


_PAGE = """# Dumps: what reading them costs, and what torchfrtrace says

Generated by `nox -s dumps -- --torch PYTHON --write-docs`; do not edit by hand. The dumps are made up, in NCCL's format
2.9, as torch pickles them: each rank has three groups, and waits in its last entries, which one rank never issued.
Where there are stages of a pipeline, ranks send and receive, and unhang pairs these. All readers get the same files,
from memory, on {machine}. On another machine, only the ratios mean anything.

## Goals

For 1,024 ranks with 2,000 entries of 20 frames each, where both readers take turns, and the lowest of {rounds} counts:

{goals}

## Figures

Wall time, processor time of all processes, and their highest memory together, to read the dumps and to diagnose the
hang. *Bare unpickling* is `pickle.load` and no more, in as many processes as unhang uses. It leaves the garbage
collector on; unhang turns it off. torchfrtrace is torch 2.13's; it reads in one process, and keeps all entries.

{rows}

The machine had other work, so compare processor times. *None in {patience} s*: it was stopped then.

![Processor time against the number of entries, both logarithmic](dumps.svg)

## Beside torchfrtrace

Both get the same made-up dumps of one hang, mtp-cp-deadlock, in the ways in which people have them
(`benchmarks/beside.py`). torchfrtrace is told to accept missing ranks.

{said}

If unhang has no name for a hang, run torchfrtrace too, on whole, unzipped pickles that you trust:
`torchfrtrace DIR -p nccl_trace_rank_`. With `-j` it prints all entries of all ranks side by side.
"""


def plot(found: Mapping[Case, Mapping[str, Cost | None]]) -> str:
    """Return the SVG: processor time against the number of entries, both logarithmic, for entries of 20 frames."""
    width, height, left, top, bottom = 860, 420, 90, 80, 60
    points = {
        name: sorted(
            (case.ranks * case.entries, taken.processor_s)
            for case, costs in found.items()
            if case.frames == 20 and case.stages == 1 and (taken := costs.get(name))
        )
        for name in (OURS, BARE, THEIRS)
    }
    across, up = zip(*(point for same in points.values() for point in same))
    low_x, high_x, low_y, high_y = min(across) / 1.3, max(across) * 1.3, min(up) / 1.5, max(up) * 1.5

    def x(entries: float) -> float:
        return left + (width - left - 160) * math.log(entries / low_x) / math.log(high_x / low_x)

    def y(seconds: float) -> float:
        return height - bottom - (height - top - bottom) * math.log(seconds / low_y) / math.log(high_y / low_y)

    svg = Element("svg", xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {width} {height}", role="img")
    SubElement(svg, "title").text = "Processor time against the number of entries"
    SubElement(svg, "style").text = f"{STYLE}.linear {{ stroke: #8c959f; stroke-dasharray: 4; }}"
    SubElement(svg, "rect", {"class": "ground", "rx": "6", **place(0.5, 0.5, width - 1, height - 1)})
    write(svg, 20, 30, "Processor time against the number of entries of all dumps", "title")
    write(
        svg,
        20,
        48,
        "seconds, entries of 20 frames; both logarithmic; the dashed line is linear growth",
        "muted",
    )
    for tick in (10**n for n in range(-2, 8)):
        if low_y < tick < high_y:
            ends = {"x1": str(left), "x2": f"{width - 160}", "y1": f"{y(tick):.1f}", "y2": f"{y(tick):.1f}"}
            SubElement(svg, "line", {"class": "grid", **ends})
            write(svg, left - 8, y(tick) + 4, f"{tick:g} s", "name")
        if low_x < tick < high_x:
            write(svg, x(tick), height - bottom + 20, f"{tick:,}", "tick")
    for name, same in points.items():
        if same:
            for entries, seconds in same:
                dot = {"cx": f"{x(entries):.1f}", "cy": f"{y(seconds):.1f}", "r": "4"}
                SubElement(svg, "circle", {"class": "ours" if name == OURS else "theirs", **dot})
            write(svg, x(same[-1][0]) + 10, y(same[-1][1]) + (-6 if name == BARE else 4), name, "")
    base, most = points[OURS][-1]
    until = max(low_x, base / most * low_y)
    ends = {
        "x1": f"{x(until):.1f}",
        "y1": f"{y(most * until / base):.1f}",
        "x2": f"{x(base):.1f}",
        "y2": f"{y(most):.1f}",
    }
    SubElement(svg, "line", {"class": "linear", **ends})
    indent(svg, " ")
    return tostring(svg, encoding="unicode") + "\n"


def main() -> None:
    """Measure and print; write the page with `--write-docs`. Exit with 1 if a limit is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch", metavar="PYTHON", help="an interpreter that has torch, for torchfrtrace")
    parser.add_argument("--write-docs", action="store_true", help="write docs/maintainers/dumps.md and dumps.svg")
    options = parser.parse_args()
    found = measured(options.torch)
    text = page(found, beside.table(options.torch) if options.torch else "Not run.")
    print(text)
    if options.write_docs:
        (DOCS / "dumps.md").write_text(text, encoding="utf-8")
        (DOCS / "dumps.svg").write_text(plot(found), encoding="utf-8")
    ours, bare, theirs = (found[WHOLE].get(name) for name in (OURS, BARE, THEIRS))
    assert ours is not None
    assert bare is not None
    slow = ours.processor_s > MOST_TIME * bare.processor_s or (theirs is not None and ours.wall_s > theirs.wall_s)
    raise SystemExit(1 if slow or ours.peak_mb > MOST_MB else 0)


if __name__ == "__main__":
    main()
