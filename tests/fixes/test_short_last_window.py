"""short-last-window: its anchors, and what the sessions need of it."""

from __future__ import annotations

import pytest

from fuzz.subject import Fuzz
from mutants.by_hand import EVERY, Mutants, Sub
from proofs.others import Other, Proofs, Release, without
from support import sources

FIX = "short-last-window"
TRAINER, RERANKER, MIXIN, DPO = (
    f"{name}.compute_loss" for name in ("Trainer", "RerankerTrainer", "RLHFTrainerMixin", "DPOTrainer")
)
RELEASES = {
    TRAINER: ["3.9.3", "4.5.3"],
    RERANKER: ["3.9.3", "4.5.3"],
    MIXIN: ["3.0.0", "4.6.0"],
    DPO: ["4.5.3", "4.6.0"],
}
CASES = [case for name, of in RELEASES.items() for case in sources.cases(FIX, {"ms-swift": of}, function=name)]
_DIVISOR = "self.args.gradient_accumulation_steps"


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    ("new", "anchor"),
    [("self.args.steps", "not found: "), (f"{_DIVISOR} / {_DIVISOR}", "found 2 times, expected once: ")],
)
def test_another_division_is_no_anchor(case: sources.Case, new: str, anchor: str) -> None:
    sources.assert_no_anchor(case.load(), f"/ {_DIVISOR}", f"/ {new}", f"{anchor}... / {_DIVISOR}")


# -- for the sessions -------------------------------------------------------------------------------------------------

_OF, _COUNT = "self if model.training else None", "'current_gradient_accumulation_steps'"
_ALL = f"getattr({_OF}, {_COUNT}, {_DIVISOR})"
_AS_DIVISOR = {
    **{"all": _DIVISOR, "one less": f"({_ALL} - 1)", "one more": f"({_ALL} + 1)", "its square": f"{_ALL} ** 2"},
    **{"two at most": f"min(2, {_ALL})", "two at least": f"max(2, {_ALL})", "the other way": f"({_DIVISOR} / {_ALL})"},
    "half of it where it is short": f"(({_ALL} + {_DIVISOR}) / 2)",
}
_AS_WINDOW = {
    **{"in an evaluation too": "self", "in an evaluation alone": "None if model.training else self"},
    **{"of nobody": "None", "of the model": "model", "of the arguments": "self.args"},
}
BY_HAND = {
    **{name: Sub(_ALL, new, EVERY) for name, new in _AS_DIVISOR.items()},
    **{name: Sub(_OF, new, EVERY) for name, new in _AS_WINDOW.items()},
    "another count": Sub(_COUNT, "'_train_batch_size'", EVERY),
    "one where there is no count": Sub(f"{_COUNT}, {_DIVISOR}", f"{_COUNT}, 1", EVERY),
    "no default": Sub(f"{_COUNT}, {_DIVISOR}", _COUNT, EVERY),
    "a product": Sub("loss / getattr", "loss * getattr"),
}
PACKED = {**BY_HAND, "the factor alone": Sub(_ALL, _DIVISOR, 1), "the divisor alone": Sub(_ALL, _DIVISOR)}
MUTANTS = [
    *(Mutants("ms-swift", ("3.9.3", "4.5.3"), BY_HAND, function=name) for name in (TRAINER, RERANKER)),
    Mutants("ms-swift", ("4.6.0",), BY_HAND, function=MIXIN),
    Mutants("ms-swift", ("4.6.0",), PACKED, function=DPO),
]
_RIGHT = {f"{case}-{job}": ("passed", "") for case in ("half", "one") for job in ("Trainer", "RerankerTrainer")}
_RELEASES = [Release("4.5.3", core=True), Release("4.6.0", otherwise=_RIGHT), *map(Release, ("3.9.3", "3.6.0"))]
_HALVES = {
    "half: of nobody": Other(without(_OF, "None", 0), ("half-DPOTrainer", "one-DPOTrainer")),
    "half: two at most": Other(without(r"/ (getattr\(.*\))", r"/ min(2, \1)", 0), ("whole-DPOTrainer",)),
}
PROOFS = [Proofs("ms-swift", _RELEASES, _HALVES)]
FUZZ = Fuzz(CASES, 1, "gradient_accumulation_steps", examples=40)
