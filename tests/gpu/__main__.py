"""`nox -s gpu`: every scene that has ranks, on real NCCL, with and without the fix: docs/maintainers/gpu.md.

Exit codes: 0, every setting ended as it should; 1, one did not, or did not run; 2, no GPU is free.
`python -m gpu.pages TABLE` then writes table.json into the pages.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

from gpu import table
from proofs import judging, suite
from unhang.errors import UnhangError
from unhang.prove import cases, gpus, host
from unhang.prove.cases import BROKEN, DIFFERS, HUNG, Case, Outcome, Topology

MINUTES, AT_ONCE, RANKS = 8.0, 14, 4
ALONE = "expert-dp-warmup"
"""Its scene fills a GPU, so that it runs before all others, one side after the other."""
DEADLINE_S = 15.0
STAND_INS = Path(__file__).with_name("stand_ins")
_EXPERTS = {"dispatcher": "alltoall", "calls": ("no row", "one row", "an empty expert"), "te": True}
ENGINE_CASES = tuple(
    Case(f"te-{name}", Topology(), DIFFERS, options={**_EXPERTS, **more, "may_pass": True})
    for name, more in (("bf16", {}), ("fp8", {"fp8": True}))
)
"""Transformer Engine's own linears, where it is here: how untouched source ends with them, nobody has seen."""


class Part(NamedTuple):
    """The cases of a proof on one side: untouched or patched."""

    proof: suite.Proof
    side: str
    cases: Sequence[Case]


class Outcomes(NamedTuple):
    """What a part gave: the outcome of each case, and the versions of torch, NCCL and Python."""

    by_case: dict[str, Outcome]
    versions: dict[str, str]


Found = dict[tuple[str, str], Outcomes]
"""What each part gave, by the name of its proof and its side."""


class Row(NamedTuple):
    """How a setting ended on both sides."""

    fix: str
    release: str
    setting: str
    ranks: int
    untouched: Outcome
    patched: Outcome
    wrong: str
    """Why these are not as they should be; empty if they are."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the session with these command line arguments, and return the exit code."""
    parser = argparse.ArgumentParser(prog="nox -s gpu --", description=__doc__)
    parser.add_argument("--fix", action="append", metavar="ID", help="only this fix; may be given again")
    parser.add_argument("--minutes", type=float, default=MINUTES, help=f"the time for all of it ({MINUTES:g})")
    parser.add_argument("--at-once", type=int, default=AT_ONCE, help=f"how many scenes run side by side ({AT_ONCE})")
    parser.add_argument(
        "--out", type=Path, default=Path(".gpu", "out"), help="for table.json, and what hung ranks leave"
    )
    options = parser.parse_args(arguments)
    try:
        chosen = gpus.free(os.environ)
    except UnhangError as error:
        print(f"{error.message}; {(error.hint or '').removesuffix(f', or {gpus.WITHOUT_GPU}')}", file=sys.stderr)
        return 2
    for name in stand_ins():
        print(f"{name} is not here: {STAND_INS / name}.py takes its place")
    until = time.monotonic() + 60 * options.minutes
    found: Found = {}
    every = [part for part in parts() if not options.fix or part.proof.fix in options.fix]
    for is_alone, at_once in ((True, 1), (False, options.at_once)):
        group = [part for part in every if (part.proof.fix == ALONE) is is_alone]
        found |= run(group, [gpu.uuid for gpu in chosen], until, at_once, options.out)
    versions = next((it.versions for it in found.values() if it.versions), {"torch": "", "python": "", "nccl": ""})
    rows = [*judged(every, found)]
    write(options.out, rows, {**versions, "gpu": chosen[0].name})
    wrong = [row for row in rows if row.wrong]
    print(f"\n{len(rows)} settings, {len(wrong)} wrong")
    return 1 if wrong or not rows else 0


def stand_ins() -> list[str]:
    """Return the packages that this Python lacks, and that have a stand-in here."""
    return [path.stem for path in sorted(STAND_INS.glob("*.py")) if importlib.util.find_spec(path.stem) is None]


def parts() -> Iterator[Part]:
    """Yield both sides of each proof's core cases of two to four ranks."""
    for proof in suite.proofs():
        module = suite.module(proof.fix)
        few = [case for case in proof.cases() if case.core and 1 < case.topology.world <= RANKS]
        if proof.fix == "empty-expert-hang" and importlib.util.find_spec("transformer_engine"):
            few += ENGINE_CASES
        if here := [it for case in few if (it := cases.on_gpu(module, case))]:
            yield from (Part(proof, side, here) for side in (host.UNTOUCHED, host.PATCHED))


def run(every: Sequence[Part], names: Sequence[str], until: float, at_once: int, out: Path) -> Found:
    """Run parts side by side, those of the most hangs first and both sides of each, and return what each gave."""
    found: Found = {}
    ordered = sorted(every, key=lambda it: -sum(case.untouched == HUNG for case in it.cases))
    with ThreadPoolExecutor(at_once) as pool:
        waiting = {pool.submit(ask, part, names, until, out / "left"): part for part in ordered}
        for done in as_completed(waiting):
            part = waiting[done]
            outcomes = found[part.proof.name, part.side] = done.result()
            for name, outcome in outcomes.by_case.items():
                print(f"{part.proof.name}  {name}  {part.side}  {outcome.status}  {outcome.seconds:.0f} s", flush=True)
    return found


def ask(part: Part, names: Sequence[str], until: float, keep: Path) -> Outcomes:
    """Run a part on these GPUs. What cannot run, or is late, is broken."""
    proof = part.proof
    try:
        if (left := until - time.monotonic()) < DEADLINE_S:
            raise UnhangError("late", "the session's time is over")
        with suite.both_sides(proof) as (roots, pairs):
            files = {path: pair[part.side == host.PATCHED] for path, pair in pairs.items()}
            variants = {part.side: (files, [case.name for case in part.cases])}
            places = [*roots, *([str(STAND_INS)] if stand_ins() else [])]
            answer = host.ask(
                sys.executable, proof.fix, places, variants, part.cases,
                deadline_s=DEADLINE_S, timeout_s=left, gpus=names, keep=str(keep / proof.name.replace(" ", "-")),
            )  # fmt: skip
    except Exception as error:
        why = getattr(error, "message", "") or f"{type(error).__name__}: {error}"
        return Outcomes({case.name: Outcome(BROKEN, why) for case in part.cases}, {})
    return Outcomes(dict(answer.outcomes[part.side]), dict(answer.versions))


def judged(every: Iterable[Part], found: Found) -> Iterator[Row]:
    """Yield a row for each setting of these parts, of which both sides have run."""
    for part in every:
        if part.side != host.UNTOUCHED:
            continue
        sides = [found[part.proof.name, side].by_case for side in (host.UNTOUCHED, host.PATCHED)]
        for case in part.cases:
            both = sides[0][case.name], sides[1][case.name]
            due = cases.as_it_may(cases.as_on_gpu(case, *both), both[0])
            why = judging.verdict(due, *both)
            release = part.proof.name.removeprefix(part.proof.fix).strip()
            yield Row(part.proof.fix, release, case.name, case.topology.world, *both, why)


def write(out: Path, rows: Iterable[Row], versions: dict[str, str]) -> None:
    """Write the rows as JSON, and print them as a table, with what is wrong."""
    out.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {"versions": versions, "rows": [plain(row) for row in sorted(rows)]}
    (out / "table.json").write_text(json.dumps(found, indent=1) + "\n")
    print("", *table.lines(found), "", sep="\n")
    for row in rows:
        if row.wrong:
            print(f"WRONG {row.fix} {row.release} {row.setting}: {row.wrong}", flush=True)


def plain(row: Row) -> dict[str, Any]:
    """Return a row for JSON."""
    return {**row._asdict(), "untouched": row.untouched._asdict(), "patched": row.patched._asdict()}


if __name__ == "__main__":
    sys.exit(main())
