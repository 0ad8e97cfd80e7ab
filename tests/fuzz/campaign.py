"""Many mutants of random functions, the same for one seed."""

from __future__ import annotations

import gc
import random
from collections.abc import Sequence

from fuzz import mutations
from fuzz.bases import Step, bases
from fuzz.examine import Tally, Violation, examine
from support import sources

_FORMATTING = [operator.__name__ for operator in mutations.FORMATTING]
# inert changes are the ones that a rewrite may accept
_CHANGING = [operator.__name__ for operator in mutations.CHANGING] + ["insert_inert"] * 8 + ["rename_everywhere"] * 2


def steps(choice: random.Random) -> list[Step]:
    """Return one or two changes; in one case of eight changes of layout too, in two these alone."""
    kind = choice.randrange(8)
    changes = _some(choice, _CHANGING, 2) if kind > 1 else []
    return changes + (_some(choice, _FORMATTING, 3) if kind < 3 else [])


def _some(choice: random.Random, names: Sequence[str], most: int) -> list[Step]:
    return [(choice.choice(names), choice.getrandbits(32)) for _ in range(choice.randint(1, most))]


def campaign(fix: str, examples: int, seed: int, every: int = 1) -> Tally:
    """Examine so many mutants of a fix.

    ``every``: mutate only one in so many of the functions, each of which takes some time before its first mutant.
    """
    tally, candidates, choice = Tally(), bases(fix)[::every], random.Random(seed)
    gc.freeze()
    gc.disable()  # each automatic collection would walk all cached trees
    try:
        for number in range(examples):
            if number % 100 == 0:
                sources.forget()
                gc.collect()
            base, made = choice.choice(candidates), steps(choice)
            try:
                examine(base, made, tally)
            except Violation as error:
                tally.violations.append(f"{error}\n{made}")
    finally:
        gc.enable()
        gc.unfreeze()
    return tally
