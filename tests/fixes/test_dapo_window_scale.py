"""dapo-window-scale: its rewrite and anchors, and what the sessions need of it."""

from __future__ import annotations

from fuzz.subject import Fuzz
from mutants.by_hand import Mutants, each
from proofs.others import Other, Proofs, Release, without
from support import sources

FIX = "dapo-window-scale"
WHOLE, CHUNKED = "GRPOTrainer._compute_loss_and_metrics", "GRPOTrainer._compute_loss_chunked"
_RELEASES = {WHOLE: ["3.11.3", "4.1.0", "4.5.3", "4.6.0"], CHUNKED: ["4.1.0", "4.5.3", "4.6.0"]}
CASES = [case for name, of in _RELEASES.items() for case in sources.cases(FIX, {"ms-swift": of}, function=name)]
_OF_WHOLE = [("self.accelerator.num_processes", "8", "not found: .*num"), (".sum() / normalizer", "", "not found: ")]
_EDITS = {WHOLE: _OF_WHOLE, CHUNKED: [("if start_idx < batch_size", "if batch_size", "not found: if first < size: ")]}
REFUSED = [edit for name, of in _EDITS.items() for edit in sources.edits(sources.case(FIX, "4.5.3", function=name), of)]
_COUNT, _STEP = "(self.args.steps_per_generation * self.template.sequence_parallel_size)", "gradient_accumulation_steps"
_AS_COUNT = (
    *(f"min(2, {_COUNT})", f"max(2, {_COUNT})", f"self.current_{_STEP}", f"max({_COUNT}, self.args.{_STEP})"),
    *(f"min({_COUNT}, self.current_{_STEP})", "self.args.steps_per_generation", f"{_COUNT} * self.num_iterations"),
    *(f"({_COUNT} if self.beta == 0 else 1)", f"{_COUNT}; grpo_batch.num_items_in_batch //= {_COUNT}"),
)
_SHARE, _ROWS = "(end_idx - start_idx) / batch_size", "(end_idx - start_idx)"
_AS_SHARE = (
    *(f"{it} / {of}" for it in (1, 2, "end_idx", "new_chunk_size") for of in ("batch_size", "max_chunks", _ROWS)),
    *("1", f"{_ROWS} / sum(batch_sizes) * len(batch_sizes)", f"({_SHARE} if max_chunks == 2 else 1)"),
)
MUTANTS = [
    Mutants("ms-swift", ("4.5.3", "4.6.0"), each({_COUNT: _AS_COUNT}), function=WHOLE),
    Mutants("ms-swift", ("4.6.0",), each({_SHARE: _AS_SHARE}), function=CHUNKED),
]
_HALVES = {
    "half: the loss": Other(without(r"\* \(end_idx.*", "", 0), ("chunks",), only=tuple(_RELEASES[CHUNKED])),
    "half: the chunks": Other(without(r"if self\.model\.training:", "if False:", 0), ("two steps a generation",)),
}
PROOFS = [Proofs("ms-swift", [Release(version, core=version == "4.5.3") for version in _RELEASES[WHOLE]], _HALVES)]
FUZZ = Fuzz(CASES, 1, "num_items_in_batch|num_processes|normalizer|get_chunked_inputs", examples=40)
