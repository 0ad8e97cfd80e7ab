"""megatron-core: the real Megatron-FSDP, on a small model of three towers that get token ids.

Nothing that a tower gets needs a gradient, so no hook reduces the tower's gradients before the end of the backward
pass. Then they are in a set of parameters, which hash by address: each rank makes its model anew until the set has the
order that the case wants. Addresses are multiples of 16, so in a small set the parameter that came first is the first.
The gradients that the ranks hold in the end are compared with those of the same model without FSDP.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
from typing import Any

from ..cases import CRASHED, DIFFERS, PASSED, Case, Outcome, Topology
from ..ranks import gloo, megatron, shims

_DIED, _SWAPPED = "rank 0 died", "is not that of the model without FSDP"
_TWO = Topology(dp=2)
_ALIKE, _UNLIKE = {"rows": (16, 16, 16)}, {"rows": (16, 16, 64)}
CASES = (
    Case("same-size-2", _TWO, "ranks", DIFFERS, _SWAPPED, _ALIKE, core=True),
    Case("same-size-4", Topology(dp=4), "ranks", DIFFERS, _SWAPPED, _ALIKE),
    Case("same-size-2-weights-whole", _TWO, "ranks", DIFFERS, _SWAPPED, {**_ALIKE, "strategy": "optim_grads"}),
    Case("other-size-2", _TWO, "ranks", CRASHED, _DIED, _UNLIKE, core=True),
    Case("one-order-2", _TWO, "ranks", PASSED, options={**_UNLIKE, "differ": False}, core=True),
    Case("one-tower-2", _TWO, "ranks", PASSED, options={"rows": (16,)}, core=True),
)
YOURS = Case("yours", Topology(), "ranks", DIFFERS, _SWAPPED, _ALIKE)
RULED_OUT = ("world", "one rank has no other to reduce gradients with")
_HIDDEN, _TRIES = 8, 200


def caveat(case: Case) -> str:
    """Return what the case leaves open: the user's own model is not run."""
    return "" if case.is_control else "a model of the proof's own: yours needs two buckets that are left over"


def prepare() -> None:
    """Import Megatron-FSDP for a CPU."""
    shims.cuda_on_cpu()
    import torch
    from torch.distributed import device_mesh

    torch.cuda.current_device = lambda: 0  # a part of a device's name
    vars(device_mesh._mesh_resources).setdefault("child_to_root_mapping", {})  # 0.14.0 reads it, of an older torch
    real = device_mesh.DeviceMesh.from_group
    device_mesh.DeviceMesh.from_group = lambda group, device_type, **others: real(group, "cpu", **others)
    _wrapper()


def run(case: Case, deadline_s: float) -> Outcome:
    """Run one backward pass on every rank, and compare the gradients."""
    world = gloo.run(case.topology.world, lambda rank: _on_rank(case, rank), deadline_s=deadline_s)
    if world.status != PASSED:
        return Outcome(world.status, world.text())
    for name, wanted in _gradients(case).items():
        found = [value for rank in world.ranks for value in rank.value[name]]
        if found[: len(wanted)] != wanted:
            return Outcome(DIFFERS, f"the gradient of {name} {_SWAPPED}")
    return Outcome(PASSED, "the gradients are those of the model without FSDP")


def _on_rank(case: Case, rank: int) -> dict[str, list[float]]:
    """Run forward and backward under FSDP. Return this rank's part of each tower's gradient."""
    import torch
    from megatron.core.distributed import DistributedDataParallelConfig
    from megatron.core.transformer.transformer_config import TransformerConfig

    megatron.initialize(case.topology)
    strategy = case.options.get("strategy", "optim_grads_params")
    wanted = {"data_parallel_sharding_strategy": strategy, "use_distributed_optimizer": True}
    wanted |= dict.fromkeys(
        ("use_custom_fsdp", "use_megatron_fsdp", "overlap_grad_reduce", "overlap_param_gather"), True
    )
    known = {field.name for field in dataclasses.fields(DistributedDataParallelConfig)}
    # gloo cannot scale what it reduces: without this the loss of each token counts the same
    config = TransformerConfig(num_layers=1, hidden_size=_HIDDEN, num_attention_heads=1, calculate_per_token_loss=True)
    model = _model(case, turned=bool(rank % 2 and case.options.get("differ", True)))
    wrapped = _wrapper()(
        config=config,
        ddp_config=DistributedDataParallelConfig(**{name: wanted[name] for name in wanted if name in known}),
        module=model,
        fsdp_unit_modules=[torch.nn.Embedding],
        device=torch.device("cpu"),
    )
    _loss(wrapped, rank).backward()
    wrapped.finish_grad_sync()
    buffer = wrapped.param_and_grad_buffer
    parts = {buffer.param_to_name[group.params[0]]: group.main_grad_buffer.data for group in buffer.parameter_groups}
    return {name: part.tolist() for name, part in parts.items()}


def _gradients(case: Case) -> dict[str, list[float]]:
    """Return the gradients of the towers without FSDP: the sum over the ranks."""
    model = _model(case, turned=False)
    for rank in range(case.topology.world):
        _loss(model, rank).backward()
    return {name: it.grad.flatten().tolist() for name, it in model.named_parameters()}


def _loss(model: Any, rank: int) -> Any:
    import torch

    return model(torch.arange(2 * rank, 2 * rank + 2)).sum()


def _model(case: Case, turned: bool) -> Any:
    """Return a model whose towers are in a set in their order, or the other way round."""
    import torch

    class Model(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.towers = torch.nn.ModuleList(torch.nn.Embedding(rows, _HIDDEN) for rows in case.options["rows"])

        def forward(self, ids: Any) -> Any:
            return sum(tower(ids) * weight for weight, tower in enumerate(self.towers, 1))

    made: list[Any] = []  # all are kept, so that each has a place of its own in memory
    for _ in range(_TRIES):
        made.append(Model())
        first, *others = made[-1].parameters()
        order = [id(it) for it in set().union(*({it} for it in (first, *others)))]
        if order == [id(first), *map(id, reversed(others) if turned else others)]:
            return made[-1]
    raise AssertionError(f"one order in {_TRIES} models")


def _wrapper() -> Any:
    """Return the class of this release that wraps a model."""
    old, new = "megatron.core.distributed.custom_fsdp", "megatron.core.distributed.fsdp.mcore_fsdp_adapter"
    return importlib.import_module(old if importlib.util.find_spec(old) else new).FullyShardedDataParallel
