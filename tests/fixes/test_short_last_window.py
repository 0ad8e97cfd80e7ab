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
    "all": _DIVISOR,
    "none": "1",
    "one less": f"({_ALL} - 1)",
    "one more": f"({_ALL} + 1)",
    "two at most": f"min(2, {_ALL})",
    "two at least": f"max(2, {_ALL})",
    "twice": f"{_ALL} / {_ALL}",
    "its root": f"{_ALL} ** 0.5",
    "its square": f"{_ALL} ** 2",
    "the other way": f"({_DIVISOR} / {_ALL})",
    "half of it where it is short": f"(({_ALL} + {_DIVISOR}) / 2)",
}
BY_HAND: dict[str, Sub] = {
    **{name: Sub(_ALL, new, EVERY) for name, new in _AS_DIVISOR.items()},
    "in an evaluation too": Sub(_OF, "self", EVERY),
    "in an evaluation alone": Sub(_OF, "None if model.training else self", EVERY),
    "of nobody": Sub(_OF, "None", EVERY),
    "of the model": Sub(_OF, "model", EVERY),
    "of the arguments": Sub(_OF, "self.args", EVERY),
    "another count": Sub(_COUNT, "'_train_batch_size'", EVERY),
    "one where there is no count": Sub(f"{_COUNT}, {_DIVISOR}", f"{_COUNT}, 1", EVERY),
    "no default": Sub(f"{_COUNT}, {_DIVISOR}", _COUNT, EVERY),
}
LAST: dict[str, Sub] = {
    "a product": Sub("loss / getattr", "loss * getattr"),
    "a quotient": Sub("loss / getattr", "loss // getattr"),
}
FIRST: dict[str, Sub] = {"the factor alone": Sub(_ALL, _DIVISOR, 1), "the divisor alone": Sub(_ALL, _DIVISOR)}
MUTANTS = [
    *(Mutants("ms-swift", ("3.9.3", "4.5.3"), BY_HAND | LAST, function=name) for name in (TRAINER, RERANKER, MIXIN)),
    Mutants("ms-swift", ("4.5.3",), BY_HAND | LAST, function=DPO),
    Mutants("ms-swift", ("4.6.0",), BY_HAND | LAST | FIRST, function=DPO),
]
_AS_DUE = dict.fromkeys(
    (f"{case}-{job}" for case in ("half", "one") for job in ("Trainer", "RerankerTrainer")), ("passed", "")
)
PROOFS = [
    Proofs(
        "ms-swift",
        [
            Release("4.5.3", core=True),
            Release("4.6.0", otherwise=_AS_DUE),
            *map(Release, ("4.1.2", "3.9.3", "3.6.0")),
        ],
        {
            "half: in an evaluation alone": Other(
                without(_OF, "None if model.training else self", 0), ("half-DPOTrainer", "one-DPOTrainer")
            ),
            "half: two at most": Other(without(r"/ (getattr\(.*\))", r"/ min(2, \1)", 0), ("whole-DPOTrainer",)),
        },
    )
]
FUZZ = Fuzz(CASES, 1, "gradient_accumulation_steps", examples=40)
