"""verl: the real ``fsdp2_load_full_state_dict`` on a model under FSDP2, whose buffers come in the order of a set.

The model is a stand-in: it registers two rotary tables while it walks a set of strings, as some of transformers do. A
string's hash, and so that order, depends on the process. Forked ranks share their hashes, so each rank takes the order
from a fresh interpreter with a PYTHONHASHSEED of its own.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import subprocess
import sys
from functools import cache
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
_TABLES = {"full_attention": 0.0, "sliding_attention": 1000.0}
"""The first value in each table."""
_NAMES = (
    "model.layers.10.rotary.inv_freq",
    "model.layers.11.rotary.inv_freq",
    "model.layers.11.rotary.sin_freq",
    "model.layers.11.Rotary.inv_freq",
    "visual.layers.11.rotary.inv_freq",
)
"""Of buffers, that differ in one part each: the beginning, the middle, the leaf, or a capital."""
GRID = [
    Case(
        f"{ranks} ranks, {buffers} buffers{'' if differ else ', one order'}{', offload' * offload}",
        Topology(dp=ranks),
        DIFFERS if differ and min(ranks, buffers) > 1 else PASSED,
        options={"names": _NAMES[:buffers], "differ": differ, "offload": offload},
    )
    for ranks, buffers, differ, offload in itertools.product((1, 2, 4), (0, 1, 2, 5), (True, False), (False, True))
    if (differ or (ranks, buffers) == (2, 5)) and (buffers == 5 or (ranks < 4 and not offload))
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
    _module().get_device_id = lambda: shims.DEVICE
    orders()  # here: a rank may start no process


def wrong(case: Case, ranks: Sequence[Mapping[str, list[float]]]) -> str:
    """Return what is wrong with the buffers of the first rank that has another value."""
    return next(filter(None, (_wrong(rank, held, _tables(case)) for rank, held in enumerate(ranks))), "")


def right(case: Case, ranks: Sequence[Mapping[str, list[float]]]) -> str:
    """Return what was seen."""
    return "every rank holds the buffers of rank 0, each under its name"


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


def _names(case: Case, rank: int) -> list[str]:
    """Return the names of a rank's buffers, in its order."""
    turn = rank if case.options.get("differ", True) else 0
    if names := case.options.get("names"):
        first = turn // 2
        return [*names[first:], *names[:first]][:: -1 if turn % 2 else 1]
    return [name for name in (f"{it}_inv_freq" for it in orders()[turn % 2]) if name in _tables(case)]


def _tables(case: Case) -> dict[str, list[float]]:
    """Return the values of each buffer on rank 0."""
    if "names" in case.options:
        return {name: [1000.0 * at + index for index in range(8)] for at, name in enumerate(case.options["names"], 1)}
    sized = zip(_TABLES.items(), case.options["sizes"])
    return {f"{name}_inv_freq": [first + index for index in range(size)] for (name, first), size in sized}


def on_rank(case: Case, rank: int) -> dict[str, list[float]]:
    """Shard a model, load it as rank 0 has it, and return its buffers on this rank."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard

    with torch.device(shims.DEVICE if rank == 0 else "meta"):
        model = torch.nn.Linear(4, 4)
        for name in _names(case, rank):
            *path, leaf = name.split(".")
            module = model
            for part in path:
                if not hasattr(module, part):
                    module.add_module(part, torch.nn.Module())
                module = getattr(module, part)
            module.register_buffer(leaf, torch.tensor(_tables(case)[name]), persistent=False)
    weights = model.state_dict() if rank == 0 else {}
    mesh = init_device_mesh(shims.DEVICE, (case.topology.world,))
    fully_shard(model, mesh=mesh)
    offload = CPUOffloadPolicy() if case.options.get("offload") else None
    _module().fsdp2_load_full_state_dict(model, weights, mesh, offload)
    return {name: buffer.tolist() for name, buffer in model.named_buffers()}


def _wrong(rank: int, held: Mapping[str, list[float]], tables: Mapping[str, list[float]]) -> str:
    """Return what is wrong with the buffers of a rank; empty if nothing is."""
    for name, values in tables.items():
        if held[name] != values:
            return f"rank {rank} holds values {_SWAPPED} in {name}: {held[name][0]}, not {values[0]}"
    return ""


def _module() -> Any:
    import verl.utils.fsdp_utils as module

    return module
