"""fused-head-no-gradient: TODO: what the tests run, and what they look at."""

from __future__ import annotations

import pytest

from fuzz.subject import Fuzz
from mutants.by_hand import Mutants
from proofs.others import Proofs, Release
from support import sources
from support.rewrites import EveryRewrite

FIX = "fused-head-no-gradient"
CASES = sources.cases(FIX, {"verl": ["0.8.0"]})
SHAPES = [
    ("FusedLinearForPPOFunction.backward", "444b539089bdb077", "79ef490b07ed2344"),
]


@pytest.mark.parametrize("case", CASES)
class TestRewrite(EveryRewrite):
    """What the function does is the end state's to show."""


@pytest.mark.parametrize(("function", "before", "after"), SHAPES)
def test_the_rewrite_is_the_function_of_the_diff(function: str, before: str, after: str) -> None:
    (source,) = (case.values[0].load() for case in CASES if case.values[0].target.function == function)
    assert (source.digest, source.rewritten.digest) == (before, after)


# -- for the sessions -------------------------------------------------------------------------------------------------

# TODO: `by_hand`, what a person may write instead: {"the name": Sub("old", "new")}; with those that rules make, at
# least as many as compat/schemas/manifest.json says
MUTANTS = [
    Mutants("verl", ("0.8.0",)),
]
PROOFS = [
    # TODO: the other releases, and half patches that must fail
    Proofs("verl", [Release("0.8.0", core=True)]),
]
FUZZ = Fuzz(CASES, 1, "ctx|needs_input_grad", examples=40)
