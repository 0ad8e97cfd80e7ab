"""megatron-core and ms-swift: the communicators that a job's first training step needs, and that its start warms up.

A CPU cannot show the stall in NCCL itself, so the proof shows its cause. Up to 8 ranks are real and pose as ranks with
GPUs that NCCL serves. Each runs the real initialization and then the real first step of a layer of experts: Megatron's
data parallelism and distributed optimizer. Untouched, that step is the first to use the communicators of the experts;
patched, every rank has used each of them once before, in one all-reduce of one element. Which ranks these
communicators have follows from the sizes of the job and the order of its ranks. Which communicator it is, of several of
the same ranks, the step shows. Larger jobs are recorded without that step, and only the ranks are compared.
"""

from __future__ import annotations

import importlib
import inspect
import logging
import sys
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from ..cases import DIFFERS, FEW, PASSED, Case, Outcome, Topology
from ..ranks import gloo, megatron, schedule, shims
from ..ranks.around import Around, Filled
from ..ranks.communicators import Use, Watch
from ..ranks.operations import Operation, ranges

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

WARM = ("transformers",)
_COLD = "before its first gradient"
_COMPOSITE = {"backend": "cpu:gloo,cuda:nccl"}
_PP_BEFORE_DP = {"order": "tp-cp-ep-pp-dp"}
_CORE = (
    Case("ep2-4", Topology(dp=4, ep=2), "ranks", DIFFERS, _COLD, core=True),
    Case("ep2-8", Topology(dp=8, ep=2), "ranks", DIFFERS, _COLD, core=True),
    Case("ep2-4-composite", Topology(dp=4, ep=2), "ranks", DIFFERS, _COLD, _COMPOSITE, core=True),
    Case("ep2-4-hccl", Topology(dp=4, ep=2), "ranks", DIFFERS, _COLD, {"backend": "npu:hccl,cpu:gloo"}),
    Case("ep2-4-mccl", Topology(dp=4, ep=2), "ranks", DIFFERS, _COLD, {"backend": "mccl"}),
    Case("tp2-pp2-ep2-8", Topology(tp=2, pp=2, dp=2, ep=2), "ranks", DIFFERS, _COLD, core=True),
    Case("tp2-cp2-ep2-etp2-8", Topology(tp=2, cp=2, dp=2, ep=2, etp=2), "ranks", DIFFERS, _COLD),
    Case("ep1-4", Topology(tp=2, dp=2), "ranks", PASSED, core=True),
    Case("ep2-4-gloo", Topology(dp=4, ep=2), "ranks", PASSED, options={"backend": "gloo"}, core=True),
    Case("ep2-4-gloo-twice", Topology(dp=4, ep=2), "ranks", PASSED, options={"backend": "cpu:gloo,cuda:gloo"}),
    Case("tp2-pp2-ep4-32", Topology(tp=2, pp=2, dp=8, ep=4), "schedule", DIFFERS, _COLD, core=True),
)
_LARGE = Case("tp4-pp8-ep8-1024", Topology(tp=4, pp=8, dp=32, ep=8), "schedule", DIFFERS, _COLD)
_ORDERED = Case("pp-before-dp-8", Topology(tp=2, pp=2, dp=2, ep=2), "ranks", DIFFERS, _COLD, _PP_BEFORE_DP)
_INSTANCES = (
    Case("ep4-4", Topology(dp=4, ep=4), "ranks", DIFFERS, _COLD),
    Case("ep2-4-instances", Topology(dp=4, ep=2, instances=2), "ranks", DIFFERS, _COLD),
    Case("ep2-8-instances", Topology(dp=8, ep=2, instances=2), "ranks", DIFFERS, _COLD, core=True),
    Case("ep4-32-instances", Topology(pp=2, dp=16, ep=4, instances=2), "schedule", DIFFERS, _COLD),
)
CASES = (*_CORE, _ORDERED, *_INSTANCES, _LARGE)
_THROUGH_SWIFT = {"through": "ms-swift"}
CASES_BY_UPSTREAM = {
    "megatron-core": CASES,
    "ms-swift": tuple(case._replace(options={**case.options, **_THROUGH_SWIFT}) for case in (*_CORE, _LARGE)),
}
BESIDE = {"ms-swift": ("megatron-core",)}
_ORDER = "tp-cp-ep-dp-pp"  # Megatron's default
_SERVED = frozenset({"nccl", "hccl", "mccl"})
_SWIFT = "swift.megatron.utils.megatron_lm_utils"


class Seen(NamedTuple):
    """What one rank did."""

    at_start: tuple[Use, ...]
    """Its collectives during initialization."""
    made: tuple[tuple[int, ...], ...] = ()
    """The groups that it took part in making, by their ranks."""
    is_waiting: bool = False
    """Whether its device may still be busy after initialization."""
    in_step: tuple[Use, ...] = ()
    """Its collectives in the first step."""


def case_for(topology: Topology, upstream: str, shapes: Collection[str]) -> Case:
    """Return the case of a user's job. Without replicas of experts, only some releases have a group to warm up."""
    options: dict[str, Any] = dict(_THROUGH_SWIFT) if upstream == "ms-swift" else {}
    harness = "ranks" if topology.world <= FEW else "schedule"
    if topology.ep * topology.etp == topology.tp * topology.cp * topology.dp:
        options["may_pass"] = True
    if topology.ep == 1:
        return Case("yours", topology, harness, PASSED, options=options)
    return Case("yours", topology, harness, DIFFERS, _COLD, options)


def prepare() -> None:
    """Import megatron-core for a CPU."""
    shims.cuda_on_cpu()
    importlib.import_module("megatron.core.distributed")
    importlib.import_module("megatron.core.optimizer")


def run(case: Case, deadline_s: float) -> Outcome:
    """Run the initialization as every rank, and compare the communicators that each used with those that it needs."""
    backend = str(case.options.get("backend", "nccl"))
    if case.harness == "schedule":
        restore = megatron.restorer()
        found = schedule.check(
            case.topology.world,
            lambda _: restore(),
            lambda _: _initialize(case),
            backend=backend,
            declared={"_initialize_mpu": 0.0},  # our rewrite reads what it reduced only to wait for the device
        )
        seen = {rank: Seen(tuple(_uses(steps))) for rank, steps in found.programs.items()}
        status, text, about = found.status, found.text(), f"; {found.times()}"
    else:
        world = gloo.run(case.topology.world, lambda rank: _started(case, rank, backend), deadline_s=deadline_s)
        seen = {number: rank.value for number, rank in enumerate(world.ranks)}
        status, text, about = world.status, world.text(), ""
    if status == PASSED:
        text = next(_faults(case, seen, _needed(case, _has_instances()), backend), "")
        status = DIFFERS if text else PASSED
    counts = " or ".join(map(str, sorted({len(one.at_start) for one in seen.values() if one})))
    return Outcome(status, (text or f"{counts} collectives of one element on each rank at initialization") + about)


def _needed(case: Case, has_instances: bool) -> Mapping[int, Sequence[tuple[int, ...]]]:
    """Return the ranks of each communicator of more than one rank that the experts of a rank need in its first step.

    They reduce the gradients of a replicated expert, and the norm of all gradients of an instance of the optimizer.
    ``has_instances``: whether there is a communicator for the latter.
    """
    size = case.topology
    replicas = size.tp * size.cp * size.dp // (size.ep * size.etp)
    sizes = {"tp": size.etp, "cp": 1, "ep": size.ep, "dp": replicas, "pp": size.pp}
    shared = replicas // size.instances
    groups: dict[tuple[object, ...], list[int]] = {}
    keys: dict[int, list[tuple[object, ...]]] = {}
    for rank in range(size.world):
        place, rest = {}, rank
        for name in str(case.options.get("order", _ORDER)).split("-"):
            rest, place[name] = divmod(rest, sizes[name])
        replica = place.pop("dp")
        expert = tuple(place.values())
        keys[rank] = [("replicas", *expert)]
        if size.instances > 1:
            keys[rank] += [("inter", replica % shared, *expert), ("intra", replica // shared, *expert)]
        if has_instances:
            keys[rank].append(("instance", replica // shared))
        for key in keys[rank]:
            groups.setdefault(key, []).append(rank)
    return {rank: [tuple(groups[key]) for key in own if len(groups[key]) > 1] for rank, own in keys.items()}


def _faults(
    case: Case, seen: Mapping[int, Seen], needed: Mapping[int, Sequence[tuple[int, ...]]], backend: str
) -> Iterator[str]:
    """Yield what is wrong with what the ranks did.

    Raises AssertionError where the first step uses other communicators than follow from the topology.
    """
    is_served = case.topology.ep > 1 and any(part.split(":")[-1] in _SERVED for part in backend.split(","))
    wanted = needed if is_served else dict.fromkeys(seen, ())
    in_step = {
        rank: {use.communicator: use.ranks for use in one.in_step if use.communicator and len(use.ranks) > 1}
        for rank, one in seen.items()
    }
    for rank, own in in_step.items():
        if case.harness == "ranks" and set(own.values()) != set(needed[rank]):
            raise AssertionError(f"the first step of rank {rank} uses {own}, expected {needed[rank]}")
    used = {rank: [use.ranks for use in one.at_start] for rank, one in seen.items()}
    if cold := {rank for rank in seen if set(wanted[rank]) - set(used[rank])}:
        rank = min(cold)
        missing = ranges(next(group for group in wanted[rank] if group not in used[rank]))
        yield (
            f"rank {ranges(cold)}: {len(used[rank])} collectives at initialization, expected {len(wanted[rank])}; "
            f"rank {rank} does not use its group {missing} {_COLD}"
        )
    for rank, one in seen.items():
        if sorted(used[rank]) != sorted(wanted[rank]):
            yield f"rank {rank} uses the groups {used[rank]} at initialization, expected {wanted[rank]}"
        for use in one.at_start:
            kind = use.kind.replace("_", "")  # torch has several names for it
            if (kind, use.elements, use.on_device) != ("allreduce", 1, True):
                yield f"rank {rank} issues another collective than an all-reduce of one element on its device: {use}"
        if one.is_waiting:
            yield f"rank {rank} does not wait for its device after initialization"
        others = in_step[rank].keys() - {use.communicator for use in one.at_start}
        if is_served and others:
            group = ranges(in_step[rank][min(others)])
            yield f"rank {rank} uses another communicator of {group} at initialization than in its first step"
    if len({one.made for one in seen.values()}) > 1:
        yield "not all ranks make the same groups, in one order"
    if len({tuple(map(wanted[rank].index, used[rank])) for rank in seen}) > 1:
        yield "not all ranks use their groups in one order"


def _uses(steps: Sequence[Any]) -> Iterator[Use]:
    """Yield the collectives of a record, which tells nothing of devices."""
    for step in steps:
        if isinstance(step, Operation):
            count = step.signature.partition(" x ")[0]
            name = "" if step.group == "world" else step.group
            yield Use(name, step.ranks, step.kind, int(count) if count.isdigit() else 0, on_device=True)


def _has_instances() -> bool:
    """Return whether this release makes a communicator for an optimizer's instance. Up to 0.12 the optimizer reduces
    over the default group instead.
    """
    from megatron.core import parallel_state

    return hasattr(parallel_state, "get_intra_distributed_optimizer_instance_group")


def _initialize(case: Case) -> None:
    if case.options.get("through") == "ms-swift":
        _swift(case.topology)
    else:
        megatron.initialize(case.topology, order=str(case.options.get("order", _ORDER)))


def _started(case: Case, rank: int, backend: str) -> Seen:
    """Initialize as one rank, and run the first step."""
    shims.gloo_as_nccl()
    with Watch(rank, backend) as watch:
        _initialize(case)
        at_start = tuple(watch.uses)
        made, is_waiting = tuple(watch.made), watch.is_waiting
        _step(case)
        return Seen(at_start, made, is_waiting, tuple(watch.uses[len(at_start) :]))


def _step(case: Case) -> None:
    """Run what starts the training of one layer of experts, and its first step."""
    import torch
    from megatron.core import distributed, optimizer
    from megatron.core.transformer.transformer_config import TransformerConfig

    layer = torch.nn.Linear(4, 4, bias=False)
    layer.weight.allreduce = False  # it belongs to an expert
    layer.config = TransformerConfig(
        num_layers=case.topology.pp,
        hidden_size=4,
        num_attention_heads=case.topology.tp,
        use_cpu_initialization=True,
        add_bias_linear=False,
    )
    chosen = {"use_distributed_optimizer": True, "num_distributed_optimizer_instances": case.topology.instances}
    model = distributed.DistributedDataParallel(
        layer.config, distributed.DistributedDataParallelConfig(**chosen), layer
    )
    model.broadcast_params()
    model.zero_grad_buffer()
    model(torch.ones(2, 4)).sum().backward()
    model.finish_grad_sync()
    if not _has_instances():  # its optimizer needs dense parameters, or Transformer Engine
        return
    config = optimizer.OptimizerConfig(optimizer="adam", lr=0.001, use_distributed_optimizer=True)
    make = optimizer.get_megatron_optimizer
    gloo_groups = {"use_gloo_process_groups": False}
    known = gloo_groups.keys() & inspect.signature(make).parameters.keys()
    made = make(config, [model], **{name: gloo_groups[name] for name in known})
    made.step()


def _swift(topology: Topology) -> None:
    """Initialize through ms-swift's real ``_initialize_mpu``. The modules that it imports are stand-ins."""
    module = _swift_module()
    arguments = {
        "ddp_backend": "nccl",
        "ddp_timeout": 1800,
        "tensor_model_parallel_size": topology.tp,
        "pipeline_model_parallel_size": topology.pp,
        "virtual_pipeline_model_parallel_size": None,
        "context_parallel_size": topology.cp,
        "expert_model_parallel_size": topology.ep,
        "expert_tensor_parallel_size": topology.etp,
    }
    module._initialize_mpu(SimpleNamespace(**arguments))


def _swift_module() -> Any:
    if _SWIFT not in sys.modules:
        for package in ("swift", "mcore_bridge"):  # the latter may be missing
            sys.meta_path.insert(0, Around(package, {_SWIFT}, partial(Filled, make=_named)))
    return importlib.import_module(_SWIFT)


def _named(name: str) -> Any:
    """Return what has this name in a stand-in: a function that does nothing, unless its result matters."""
    import torch

    plain = {"get_logger": lambda *_, **__: logging.getLogger("swift"), "get_current_device": torch.cuda.current_device}
    return plain.get(name, lambda *_, **__: None)
