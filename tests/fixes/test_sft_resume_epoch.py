"""sft-resume-epoch: its anchors, and what the sessions need of it."""

from __future__ import annotations

from functools import partial

from fuzz.subject import Fuzz
from mutants.by_hand import ByHand, Mutants, Sub
from proofs.others import Other, Proofs, Release, without
from support import sources

FIX = "sft-resume-epoch"
HANDLER, TRAINER = "CheckpointHandler._load_dataloader_state", "FSDPSFTTrainer._load_dataloader_state"
CASES = sources.cases(FIX, {"verl": ["0.6.0", "0.9.1"]}, function=HANDLER)
CASES += sources.cases(FIX, {"verl": ["0.5.0"]}, function=TRAINER)
REFUSED = sources.edits(
    CASES[0],
    [
        (".load_state_dict(", ".load(", "not found: self.train_dataloader.load_state_dict"),
        ("self.train_dataloader.load_state_dict(", "x = self.train_dataloader.load_state_dict(", "alone"),
        ("os.path.exists(dataloader_path)", "dp_rank % 2", "wherever in an epoch it is"),
    ],
)

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
    "as many as without workers": _test("dataloader_state_dict.get('_num_yielded', 0) < len(self.train_dataloader)"),
    "the end of the path": Sub("extract_step(checkpoint_path)", "int(checkpoint_path.rsplit('_', 1)[-1])"),
}
_MUTATED = {"0.9.1": HANDLER, "0.7.0": TRAINER}
MUTANTS = [Mutants("verl", (version,), BY_HAND, function=it) for version, it in _MUTATED.items()]
_IF = r"if extract_step.*:"
_OTHERS = {
    "always": Other(without(_IF, "if True:", 0), ("end-of-epoch", "one-epoch-left")),
    "never": Other(without(_IF, "if False:", 0), ("inside-an-epoch",)),
}
PROOFS = [Proofs("verl", [Release(it, core=it == "0.9.1") for it in ("0.6.1", "0.7.1", "0.9.1")], _OTHERS)]
FUZZ = Fuzz(CASES, 1, "extract_step|load_state_dict", examples=40)
