"""fsdp-reduce-order: TODO: what the tests run, and what they look at."""

from __future__ import annotations

import pytest

from fuzz.subject import Fuzz
from mutants.by_hand import Mutants
from proofs.others import Proofs, Release
from support import sources
from support.hung_jobs import WORLD, HungJob, issued, job, rank
from support.rewrites import EveryRewrite
from unhang.shapes import catalog

FIX = "fsdp-reduce-order"
CASES = sources.cases(FIX, {"megatron-core": ["0.15.3"]})
SHAPES = [
    ("GradReducePipeline.reduce_gradients", "aada7a0d6643990c", "5e46ff0dd3f519b8"),
]


@pytest.mark.parametrize("case", CASES)
class TestRewrite(EveryRewrite):
    """What the function does is the end state's to show."""


@pytest.mark.parametrize(("function", "before", "after"), SHAPES)
def test_the_rewrite_is_the_function_of_the_diff(function: str, before: str, after: str) -> None:
    (source,) = (case.values[0].load() for case in CASES if case.values[0].target.function == function)
    assert (source.digest, source.rewritten.digest) == (before, after)


UPSTREAMS = [
    ("GradReducePipeline.reduce_gradients", "5e46ff0dd3f519b8"),
]


@pytest.mark.parametrize(("function", "shape"), UPSTREAMS)
def test_the_end_state_finds_no_fault_in_upstreams_own_fix(function: str, shape: str) -> None:
    assert catalog.shape_table().shapes[FIX, function, shape].state == "fixed"


# -- for the sessions -------------------------------------------------------------------------------------------------

# TODO: `by_hand`, what a person may write instead: {"the name": (Sub("old", "new"),)}; with those that rules make, at
# least as many as compat/schemas/manifest.json says
MUTANTS = [
    Mutants("megatron-core", ("0.15.3",)),
]
PROOFS = [
    # TODO: the other releases, and half patches that must fail
    Proofs("megatron-core", [Release("0.15.3", core=True)]),
]
FUZZ = Fuzz(CASES, 1, "buffer|key|param_to_param_group|params", examples=40)
_AT = (
    # TODO: the frames of a real job, innermost first
    "megatron/core/distributed/fsdp/src/megatron_fsdp/param_and_grad_buffer.py::GradReducePipeline.reduce_gradients",
)
_WAITS = rank(issued(WORLD, 5, "all_reduce", 1, at=_AT))
HANGS = [
    # TODO: what dumps, stacks and lines of logs have; and what only looks like it, with "possible" or ""
    HungJob("dumps", job([_WAITS, rank()])),
]
