"""Each pull request as written, on each shape that it applies to: it is right, or rewritten as the untouched shape."""

from __future__ import annotations

import pytest

from support import sources
from unhang.shapes import catalog

WRONG = {"empty-expert-hang", "expert-dp-warmup", "sft-packed-seq-broadcast"}
CASES = [
    pytest.param(pull.values[0], id=f"{fix}-{pull.id}") for fix in catalog.fixes() for pull in sources.as_written(fix)
]


@pytest.mark.parametrize("pull", CASES)
def test_a_pull_request_as_written_is_right_or_rewritten_as_the_untouched_shape(pull: sources.Case) -> None:
    fix, shapes = pull.target.fix, catalog.shape_table().shapes
    known = shapes[fix, pull.target.function, pull.key]
    same = [it for key, it in shapes.items() if key[0] == fix and it.result == known.result and it is not known]
    assert known.note
    assert known.state == ("affected" if fix in WRONG else "fixed")
    if known.state == "affected":
        assert [(it.state, it.note) for it in same] == [("affected", "")]
