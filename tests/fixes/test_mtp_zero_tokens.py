"""mtp-zero-tokens: its anchors, and what the sessions need of it."""

from __future__ import annotations

from functools import partial

import pytest

from fuzz.subject import Fuzz
from mutants.by_hand import ByHand, Mutants, Sub
from proofs.others import Other, Proofs, Release, without
from support import sources
from unhang.codemods.base import AnchorError
from unhang.judge import matrix
from unhang.judge.decide import codemod
from unhang.shapes import catalog

FIX = "mtp-zero-tokens"
BLOCK, MODEL, ALONE, _, OF_VERL = (target.function for target in catalog.fix(FIX).targets)
OLD, NEW = ("0.12.3", "0.13.1"), ("0.14.0", "0.15.3", "0.16.1")
VERL = ("0.7.1", "0.8.0")
BRIDGE = ("1.0.1", "1.0.2", "1.1.0", "1.1.2", "1.2.3", "1.3.2", "1.4.0", "1.4.2")
CASES = [
    *sources.cases(FIX, {"megatron-core": OLD}, function=BLOCK),
    *sources.cases(FIX, {"megatron-core": NEW, "mcore-bridge": BRIDGE}, function=MODEL),
    *sources.cases(FIX, {}, function=ALONE),
    *sources.cases(FIX, {"verl": VERL}, function=OF_VERL),
]
FIXED = [
    *sources.cases(FIX, {"megatron-core": ["0.17.0", "0.19.2"]}, state="fixed", function=ALONE),
    *sources.cases(FIX, {"mcore-bridge": ["1.4.3", "1.5.0", "1.6.4", "1.6.5"]}, state="fixed", function=MODEL),
    *sources.cases(FIX, {"verl": ["0.9.0", "0.9.1"]}, state="fixed", function=OF_VERL),
]


def test_each_release_has_the_verdict_of_the_function_that_divides_there() -> None:
    releases = catalog.releases()["megatron-core"]
    rows = matrix.rows([catalog.fix(FIX)], {"megatron-core": releases}, catalog.shape_table())
    now = {row.version: row.verdict for row in rows}
    assert {now[version] for version in (*OLD, *NEW)} == {"needed"}
    assert {now[version] for version in ("0.10.0", "0.11.0")} == {"not-affected"}
    assert {now[version] for version in ("0.17.0", "0.18.2", "0.19.2")} == {"fixed-upstream"}
    releases = catalog.releases()["mcore-bridge"]
    rows = matrix.rows([catalog.fix(FIX)], {"mcore-bridge": releases}, catalog.shape_table())
    needed = [row.version for row in rows if row.verdict == "needed"]
    assert (needed[0], needed[-1], len(needed)) == ("1.0.0", "1.4.2", 16)
    assert {row.verdict for row in rows if row.version not in needed} == {"fixed-upstream"}
    rows = matrix.rows([catalog.fix(FIX)], {"verl": catalog.releases()["verl"]}, catalog.shape_table())
    now = {row.version: row.verdict for row in rows}
    assert {now[version] for version in VERL} == {"needed"}
    assert {now[version] for version in ("0.9.0", "0.9.1")} == {"fixed-upstream"}


@pytest.mark.parametrize("case", FIXED)
def test_upstreams_own_fix_is_no_anchor(case: sources.Case) -> None:
    source = case.load()
    with pytest.raises(AnchorError):
        codemod(source.target).plan(source.function)


REFUSED = sources.edits(
    sources.case(FIX, "0.16.1", function=MODEL),
    [
        ("torch.sum(mtp_loss) / num_tokens", "torch.sum(mtp_loss)", "found 1 times, expected once: ... / num_tokens"),
        ("loss_mask, num_tokens = roll_tensor", "loss_mask, other = roll_tensor", "not found: ..., ... = roll_tensor"),
        ("mtp_loss = loss_mask * mtp_loss", "num_tokens = 1", "not found: num_tokens as roll_tensor returns it"),
        ("mtp_labels, _ = roll_tensor", "loss_mask, num_tokens = roll_tensor", "found 2 times, expected once: ..., "),
    ],
)

# -- for the sessions -------------------------------------------------------------------------------------------------

_new = partial(Sub, "num_tokens + (num_tokens == 0)")
BY_HAND: ByHand = {
    "as it was": _new("num_tokens"),
    "at least one, as upstream": _new("num_tokens.clamp(min=1)"),
    "one more": _new("num_tokens + 1"),
    "a little more": _new("num_tokens + 1e-6"),
    "one, always": _new("1"),
    "above zero": _new("num_tokens + (num_tokens > 0)"),
    "below one": _new("num_tokens + (num_tokens < 1)"),
    "up to one": _new("num_tokens + (num_tokens <= 1)"),
    "unless zero": _new("num_tokens + (num_tokens != 0)"),
    "two": _new("num_tokens + 2 * (num_tokens == 1)"),
    "less": _new("num_tokens - (num_tokens == 1)"),
    "times": _new("num_tokens * (num_tokens == 0)"),
    "one or zero": _new("(num_tokens == 0)"),
    "in training alone": _new("num_tokens + (num_tokens == 0) * self.training"),
    "in evaluation alone": _new("num_tokens + (num_tokens == 0) * (not self.training)"),
    "with per-token loss alone": _new("num_tokens + (num_tokens == 0) * self.config.calculate_per_token_loss"),
    "without per-token loss alone": _new("num_tokens + (num_tokens == 0) * (not self.config.calculate_per_token_loss)"),
    "one layer alone": _new("num_tokens + (num_tokens == 0) * (self.config.mtp_num_layers == 1)"),
    "several layers alone": _new("num_tokens + (num_tokens == 0) * (self.config.mtp_num_layers > 1)"),
    "the whole mask": _new("loss_mask.numel()"),
    "integers": _new("num_tokens.long() + (num_tokens == 0)"),
    "the mask in its place": _new("loss_mask.sum()"),
    "without packed sequences alone": _new("num_tokens + (num_tokens == 0) * (packed_seq_params is None)"),
    "a sample without tokens": _new("num_tokens + (loss_mask.sum(-1) == 0).any()"),
    "the first sample": _new("num_tokens + (loss_mask[0].sum() == 0)"),
    "of the hidden states' type": _new("(num_tokens + (num_tokens == 0)).to(hidden_states.dtype)"),
    "half": _new("(num_tokens + (num_tokens == 0)).half()"),
    "next to none": _new("num_tokens + (num_tokens < 0.01)"),
    "the mask too": Sub("num_tokens = num_tokens + (", "loss_mask = num_tokens = num_tokens + ("),
}
MUTANTS = [
    Mutants("megatron-core", ("0.13.1",), BY_HAND, function=BLOCK),
    Mutants("megatron-core", ("0.14.0", "0.16.1"), BY_HAND, function=MODEL),
    Mutants("mcore-bridge", ("1.0.1", "1.4.2"), BY_HAND, function=MODEL),
    Mutants("verl", VERL, BY_HAND, function=OF_VERL),
]
_ZERO = r"\(num_tokens == 0\)"
_TRAINING = Other(without(_ZERO, "(num_tokens == 0) * self.training"), ("one-token",))
_EVALUATION = Other(without(_ZERO, "(num_tokens == 0) * (not self.training)"), ("one-token-training", "per-token"))
_BITS = "its mask has bits, and no fractions"
PROOFS = [
    Proofs(
        "megatron-core",
        [Release(version, core=version == "0.16.1") for version in (*OLD, *NEW)],
        {
            "half: in training alone": _TRAINING,
            "half: in evaluation alone": _EVALUATION,
            "at least one, as upstream": Other(
                without(rf"num_tokens \+ {_ZERO}", "num_tokens.clamp(min=1)"), ("fractions",)
            ),
        },
    ),
    Proofs(
        "mcore-bridge",
        [
            Release(
                version,
                beside=(("megatron-core", "0.16.1"),),
                core=version == "1.4.2",
                lacking={"fractions": _BITS},
                otherwise={"per-token": ("passed", "")},  # what it logs is zero there
            )
            for version in BRIDGE
        ],
        {
            "half: in training alone": _TRAINING,
            "half: in evaluation alone": _EVALUATION._replace(fails=("one-token-training",)),
        },
    ),
    Proofs(
        "verl",
        [Release(it, beside=(("megatron-core", "0.16.1"),), core=it == "0.8.0") for it in VERL],
        {"half: in training alone": _TRAINING, "half: in evaluation alone": _EVALUATION},
    ),
]
FUZZ = Fuzz(CASES, 2, "num_tokens|roll_tensor|MTPLossAutoScaler", examples=40)
