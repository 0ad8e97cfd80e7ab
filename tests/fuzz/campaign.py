"""Many mutants: hypothesis chooses the function and the mutations."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

import hypothesis
from hypothesis import strategies as st

from fuzz import mutations
from fuzz.bases import Step, bases
from fuzz.examine import Tally, Violation, examine


def steps() -> st.SearchStrategy[list[Step]]:
    """Return one to three mutations; in one case of eight only of comments and white space."""
    changing = [operator.__name__ for operator in mutations.CHANGING]
    # inert changes are the ones that a rewrite may accept
    changing += ["insert_inert"] * 8 + ["rename_everywhere"] * 2
    formatting = [operator.__name__ for operator in mutations.FORMATTING]

    def some(names: list[str], least: int, most: int) -> st.SearchStrategy[list[Step]]:
        step = st.tuples(st.sampled_from(names), st.integers(0, 2**32 - 1))
        return st.lists(step, min_size=least, max_size=most)

    layout = some(formatting, 1, 3)
    change = some(changing, 1, 2)
    both = st.tuples(change, layout).map(lambda two: two[0] + two[1])
    return st.one_of(layout, *[change] * 6, both)


def campaign(fix: str, examples: int, seed: int, *, keep_going: bool = False, every: int = 1) -> Tally:
    """Examine so many examples of a fix. Raises what hypothesis makes of a violation, unless ``keep_going``.

    ``every``: mutate only one in so many of the functions, each of which takes some time before its first mutant.
    """
    tally, candidates = Tally(), bases(fix)[::every]

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=False,
        print_blob=False,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=[hypothesis.Phase.generate] if keep_going else [hypothesis.Phase.generate, hypothesis.Phase.shrink],
    )
    @hypothesis.given(st.integers(0, len(candidates) - 1), steps())
    def each(number: int, made: list[Step]) -> None:
        if sum(tally.tried.values()) % 100 == 0:
            gc.collect()
        try:
            examine(candidates[number], made, tally)
        except Violation as error:
            if not keep_going:
                raise
            tally.violations.append(f"{error}\n{made}")

    with _no_collections():
        each()
    return tally


@contextlib.contextmanager
def _no_collections() -> Iterator[None]:
    """Switch off the cyclic garbage collector: each run of it would walk all cached trees."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()
