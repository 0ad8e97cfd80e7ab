"""critic-microbatch-scale: TODO: what the tests run, and what they look at."""

from __future__ import annotations

import pytest

from fuzz.subject import Fuzz
from mutants.by_hand import Mutants
from proofs.others import Proofs, Release
from support import sources
from support.rewrites import EveryRewrite
from unhang.shapes import catalog

FIX = "critic-microbatch-scale"
CASES = sources.cases(FIX, {"verl": ["0.8.0"]})
SHAPES = [
    ("value_loss", "8be98a7ee3e72571", "871c636c6addb670"),
]


@pytest.mark.parametrize("case", CASES)
class TestRewrite(EveryRewrite):
    """What the function does is the end state's to show."""


@pytest.mark.parametrize(("function", "before", "after"), SHAPES)
def test_the_rewrite_is_the_function_of_the_diff(function: str, before: str, after: str) -> None:
    (source,) = (case.values[0].load() for case in CASES if case.values[0].target.function == function)
    assert (source.digest, source.rewritten.digest) == (before, after)


UPSTREAMS = [
    ("value_loss", "871c636c6addb670"),
]


@pytest.mark.parametrize(("function", "shape"), UPSTREAMS)
def test_the_end_state_finds_no_fault_in_upstreams_own_fix(function: str, shape: str) -> None:
    assert catalog.shape_table().shapes[FIX, function, shape].state == "fixed"


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
FUZZ = Fuzz(CASES, 1, "AggregationType|MEAN|Metric|SUM|When|aggregated|aggregation|batch|batch_num_tokens|contributes|data|dp_size|each|global_batch_size|loss|loss_scale_factor|mean|metric|metric_aggregation|micro|must|normalized|over|partial|reflect|the|value", examples=40)
