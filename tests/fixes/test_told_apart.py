"""Upstream's own fix, on each shape on record: it is found where it is, nowhere else, and never rewritten."""

from __future__ import annotations

import pytest

from support import sources
from support.sources import Case
from unhang.codemods.base import AnchorError
from unhang.judge.decide import codemod

BY_SHAPE = {
    "allgather-empty-expert": "upstream's pull request cures these methods, and not what else they need",
    "router-token-scale": "a loss that upstream has cured is one of several, and looks as one that never had the defect",
    "sft-resume-epoch": "its pull request changes what is saved too",
    "short-last-window": "upstream's own base class divides",
}
"""Fixes of which some copies that are right are known by their shapes alone: an edited one is `drifted`."""
FIXED = [case for case in sources.on_record("fixed") if case.values[0].target.fix != "fsdp-size-one-no-sync"]
"""Upstream's pull request for that one chooses in another way, and the rewrite on top of it is right too."""


@pytest.mark.parametrize("case", sources.on_record("affected", "not-affected"))
def test_what_lacks_upstreams_own_fix_is_not_called_fixed(case: Case) -> None:
    source = case.load()
    try:
        assert not codemod(source.target).fixed_upstream(source.function)
    except AnchorError:  # nothing in it is what upstream's fix changes
        assert source.known.state == "not-affected"


@pytest.mark.parametrize("case", FIXED)
def test_upstreams_own_fix_is_found_and_is_no_anchor(case: Case) -> None:
    source = case.load()
    change = codemod(source.target)
    assert source.target.fix in BY_SHAPE or change.fixed_upstream(source.function)
    with pytest.raises(AnchorError):
        change.plan(source.function)
