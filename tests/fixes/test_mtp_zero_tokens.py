"""mtp-zero-tokens: TODO: what the tests run, and what they look at."""

from __future__ import annotations

import pytest

from fuzz.subject import Fuzz
from mutants.by_hand import Mutants
from proofs.others import Proofs, Release
from support import sources
from support.rewrites import EveryRewrite

FIX = "mtp-zero-tokens"
CASES = sources.cases(FIX, {"megatron-core": ["0.16.1"]})
SHAPES = [
    ("GPTModel._postprocess", "d3cd3aa8a972442a", "2583dc4f817ead2c"),
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
    Mutants("megatron-core", ("0.16.1",)),
]
PROOFS = [
    # TODO: the other releases, and half patches that must fail
    Proofs("megatron-core", [Release("0.16.1", core=True)]),
]
FUZZ = Fuzz(
    CASES,
    1,
    "MTPLossAutoScaler|MTPLossLoggingHelper|apply|avg_group|config|get_data_parallel_group|hidden_states|mtp_layer_number|mtp_loss|mtp_loss_scale|mtp_num_layers|num_tokens|parallel_state|save_loss_to_tracker|torch|with_context_parallel",
    examples=40,
)
