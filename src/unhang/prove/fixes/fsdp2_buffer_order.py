"""verl: the real ``fsdp2_load_full_state_dict`` on a model under FSDP2, whose buffers come in the order of a set.

The model is a stand-in. Some of transformers register two rotary tables while they walk a set of strings, whose order
depends on the process. Forked ranks share their hashes, so here each odd rank turns the order around.
"""

from __future__ import annotations

import importlib.util
import itertools
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ..cases import CRASHED, DIFFERS, PASSED, Case, Topology
from ..ranks import shims

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

WARM = ("torch", "transformers", "ray", "datasets", "peft", "accelerate", "tensordict")
_TWO = Topology(dp=2)
_SWAPPED, _LOAD = "of another buffer", "fsdp2_load_full_state_dict"
_ALIKE = {"sizes": (32, 32)}
CASES = (
    Case("same-size-2", _TWO, DIFFERS, _SWAPPED, _ALIKE, core=True),
    Case("same-size-4", Topology(dp=4), DIFFERS, _SWAPPED, _ALIKE),
    Case("same-size-2-offload", _TWO, DIFFERS, _SWAPPED, {**_ALIKE, "offload": True}),
    Case("other-size-2", _TWO, CRASHED, _LOAD, {"sizes": (64, 32)}, core=True),
    Case("one-order-2", _TWO, PASSED, options={"sizes": (64, 32), "differ": False}, core=True),
    Case("one-buffer-2", _TWO, PASSED, options={"sizes": (64,)}),
    Case("no-buffer-2", _TWO, PASSED, options={"sizes": ()}),
)
_TABLES = ("full_attention_inv_freq", "sliding_attention_inv_freq")
_NAMES = (
    "model.layers.10.rotary.inv_freq",
    "model.layers.11.rotary.inv_freq",
    "model.layers.11.rotary.sin_freq",
    "model.layers.11.Rotary.inv_freq",
    "visual.layers.11.rotary.inv_freq",
    *("e_score_correction_bias", "position_ids", "embed_scale"),
)
"""Of tables, that differ in one part each: the beginning, the middle, the leaf, or a capital; and of what others have:
a bias that is in the checkpoint, integers of two dimensions, and a scalar. These three have one order."""
GRID = [
    Case(
        f"{ranks} ranks, {buffers} buffers{'' if differ else ', one order'}{', offload' * offload}",
        Topology(dp=ranks),
        DIFFERS if differ and min(ranks, buffers) > 1 else PASSED,
        options={"names": _NAMES[:buffers], "differ": differ, "offload": offload},
    )
    for ranks, buffers, differ, offload in itertools.product((1, 2, 4), (0, 1, 2, 8), (True, False), (False, True))
    if (differ or (ranks, buffers) == (2, 8)) and (buffers == 8 or (ranks < 4 and not offload))
]
HELD = {"torch.__version__": "the torch that runs decides"}
YOURS = Case("yours", Topology(), DIFFERS, _SWAPPED, _ALIKE)
RULED_OUT = ("world", "one rank broadcasts to no other")


def caveat(case: Case) -> str:
    """Return what the case leaves open: the user's own model is not run."""
    return "" if case.is_control else "a model of the proof's own: whether yours registers buffers so depends on it"


def settings(case: Case) -> dict[str, Any]:
    """Return what the user of such a job sets."""
    return {
        **{"strategy": "fsdp2", "ranks": case.topology.world},
        "a model that makes buffers in the order of a set (Gemma 3, 4)": len(_tables(case)) > 1,
        "each process has an order of its own": case.options.get("differ", True),
    }


def prepare() -> None:
    """Import the upstream for a CPU."""
    shims.cuda_on_cpu()
    if importlib.util.find_spec("pkg_resources") is None:  # verl 0.4 imports it, and a newer setuptools has none
        sys.modules["pkg_resources"] = ModuleType("pkg_resources")
        vars(sys.modules["pkg_resources"])["DistributionNotFound"] = LookupError
    from verl.utils import fsdp_utils

    fsdp_utils.get_device_id = lambda: shims.DEVICE


def wrong(case: Case, ranks: Sequence[Mapping[str, list[float]]]) -> str:
    """Return what is wrong with the buffers of the first rank that has another value."""
    for rank, held in enumerate(ranks):
        for name, values in _tables(case).items():
            if held[name] != values:
                return f"rank {rank} holds values {_SWAPPED} in {name}: {held[name][0]}, not {values[0]}"
    return ""


def right(case: Case, ranks: Sequence[Mapping[str, list[float]]]) -> str:
    """Return what was seen."""
    return "every rank holds the buffers of rank 0, each under its name"


def _names(case: Case, rank: int) -> list[str]:
    """Return the names of a rank's buffers, in its order."""
    names, turn = [*_tables(case)], rank if case.options.get("differ", True) else 0
    first, tables, others = turn // 2 * 2, names[:5], names[5:]
    return [*others, *[*tables[first:], *tables[:first]][:: -1 if turn % 2 else 1]]


def _tables(case: Case) -> dict[str, list[float]]:
    """Return the values of each buffer on rank 0."""
    sized = zip(case.options.get("names", _TABLES), case.options.get("sizes", [*[8] * 7, 1]))
    return {name: [1000.0 * at + index for index in range(size)] for at, (name, size) in enumerate(sized)}


def on_rank(case: Case, rank: int) -> dict[str, list[float]]:
    """Shard a model, load it as rank 0 has it, and return its buffers on this rank."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard
    from verl.utils import fsdp_utils

    with torch.device(shims.DEVICE if rank == 0 else "meta"):
        model = torch.nn.Linear(4, 4)
        for name in _names(case, rank):
            *path, leaf = name.split(".")
            module = model
            for part in path:
                if not hasattr(module, part):
                    module.add_module(part, torch.nn.Module())
                module = getattr(module, part)
            values = torch.tensor(_tables(case)[name]).squeeze()
            values = values.long()[None] if leaf == "position_ids" else values
            module.register_buffer(leaf, values, persistent=leaf == "e_score_correction_bias")
    weights = model.state_dict() if rank == 0 else {}
    mesh = init_device_mesh(shims.DEVICE, (case.topology.world,))
    fully_shard(model, mesh=mesh)
    offload = CPUOffloadPolicy() if case.options.get("offload") else None
    fsdp_utils.fsdp2_load_full_state_dict(model, weights, mesh, offload)
    return {name: buffer.flatten().tolist() for name, buffer in model.named_buffers()}
