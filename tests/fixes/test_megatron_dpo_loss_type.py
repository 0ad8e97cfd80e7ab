"""megatron-dpo-loss-type: its anchors, and what the sessions need of it."""

from __future__ import annotations

import pytest

from fuzz.subject import Fuzz
from mutants.by_hand import Mutants, each
from proofs.others import Other, Proofs, Release, without
from support import sources
from unhang.judge.decide import codemod

FIX = "megatron-dpo-loss-type"
CASES = sources.cases(FIX, {"ms-swift": ["3.7.3", "3.8.0", "3.9.3", "3.12.6", "4.3.0", "4.6.0"]})
_CALL = "dummy_dpo_trainer.dpo_loss("
REFUSED = sources.edits(
    CASES[0],
    [
        ("logps = self.get_logps(output_tensor", "logps = self.other_logps(output_tensor", "logps = self.get_logps"),
        (_CALL, f"{_CALL}logps, ", "dpo_loss"),
    ],
    "not found: .*{}",
)


@pytest.mark.parametrize("ipo", [True, False])
def test_upstreams_own_fix_names_the_loss_and_knows_ipo(ipo: bool) -> None:
    source = sources.wheel(FIX, "4.6.0")
    named = sources.mutated(source.function, "_samples // 2:])", "_samples // 2:], loss_type=args.loss_type)")
    if ipo:
        named = sources.mutated(named, "args = self.args", "args = self.args if 'ipo' else None")
    assert codemod(source.target).fixed_upstream(named) is ipo
    assert not codemod(source.target).fixed_upstream(source.function)


# -- for the sessions -------------------------------------------------------------------------------------------------

_MEANS = "scores, ref_scores = scores / tokens, ref_scores / tokens"
_COUNT = "tokens = self.get_logps(each, labels, packed_seq_params).clamp(min=1)"
_TAKES = "'loss_type' in inspect.signature(self.dummy_dpo_trainer.dpo_loss).parameters"
_TYPE, _NAMED = "self.dummy_dpo_trainer.loss_type", "named['loss_type'] = self.dummy_dpo_trainer.loss_type"
_BY_HAND = {
    _MEANS: ["scores = scores / tokens", "ref_scores = ref_scores / tokens", f"{_MEANS}\n            logps = scores"],
    _COUNT: [
        "tokens = (labels != -100).sum().clamp(min=1)",
        f"{_COUNT}\n            tokens = tokens.sum()",
        f"{_COUNT}\n            tokens = vars(self).setdefault('unhang', tokens)",  # of the first micro-batch
    ],
    ".clamp(min=1)": [""],
    _TAKES: ["False", "True", *(f"{_TAKES} and {_TYPE} {it}" for it in ("== 'ipo'", "!= 'ipo'", "!= 'hing'"))],
    "scores[num_samples // 2:]": ["scores[:num_samples // 2]"],
}
MUTANTS = [Mutants("ms-swift", ("4.6.0",), each(_BY_HAND))]
_BESIDE = {"4.6.0": "0.19.2", "4.3.0": "0.18.2", "3.12.6": "0.15.3", "3.7.3": "0.13.1"}
_RELEASES = [Release(own, (("megatron-core", core),), core=own == "4.6.0") for own, core in _BESIDE.items()]
_HALVES = {
    "half: the type alone": Other(without(r"scores, ref_scores = scores / tokens.*", "pass"), ("ipo", "ipo-cp2")),
    "half: the means alone": Other(without(r"\*\*named,", ""), ("hinge", "ipo", "ipo-cp2")),
}
PROOFS = [Proofs("ms-swift", _RELEASES, _HALVES)]
FUZZ = Fuzz(CASES, 1, "dpo_loss|get_logps|loss_type|logps", examples=40)
