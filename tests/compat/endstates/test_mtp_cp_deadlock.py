"""mtp-cp-deadlock: each rank of a group makes the same collectives, with every setting of the method."""

from __future__ import annotations

import pytest

from support import sources
from support.endstates import row, row_of
from unhang.compat.endstates.endstate import Source

FIX = "mtp-cp-deadlock"


@pytest.mark.parametrize("version", ["0.7.0", "0.7.1", "0.8.0", "0.9.1"])
def test_a_release_is_as_on_record(version: str) -> None:
    source = sources.wheel(FIX, version)
    assert row(source) == row_of(source)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("and mpu.is_pipeline_last_stage(ignore_virtual=True):\n", "and True:\n", "worse with pp=2"),
        ("n_micro_batch > 0 and mpu", "n_micro_batch > 1 and mpu", "worse with batches=1"),
        ("if self.is_mp_src_rank_with_outputs():", "if True:", "worse with tp=2, batches=1: not the source ranks"),
        ("self.model_config.mtp.enable and n_micro", "n_micro", "worse with mtp=False, batches=1"),
    ],
)
def test_part_of_the_rewrite_is_a_problem(old: str, new: str, problem: str) -> None:
    source = sources.wheel(FIX, "0.7.1")
    text = source.rewritten.data.decode()
    assert old in text
    found = row(source, Source(text.replace(old, new), source.target.function))
    assert [it for it in found.problems if problem in it], found.problems
