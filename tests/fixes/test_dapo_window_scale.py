"""dapo-window-scale: its rewrite and anchors, and what the sessions need of it."""

from __future__ import annotations

from fuzz.subject import Fuzz
from mutants.by_hand import ByHand, Mutants, Sub
from proofs.others import Other, Proofs, Release, without
from support import sources

FIX = "dapo-window-scale"
WHOLE, CHUNKED = "GRPOTrainer._compute_loss_and_metrics", "GRPOTrainer._compute_loss_chunked"
_RELEASES = {WHOLE: ["3.11.3", "4.1.0", "4.5.3", "4.6.0"], CHUNKED: ["4.1.0", "4.5.3", "4.6.0"]}
CASES = [case for name, of in _RELEASES.items() for case in sources.cases(FIX, {"ms-swift": of}, function=name)]
_DIVISOR, _LOSS, _IF = "/ self.accelerator.num_processes", ".sum() / normalizer", "if start_idx < batch_size"
_EDITS = {
    WHOLE: [(_DIVISOR, "/ 8", "not found: ... = num_items"), (_LOSS, "", "not found: ....sum() / normalizer")],
    CHUNKED: [(_IF, "if batch_size", "not found: if first < size: ")],
}
REFUSED = [edit for name, of in _EDITS.items() for edit in sources.edits(sources.case(FIX, "4.5.3", function=name), of)]
_COUNT = "(self.args.steps_per_generation * self.template.sequence_parallel_size)"
_SHARE, _STEP = "(end_idx - start_idx) / batch_size", "self.current_gradient_accumulation_steps"
_AS_COUNT = {
    **{"of the step": _STEP, "of one rank": "self.args.steps_per_generation", "its square": f"{_COUNT} ** 2"},
    **{"two at most": f"min(2, {_COUNT})", "two at least": f"max(2, {_COUNT})", "the fewer": f"min({_COUNT}, {_STEP})"},
}
_AS_SHARE = {
    **{"all the tokens": "1", "of one size": "1 / max_chunks", "its inverse": "batch_size / (end_idx - start_idx)"},
    **{"of a full chunk": "new_chunk_size / batch_size", "of the largest": "chunk_size / batch_size"},
}
_AS_TEST = {"in evaluation too": "if True:", "in evaluation alone": "if not self.model.training:"}
BY_HAND: ByHand = {
    **{name: Sub(_COUNT, new) for name, new in _AS_COUNT.items()},
    **{name: Sub("if self.model.training:", new) for name, new in _AS_TEST.items()},
}
MUTANTS = [
    *(Mutants("ms-swift", (version,), BY_HAND, function=WHOLE) for version in ("4.5.3", "4.6.0")),
    Mutants("ms-swift", ("4.6.0",), {name: Sub(_SHARE, new) for name, new in _AS_SHARE.items()}, function=CHUNKED),
]
_HALVES = {
    "half: the loss": Other(without(r"\* \(end_idx.*", "", 0), ("chunks",), only=tuple(_RELEASES[CHUNKED])),
    "half: the chunks": Other(without(r"if self\.model\.training:", "if False:", 0), ("two steps a generation",)),
}
PROOFS = [Proofs("ms-swift", [Release(version, core=version == "4.5.3") for version in _RELEASES[WHOLE]], _HALVES)]
FUZZ = Fuzz(CASES, 1, "num_items_in_batch|num_processes|normalizer|get_chunked_inputs", examples=40)
