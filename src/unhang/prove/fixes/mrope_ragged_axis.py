"""verl: what the real functions make of the position ids of a batch, in one process, on their way to an engine.

A case goes the way of a batch: ``left_right_2_no_padding``, ``chunk_tensordict`` for the ranks, and
``index_select_tensor_dict`` for a micro-batch, and between them the release's own ``maybe_fix_3d_position_ids``. A
setting of the grid is one of the three functions, given right ids. What removes padding is a stand-in for flash-attn's,
and so are the packages around both modules. The right answer are the ids that the mask leaves of each sample.
"""

from __future__ import annotations

import importlib
import itertools
import sys
from typing import TYPE_CHECKING, Any

from ..cases import DIFFERS, PASSED, Case, Topology
from ..ranks.around import Around, Filled

if TYPE_CHECKING:
    import ast
    from collections.abc import Sequence

WARM = ("torch", "tensordict")
_MODULES = ("verl.utils.tensordict_utils", "verl.workers.utils.padding")
_MAKE, _CHUNK, _SELECT = "left_right_2_no_padding", "chunk_tensordict", "index_select_tensor_dict"
_WIDTH, _WHERE = 8, "the first sample has"


def _case(name: str, lengths: Sequence[int], axes: int, chunks: int = 1, **more: Any) -> Case:
    """Return a case: a batch cut into ``chunks``, and ``rows`` of each. It is wrong if those of one are as long."""
    size = len(lengths) // chunks
    options = {"lengths": lengths, "axes": axes, "chunks": chunks, "rows": [*range(size)], **more}
    parts = [[start + row for row in options["rows"]] for start in range(0, len(lengths), size)]
    options |= {"parts": parts, "one_length": any(len({lengths[row] for row in part}) == 1 for part in parts)}
    is_wrong = axes > 0 and options["one_length"]
    return Case(name, Topology(), DIFFERS if is_wrong else PASSED, _WHERE * is_wrong, options, core=True)


_MICRO: dict[str, Any] = {"chunks": 2, "rows": [1, 0], "may_pass": True}
CASES = (
    _case("equal", (6, 6), 4),
    _case("one", (6,), 4),
    _case("three-axes", (6, 6), 3),
    _case("micro-batch", (6, 6, 5, 5), 4, **_MICRO),
    _case("unequal", (6, 5), 4),
    _case("unequal-micro-batch", (6, 5, 5, 6), 4, **_MICRO),
    _case("plain", (6, 6), 0),
)
_EACH: Sequence[tuple[str, Sequence[Sequence[int]], Sequence[dict[str, Any]]]] = (
    (_MAKE, ((6,), (4, 4), (6, 6), (8, 8, 8), (6, 5), (1, 8, 3)), ({},)),
    (_CHUNK, ((6, 6), (6, 6, 5, 5), (6, 5, 5, 6), (4, 4, 8, 8)), ({"chunks": 1}, {"chunks": 2})),
    (_SELECT, ((6, 5, 6, 3),), [{"rows": rows} for rows in ([2, 0], [1], [3, 2, 1, 0], [0, 1])]),
    (_SELECT, ((6, 6),), ({},)),
)
GRID = [
    _case(f"{of}: {lengths}, {axes} axes, {more}", lengths, axes, of=[of], **more)
    for of, batches, options in _EACH
    for lengths, more, axes in itertools.product(batches, options, (0, 3, 4))
]
HELD = {
    "routed_experts|teacher": "other tensors of the batch, which have the offsets of the tokens",
    "isinstance|is_nested|tensor.shape|batch is not None|val.dim": "is about what is no nested tensor",
    r"key == .position_ids|\[key\]": "ours: the settings of index_select_tensor_dict decide the same lines both ways",
    "except RuntimeError": "torch takes all of these apart",
    "len.td. % chunks|indices.dim": "says what may be asked for",
}
YOURS = CASES[0]._replace(name="yours")


def settings(case: Case) -> dict[str, Any]:
    """Return what the user of such a job sets."""
    return {
        "use_legacy_worker_impl": "disable",
        "a model with mRoPE (Qwen2-VL to Qwen3.5)": case.options["axes"] > 0,
        "samples that are all as long, in a batch (or, before verl 0.8, in a micro-batch)": case.options["one_length"],
    }


def has_feature(function: ast.FunctionDef) -> bool:
    """Return whether the function makes nested tensors of what the batch has; one made ids of one axis itself."""
    import ast

    text = ast.unparse(function)
    return "nested_tensor" in text and (function.name != _MAKE or "position_ids[" in text)


def prepare() -> None:
    """Import the real modules among stand-ins."""
    sys.meta_path.insert(0, Around("verl", _MODULES, Filled))
    for name in _MODULES:
        vars(importlib.import_module(name))["unpad_input"] = _unpadded


def _unpadded(rows: Any, mask: Any) -> Any:
    """Return the rows that a mask leaves, which these are, and where each sample begins."""
    indices = mask.flatten().nonzero().flatten()
    starts = itertools.accumulate(mask.sum(1).tolist(), initial=0)
    return rows.flatten(0, 1)[indices], indices, mask.new_tensor([*starts]).int()


def on_rank(case: Case, rank: int) -> tuple[str, list[Any], list[Any]]:
    """Return why a batch cannot be cut; the axis, offsets and values of its parts' position ids; and the right ones."""
    import torch
    from tensordict import TensorDict

    utils, padding = (vars(importlib.import_module(it)) for it in _MODULES)
    options, of, error = case.options, case.options.get("function"), ""
    lengths, axes, batch = options["lengths"], options["axes"], len(options["lengths"])
    mask = torch.zeros(batch, _WIDTH, dtype=torch.long)
    for row, length in zip(mask, lengths):
        row[(_WIDTH - length) // 2 :][:length] = 1
    ids = torch.arange(batch * max(axes, 1) * _WIDTH).view((batch, axes, _WIDTH) if axes else (batch, _WIDTH))
    has_axes = options.get("feature", True)
    due = [it[..., row.bool()] if has_axes else torch.arange(row.sum()) for it, row in zip(ids, mask)]
    data = {"attention_mask": mask, "position_ids": _nested(due)}
    if of == _SELECT:  # in 0.7.0, a second key like this one stops the other function
        data["other"] = torch.nested.as_nested_tensor([*ids.view(batch, _WIDTH, -1)], layout=torch.jagged)
    if of in (None, _MAKE):
        data |= {"input_ids": mask.clone(), "response_mask": mask[:, 4:], "position_ids": ids}
    parts = [TensorDict(data, batch_size=batch)]
    try:
        if of in (None, _MAKE):
            parts = [padding[_MAKE](parts[0])]
        if of in (None, _CHUNK):
            parts = utils[_CHUNK](parts[0], options["chunks"])
        if of in (None, _SELECT):
            [utils.get("maybe_fix_3d_position_ids", str)(part) for part in parts]
            parts = [utils[_SELECT](part, options["rows"]) for part in parts]
    except RuntimeError as why:
        error = str(why).partition("(")[0]
    assert all(part["other"]._ragged_idx == 1 for part in parts if "other" in part), "another tensor is turned"
    right = [_nested([due[row] for row in rows]) for rows in options["parts"]]
    return error, [_seen(part["position_ids"]) for part in parts], [_seen(it) for it in right]


def _seen(nested: Any) -> Any:
    return nested._ragged_idx, nested.offsets().tolist(), nested.dtype, nested.values().tolist()


def _nested(samples: Sequence[Any]) -> Any:
    """Return a nested tensor whose last axis is ragged."""
    import torch

    ends = itertools.accumulate((it.shape[-1] for it in samples), initial=0)
    values = torch.cat([*samples], dim=-1)
    return torch.nested.nested_tensor_from_jagged(values, torch.tensor([*ends]), jagged_dim=values.dim())


def wrong(case: Case, ranks: Sequence[tuple[str, list[Any], list[Any]]]) -> str:
    """Return what is wrong with the position ids; empty where nothing is."""
    error, found, right = ranks[0]
    text = f"{_WHERE} {found[0][1][1]} tokens, not {right[0][1][1]}{': ' if error else ''}{error}"
    return text if error or found != right else ""


def right(case: Case, ranks: Sequence[tuple[str, list[Any], list[Any]]]) -> str:
    """Return what was seen."""
    return f"{_WHERE} {ranks[0][1][0][1][1]} tokens, as it should"
