"""short-last-window: its anchors, and what the sessions need of it."""

from __future__ import annotations

from fuzz.subject import Fuzz
from mutants.by_hand import EVERY, Mutants, Sub
from proofs.others import Other, Proofs, Release, without
from support import sources

FIX = "short-last-window"
TRAINER, RERANKER, MIXIN, DPO = (
    f"{name}.compute_loss" for name in ("Trainer", "RerankerTrainer", "RLHFTrainerMixin", "DPOTrainer")
)
_OLD = ["3.9.3", "4.5.3"]
RELEASES = {TRAINER: _OLD, RERANKER: _OLD, MIXIN: ["3.0.0", "4.6.0"], DPO: ["4.5.3", "4.6.0"]}
CASES = [case for name, of in RELEASES.items() for case in sources.cases(FIX, {"ms-swift": of}, function=name)]
_BY = "/ self.args.gradient_accumulation_steps"
_OTHERS = [("/ self.args.steps", f"not found: ... {_BY}"), (f"{_BY} {_BY}", f"found 2 times, expected once: ... {_BY}")]
_AT = (sources.case(FIX, "4.5.3", function=name) for name in RELEASES)
REFUSED = [edit for case in _AT for edit in sources.edits(case, [(_BY, *other) for other in _OTHERS])]

# -- for the sessions -------------------------------------------------------------------------------------------------

_COUNT = "'current_gradient_accumulation_steps'"
_TAKEN = f"getattr(self, {_COUNT}, window)"
_AS_COUNT = {
    **{"all": "window", "one more": f"{_TAKEN} + 1", "two at most": f"min(2, {_TAKEN})"},
    **{"half of it where it is short": f"(window + {_TAKEN}) / 2", "of the model": _TAKEN.replace("self", "model")},
    **{"no default": _TAKEN.replace(", window", ""), "one for a default": _TAKEN.replace("window", "1")},
}
BY_HAND = {
    **{name: Sub(_TAKEN, new, EVERY) for name, new in _AS_COUNT.items()},
    "in an evaluation too": Sub("if model.training", "if True", EVERY),
    "of the labels": Sub("loss / window", "loss * inputs['labels'].shape[0] / num_items_in_batch"),
    "in the first epoch": Sub(_TAKEN, f"{_TAKEN} if self.state.epoch < 1 else window", EVERY),
    "on the first rank": Sub("if model.training", "if model.training and self.args.process_index == 0", EVERY),
}
PACKED = {**BY_HAND, "the factor alone": Sub(_TAKEN, "window", 1), "the divisor alone": Sub(_TAKEN, "window")}
MUTANTS = [
    *(Mutants("ms-swift", ("3.9.3", "4.5.3"), BY_HAND, function=name) for name in (TRAINER, RERANKER)),
    Mutants("ms-swift", ("4.6.0",), BY_HAND, function=MIXIN),
    Mutants("ms-swift", ("4.6.0",), PACKED, function=DPO),
]
_RELEASES = [Release("4.5.3", core=True), *map(Release, ("4.6.0", "3.9.3", "3.6.0"))]
_HALVES = {
    "half: of nobody": Other(without(r"if model\.training", "if False", 0), ("half-DPOTrainer", "one-DPOTrainer")),
    "half: two at most": Other(without(r"getattr\(.*\)", r"min(2, \g<0>)", 0), ("whole-DPOTrainer",)),
}
PROOFS = [Proofs("ms-swift", _RELEASES, _HALVES)]
FUZZ = Fuzz(CASES, 1, "gradient_accumulation_steps", examples=40)
