"""fused-head-no-gradient: its anchors, and what the sessions need of it."""

from __future__ import annotations

from functools import partial

from fuzz.subject import Fuzz
from mutants.by_hand import EVERY, ByHand, Mutants, Sub
from proofs.others import Other, Proofs, Release, without
from support import sources

FIX = "fused-head-no-gradient"
CASES = sources.cases(FIX, {"verl": ["0.4.0", "0.7.1", "0.8.0"]})
_FLAG, _NEEDED = "hidden_states.requires_grad", "ctx.needs_input_grad"
REFUSED = sources.edits(
    CASES[0],
    [
        (_FLAG, "True", f"not found: {_FLAG}", 3),
        ("vocab_weights.requires_grad", "True", "not found: vocab_weights.requires_grad", 2),
        ("ctx.saved_tensors", "ctx.saved", "not found: ..., ... = ctx.saved_tensors", 1),
    ],
)

# -- for the sessions -------------------------------------------------------------------------------------------------

_backbone, _head = partial(Sub, f"{_NEEDED}[0]"), partial(Sub, f"{_NEEDED}[1]")
BY_HAND: ByHand = {
    "the ids in place of the backbone": _backbone(f"{_NEEDED}[2]", EVERY),
    "all inputs": _backbone(f"all({_NEEDED})", EVERY),
    "both of them": _backbone(f"({_NEEDED}[0] and {_NEEDED}[1])", EVERY),
    "only three dimensions": _backbone(f"({_NEEDED}[0] and orig_ndim == 3)", EVERY),
    "only two dimensions": _backbone(f"({_NEEDED}[0] and orig_ndim == 2)", EVERY),
    "only with the entropy": _backbone(f"({_NEEDED}[0] and dentropy is not None)", EVERY),
    "only with log-probabilities": _head(f"({_NEEDED}[1] and dlog_probs is not None)", EVERY),
    "only one chunk": _backbone(f"({_NEEDED}[0] and T <= chunk_size)", EVERY),
    "only one row": _backbone(f"({_NEEDED}[0] and orig_batch_size == 1)", EVERY),
    "the gradients swapped": Sub("[chunk_start:chunk_end] += h", "[chunk_start:chunk_end] += v"),
    "the last chunk alone": Sub("[chunk_start:chunk_end] += h", "[chunk_start:chunk_end] = 0 * h"),
}
MUTANTS = [Mutants("verl", ("0.4.0", "0.8.0"), BY_HAND)]
_HALVES = {
    "half: the head alone": Other(without(r"ctx\.needs_input_grad\[0\]", _FLAG, 0), ("transposed", "own-view")),
    "half: not where it gets its shape": Other(without(r"(3 and )ctx\.needs_.*\[0\]", rf"\g<1>{_FLAG}"), ("sliced",)),
    "the other's index": Other(without(r"grad\[0\]", "grad[1]", 0), ("frozen-head",)),
}
_RELEASES = [Release(version, core=version == "0.8.0") for version in ("0.4.0", "0.5.0", "0.7.1", "0.8.0")]
PROOFS = [Proofs("verl", _RELEASES, _HALVES)]
FUZZ = Fuzz(CASES, 5, "requires_grad|needs_input_grad|saved_tensors", examples=40)
