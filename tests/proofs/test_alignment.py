"""empty-expert-hang: variants that fail only on the releases where the router can pad for fp8."""

from __future__ import annotations

import os

import pytest

from proofs import judging, suite
from proofs.others import AS_WRITTEN, as_written, need_pull_request, without
from support import interpreters
from unhang.find import environment, locate
from unhang.prove import host
from unhang.prove.fixes import empty_expert_hang
from unhang.prove.host import Other

FIX, CASE = "empty-expert-hang", "fp8-aligned-cuts"
RELEASES = ("0.18.2", "0.19.2") if suite.everything() else ("0.19.2",)
ONE_ROW = Other(without(r"rows_per_expert = get_align_size_for_quantization\(self\.config\)", "pass"), (CASE,))


@pytest.mark.parametrize("version", RELEASES)
@pytest.mark.parametrize("variant", ["half: one row for each expert, not aligned", AS_WRITTEN])
def test_rows_that_are_not_aligned_fail(version: str, variant: str) -> None:
    python = interpreters.with_torch()
    if variant == AS_WRITTEN:
        need_pull_request(FIX)
    other = Other(as_written(FIX), (CASE,)) if variant == AS_WRITTEN else ONE_ROW
    place = environment.for_target(str(suite.unpacked("megatron-core", version)))
    found = [one for one in locate.search(place, cwd=os.sep).installations if one.upstream == "megatron-core"]
    chosen = [case for case in empty_expert_hang.CASES if case.name == CASE]
    outcomes = host.prove(python, FIX, ["megatron-core"], found, chosen, {variant: other}).outcomes
    assert not judging.verdict(chosen[0], outcomes[host.UNTOUCHED][CASE], outcomes[host.PATCHED][CASE])
    assert not judging.survivors(outcomes[variant])
    assert "not aligned to 16" in outcomes[variant][CASE].detail
