"""mtp-zero-tokens: its rewrite and anchors, and what the sessions need of it."""

from __future__ import annotations

from functools import partial

import pytest

from fuzz.subject import Fuzz
from mutants.by_hand import EVERY, ByHand, Mutants, Sub
from proofs.others import Other, Proofs, Release, without
from support import sources
from support.rewrites import EveryRewrite
from unhang.codemods.base import AnchorError
from unhang.judge import matrix
from unhang.judge.decide import codemod
from unhang.shapes import catalog

FIX = "mtp-zero-tokens"
BLOCK, MODEL, ALONE = (target.function for target in catalog.fix(FIX).targets)
OLD, NEW = ("0.12.3", "0.13.1"), ("0.14.0", "0.15.3", "0.16.1")
CASES = [
    *sources.cases(FIX, {"megatron-core": OLD}, function=BLOCK),
    *sources.cases(FIX, {"megatron-core": NEW}, function=MODEL),
    *sources.cases(FIX, {}, function=ALONE),
]
FIXED = sources.cases(FIX, {"megatron-core": ["0.17.0", "0.19.2"]}, state="fixed", function=ALONE)


def test_each_release_has_the_verdict_of_the_function_that_divides_there() -> None:
    releases = catalog.releases()["megatron-core"]
    rows = matrix.rows([catalog.fix(FIX)], {"megatron-core": releases}, catalog.shape_table())
    now = {row.version: row.verdict for row in rows}
    assert {now[version] for version in (*OLD, *NEW)} == {"needed"}
    assert {now[version] for version in ("0.10.0", "0.11.0")} == {"not-affected"}
    assert {now[version] for version in ("0.17.0", "0.18.2", "0.19.2")} == {"fixed-upstream"}


@pytest.mark.parametrize("case", CASES)
class TestRewrite(EveryRewrite):
    """What the functions do is the end state's to show."""


@pytest.mark.parametrize("case", FIXED)
def test_upstreams_own_fix_is_no_anchor(case: sources.Case) -> None:
    source = case.load()
    with pytest.raises(AnchorError):
        codemod(source.target).plan(source.function)


def test_upstreams_own_fix_is_found_in_a_shape_that_has_it() -> None:
    change = codemod(catalog.fix(FIX).targets[2])
    assert change.fixed_upstream(sources.wheel(FIX, "0.17.0", function=ALONE).function)
    assert not change.fixed_upstream(sources.wheel(FIX, "0.16.1", function=MODEL).function)


@pytest.mark.parametrize(
    ("old", "new", "anchor"),
    [
        ("torch.sum(mtp_loss) / num_tokens", "torch.sum(mtp_loss)", "found 1 times, expected once: ... / num_tokens"),
        ("loss_mask, num_tokens = roll_tensor", "loss_mask, _ = roll_tensor", "not found: ..., ... = roll_tensor"),
        ("mtp_labels, _ = roll_tensor", "mtp_labels, other = roll_tensor", "found 2 times, expected once: ..., ..."),
    ],
)
def test_a_loss_that_is_divided_otherwise_is_no_anchor(old: str, new: str, anchor: str) -> None:
    sources.assert_no_anchor(sources.wheel(FIX, "0.16.1", function=MODEL), old, new, anchor)


# -- for the sessions -------------------------------------------------------------------------------------------------

_NEW = "(num_tokens + (num_tokens == 0))"
_LOG, _TRAINED = range(2)
_divisor = partial(Sub, _NEW)
BY_HAND: ByHand = {
    "the number, in the log": _divisor("num_tokens", _LOG),
    "the number, in training": _divisor("num_tokens", _TRAINED),
    "the number, in both": _divisor("num_tokens", EVERY),
    "at least one, as upstream": _divisor("num_tokens.clamp(min=1)", EVERY),
    "at least one, in the log": _divisor("num_tokens.clamp(min=1)", _LOG),
    "at least one, in training": _divisor("num_tokens.clamp(min=1)", _TRAINED),
    "one more": _divisor("(num_tokens + 1)", EVERY),
    "a little more": _divisor("(num_tokens + 1e-6)", EVERY),
    "one, always": _divisor("1", EVERY),
    "one, in training": _divisor("1", _TRAINED),
    "not at all, in the log": Sub(f" / {_NEW}", "", _LOG),
    "not at all, in training": Sub(f" / {_NEW}", "", _TRAINED),
    "above zero": _divisor("(num_tokens + (num_tokens > 0))", EVERY),
    "below one": _divisor("(num_tokens + (num_tokens < 1))", EVERY),
    "up to one": _divisor("(num_tokens + (num_tokens <= 1))", EVERY),
    "unless zero": _divisor("(num_tokens + (num_tokens != 0))", EVERY),
    "less": _divisor("(num_tokens - (num_tokens == 0) * 0.5)", EVERY),
    "times": _divisor("(num_tokens * (num_tokens == 0))", EVERY),
    "the first layer alone": _divisor("(num_tokens + (num_tokens == 0) * (mtp_layer_number == 0))", EVERY),
    "in training alone": _divisor("(num_tokens + (num_tokens == 0) * self.training)", _TRAINED),
    "twice": _divisor(f"{_NEW} / {_NEW}", _TRAINED),
    "the whole mask": _divisor("loss_mask.numel()", EVERY),
    "integers": _divisor("(num_tokens.long() + (num_tokens == 0))", EVERY),
}
_OF_BLOCK = {name: it for name, it in BY_HAND.items() if name != "the first layer alone"}
MUTANTS = [
    Mutants("megatron-core", ("0.13.1",), _OF_BLOCK, function=BLOCK),
    Mutants("megatron-core", ("0.14.0", "0.16.1"), BY_HAND, function=MODEL),
]
_DIVISOR = r"\(num_tokens \+ \(num_tokens == 0\)\)"
PROOFS = [
    Proofs(
        "megatron-core",
        [Release(version, core=version == "0.16.1") for version in (*OLD, *NEW)],
        {
            "half: the log alone": Other(
                without(rf"(?s)(.*){_DIVISOR}", r"\1num_tokens"), ("one-token", "one-token-training")
            ),
            "half: training alone": Other(without(_DIVISOR, "num_tokens"), ("per-token",)),
            "at least one, as upstream": Other(without(_DIVISOR, "num_tokens.clamp(min=1)", 0), ("fractions",)),
        },
    )
]
FUZZ = Fuzz(CASES, 2, "num_tokens|roll_tensor|MTPLossAutoScaler", examples=40)
