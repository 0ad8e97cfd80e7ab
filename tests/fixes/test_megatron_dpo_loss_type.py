"""megatron-dpo-loss-type: its anchors, and what the sessions need of it."""

from __future__ import annotations

import pytest

from fuzz.subject import Fuzz
from mutants.by_hand import ByHand, Mutants, Sub
from proofs.others import Other, Proofs, Release, without
from support import sources
from unhang.judge.decide import codemod

FIX = "megatron-dpo-loss-type"
CASES = sources.cases(FIX, {"ms-swift": ["3.7.3", "3.8.0", "3.9.3", "3.12.6", "4.3.0", "4.6.0"]})


REFUSED = sources.edits(
    CASES[0],
    [
        ("logps = self.get_logps(output_tensor", "logps = self.other_logps(output_tensor", "logps = self.get_logps"),
        ("ref_logps[args.micro_batch_size:])", "ref_logps[args.micro_batch_size:], 'ipo')", "dpo_loss"),
        ("dummy_dpo_trainer.dpo_loss(", "dummy_dpo_trainer.dpo_loss(logps, ", "dpo_loss"),
        ("dummy_dpo_trainer.dpo_loss(", "other_trainer.dpo_loss(", "dpo_loss"),
        ("ref_logps[:", "other_logps[:", "dpo_loss"),
    ],
    "not found: .*{}",
)


_END = "ref_logps[num_samples // 2:]"


@pytest.mark.parametrize("ipo", [True, False])
def test_upstreams_own_fix_names_the_loss_and_knows_ipo(ipo: bool) -> None:
    source = sources.wheel(FIX, "4.6.0")
    named = sources.mutated(source.function, f"{_END})", f"{_END}, loss_type=args.loss_type)")
    if ipo:
        named = sources.mutated(named, "args = self.args", "args = self.args if 'ipo' else None")
    assert codemod(source.target).fixed_upstream(named) is ipo
    assert not codemod(source.target).fixed_upstream(source.function)


# -- for the sessions -------------------------------------------------------------------------------------------------

_MEANS = "scores, ref_scores = scores / tokens, ref_scores / tokens"
_COUNT = "tokens = self.get_logps(each, labels, packed_seq_params).clamp(min=1)"
_TAKES = "'loss_type' in inspect.signature(self.dummy_dpo_trainer.dpo_loss).parameters"
BY_HAND: ByHand = {
    "no means": Sub(_MEANS, "pass"),
    "means for every loss": Sub("self.dummy_dpo_trainer.loss_type == 'ipo'", "True"),
    "means of the policy alone": Sub(_MEANS, "scores = scores / tokens"),
    "means of the reference alone": Sub(_MEANS, "ref_scores = ref_scores / tokens"),
    "logged means": Sub(_MEANS, f"{_MEANS}\n            logps = scores"),
    "of a rank's own tokens": Sub(_COUNT, "tokens = (labels != -100).sum().clamp(min=1)"),
    "of all pairs' tokens": Sub(_COUNT, f"{_COUNT}\n            tokens = tokens.sum()"),
    "of the pairs' mean length": Sub(_COUNT, f"{_COUNT}\n            tokens = tokens.mean()"),
    "with those of the prompt": Sub(_COUNT, _COUNT.replace("labels,", "labels * 0,")),
    "an empty answer divides by zero": Sub(".clamp(min=1)", ""),
    "at least two tokens": Sub("clamp(min=1)", "clamp(min=2)"),
    "the wrong sign": Sub("output_tensor, -1", "output_tensor, 1"),
    "twice as many tokens": Sub("output_tensor, -1", "output_tensor, -2"),
    "never named": Sub(_TAKES, "False"),
    "always named": Sub(_TAKES, "True"),
    "always hinge": Sub("named['loss_type'] = self.dummy_dpo_trainer.loss_type", "named['loss_type'] = 'hinge'"),
    "only ipo is named": Sub(_TAKES, f"{_TAKES} and self.dummy_dpo_trainer.loss_type == 'ipo'"),
    "all but ipo are named": Sub(_TAKES, f"{_TAKES} and self.dummy_dpo_trainer.loss_type != 'ipo'"),
    "no refusal of what is unknown": Sub(_TAKES, f"{_TAKES} and self.dummy_dpo_trainer.loss_type != 'hing'"),
    "chosen twice": Sub("scores[num_samples // 2:]", "scores[:num_samples // 2]"),
}
MUTANTS = [Mutants("ms-swift", ("4.6.0",), BY_HAND)]
_CASES = ("hinge", "ipo", "ipo-cp2")
PROOFS = [
    Proofs(
        "ms-swift",
        [
            Release("4.6.0", (("megatron-core", "0.19.2"),), core=True),
            Release("4.3.0", (("megatron-core", "0.18.2"),)),
            Release("3.12.6", (("megatron-core", "0.15.3"),)),
            Release("3.7.3", (("megatron-core", "0.13.1"),)),
        ],
        {
            "half: the type alone": Other(
                without(r"scores, ref_scores = scores / tokens.*", "pass"), ("ipo", "ipo-cp2")
            ),
            "half: the means alone": Other(without(r"\*\*named,", ""), _CASES),
        },
    )
]
FUZZ = Fuzz(CASES, 1, "dpo_loss|get_logps|loss_type|logps", examples=40)
