"""verl: the real ``fsdp2_load_full_state_dict`` on a model under FSDP2, whose buffers come in the order of a set.

The model is a stand-in: it registers two rotary tables while it walks a set of strings, as some of transformers do. A
string's hash, and so that order, depends on the process. Forked ranks share their hashes, so each rank takes the order
from a fresh interpreter with a PYTHONHASHSEED of its own.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ..cases import CRASHED, DIFFERS, PASSED, Case, Outcome, Topology
from ..ranks import gloo, shims

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

WARM = ("torch", "transformers", "ray", "datasets", "peft", "accelerate", "tensordict")
_TWO = Topology(dp=2)
_SWAPPED, _LOAD = "of another buffer", "fsdp2_load_full_state_dict"
_ALIKE = {"sizes": (32, 32)}
CASES = (
    Case("same-size-2", _TWO, "ranks", DIFFERS, _SWAPPED, _ALIKE, core=True),
    Case("same-size-4", Topology(dp=4), "ranks", DIFFERS, _SWAPPED, _ALIKE),
    Case("same-size-2-offload", _TWO, "ranks", DIFFERS, _SWAPPED, {**_ALIKE, "offload": True}),
    Case("other-size-2", _TWO, "ranks", CRASHED, _LOAD, {"sizes": (64, 32)}, core=True),
    Case("one-order-2", _TWO, "ranks", PASSED, options={"sizes": (64, 32), "differ": False}, core=True),
    Case("one-buffer-2", _TWO, "ranks", PASSED, options={"sizes": (64,)}),
    Case("no-buffer-2", _TWO, "ranks", PASSED, options={"sizes": ()}),
)
_TABLES = {"full_attention": 0.0, "sliding_attention": 1000.0}
"""The first value in each table."""
YOURS = Case("yours", Topology(), "ranks", DIFFERS, _SWAPPED, _ALIKE)
RULED_OUT = ("world", "one rank broadcasts to no other")


def caveat(case: Case) -> str:
    """Return what the case leaves open: the user's own model is not run."""
    return "" if case.is_control else "a model of the proof's own: whether yours registers buffers so depends on it"


def prepare() -> None:
    """Import the upstream for a CPU."""
    shims.cuda_on_cpu()
    if importlib.util.find_spec("pkg_resources") is None:  # verl 0.4 imports it, and a newer setuptools has none
        sys.modules["pkg_resources"] = ModuleType("pkg_resources")
        vars(sys.modules["pkg_resources"])["DistributionNotFound"] = LookupError
    _module().get_device_id = lambda: "cpu"


def run(case: Case, deadline_s: float) -> Outcome:
    """Run one case, and compare what the buffers of each rank hold."""
    sizes = dict(zip(_TABLES, case.options["sizes"]))
    offload, differ = case.options.get("offload", False), case.options.get("differ", True)
    chosen = [orders()[rank % 2 if differ else 0] for rank in range(case.topology.world)]

    def body(rank: int) -> dict[str, list[float]]:
        return _loaded(rank, case.topology.world, [name for name in chosen[rank] if name in sizes], sizes, offload)

    world = gloo.run(case.topology.world, body, deadline_s=deadline_s)
    return world.outcome(
        lambda ranks: next(filter(None, (_wrong(rank, held, sizes) for rank, held in enumerate(ranks))), ""),
        lambda _: "every rank holds the buffers of rank 0, each under its name",
    )


@cache
def orders() -> tuple[list[str], list[str]]:
    """Return the orders of a set of these names in two processes that differ."""
    code = f"print(*{set(_TABLES)!r})"
    found: list[list[str]] = []
    for seed in range(64):
        environ = {**os.environ, "PYTHONHASHSEED": str(seed)}
        done = subprocess.run(
            [sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True, env=environ
        )
        if (order := done.stdout.split()) not in found:
            found.append(order)
        if len(found) == len(_TABLES):
            return found[0], found[1]
    raise AssertionError("one order in 64 processes")


def _loaded(
    rank: int, ranks: int, names: Sequence[str], sizes: Mapping[str, int], offload: bool
) -> dict[str, list[float]]:
    """Shard a model, load it as rank 0 has it, and return its buffers on this rank."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard

    with torch.device("cpu" if rank == 0 else "meta"):
        model = torch.nn.Linear(4, 4)
        for name in names:
            table = torch.arange(sizes[name], dtype=torch.float32) + _TABLES[name]
            model.register_buffer(f"{name}_inv_freq", table, persistent=False)
    weights = model.state_dict() if rank == 0 else {}
    mesh = init_device_mesh("cpu", (ranks,))
    fully_shard(model, mesh=mesh)
    _module().fsdp2_load_full_state_dict(model, weights, mesh, CPUOffloadPolicy() if offload else None)
    return {name: buffer.tolist() for name, buffer in model.named_buffers()}


def _wrong(rank: int, held: Mapping[str, list[float]], sizes: Mapping[str, int]) -> str:
    """Return what is wrong with the buffers of a rank; empty if nothing is."""
    for name, size in sizes.items():
        values = held[f"{name}_inv_freq"]
        if values != [_TABLES[name] + index for index in range(size)]:
            return f"rank {rank} holds values {_SWAPPED} in {name}_inv_freq: {values[0]}, not {_TABLES[name]}"
    return ""


def _module() -> Any:
    import verl.utils.fsdp_utils as module

    return module
