"""Fuzz every fix in several processes, and print the counts: `nox -s fuzz`, or `PYTHONPATH=tests python -m fuzz`."""

from __future__ import annotations

import argparse
import sys
import time
from concurrent.futures import ProcessPoolExecutor

from fuzz.bases import left_out, subjects
from fuzz.campaign import campaign
from fuzz.examine import WRITTEN, Tally
from support import fixes


def main() -> int:
    """Return 1 if an invariant does not hold, or too little was tried."""
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__)
    parser.add_argument("--examples", type=int, default=12_000, help="of all fixes; each has its share of them")
    parser.add_argument("--seed", type=int, default=20_260_101)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--fix", action="append", choices=subjects())
    parser.add_argument("--least", type=int, nargs=2, help="tried and written, else exit 1; with --fix, 1 of each")
    options = parser.parse_args()
    least = options.least or ((1, 1) if options.fix else (10_000, 500))
    began, tally = time.monotonic(), Tally()
    for variable in left_out():
        print(f"left out: {variable} names no clone, so shapes that only that upstream's history has are not mutated")
    for fix in fixes.without("FUZZ"):
        print(f"not mutated: {fix}")
    shares = {fix: fuzz.share for fix, fuzz in subjects().items()}
    parts = 2 * options.processes
    jobs = [
        (fix, -(-options.examples * shares[fix] // (sum(shares.values()) * parts)), options.seed + part)
        for part in range(parts)
        for fix in options.fix or shares
    ]
    with ProcessPoolExecutor(options.processes) as pool:
        running = [pool.submit(campaign, *job) for job in jobs]
        for one in running:
            tally.add(one.result())
    for violation in tally.violations[:20]:
        print(violation, end="\n\n")
    print(tally.report())
    print(f"seed {options.seed}, {options.processes} processes, {time.monotonic() - began:.0f} seconds")
    few = len(tally.seen) < least[0] or tally.total(WRITTEN) < least[1]
    if few:
        print(f"too few: at least {least[0]} mutations and {least[1]} written are required")
    return 1 if few or tally.violations else 0


if __name__ == "__main__":
    sys.exit(main())
