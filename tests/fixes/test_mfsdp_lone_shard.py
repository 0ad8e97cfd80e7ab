"""mfsdp-lone-shard: its anchors, and what the sessions need of it."""

from __future__ import annotations

import pytest

from fuzz.subject import Fuzz
from mutants.by_hand import ByHand, Mutants, Sub
from proofs.others import Other, Proofs, Release, without
from support import sources

FIX = "mfsdp-lone-shard"
CASES = sources.cases(FIX, {"megatron-core": ["0.16.1", "0.17.1", "0.19.2"]})
_LONE = "is_grad_buffer_distributed and main_buf_dp_group.size() > 1"


@pytest.mark.parametrize("case", CASES)
def test_the_defect_is_told_from_ours(case: sources.Case) -> None:
    sources.assert_told_apart(case.load(), "")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (_LONE, "is_grad_buffer_distributed"),
        (_LONE, _LONE.replace("> 1", "> 2")),
        (_LONE, _LONE.replace("and", "or")),
        ("group.main_grad_buffer = ", "group.grad_buffer = "),
        ("transpose_weight_buffer", "other_buffer"),  # fused accumulation added to what a bucket held
        ("is_grad_buffer_distributed = ", "is_grad_buffer_distributed = group.strategy and "),
    ],
)
def test_another_buffer_is_no_anchor(old: str, new: str) -> None:
    source = sources.first(CASES)
    count = sources.unparsed(source.function).count(old)
    sources.assert_no_anchor(source, old, new, "not found: (group.main|transpose|is_grad)", count)


# -- for the sessions -------------------------------------------------------------------------------------------------

_GIVEN = "is_data_distributed=is_grad_buffer_distributed,"
BY_HAND: ByHand = {
    "no buffer is sharded": Sub(_GIVEN, "is_data_distributed=False,"),
    "each buffer is sharded": Sub(_GIVEN, "is_data_distributed=True,"),
    "those of larger groups alone": Sub(_GIVEN, f"is_data_distributed={_LONE},"),
    "those of a group of one alone": Sub(_GIVEN, f"is_data_distributed={_LONE.replace('>', '==')},"),
    "experts alone": Sub(_GIVEN, "is_data_distributed=is_grad_buffer_distributed and group.is_expert_param,"),
    "no experts": Sub(_GIVEN, "is_data_distributed=is_grad_buffer_distributed and not group.is_expert_param,"),
    "as the weights are": Sub(_GIVEN, "is_data_distributed=is_model_weight_buffer_distributed,"),
}
MUTANTS = [Mutants("megatron-core", ("0.16.1", "0.19.2"), BY_HAND)]
_RELEASES = Release("0.19.2", core=True), *map(Release, ("0.18.2", "0.17.1", "0.16.1"))
_EXPERTS = "own-experts-2", "own-experts-bf16-2", "own-experts-fused-2"
_HALVES = {
    "half: not of experts": Other(
        without(
            r"is_data_distributed=(is_grad_buffer_distributed),",
            r"is_data_distributed=\1 and not group.is_expert_param,",
        ),
        _EXPERTS,
    ),
}
PROOFS = [Proofs("megatron-core", _RELEASES, _HALVES)]
FUZZ = Fuzz(CASES, 2, "main_grad_buffer|is_grad_buffer_distributed|hfsdp_helper_gbuf|hsdp_gbuf", examples=40)
