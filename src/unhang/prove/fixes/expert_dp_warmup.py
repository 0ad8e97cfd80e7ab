"""megatron-core and ms-swift: the communicators that a job's first training step needs, and that its start warms up.

A CPU cannot show the stall in NCCL itself, so the scene shows its cause. The ranks are real and pose as ranks with GPUs
that NCCL serves. Each runs the real initialization and then the real first step of a layer of experts: Megatron's data
parallelism and distributed optimizer. That step is the right answer: its communicators are those to be warm. Untouched,
it is the first to use them; rewritten, every rank has used each of them once before, and no other one, in an all-reduce
of one element. Ranks that use them in orders which exclude each other never meet.
"""

from __future__ import annotations

import importlib
import inspect
import logging
import sys
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from ..cases import CRASHED, DIFFERS, PASSED, Case, Topology, reduced
from ..ranks import megatron, shims
from ..ranks.around import Around, Filled
from ..ranks.communicators import Use, Watch
from ..ranks.rank_numbers import ranges

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

WARM = ("transformers",)
BESIDE = {"ms-swift": ("megatron-core",)}
_LEFT = 16 << 20  # bytes: NCCL takes more for a new communicator, even with small buffers
_COLD = "before its first gradient"
_CORE, _SWIFT = "initialize_model_parallel", "_initialize_mpu"
_INTER, _INTRA = (f"get_{name}_distributed_optimizer_instance_group" for name in ("inter", "intra"))
_MODULE = "swift.megatron.utils.megatron_lm_utils"
_SERVED = ("nccl", "npu:hccl,cpu:gloo", "mccl", "cpu:gloo,cuda:nccl", "undefined")
"""The last is what ``get_backend`` says of groups made without one."""
_NOT_SERVED = ("gloo", "cpu:gloo,cuda:gloo", "flagcx")
"""The last is a fork's own name."""
_TWO, _FOUR, _EIGHT = (Topology(dp=size, ep=2) for size in (2, 4, 8))
_DENSE, _INSTANCES = _FOUR._replace(ep=1), _FOUR._replace(instances=2)
_TP, _PP, _CP = (Topology(dp=2, ep=2)._replace(**{name: 2}) for name in ("tp", "pp", "cp"))


def _case(name: str, topology: Topology, core: bool = False, **options: Any) -> Case:
    """Return a case, a control where there is nothing to warm up."""
    is_cold = topology.ep > 1 and _is_on_gpus(options) and not options.get("ready")
    return Case(name, topology, *((DIFFERS, _COLD) if is_cold else (PASSED, "")), options, core)


def _is_on_gpus(options: Mapping[str, Any]) -> bool:
    return options.get("backend", "nccl") not in _NOT_SERVED and options.get("device") != "cpu"


CASES = (
    _case("ep2-4", _FOUR, core=True),
    _case("tp2-pp2-ep2-8", _TP._replace(pp=2), core=True),
    _case("ep1-4", _DENSE, core=True),
    _case("ep2-4-composite", _FOUR, core=True, backend="cpu:gloo,cuda:nccl"),
    _case("ep2-4-gloo", _FOUR, core=True, backend="gloo"),
    _case("tp2-cp2-ep2-etp2-8", _TP._replace(cp=2, etp=2)),
    _case("ep4-4", _FOUR._replace(ep=4)),
    _case("ep2-8-instances", _EIGHT._replace(instances=2), core=True),
    _case("ep2-4-unsharded", _FOUR, sharded=False)._replace(patched=DIFFERS),
)
_THROUGH_SWIFT = {"function": _SWIFT}
CASES_BY_UPSTREAM = {
    "megatron-core": CASES,
    "ms-swift": tuple(case._replace(options={**case.options, **_THROUGH_SWIFT}) for case in CASES[:5]),
}
_EACH: Sequence[tuple[Topology, dict[str, Any]]] = (
    *((_TWO, {"backend": backend}) for backend in (*_SERVED, *_NOT_SERVED)),
    *((topology, {}) for topology in (_FOUR, _FOUR._replace(ep=4), _TP, _PP, _CP, _TP._replace(etp=2), _INSTANCES)),
    *((topology, {}) for topology in (Topology(dp=2), _DENSE, _PP._replace(ep=1))),
    (_FOUR, {"backend": "gloo"}),
    (_FOUR, {"order": "tp-cp-dp-ep-pp"}),  # neighbours share two groups
)
_ALONE: dict[str, Sequence[tuple[Topology, dict[str, Any]]]] = {
    _CORE: (
        (_PP, {"virtual_pipeline_model_parallel_size": 2}),
        (_PP, {"gtp_remat_size": 2}),
        (_FOUR, {"expert_gtp_remat_size": 2}),
        (_FOUR, {"create_all_gather_group": True}),
        *((_TWO, {"backend": backend, "device": "cpu"}) for backend in ("cpu:gloo,cuda:nccl", "undefined")),
        (_INSTANCES, {"create_gloo_process_groups": True}),
        (_TP, {"expert_tensor_parallel_size": None}),
        (_CP, {"hierarchical_context_parallel_sizes": [1, 2]}),
        *((topology, {}) for topology in (_INSTANCES._replace(ep=1), _EIGHT._replace(instances=2))),
    ),
    _SWIFT: (
        *((_FOUR, {"ready": True}), (_PP, {"chunks": 2})),
        *((_TWO, {"accessor": kind}) for kind in ("absent", "none", "same")),
    ),
}
"""Further arguments of initialize_model_parallel, for the releases that have them; and what ms-swift may find."""
GRID = [
    _case(f"{name}: {topology.text()}, {options}", topology, of=[name], **options)
    for name, alone in _ALONE.items()
    for topology, options in (*_EACH, *alone)
]
HELD = {
    r"COLLNET|sharp|^rank == 0|_INTER_PARTIAL_\w+ is not None": "needs a network with SHARP",
    r"comm_backend|os\.environ|_PIPELINE_|communicator_config|yaml|high_priority": "how groups talk",
    r"size % |pipeline_model_parallel_size > 1|local_world": "a size that does not fit raises before any group is made",
    r"(hybrid|dynamic)_context|group_size|min_cp|check_initialized": "contexts of many sizes warm up their own groups",
    r"embedding_ranks is None|rank in all_ranks": "which ranks have embeddings, or are of the job",
    r"distributed\.is_initialized|\(AttributeError, Assert": "a job has groups, and nothing else is raised",
    r"warmup_group is None": "before 0.13 the experts of a rank have one group",
    r"encoder|decoder|e_rep|group_type|is_expert|split_rank": "encoders have no experts of their own",
}


class Seen(NamedTuple):
    """What one rank did."""

    at_start: list[Use]
    """Its collectives during initialization, sorted."""
    made: list[tuple[int, ...]]
    """The groups that it took part in making, by their ranks."""
    made_late: int
    """How many of them it made after all of Megatron's."""
    is_waiting: bool | None
    """Whether its device may still be busy after initialization; None if it neither used it nor waited for it."""
    in_step: list[Use]
    """Its first use of each communicator of several ranks in the first step, sorted."""


def settings(case: Case) -> dict[str, Any]:
    """Return what the user of a case's job sets. Ranks that pose as ranks of NCCL have GPUs whose memory is full."""
    is_of_nccl = _is_on_gpus(case.options) and not case.options.get("ready")
    return {
        "expert_model_parallel_size": case.topology.ep,
        "use_distributed_optimizer": case.options.get("sharded", True),
        "GPU memory that is nearly full when NCCL starts": is_of_nccl,
    }


def case_for(topology: Topology, upstream: str, shapes: Collection[str]) -> Case:
    """Return the case of a user's job. Without replicas of experts, only some releases have a group to warm up."""
    options: dict[str, Any] = dict(_THROUGH_SWIFT) if upstream == "ms-swift" else {}
    if topology.ep * topology.etp == topology.tp * topology.cp * topology.dp:
        options["may_pass"] = True
    return _case("yours", reduced(topology), **options)


def on_gpu(case: Case) -> Case | None:
    """Return the case of real GPUs, one of which is nearly full when the experts' first gradient comes."""
    is_own = case.options.get("backend", "nccl") == "nccl" and case.options.get("sharded", True)
    return case._replace(untouched=CRASHED, options={**case.options, "full": True}) if is_own and case.at else None


def prepare() -> None:
    """Import megatron-core for a CPU. Stand-ins for the modules that ms-swift's imports have no part in the groups."""
    shims.cuda_on_cpu()
    importlib.import_module("megatron.core.distributed")
    importlib.import_module("megatron.core.optimizer")
    names = vars(importlib.import_module("megatron.core.parallel_state"))
    names.setdefault("_set_global_symmetric_memory_buffer", lambda: None)  # one commit calls it; no release of its time
    for package in ("swift", "mcore_bridge"):  # the latter may be missing
        sys.meta_path.insert(0, Around(package, {_MODULE}, partial(Filled, make=_named)))


def _named(name: str) -> Any:
    """Return what has this name in a stand-in: a function that does nothing, unless its result matters."""
    return (lambda *_, **__: logging.getLogger("swift")) if name == "get_logger" else lambda *_, **__: None


def on_rank(case: Case, rank: int) -> Any:
    """Initialize as one rank, and run the first step."""
    from megatron.core import parallel_state

    if case.options.get("full"):
        return _reduced_in_full_memory(case, rank)
    shims.gloo_as_nccl()
    options, backend = case.options, str(case.options.get("backend", "nccl"))
    through_swift = options.get("function") == _SWIFT
    device = options.get("device") or ("npu" if through_swift and "npu" in backend else "cuda")
    restore, buffer = megatron.restorer(), parallel_state._set_global_memory_buffer
    made_early, number = [], rank % 2  # of its GPU, as on nodes with two

    def last() -> None:
        made_early.append(len(watch.made))
        buffer()

    try:
        with Watch(number, backend, device) as watch:
            parallel_state._set_global_memory_buffer = last
            if through_swift:
                _swift(case, f"{device}:{number}")
            else:
                megatron.initialize(case.topology, more=options)
            uses, made, is_waiting = sorted(watch.uses), [*watch.made], watch.is_waiting
            del watch.uses[:]
            _complete(vars(parallel_state))
            _step(case.topology, options.get("sharded", True))
            in_step = {use.communicator: use for use in reversed(watch.uses) if use.communicator and use.ranks[1:]}
    finally:
        restore()
    return Seen(uses, made, len(made) - made_early[0], is_waiting, sorted(in_step.values()))


def _reduced_in_full_memory(case: Case, rank: int) -> tuple[float, float]:
    """Return the experts' first sum of a gradient, which is due too, while rank 0 has nearly filled its GPU."""
    import torch
    import torch.distributed as dist
    from megatron.core import parallel_state

    grad, filled = torch.full((8,), 1.0 + rank), []
    if case.options.get("function") == _SWIFT:
        _swift(case, f"cuda:{torch.cuda.current_device()}")
    else:
        megatron.initialize(case.topology)
    group, size = parallel_state.get_expert_data_parallel_group(), 1 << 34
    dist.barrier()
    while rank == 0 and size > _LEFT:
        if torch.cuda.mem_get_info()[0] - _LEFT > size:
            filled.append(torch.empty(size, dtype=torch.uint8))
        else:
            size //= 2
    dist.barrier()
    dist.all_reduce(grad, group=group)
    return grad[0].item(), sum(1.0 + member for member in dist.get_process_group_ranks(group))


def _complete(names: dict[str, Any]) -> None:
    """Give the release, which has a commit's function, the groups that the commit knows by one name only."""
    for name in [name for name, group in names.items() if "_INTRA_PARTIAL" in name and group is None]:
        names[name] = names.get(name.replace("_INTRA_PARTIAL", ""))


def wrong(case: Case, seen: Sequence[Any]) -> str:
    """Return what is wrong with what the ranks did; empty if each has warmed up what its first step needs."""
    if case.options.get("full"):
        return "" if all(found == due for found, due in seen) else f"the sums and what is due: {[*seen]}"
    needed = [[] if case.is_control else one.in_step for one in seen]
    for rank, (one, uses) in enumerate(zip(seen, needed)):
        warm = [use.communicator for use in one.at_start]
        for use in uses:
            if use.communicator not in warm:
                more = [
                    ranges(it.ranks) for it in one.at_start if it.communicator not in [of.communicator for of in uses]
                ]
                also = f", and uses {', '.join(more)}, which it does not need" if more else ""
                return f"rank {rank} does not use its group {ranges(use.ranks)} {_COLD}{also}"
    for rank, (one, uses) in enumerate(zip(seen, needed)):
        for use in one.at_start:
            kind = use.kind.replace("_", "")  # torch has several names for it
            if (kind, use.elements, use.on_device) != ("allreduce", 1, True):
                return f"rank {rank} issues another collective than an all-reduce of one element on its device: {use}"
        if [use.communicator for use in one.at_start] != [use.communicator for use in uses]:
            groups = [[use.ranks for use in each] for each in (one.at_start, uses)]
            return f"rank {rank} uses the groups {groups[0]} at initialization, expected {groups[1]}"
        if one.is_waiting is not (False if uses else None):
            return f"rank {rank} {'does not wait' if uses else 'waits'} for its device after initialization"
        if one.made_late:
            return f"rank {rank} makes {one.made_late} groups more than Megatron's"
    return "not all ranks make the same groups, in one order" if any(one.made != seen[0].made for one in seen) else ""


def right(case: Case, seen: Sequence[Any]) -> str:
    """Return what was seen."""
    if case.options.get("full"):
        return f"with {_LEFT >> 20} MiB of its GPU left, the first gradient's sum is right"
    counts = " or ".join(map(str, sorted({len(one.at_start) for one in seen})))
    return f"{counts} collectives of one element on each rank at initialization"


def _step(job: Topology, sharded: bool) -> None:
    """Run what starts the training of one layer of experts, and its first step.

    Up to 0.12 the experts' gradients know no instances of the optimizer. It reduces over the default group there, and
    is left out: it needs dense parameters, or Transformer Engine.
    """
    import torch
    from megatron.core import distributed, optimizer, parallel_state
    from megatron.core.transformer.transformer_config import TransformerConfig

    has_instances = hasattr(parallel_state, _INTRA)
    layer = torch.nn.Linear(4, 4, bias=False)
    layer.weight.allreduce = False  # it belongs to an expert
    layer.config = TransformerConfig(
        num_layers=job.pp, hidden_size=4, num_attention_heads=job.tp, use_cpu_initialization=True, add_bias_linear=False
    )
    config = distributed.DistributedDataParallelConfig(
        use_distributed_optimizer=sharded, num_distributed_optimizer_instances=job.instances if has_instances else 1
    )
    model = distributed.DistributedDataParallel(layer.config, config, layer)
    model.broadcast_params()
    model.zero_grad_buffer()
    model(torch.ones(2, 4)).sum().backward()
    model.finish_grad_sync()
    if has_instances:
        make = optimizer.get_megatron_optimizer
        gloo = {"use_gloo_process_groups": False} if "gloo" in str(inspect.signature(make)) else {}
        chosen = optimizer.OptimizerConfig(optimizer="adam", lr=0.001, use_distributed_optimizer=sharded)
        make(chosen, [model], **gloo).step()


def _swift(case: Case, device: str) -> None:
    """Initialize through ms-swift's real ``_initialize_mpu``."""
    import torch.distributed as dist
    from megatron.core import parallel_state

    module, size, names = importlib.import_module(_MODULE), case.topology, vars(parallel_state)
    vars(module)["is_master"] = lambda: dist.get_rank() == 0
    vars(sys.modules["swift.utils"])["get_current_device"] = lambda: device
    if case.options.get("ready"):
        megatron.initialize(size)
    more = {"num_distributed_optimizer_instances": size.instances, "order": case.options.get("order", megatron.ORDER)}
    names[_CORE] = partial(names[_CORE], **more)
    own = {name: names[name] for name in (_INTER, _INTRA) if name in names}
    if kind := case.options.get("accessor"):  # those of another release, one of which may lack or give another group
        names[_INTRA] = lambda: own[_INTRA]()
        names[_INTER] = names[_INTRA] if kind == "same" else lambda: None
        if kind == "absent":
            del names[_INTER]
    sizes = {"tensor_model": size.tp, "pipeline_model": size.pp, "virtual_pipeline_model": case.options.get("chunks")}
    sizes |= {"context": size.cp, "expert_model": size.ep, "expert_tensor": size.etp}
    arguments = {f"{name}_parallel_size": value for name, value in sizes.items()}
    module._initialize_mpu(SimpleNamespace(ddp_backend="nccl", ddp_timeout=1800, **arguments))
    names.update(own)
