"""verl: the real ``left_right_2_no_padding``, in one process, and what the engines do to its position ids first.

That is the real ``maybe_fix_3d_position_ids`` of the release, if it has one. What removes padding is a stand-in for
flash-attn's, and so are the packages around both modules. The right answer are the ids that the mask leaves of each
sample.
"""

from __future__ import annotations

import ast
import importlib
import itertools
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from ..cases import DIFFERS, PASSED, Case, Topology
from ..ranks.around import Around, Filled

if TYPE_CHECKING:
    from collections.abc import Sequence

WARM = ("torch", "tensordict")
_MODULES = ("verl.utils.tensordict_utils", "verl.workers.utils.padding")
_ONE, _WIDTH = Topology(), 8
_WHERE = "the first sample has"
CASES = (
    Case("equal", _ONE, DIFFERS, _WHERE, {"lengths": (6, 6), "axes": 4}, core=True),
    Case("one", _ONE, DIFFERS, _WHERE, {"lengths": (6,), "axes": 4}, core=True),
    Case("three-axes", _ONE, DIFFERS, _WHERE, {"lengths": (6, 6), "axes": 3}, core=True),
    Case("unequal", _ONE, PASSED, options={"lengths": (6, 5), "axes": 4}, core=True),
    Case("plain", _ONE, PASSED, options={"lengths": (6, 6), "axes": 0}, core=True),
)
GRID = [
    Case(
        f"{lengths}, {axes} axes",
        _ONE,
        DIFFERS if axes and len({*lengths}) == 1 else PASSED,
        options={"lengths": lengths, "axes": axes},
    )
    for lengths, axes in itertools.product(((6,), (4, 4), (6, 6), (8, 8, 8), (6, 5), (1, 8, 3)), (0, 3, 4))
]
HELD = {"routed_experts|teacher": "other tensors of the batch, which have the offsets of the tokens"}
YOURS = Case("yours", _ONE, DIFFERS, _WHERE, {"lengths": (6, 6), "axes": 4})


def caveat(case: Case) -> str:
    """Return what the case leaves open: the user's own batches are not run."""
    return "" if case.is_control else "a batch of the proof's own: whether yours has samples of one length decides"


def settings(case: Case) -> dict[str, Any]:
    """Return what the user of such a job sets."""
    return {
        "use_legacy_worker_impl": "disable",
        "a model with mRoPE (Qwen2-VL to Qwen3.5)": case.options["axes"] > 0,
        "a batch whose samples all have as many tokens": len({*case.options["lengths"]}) == 1,
    }


class Nested(NamedTuple):
    """The position ids that an engine gets."""

    ragged: int
    """The axis that is ragged before an engine says which it is: the driver cuts batches by it."""
    offsets: Sequence[int]
    values: Any
    samples: Sequence[Any]
    error: str
    """Why the samples cannot be had."""
    due: Sequence[Any]


def has_feature(function: ast.FunctionDef) -> bool:
    """Return whether the function takes the position ids of the batch; it made ids of one axis before."""
    return "position_ids[" in ast.unparse(function)


def prepare() -> None:
    """Import the real modules among stand-ins."""
    sys.meta_path.insert(0, Around("verl", _MODULES, Filled))
    for name in _MODULES:
        importlib.import_module(name)
    _module().unpad_input = _unpadded


def _unpadded(rows: Any, mask: Any) -> Any:
    """Return the rows that a mask leaves, which these are, and where each sample begins."""
    import torch

    indices = mask.flatten().nonzero().flatten()
    starts = torch.nn.functional.pad(mask.sum(1).cumsum(0), (1, 0)).to(torch.int32)
    return rows.flatten(0, 1)[indices], indices, starts


def on_rank(case: Case, rank: int) -> Nested:
    """Remove the padding of a batch, and take its position ids apart."""
    import torch
    from tensordict import TensorDict

    lengths, axes = case.options["lengths"], case.options["axes"]
    batch = len(lengths)
    mask = torch.zeros(batch, _WIDTH, dtype=torch.long)
    for row, length in zip(mask, lengths):
        row[(_WIDTH - length) // 2 :][:length] = 1
    shape = (batch, axes, _WIDTH) if axes else (batch, _WIDTH)
    ids = torch.arange(batch * max(axes, 1) * _WIDTH).view(shape)
    data = {"input_ids": ids.view(batch, -1)[:, :_WIDTH].clone(), "attention_mask": mask, "position_ids": ids}
    given = TensorDict({**data, "response_mask": mask[:, 4:]}, batch_size=batch)
    done = _module().left_right_2_no_padding(given)
    ragged = done["position_ids"]._ragged_idx
    getattr(importlib.import_module(_MODULES[0]), "maybe_fix_3d_position_ids", lambda _: None)(done)
    nested = done["position_ids"]
    try:
        samples, error = nested.unbind(), ""
    except RuntimeError as why:
        samples, error = (), str(why).partition("(")[0]
    due = [of[..., row.bool()] for of, row in zip(ids, mask)]
    if not case.options.get("feature", True):
        due = [torch.arange(length) for length in lengths]
    return Nested(ragged, nested.offsets().tolist(), nested.values(), samples, error, due)


def wrong(case: Case, ranks: Sequence[Nested]) -> str:
    """Return what is wrong with the position ids; empty where nothing is."""
    import torch

    (found,) = ranks
    lengths = [len(it[0]) if it.dim() > 1 else len(it) for it in found.due]
    is_right = (
        found.ragged == found.due[0].dim()
        and [later - first for first, later in itertools.pairwise(found.offsets)] == lengths
        and torch.equal(found.values, torch.cat([*found.due], dim=-1))
        and len(found.samples) == len(lengths)
        and all(map(torch.equal, found.samples, found.due))
    )
    why = f": {found.error}" if found.error else ""
    return "" if is_right else f"{_WHERE} {found.offsets[1]} tokens, not {lengths[0]}{why}"


def right(case: Case, ranks: Sequence[Nested]) -> str:
    """Return what was seen."""
    return f"{_WHERE} {ranks[0].offsets[1]} tokens, as it should"


def _module() -> Any:
    return importlib.import_module(_MODULES[1])
