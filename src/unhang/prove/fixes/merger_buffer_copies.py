"""verl: the real FSDP merger, of what the ranks of a model under the real FSDP2 save.

A model of the scene's own has a weight, and buffers of several kinds. The files are kept in memory, because a rank may
write none, and what the merger hands over to be saved is looked at in place of being saved. The right answer is the
model's state as it was before it was sharded, in bfloat16, which the merger makes of everything.
"""

from __future__ import annotations

import importlib
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from ..cases import CRASHED, DIFFERS, PASSED, Case, Topology
from ..ranks import files, shims
from ..ranks.around import Around, any_module

if TYPE_CHECKING:
    from collections.abc import Sequence

WARM = ("torch", "tqdm", "torch.distributed.tensor", "torch.distributed.fsdp")
_MODULE = "verl.model_merger.fsdp_model_merger"
_WHERE = "is merged to"
_TWO, _FOUR = Topology(dp=2), Topology(dp=4)
CASES = (
    Case("vector-2", _TWO, DIFFERS, _WHERE, {"kind": "vector"}, core=True),
    Case("vector-4", _FOUR, DIFFERS, _WHERE, {"kind": "vector"}),
    Case("vector-4-fsdp-size-2", _FOUR, DIFFERS, _WHERE, {"kind": "vector", "fsdp_size": 2}),
    Case("own-2", _TWO, DIFFERS, _WHERE, {"kind": "own"}, core=True),
    Case("scalar-2", _TWO, CRASHED, "zero-dimensional", {"kind": "scalar"}, core=True),
    Case("vector-2-fsdp-size-1", _TWO, PASSED, options={"kind": "vector", "fsdp_size": 1}, core=True),
    Case("none-2", _TWO, PASSED, options={"kind": "none"}, core=True),
)
_BEYOND = ("nan", "aliases", "transposed")
"""Kinds of buffers that upstream's own fix refuses, or hands over as they cannot be saved."""
_PLAYED = {
    (1, 1): ("none", "vector", "scalar", *_BEYOND),
    (2, 2): ("none", "vector", "scalar", "matrix", "own", *_BEYOND),
    (2, 1): ("vector",),
    (4, 2): ("none", "vector"),
    (4, 4): ("own one",),
}
"""The kinds of buffers, by the number of ranks and fsdp_size."""
GRID = [
    Case(
        f"{kind}, {ranks} ranks, fsdp_size {size}",
        Topology(dp=ranks),
        CRASHED if kind == "scalar" else DIFFERS if size > 1 and kind != "none" else PASSED,
        options={"kind": kind, "fsdp_size": size, "beyond": kind in _BEYOND},
    )
    for (ranks, size), kinds in _PLAYED.items()
    for kind in kinds
]
HELD = {
    r"isinstance\(state_dict\[key\], list\)": "each is a list, made in the loop before",
    "mesh_shape": "`_calculate_shard_configuration` gives one dimension alone",
}
YOURS = Case("yours", Topology(), DIFFERS, _WHERE, {"kind": "vector"})
RULED_OUT = ("world", "one rank saves one file, of which nothing is merged")


def caveat(case: Case) -> str:
    """Return what the case leaves open: the user's own model is not run."""
    return "" if case.is_control else "a model of the proof's own: whether yours keeps buffers in its state decides"


def settings(case: Case) -> dict[str, Any]:
    """Return what the user of such a job sets."""
    world, kind = case.topology.world, case.options["kind"]
    return {
        **{"strategy": "fsdp2", "ranks": world, "fsdp_size": case.options.get("fsdp_size", world)},
        "a model with buffers in its state dict (such as DeepSeek V3, Gemma 4, QAT with w4a4)": kind != "none",
        **{"a buffer without dimensions": kind == "scalar", "a checkpoint is merged by verl.model_merger": True},
    }


def prepare() -> None:
    """Import the real merger among stand-ins."""
    sys.meta_path.insert(0, Around("verl", {_MODULE}, any_module))
    importlib.import_module(_MODULE)


def on_rank(case: Case, rank: int) -> Any:
    """Save a sharded model; on rank 0, return the merged tensors, those due, their storages, and why it is refused."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    world = case.topology.world
    size = case.options.get("fsdp_size", world)
    model = _model(case.options["kind"], rank == size // 2)
    due = {key: value.detach().bfloat16().clone() for key, value in model.state_dict().items()}
    names = ("fsdp",) if size == world else ("ddp", "fsdp")
    fully_shard(model, mesh=init_device_mesh(shims.DEVICE, (world // size, size)[-len(names) :], mesh_dim_names=names))
    saved: list[bytes] = [b""] * world
    dist.all_gather_object(saved, files.saved(model.state_dict()))
    if rank:
        return None
    merger: Any = object.__new__(importlib.import_module(_MODULE).FSDPModelMerger)
    merged: list[dict[str, Any]] = []
    merger.config = SimpleNamespace(local_dir="job", operation="merge", hf_upload=False)
    merger._get_world_size = lambda: world
    merger.save_hf_model_and_tokenizer = merged.append
    with files.there({f"job/model_world_size_{world}_rank_{at}.pt": it for at, it in enumerate(saved)}):
        try:
            merger.merge_and_save()
        except Exception as error:
            if "own" not in case.options["kind"]:
                raise
            return {}, due, 0, str(error)
    return merged[0], due, len({it.untyped_storage().data_ptr() for it in merged[0].values()}), ""


def _model(kind: str, is_other: bool) -> Any:
    """Return a model that is the same on each rank; on another one, a number of `own` is another, by the least step."""
    import torch

    torch.manual_seed(0)
    model = torch.nn.Linear(4, 6, bias=False)
    table = torch.randn(2, 3).to(torch.bfloat16 if kind in _BEYOND else torch.float32)  # not copied by .bfloat16()
    own = table[0].index_fill(0, torch.tensor(1), 2**-9 * (1 + 2**-7 * is_other))
    buffers = {
        "none": [],
        "vector": [table[0, :1].clone(), table[1].clone()],
        "scalar": [table[0, 0].clone()],
        "matrix": [table],
        "own": [own, table[1].clone()],
        "own one": [own[1:2].clone()],
        "nan": [table[0] * float("nan")],
        "aliases": [table[0], table],
        "transposed": [table.t()],
    }
    for at, buffer in enumerate(buffers[kind]):
        model.register_buffer(f"weight_{at}", buffer)  # after `weight`: the merger takes the mesh from the first name
    return model


def wrong(case: Case, ranks: Sequence[Any]) -> str:
    """Return what is wrong with the merged state; empty where nothing is."""
    import torch

    merged, due, storages, error = ranks[0]
    if error:
        return "" if "weight_0" in error else f"it fails without a word of the buffer: {error}"
    if merged.keys() != due.keys():
        return f"it merges {[*merged]}, not {[*due]}"
    for key, one in due.items():
        value = merged[key]
        if value.shape != one.shape:
            return f"{key} {_WHERE} {tuple(value.shape)}, not {tuple(one.shape)}"
        if value.dtype != one.dtype or not torch.equal(value.nan_to_num(7), one.nan_to_num(7)):
            return f"{key} {_WHERE} {value}, not {one}"
        if not value.is_contiguous():
            return f"{key} is not contiguous"
    if "own" in case.options["kind"]:
        return "weight_0 is merged to what one rank has"
    return "" if storages == len(due) else "tensors share a storage"


def right(case: Case, ranks: Sequence[Any]) -> str:
    """Return what was seen."""
    merged, _, _, error = ranks[0]
    shapes = [f"{key} {_WHERE} {tuple(value.shape)}" for key, value in merged.items()]
    return f"{', '.join(sorted(shapes, reverse=True))}, as it was" if shapes else f"it refuses: {error}"
