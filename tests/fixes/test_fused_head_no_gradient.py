"""fused-head-no-gradient: its rewrite and anchors, what its verdict rests on, and what the sessions need of it."""

from __future__ import annotations

from functools import partial

from fuzz.subject import Fuzz
from mutants.by_hand import EVERY, ByHand, Mutants, Sub
from proofs.others import Other, Proofs, Release, without
from support import sources
from unhang.judge import matrix
from unhang.shapes import catalog

FIX = "fused-head-no-gradient"
(TARGET,) = catalog.fix(FIX).targets
CASES = sources.cases(FIX, {"verl": ["0.4.0", "0.7.1", "0.8.0"]})
_FLAG, _NEEDED = "hidden_states.requires_grad", "ctx.needs_input_grad"


def test_forward_decides_which_releases_need_the_fix() -> None:
    releases = catalog.releases()
    rows = matrix.rows([catalog.fix(FIX)], {"verl": releases["verl"]}, catalog.shape_table())
    now = {row.version: row.verdict for row in rows}
    assert {now[version] for version in ("0.4.0", "0.4.1", "0.5.0", "0.6.1", "0.7.0", "0.7.1", "0.8.0")} == {"needed"}
    assert {now[version] for version in ("0.9.0", "0.9.1")} == {"fixed-upstream"}
    assert set(now.values()) == {"needed", "fixed-upstream"}
    place = f"{TARGET.file}::{TARGET.function}"
    assert releases["verl"]["0.8.0"].shapes[place] == releases["verl"]["0.9.1"].shapes[place] is not None


def test_the_rewrite_asks_five_times_and_leaves_no_flag() -> None:
    source = sources.first(CASES)
    text = source.rewritten.data.decode().partition("def backward")[2]
    assert (text.count(f"{_NEEDED}[0]"), text.count(f"{_NEEDED}[1]"), text.count(".requires_grad")) == (3, 2, 0)


REFUSED = sources.edits(
    CASES[0],
    [
        (_FLAG, "True", f"not found: {_FLAG}", 3),
        ("vocab_weights.requires_grad", "True", "not found: vocab_weights.requires_grad", 2),
        ("ctx.saved_tensors", "ctx.saved", "not found: ..., ... = ctx.saved_tensors", 1),
    ],
)


def test_a_forward_with_upstreams_pull_request_is_right() -> None:
    shapes = catalog.shape_table().shapes.items()
    notes = [shape.note for (fix, function, _), shape in shapes if fix == FIX and shape.state == "repaired"]
    assert sorted(notes) == ["", *["pull request 6913 applied: upstream's own fix"] * 2]


# -- for the sessions -------------------------------------------------------------------------------------------------

_backbone, _head = partial(Sub, f"{_NEEDED}[0]"), partial(Sub, f"{_NEEDED}[1]")
_ALLOCATED, _ADDED, _SHAPED = range(3)
BY_HAND: ByHand = {
    "the flag where the backbone's is allocated": _backbone(_FLAG, _ALLOCATED),
    "the flag where the backbone's is added up": _backbone(_FLAG, _ADDED),
    "the flag where the backbone's gets its shape": _backbone(_FLAG, _SHAPED),
    "the flag everywhere": _backbone(_FLAG, EVERY),
    "the head in place of the backbone": _backbone(f"{_NEEDED}[1]", EVERY),
    "the backbone in place of the head": _head(f"{_NEEDED}[0]", EVERY),
    "the backbone always": _backbone("True", EVERY),
    "the head always": _head("True", EVERY),
    "the backbone never": _backbone("False", EVERY),
    "the head never": _head("False", EVERY),
    "the ids in place of the backbone": _backbone(f"{_NEEDED}[2]", EVERY),
    "any input": _backbone(f"any({_NEEDED})", EVERY),
    "any input, for the head": _head(f"any({_NEEDED})", EVERY),
    "all inputs": _backbone(f"all({_NEEDED})", EVERY),
    "the tuple": _backbone(_NEEDED, EVERY),
    "the tuple, for the head": _head(_NEEDED, EVERY),
    "both of them": _backbone(f"({_NEEDED}[0] and {_NEEDED}[1])", EVERY),
    "either of them": _backbone(f"({_NEEDED}[0] or {_NEEDED}[1])", EVERY),
    "only three dimensions": _backbone(f"({_NEEDED}[0] and orig_ndim == 3)", EVERY),
    "only two dimensions": _backbone(f"({_NEEDED}[0] and orig_ndim == 2)", EVERY),
    "only with the entropy": _backbone(f"({_NEEDED}[0] and dentropy is not None)", EVERY),
    "only with log-probabilities": _head(f"({_NEEDED}[1] and dlog_probs is not None)", EVERY),
    "only one chunk": _backbone(f"({_NEEDED}[0] and T <= chunk_size)", EVERY),
    "only one row": _backbone(f"({_NEEDED}[0] and orig_batch_size == 1)", EVERY),
    "not the shape of its input": _backbone("False", _SHAPED),
    "as large as the head": Sub("torch.zeros_like(hidden_states)", "torch.zeros_like(vocab_weights)"),
    "the gradients swapped": Sub("[chunk_start:chunk_end] += h", "[chunk_start:chunk_end] += v"),
    "the last chunk alone": Sub("[chunk_start:chunk_end] += h", "[chunk_start:chunk_end] = 0 * h"),
}
MUTANTS = [Mutants("verl", ("0.4.0", "0.8.0"), BY_HAND)]
PROOFS = [
    Proofs(
        "verl",
        [Release(version, core=version == "0.8.0") for version in ("0.4.0", "0.5.0", "0.7.1", "0.8.0")],
        {
            "half: the head alone": Other(without(r"ctx\.needs_input_grad\[0\]", _FLAG, 0), ("transposed", "own-view")),
            "half: not where it gets its shape": Other(
                without(r"(3 and )ctx\.needs_input_grad\[0\]", rf"\g<1>{_FLAG}"), ("sliced",)
            ),
            "the other's index": Other(without(r"grad\[0\]", "grad[1]", 0), ("frozen-head",)),
        },
    )
]
FUZZ = Fuzz(CASES, 5, "requires_grad|needs_input_grad|saved_tensors", examples=40)
