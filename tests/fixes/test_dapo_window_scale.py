"""dapo-window-scale: its rewrite and anchors, and what the sessions need of it."""

from __future__ import annotations

from fuzz.subject import Fuzz
from mutants.by_hand import ByHand, Mutants, Sub
from proofs.others import Other, Proofs, Release, without
from support import sources

FIX = "dapo-window-scale"
WHOLE, CHUNKED = "GRPOTrainer._compute_loss_and_metrics", "GRPOTrainer._compute_loss_chunked"
_RELEASES = ["3.11.3", "4.1.0", "4.5.3", "4.6.0"]
CASES = [case for name in (WHOLE, CHUNKED) for case in sources.cases(FIX, {"ms-swift": _RELEASES}, function=name)]
REFUSED = [
    *sources.edits(
        sources.case(FIX, "4.5.3", function=WHOLE),
        [
            ("/ self.accelerator.num_processes", "/ 8", "not found: ... = num_items_in_batch / "),
            (".sum() / normalizer", ".sum() / 8", "not found: ....sum() / normalizer"),
        ],
    ),
    *sources.edits(
        sources.case(FIX, "4.5.3", function=CHUNKED),
        [("if start_idx < batch_size", "if batch_size", "not found: if first < size: ")],
    ),
]
_COUNT = "(self.args.steps_per_generation * self.template.sequence_parallel_size)"
_AS_COUNT = {
    "of the step": "self.current_gradient_accumulation_steps",
    "without the ranks that share sequences": "self.args.steps_per_generation",
    "once more for the ranks": f"{_COUNT} * self.accelerator.num_processes",
    "its square": f"{_COUNT} ** 2",
    "half": f"{_COUNT} / 2",
    "two at most": f"min(2, {_COUNT})",
    "two at least": f"max(2, {_COUNT})",
    "of the step where it has fewer": f"min({_COUNT}, self.current_gradient_accumulation_steps)",
}
BY_HAND: ByHand = {
    **{name: Sub(_COUNT, new) for name, new in _AS_COUNT.items()},
    "in evaluation too": Sub("if self.model.training:", "if True:"),
    "in evaluation alone": Sub("if self.model.training:", "if not self.model.training:"),
}
_SHARE = "* (end_idx - start_idx) / batch_size"
CHUNKS: ByHand = {
    "all the tokens": Sub(_SHARE, ""),
    "as for chunks of one size": Sub(_SHARE, "/ max_chunks"),
    "by the rows of a chunk": Sub(_SHARE, "* new_chunk_size / batch_size"),
    "by the limit": Sub(_SHARE, "* chunk_size / batch_size"),
    "the other way round": Sub(_SHARE, "* batch_size / (end_idx - start_idx)"),
}
MUTANTS = [
    *(Mutants("ms-swift", (version,), BY_HAND, function=WHOLE) for version in ("4.5.3", "4.6.0")),
    Mutants("ms-swift", ("4.6.0",), CHUNKS, function=CHUNKED),
]
_HALVES = {
    "half: the loss alone": Other(without(r"\* \(end_idx - start_idx\) / batch_size", "", 0), ("chunks",)),
    "half: of nobody": Other(without(r"if self\.model\.training:", "if False:", 0), ("two steps a generation",)),
}
PROOFS = [Proofs("ms-swift", [Release(version, core=version == "4.5.3") for version in _RELEASES], _HALVES)]
FUZZ = Fuzz(CASES, 1, "num_items_in_batch|num_processes|normalizer|get_chunked_inputs", examples=40)
