"""mrope-ragged-axis: its rewrite and anchors, what its verdict rests on, and what the sessions need of it."""

from __future__ import annotations

import pytest

from fuzz.subject import Fuzz
from mutants.by_hand import ByHand, Mutants, Sub
from proofs.others import Other, Proofs, Release, without
from support import sources
from support.rewrites import EveryRewrite
from unhang.codemods.base import AnchorError
from unhang.judge.decide import codemod

FIX = "mrope-ragged-axis"
CASES = sources.cases(FIX, {"verl": ["0.8.0", "0.9.1"]})
_MADE = "torch.nested.as_nested_tensor(position_ids_list, layout=torch.jagged)"


@pytest.mark.parametrize("version", ["0.7.0", "0.7.1"])
def test_releases_that_cut_such_batches_wrongly_get_no_rewrite(version: str) -> None:
    source = sources.wheel(FIX, version)
    assert source.known.state == "no-rewrite"
    with pytest.raises(AnchorError, match="teacher_logprobs"):
        codemod(source.target).plan(source.function)


@pytest.mark.parametrize("case", CASES)
class TestRewrite(EveryRewrite):
    """What the function does is the scene's to show."""


@pytest.mark.parametrize("pull", sources.as_written(FIX))
def test_the_pull_request_as_written_is_upstreams_own_fix(pull: sources.Case) -> None:
    source = pull.load()
    assert source.known.state == "fixed"
    assert "7349" in source.known.note
    sources.assert_told_apart(source, r"\.\.\. = torch.nested.as_nested_tensor")
    half = sources.mutated(
        source.function, "= tu.nested_tensor_from_tensor_list", f"= {_MADE} or tu.nested_tensor_from_tensor_list"
    )
    assert not codemod(source.target).fixed_upstream(half)


@pytest.mark.parametrize(
    ("old", "new", "count", "found"),
    [
        (_MADE, _MADE.replace(", layout=torch.jagged", ""), 1, "found 1 times"),
        (_MADE, f"({_MADE})[0]", 1, "not found"),
        (_MADE, _MADE.replace("position_ids_list", "[*position_ids_list]"), 1, "not found"),
        (f"position_ids_nested = {_MADE}", f"{_MADE}; position_ids_nested = {_MADE}", 1, "found 2 times"),
        ("offsets=cu_seqlens", "offsets=cu_seqlens + 0", 4, "not found"),
        (
            "squeeze(-1), offsets=cu_seqlens)\n    position",
            "squeeze(-1), offsets=other)\n    position",
            1,
            "found 2 times",
        ),
    ],
)
def test_ids_that_are_made_otherwise_are_no_anchor(old: str, new: str, count: int, found: str) -> None:
    sources.assert_no_anchor(sources.wheel(FIX, "0.9.1"), old, new, found, count)


# -- for the sessions -------------------------------------------------------------------------------------------------

_OFFSETS, _VALUES = "cu_seqlens.long()", "torch.cat(position_ids_list, dim=1)"
BY_HAND: ByHand = {
    "as before": Sub("dim() == 1", "dim() > 0"),
    "of all": Sub("dim() == 1", "dim() == 0"),
    "the other way round": Sub("dim() == 1", "dim() > 1"),
    "of four axes alone": Sub("dim() == 1", "shape[0] != 4"),
    "the first axis": Sub("jagged_dim=2", "jagged_dim=1"),
    "no axis": Sub(", jagged_dim=2", ""),
    "along the first": Sub("dim=1)", "dim=0)"),
    "stacked": Sub(_VALUES, "torch.stack(position_ids_list)"),
    "transposed": Sub(_VALUES, f"{_VALUES}.t()"),
    "of the first": Sub(_VALUES, "position_ids_list[0]"),
    "in turn": Sub(_VALUES, "torch.cat(position_ids_list[::-1], dim=1)"),
    "without the first offset": Sub(_OFFSETS, f"{_OFFSETS}[1:]"),
    "of one length": Sub(_OFFSETS, f"{_OFFSETS} * 0 + cu_seqlens[1]"),
    "the lengths": Sub(_OFFSETS, f"{_OFFSETS}.diff()"),
}
MUTANTS = [Mutants("verl", ("0.9.1",), BY_HAND)]
PROOFS = [
    Proofs(
        "verl",
        [Release("0.9.1", core=True), Release("0.8.0")],
        {
            "half: put together along the axes": Other(without("dim=1", "dim=0"), ("equal",)),
            "of four axes alone": Other(without(r"dim\(\) == 1", "shape[0] != 4"), ("three-axes",)),
        },
    )
]
FUZZ = Fuzz(CASES, 2, "as_nested_tensor|nested_tensor_from_jagged|position_ids_list", examples=60)
