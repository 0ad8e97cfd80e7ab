"""What a codemod refuses, and what it takes for upstream's own fix: of each shape on record, and of edits of these."""

from __future__ import annotations

from typing import Any

import pytest

from support import fixes, sources
from support.sources import Case, Edit
from unhang.codemods.base import AnchorError
from unhang.judge.decide import codemod

BY_SHAPE = {
    "allgather-empty-expert": "upstream's pull request cures these methods, and not what else they need",
    "router-token-scale": "a loss that upstream has cured looks as one that never had the defect",
    "sft-resume-epoch": "its pull request changes what is saved too",
    "short-last-window": "upstream's own base class divides",
}
"""Fixes of which some copies that are right are known by their shapes alone: an edited one is `drifted`."""
FIXED = [case for case in sources.on_record("fixed") if case.values[0].target.fix != "fsdp-size-one-no-sync"]
"""Upstream's pull request for that one chooses in another way, and the rewrite on top of it is right too."""


def named(edits: dict[str, list[Any]]) -> list[Any]:
    found = ((f"{fix}-{at}", edit) for fix, some in edits.items() for at, edit in enumerate(some))
    return [pytest.param(*edit.values, id=name, marks=edit.marks) for name, edit in found]


@pytest.mark.parametrize("edit", named(fixes.of_each("REFUSED")))
def test_an_edited_anchor_is_refused(edit: Edit) -> None:
    assert edit.refusal
    with pytest.raises(AnchorError, match=edit.refusal):
        codemod(edit.case.target).plan(edit.function)


@pytest.mark.parametrize("edit", named(fixes.of_each("UNLIKE_UPSTREAM")))
def test_what_differs_is_not_taken_for_upstreams_own_fix(edit: Edit) -> None:
    change = codemod(edit.case.target)
    assert change.fixed_upstream(edit.case.load().function)
    assert not change.fixed_upstream(edit.function)


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
