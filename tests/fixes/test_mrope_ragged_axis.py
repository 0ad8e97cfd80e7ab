"""mrope-ragged-axis: its rewrite and anchors, what its verdict rests on, and what the sessions need of it."""

from __future__ import annotations

import pytest

from fuzz.subject import Fuzz
from mutants.by_hand import ByHand, Mutants, Sub
from proofs.others import Other, Proofs, Release, without
from support import sources
from unhang.judge import matrix
from unhang.judge.decide import codemod
from unhang.shapes import catalog

FIX = "mrope-ragged-axis"
MAKE, CHUNK, SELECT = (target.function for target in catalog.fix(FIX).targets)
OLD = ("0.7.0", "0.7.1")
CASES = [
    *sources.cases(FIX, {"verl": [*OLD, "0.8.0", "0.9.1"]}, function=MAKE),
    *(case for function in (CHUNK, SELECT) for case in sources.cases(FIX, {"verl": OLD}, function=function)),
]


def test_each_release_that_makes_nested_position_ids_needs_it() -> None:
    rows = matrix.rows([catalog.fix(FIX)], {"verl": catalog.releases()["verl"]}, catalog.shape_table())
    now = {row.version: row.verdict for row in rows}
    assert {it for it, verdict in now.items() if verdict == "needed"} == {it for it in now if it >= "0.7"}
    assert {now[version] for version in now if version < "0.7"} == {"not-affected"}


@pytest.mark.parametrize("case", [*sources.as_written(FIX), *CASES])
def test_upstreams_own_fix_is_told_apart(case: sources.Case) -> None:
    sources.assert_told_apart(case.load(), r"\.\.\. = torch.nested.as_nested_tensor")


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        (", layout=torch.jagged)", ")", "not found"),
        ("= torch.nested.as_nested_tensor(", "= 0 or torch.nested.as_nested_tensor(", "not found"),
        ("position_ids_nested = torch", "position_ids_nested = again = torch", "found 2 times"),
    ],
)
def test_ids_that_are_made_otherwise_are_no_anchor(old: str, new: str, found: str) -> None:
    sources.assert_no_anchor(sources.wheel(FIX, "0.9.1", function=MAKE), old, new, found)


def test_half_of_upstreams_own_fix_is_not_taken_for_it() -> None:
    source = sources.as_written(FIX)[0].values[0].load()
    half = sources.mutated(
        source.function, "= tu.nested_tensor", "= torch.nested.as_nested_tensor() or tu.nested_tensor"
    )
    assert not codemod(source.target).fixed_upstream(half)


# -- for the sessions -------------------------------------------------------------------------------------------------

BY_HAND: ByHand = {
    "never": Sub("_ragged_idx == 1", "_ragged_idx == 0"),
    "always": Sub("_ragged_idx == 1", "_ragged_idx > 0"),
    "of one axis": Sub(".dim() == 3", ".dim() == 2"),
    "the first axis": Sub("jagged_dim=2", "jagged_dim=1"),
    "in the order of the axes": Sub(".transpose(0, 1)", ""),
    "of one length": Sub(".size(2)", ".size(0)"),
    "without the last": Sub(".size(0) + 1", ".size(0)"),
}
_OF_A_BATCH: ByHand = {**BY_HAND, "of all": Sub('key == "position_ids"', "key")}
MUTANTS = [
    Mutants("verl", ("0.9.1",), BY_HAND, function=MAKE),
    Mutants("verl", ("0.7.0",), BY_HAND, function=CHUNK),
    Mutants("verl", ("0.7.1",), _OF_A_BATCH, function=SELECT),
]
_NEVER, _LATER = without("_ragged_idx == 1", "_ragged_idx == 0", count=0), {"micro-batch": ("passed", "")}
PROOFS = [
    Proofs(
        "verl",
        [
            *(Release(it, core=it == "0.9.1", otherwise=_LATER) for it in ("0.9.1", "0.8.0")),
            *(Release(it, core=it == "0.7.1") for it in OLD),
        ],
        {
            "half: along the axes": Other(without(r"\.transpose\(0, 1\)", ""), ("equal",)),
            "never": Other(_NEVER, ("one",)),
        },
    )
]
FUZZ = Fuzz(CASES, 2, "as_nested_tensor|nested_tensor_from_jagged|position_ids", examples=60)
