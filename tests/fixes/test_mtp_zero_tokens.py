"""mtp-zero-tokens: its anchors, and what the sessions need of it."""

from __future__ import annotations

from functools import partial

from fuzz.subject import Fuzz
from mutants.by_hand import ByHand, Mutants, Sub
from proofs.others import Other, Proofs, Release, without
from support import sources
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
    "at least one, as upstream": _new("num_tokens.clamp(min=1)"),
    "one, always": _new("1"),
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
_AT_LEAST_ONE = Other(without(rf"num_tokens \+ {_ZERO}", "num_tokens.clamp(min=1)"), ("fractions",))
_HALVES = {"half: in training alone": _TRAINING, "half: in evaluation alone": _EVALUATION}
_OF_BRIDGE = {**_HALVES, "half: in evaluation alone": _EVALUATION._replace(fails=("one-token-training",))}
_BESIDE = (("megatron-core", "0.16.1"),)
_PASSES = {"per-token": ("passed", "")}  # what it logs is zero there
_LACKING = {"fractions": "its mask has bits, and no fractions"}
_OF_CORE = [Release(version, core=version == "0.16.1") for version in (*OLD, *NEW)]
PROOFS = [
    Proofs("megatron-core", _OF_CORE, {**_HALVES, "at least one, as upstream": _AT_LEAST_ONE}),
    Proofs("mcore-bridge", [Release(it, _BESIDE, it == "1.4.2", _LACKING, _PASSES) for it in BRIDGE], _OF_BRIDGE),
    Proofs("verl", [Release(it, _BESIDE, core=it == "0.8.0") for it in VERL], _HALVES),
]
FUZZ = Fuzz(CASES, 2, "num_tokens|roll_tensor|MTPLossAutoScaler", examples=40)
