"""empty-expert-hang: no configuration of a released forward is worse, and those of H2 were."""

import pytest

from support import sources
from support.endstates import row, row_of
from unhang.compat.endstates.compare import UNFIT
from unhang.compat.endstates.endstate import Source

FIX = "empty-expert-hang"
# As 0.15.3 and the nightlies, they unpad before they add the bias, or (the last one) never pad: rows of ours must
# be aligned there.
ONLY_IN_HISTORY = ("2ebfdd75efcb9caa", "ae09dc28ee7b1beb", "f0242f49c7fafe7e")


@pytest.mark.parametrize("shape", ONLY_IN_HISTORY)
def test_fp8_with_bias_passes_as_before(shape: str) -> None:
    """Of the audit of 2026-11-21, H2: untouched passes, an earlier rewrite raised."""
    (case,) = (it.values[0] for it in sources.cases(FIX, {}) if it.values[0].key == shape)
    assert row(case.load()) == row_of(case.load())


def test_one_row_for_each_expert_is_worse_where_the_bias_comes_last() -> None:
    source = sources.wheel(FIX, "0.15.3")
    after = source.rewritten.data.decode()
    part = "if self.config.fp8:\n                # the bias"
    assert after.count(part) == 1
    found = row(source, Source(after.replace(part, part.replace("self.config.fp8", "False")), source.target.function))
    assert found.worse
    assert found.problems[0].startswith("worse with precision=fp8, bias=True: raises Misfit: split")


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("if self.config.fp8:", "if self.config.fp8 and not self.config.new_flag:", "a new branch: self.config.new_f"),
        ("self.linear_fc2(", "self.linear_fc9(", f"{UNFIT} the defaults: the stand-ins lack self.linear_fc9"),
    ],
)
def test_what_a_new_release_may_bring_is_told(old: str, new: str, problem: str) -> None:
    source = sources.wheel(FIX, "0.12.0")
    found = row(source, None, source.data.decode().replace(old, new))
    assert [it for it in found.problems if it.startswith(problem)], found.problems
