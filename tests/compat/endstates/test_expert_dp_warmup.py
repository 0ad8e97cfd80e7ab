"""expert-dp-warmup: every rank warms up its groups in one order, in every job that can be told apart."""

from __future__ import annotations

import pytest

from support import sources
from support.endstates import row, row_of
from unhang.compat.endstates.endstate import Source

FIX = "expert-dp-warmup"


@pytest.mark.parametrize(("upstream", "version"), [("megatron-core", "0.10.0"), ("ms-swift", "4.6.0")])
def test_a_release_is_as_on_record(upstream: str, version: str) -> None:
    source = sources.wheel(FIX, version, upstream)
    assert row(source) == row_of(source)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("if expert_model_parallel_size > 1:\n        warmed", "if True:\n        warmed", "worse with"),
        ("for group_name in (", "for group_name in ()[::-1] or (rank % 2) * (", "not cured with the defaults: "),
        ("in ('nccl', 'hccl', 'mccl')", "in ('nccl', 'gloo')", "worse with backend=gloo: "),
        ("        if warmed_up_groups:", "        if False:", "the rank does not wait for its device"),
    ],
)
def test_part_of_the_rewrite_is_a_problem(old: str, new: str, problem: str) -> None:
    source = sources.wheel(FIX, "0.10.0", "megatron-core")
    text = source.rewritten.data.decode()
    assert old in text
    found = row(source, Source(text.replace(old, new), source.target.function))
    assert [it for it in found.problems if problem in it], found.problems
