"""mcore-save-barrier: TODO: what the tests run, and what they look at."""

from __future__ import annotations

import pytest

from fuzz.subject import Fuzz
from mutants.by_hand import Mutants
from proofs.others import Proofs, Release
from support import sources
from support.hung_jobs import WORLD, HungJob, issued, job, rank
from support.rewrites import EveryRewrite
from unhang.shapes import catalog

FIX = "mcore-save-barrier"
CASES = sources.cases(FIX, {"ms-swift": ["4.1.2"]})
SHAPES = [
    ("_patch_mcore_bridge", "eded439080156e82", "25e2d7bd9a78cb7c"),
]


@pytest.mark.parametrize("case", CASES)
class TestRewrite(EveryRewrite):
    """What the function does is the end state's to show."""


@pytest.mark.parametrize(("function", "before", "after"), SHAPES)
def test_the_rewrite_is_the_function_of_the_diff(function: str, before: str, after: str) -> None:
    (source,) = (case.values[0].load() for case in CASES if case.values[0].target.function == function)
    assert (source.digest, source.rewritten.digest) == (before, after)


UPSTREAMS = [
    ("_patch_mcore_bridge", "08b1c68847fc8600"),
]


@pytest.mark.parametrize(("function", "shape"), UPSTREAMS)
def test_the_end_state_finds_no_fault_in_upstreams_own_fix(function: str, shape: str) -> None:
    assert catalog.shape_table().shapes[FIX, function, shape].state == "fixed"


# -- for the sessions -------------------------------------------------------------------------------------------------

# TODO: `by_hand`, what a person may write instead: {"the name": (Sub("old", "new"),)}; with those that rules make, at
# least as many as compat/schemas/manifest.json says
MUTANTS = [
    Mutants("ms-swift", ("4.1.2",)),
]
PROOFS = [
    # TODO: the other releases, and half patches that must fail
    Proofs("ms-swift", [Release("4.1.2", core=True)]),
]
FUZZ = Fuzz(CASES, 1, "disable_safe_ddp_context_use_barrier|swift|utils", examples=40)
_AT = (
    # TODO: the frames of a real job, innermost first
    "swift/megatron/init.py::_patch_mcore_bridge",
)
_WAITS = rank(issued(WORLD, 5, "barrier", 1, at=_AT))
HANGS = [
    # TODO: what dumps, stacks and lines of logs have; and what only looks like it, with "possible" or ""
    HungJob("dumps", job([_WAITS, rank()])),
]
