"""sft-resume-epoch: its anchors, and what the sessions need of it."""

from __future__ import annotations

from functools import partial

import pytest

from fuzz.subject import Fuzz
from mutants.by_hand import ByHand, Mutants, Sub
from proofs.others import Other, Proofs, Release, without
from support import sources
from unhang.codemods.base import AnchorError
from unhang.judge.decide import codemod

FIX = "sft-resume-epoch"
HANDLER, TRAINER = "CheckpointHandler._load_dataloader_state", "FSDPSFTTrainer._load_dataloader_state"
CASES = [
    *sources.cases(FIX, {"verl": ["0.6.0", "0.9.1"]}, function=HANDLER),
    *sources.cases(FIX, {"verl": ["0.5.0"]}, function=TRAINER),
]


@pytest.mark.parametrize(
    ("old", "new", "anchor"),
    [
        (".load_state_dict(", ".load(", "not found: self.train_dataloader.load_state_dict"),
        ("self.train_dataloader.load_state_dict(", "x = self.train_dataloader.load_state_dict(", "alone"),
        ("os.path.exists(dataloader_path)", "dp_rank % 2", "wherever in an epoch it is"),
    ],
)
def test_a_state_that_is_restored_otherwise_is_no_anchor(old: str, new: str, anchor: str) -> None:
    sources.assert_no_anchor(sources.first(CASES), old, new, anchor)


@pytest.mark.parametrize("pull", sources.as_written(FIX))
def test_upstreams_pull_request_is_right_as_written_and_no_anchor(pull: sources.Case) -> None:
    source = pull.load()
    assert source.known.state == "fixed"
    with pytest.raises(AnchorError, match="wherever in an epoch it is"):
        codemod(source.target).plan(source.function)


# -- for the sessions -------------------------------------------------------------------------------------------------

_TEST = "extract_step(checkpoint_path) % len(self.train_dataloader)"
_test = partial(Sub, _TEST)
BY_HAND: ByHand = {
    "always": _test("True"),
    "never": _test("False"),
    "only at the end": _test(f"{_TEST} == 0"),
    "not after its first batch": _test(f"{_TEST} > 1"),
    "not before its last batch": _test(f"({_TEST} + 1) % len(self.train_dataloader)"),
    "one step less": _test("(extract_step(checkpoint_path) - 1) % len(self.train_dataloader)"),
    "the number of the epoch": _test("extract_step(checkpoint_path) // len(self.train_dataloader)"),
    "the other way round": _test("len(self.train_dataloader) % extract_step(checkpoint_path)"),
    "only the first epoch": _test("extract_step(checkpoint_path) < len(self.train_dataloader)"),
    "not at the end of the first epoch": _test("extract_step(checkpoint_path) != len(self.train_dataloader)"),
    "samples for batches": _test("extract_step(checkpoint_path) % len(self.train_dataloader.dataset)"),
    "an even number of steps": _test("extract_step(checkpoint_path) % 2"),
    "a rest of one alone": _test(f"{_TEST} == 1"),
    "no state": Sub("load_state_dict(dataloader_state_dict)", "load_state_dict({})"),
}
MUTANTS = [
    Mutants("verl", ("0.9.1",), BY_HAND, function=HANDLER),
    Mutants("verl", ("0.7.0",), BY_HAND, function=TRAINER),
]
_IF = r"if extract_step.*:"
PROOFS = [
    Proofs(
        "verl",
        [Release(version, core=version == "0.9.1") for version in ("0.6.1", "0.7.1", "0.9.1")],
        {
            "always": Other(without(_IF, "if True:", 0), ("end-of-epoch", "one-epoch-left")),
            "never": Other(without(_IF, "if False:", 0), ("inside-an-epoch",)),
        },
    )
]
FUZZ = Fuzz(CASES, 1, "extract_step|load_state_dict", examples=40)
