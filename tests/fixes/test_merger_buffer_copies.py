"""merger-buffer-copies: its rewrite and anchors, what its verdict rests on, and what the sessions need of it."""

from __future__ import annotations

import pytest

from fuzz.subject import Fuzz
from mutants.by_hand import ByHand, Mutants, Sub
from proofs.others import Other, Proofs, Release, without
from support import sources
from unhang.judge import matrix
from unhang.judge.decide import codemod
from unhang.shapes import catalog

FIX = "merger-buffer-copies"
(TARGET,) = catalog.fix(FIX).targets
CASES = sources.cases(FIX, {"verl": ["0.4.1", "0.9.0"]})
FIXED = sources.cases(FIX, {"verl": ["0.9.1"]}, state="fixed")
_CAT = "state_dict[key] = torch.cat(state_dict[key], dim=0)"


def test_each_release_has_its_verdict() -> None:
    rows = matrix.rows([catalog.fix(FIX)], {"verl": catalog.releases()["verl"]}, catalog.shape_table())
    now = {row.version: row.verdict for row in rows}
    assert (now.pop("0.4.0"), now.pop("0.9.1")) == (
        "not-affected",
        "fixed-upstream",
    )  # 0.4.0: a script
    assert {"0.4.1", "0.9.0"} < now.keys()
    assert set(now.values()) == {"needed"}


@pytest.mark.parametrize("case", FIXED + CASES)
def test_upstreams_own_fix_is_told_apart(case: sources.Case) -> None:
    sources.assert_told_apart(case.load(), "...key] = torch.cat")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("state_dict[key])", "state_dict[key][:1])"),
        ("merge_non_dtensor_shards", "print"),
        ("del model_state_dict_lst", _CAT),
    ],
)
def test_another_merge_is_not_taken_for_upstreams_own_fix(old: str, new: str) -> None:
    assert not codemod(TARGET).fixed_upstream(sources.mutated(sources.first(FIXED).function, old, new))


@pytest.mark.parametrize(
    ("new", "found"),
    [
        ("state_dict[key] = torch.cat(state_dict[key], dim=1)", "not found"),
        ("state_dict[key] = torch.cat(param_placements[key], dim=0)", "not found"),
        ("state_dict['key'] = torch.cat(state_dict['key'], dim=0)", "not found"),
        (f"{_CAT}; {_CAT}", "found 2 times"),
    ],
)
def test_another_concatenation_or_a_second_one_is_no_anchor(new: str, found: str) -> None:
    sources.assert_no_anchor(sources.first(CASES), _CAT, new, found)


# -- for the sessions -------------------------------------------------------------------------------------------------

_ALL, _KEPT = "state_dict[key][1:]", "state_dict[key][0].clone(memory_format=torch.contiguous_format)"
_CHECK = "torch.testing.assert_close("
BY_HAND: ByHand = {
    "as before": Sub(_KEPT, "torch.cat(state_dict[key], dim=0)"),
    "as before where it has dimensions": Sub(
        _KEPT, f"{_KEPT} if state_dict[key][0].dim() == 0 else torch.cat(state_dict[key], dim=0)"
    ),
    "no copy": Sub(_KEPT, "state_dict[key][0]"),
    "a copy as it lies": Sub(_KEPT, "state_dict[key][0].clone()"),
    "any values": Sub(_CHECK, "bool("),
    "only of the first two": Sub(_ALL, "state_dict[key][1:1]"),
    "with NaN refused": Sub("equal_nan=True", "equal_nan=False"),
    "about": Sub("rtol=0, atol=0", "rtol=0, atol=9"),
    "without a name": Sub('f"{key} differs between ranks"', '"differs"'),
}
MUTANTS = [Mutants("verl", ("0.9.0",), BY_HAND)]
PROOFS = [
    Proofs(
        "verl",
        [Release("0.9.0", core=True), Release("0.4.1")],
        {
            "half: where it has no dimension": Other(
                without(r"= (.*clone.*)", r"= \1 if state_dict[key][0].dim() == 0 else torch.cat(state_dict[key])"),
                ("vector-2", "vector-4"),
                "differs: weight_0 is merged to",
            ),
            "half: whatever the others have": Other(
                without(r"torch.testing.assert_close\((?s:.*?),\n *\)", "pass"), ("own-2",), "differs: weight_0"
            ),
        },
    )
]
FUZZ = Fuzz(CASES, 2, r"torch\.cat|state_dict\[key\]|param_placements", examples=60)
