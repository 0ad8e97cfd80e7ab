"""megatron-core: the real Megatron-FSDP, on a small model of three towers that get token ids.

Nothing that a tower gets needs a gradient, so no hook reduces the tower's gradients before the end of the backward
pass. Then they are in a set of parameters, which hash by address: each rank makes its model anew until the towers are
complete in the order that the case wants, both in such a set and by address. A head after the towers has a hook, and a
frozen weight. The gradients that the ranks hold in the end are compared with those of the same model without FSDP.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import itertools
from typing import TYPE_CHECKING, Any

from ..cases import CRASHED, DIFFERS, PASSED, Case, Topology
from ..ranks import megatron, shims

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_DIED, _SWAPPED = "rank 0 died", "is not that of the model without FSDP"
_TWO = Topology(dp=2)
_ALIKE, _UNLIKE = {"rows": (16, 16, 16)}, {"rows": (16, 16, 64)}
CASES = (
    Case("same-size-2", _TWO, DIFFERS, _SWAPPED, _ALIKE, core=True),
    Case("same-size-4", Topology(dp=4), DIFFERS, _SWAPPED, _ALIKE),
    Case("same-size-2-weights-whole", _TWO, DIFFERS, _SWAPPED, {**_ALIKE, "strategy": "optim_grads"}),
    Case("other-size-2", _TWO, CRASHED, _DIED, _UNLIKE, core=True),
    Case("one-order-2", _TWO, PASSED, options={**_UNLIKE, "differ": False}, core=True),
    Case("one-tower-2", _TWO, PASSED, options={"rows": (16,)}, core=True),
    Case("same-size-1", Topology(), PASSED, options=_ALIKE),
)
_ORDERS = {1: ((0,), (0,)), 2: ((1, 0), (0, 1)), 3: ((0, 1, 2), (0, 2, 1)), 4: ((0, 3, 2, 1), (0, 1, 2, 3))}
"""By the number of towers, the orders in which they are complete on even and on odd ranks."""
GRID = [
    Case(
        f"{ranks} ranks, {towers} towers, {strategy}{', a head' * head}{'' if differ else ', one order'}",
        Topology(dp=ranks),
        DIFFERS if differ and towers > 1 else PASSED,
        options={
            **{"rows": (16,) * towers, "deep": towers < 4, "differ": differ, "strategy": strategy, "head": head},
            **{"tied": towers == 4 and head, "between": 62 * (towers == 4 and not head)},
        },
    )
    for ranks, towers, strategy, head, differ in (
        (2, 1, "optim_grads_params", False, True),
        (2, 2, "optim_grads_params", True, True),
        (2, 2, "optim_grads", False, True),
        (2, 2, "optim_grads", True, False),
        (2, 4, "optim_grads_params", False, True),
        (4, 4, "optim_grads_params", True, True),
    )
]
HELD = {r"param\.requires_grad": "newer hooks hand over no frozen parameter; those of older releases do"}
YOURS = Case("yours", Topology(), DIFFERS, _SWAPPED, _ALIKE)
RULED_OUT = ("world", "one rank has no other to reduce gradients with")
_ON = "use_distributed_optimizer", "use_custom_fsdp", "use_megatron_fsdp", "overlap_grad_reduce", "overlap_param_gather"
_HIDDEN, _POOL = 8, 9


def settings(case: Case) -> dict[str, Any]:
    """Return what the user of a case's job sets."""
    return {
        "use_megatron_fsdp": True,
        "ranks": case.topology.world,
        "several buckets left over at the end of a backward pass": len(case.options["rows"]) > 1,
        "an order of their own on some rank": case.options.get("differ", True),
    }


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
    device_mesh.DeviceMesh.from_group = lambda group, device_type, **others: real(group, shims.DEVICE, **others)
    _wrapper()


def wrong(case: Case, ranks: Sequence[Mapping[str, list[float]]]) -> str:
    """Return which gradient is not the sum of those of one process."""
    model = _model(case)
    for rank in range(case.topology.world):
        model(rank).backward()
    names = {it: name for name, it in model.named_parameters()}
    for part in (*model.towers, *model.head):
        bucket = [it for it in part.parameters() if it.requires_grad]
        name, wanted = names[bucket[0]], [value for it in bucket for value in it.grad.flatten().tolist()]
        if [value for rank in ranks for value in rank.get(name, ())] != wanted:
            return f"the gradient of {name} {_SWAPPED}"
    return ""


def right(case: Case, ranks: Sequence[Mapping[str, list[float]]]) -> str:
    """Return what was seen."""
    return "the gradients are those of the model without FSDP"


def on_rank(case: Case, rank: int) -> dict[str, list[float]]:
    """Run forward and backward under FSDP. Return this rank's part of the gradient of each bucket."""
    import torch
    from megatron.core.distributed import DistributedDataParallelConfig
    from megatron.core.transformer.transformer_config import TransformerConfig

    megatron.initialize(case.topology)
    known = {field.name for field in dataclasses.fields(DistributedDataParallelConfig)}
    strategy = {"data_parallel_sharding_strategy": case.options.get("strategy", "optim_grads_params")}
    # gloo cannot scale what it reduces: without this the loss of each token counts the same
    config = TransformerConfig(num_layers=1, hidden_size=_HIDDEN, num_attention_heads=1, calculate_per_token_loss=True)
    is_deep = case.options.get("deep")
    orders = _ORDERS[len(case.options["rows"])]
    wrapped = _wrapper()(
        config=config,
        ddp_config=DistributedDataParallelConfig(**dict.fromkeys(known.intersection(_ON), True), **strategy),
        module=_model(case, orders[rank % 2 and case.options.get("differ", True)]),
        fsdp_unit_modules=[torch.nn.Sequential if is_deep or case.options.get("tied") else torch.nn.Embedding],
        device=torch.device(shims.DEVICE),
    )
    wrapped(rank).backward()
    wrapped.finish_grad_sync()
    found, buffer = {}, wrapped.param_and_grad_buffer
    for group in (it for it in buffer.parameter_groups if it.main_grad_buffer):
        part = group.main_grad_buffer.data
        rest = sum(it.numel() for it in group.params) - rank * len(part)
        found[buffer.param_to_name[group.params[0]]] = part[: max(0, rest)].tolist()  # then comes padding
    return found


def _model(case: Case, order: Sequence[int] = ()) -> Any:
    """Return a model whose towers are complete in this order, in a set of their parameters and by address."""
    import torch

    class Model(torch.nn.Module):  # type: ignore[misc]
        def forward(self, rank: int) -> Any:
            ids = torch.arange(2 * rank, 2 * rank + 2)
            return self.head(sum(tower(ids) * weight for weight, tower in enumerate(self.towers, 1))).sum()

    torch.manual_seed(0)
    model, towers = Model(), [torch.nn.Embedding(number, _HIDDEN) for number in case.options["rows"]]
    if case.options.get("deep"):
        towers = [torch.nn.Sequential(it, torch.nn.Linear(_HIDDEN, _HIDDEN, bias=False)) for it in towers]
    frozen = [torch.nn.Embedding(1, _HIDDEN) for _ in range(case.options.get("between", 0))]
    if frozen:  # between two pairs of towers, whose buckets then have numbers as far apart as in a large model
        model.first = torch.nn.ModuleList([*towers[:2], *frozen])
    model.towers = torch.nn.ModuleList(towers)
    model.head = torch.nn.Sequential(*[torch.nn.Linear(_HIDDEN, _HIDDEN)] * case.options.get("head", False))
    for layer in (*frozen, *model.head):
        layer.weight.requires_grad_(False)
    for it in model.parameters():
        it.data = torch.randint(-3, 4, it.shape).float()  # so that no sum rounds
    places = [(part, number) for number, of in enumerate(model.towers) for part in of.modules() if part._parameters]
    pools: list[list[Any]] = []  # what is kept there holds its address
    while order:
        pools.append(sorted((torch.nn.Parameter(torch.empty(0)) for _ in range(_POOL)), key=id))
        for chosen in itertools.permutations(pools[-1], len(places)):
            of = {it: number for it, (_, number) in zip(chosen, places)}
            in_set = set().union(*({it for it in chosen if of[it] == number} for number in sorted(order)))
            orders = [[of[it] for it in each] for each in (in_set, sorted(of, key=id))]
            if all((*dict.fromkeys(each[::-1]),) == order[::-1] for each in orders):
                for it, (part, _) in zip(chosen, places):
                    it.data, part.weight = part.weight.data, it
                    it.shared_embedding = case.options.get("tied", False)  # then each has a bucket, in no unit
                return model
    return model


def _wrapper() -> Any:
    """Return the class of this release that wraps a model."""
    if not importlib.util.find_spec("megatron.core.distributed.custom_fsdp"):
        return importlib.import_module("megatron.core.distributed.fsdp.mcore_fsdp_adapter").FullyShardedDataParallel
    from megatron.core.distributed import custom_fsdp

    pipeline = custom_fsdp.param_and_grad_buffer.GradReducePipeline
    pipeline._mark_bucket_ready = pipeline.mark_bucket_ready  # its name in commits that are in no release
    return custom_fsdp.FullyShardedDataParallel
