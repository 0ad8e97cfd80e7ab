"""megatron-core and ms-swift: the collectives that the real initialization issues on the groups that it makes.

A CPU cannot show the stall in NCCL itself, so the proof shows its cause: untouched, no rank uses its expert
data-parallel communicators before the first gradient reduction; patched, every rank issues one all-reduce of one
element on each of them during initialization, in one order. The fake backend poses as the device's.
"""

from __future__ import annotations

import importlib
import logging
import sys
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

from ..cases import DIFFERS, PASSED, Case, Outcome, Topology
from ..ranks import megatron, schedule, shims
from ..ranks.operations import Operation, ranges

if TYPE_CHECKING:
    from collections.abc import Collection

WARM = ("torch", "numpy", "transformers")
_COLD = "before its first gradient"
_COMPOSITE = {"backend": "cpu:gloo,cuda:nccl"}
_CORE = (
    Case("ep2-8", Topology(dp=8, ep=2), "schedule", DIFFERS, _COLD, core=True),
    Case("ep2-8-composite", Topology(dp=8, ep=2), "schedule", DIFFERS, _COLD, _COMPOSITE, core=True),
    Case("ep2-8-hccl", Topology(dp=8, ep=2), "schedule", DIFFERS, _COLD, {"backend": "cpu:gloo,npu:hccl"}),
    Case("tp2-pp2-ep4-32", Topology(tp=2, pp=2, dp=8, ep=4), "schedule", DIFFERS, _COLD, core=True),
    Case("ep1-8", Topology(tp=2, dp=4), "schedule", PASSED, core=True),
    Case("ep2-8-gloo", Topology(dp=8, ep=2), "schedule", PASSED, options={"backend": "gloo"}, core=True),
    Case("ep2-8-cpu-gloo", Topology(dp=8, ep=2), "schedule", PASSED, options={"backend": "cpu:gloo"}),
)
_LARGE = Case("tp4-pp8-ep8-1024", Topology(tp=4, pp=8, dp=32, ep=8), "schedule", DIFFERS, _COLD)
_INSTANCES = (
    Case("ep2-8-instances", Topology(dp=8, ep=2, instances=2), "schedule", DIFFERS, _COLD, core=True),
    Case("ep4-32-instances", Topology(pp=2, dp=16, ep=4, instances=2), "schedule", DIFFERS, _COLD),
)
CASES = (*_CORE, *_INSTANCES, _LARGE)
_THROUGH_SWIFT = {"through": "ms-swift"}
CASES_BY_UPSTREAM = {
    "megatron-core": CASES,
    "ms-swift": tuple(case._replace(options={**case.options, **_THROUGH_SWIFT}) for case in (*_CORE, _LARGE)),
}
BESIDE = {"ms-swift": ("megatron-core",)}
# In this order, where a release has them. Several names may be bound to one group.
_GROUPS = (
    "_EXPERT_DATA_PARALLEL_GROUP",
    "_INTER_PARTIAL_EXPERT_DATA_PARALLEL_GROUP",
    "_INTRA_PARTIAL_EXPERT_DATA_PARALLEL_GROUP",
    "_INTRA_DISTRIBUTED_OPTIMIZER_INSTANCE_GROUP",
)
_SWIFT = "swift.megatron.utils.megatron_lm_utils"
_AROUND_SWIFT = (
    *("swift", "swift.utils", "swift.megatron", "swift.megatron.utils"),
    *("swift.megatron.utils.patcher", "swift.megatron.utils.megatron_fsdp_checkpoint"),
)


def case_for(topology: Topology, upstream: str, shapes: Collection[str]) -> Case:
    """Return the case of a user's job. Without replicas of experts, only some releases have a group to warm up."""
    options: dict[str, Any] = dict(_THROUGH_SWIFT) if upstream == "ms-swift" else {}
    if topology.ep * topology.etp == topology.tp * topology.cp * topology.dp:
        options["may_pass"] = True
    if topology.ep == 1:
        return Case("yours", topology, "schedule", PASSED, options=options)
    return Case("yours", topology, "schedule", DIFFERS, _COLD, options)


def prepare() -> None:
    """Import megatron-core for a CPU."""
    shims.cuda_on_cpu()
    importlib.import_module("megatron.core.parallel_state")


def run(case: Case, deadline_s: float) -> Outcome:
    """Run the initialization as every rank, and compare the collectives that each issued with the expected ones."""
    from megatron.core import parallel_state

    restore = megatron.restorer()
    initialize = _swift if case.options.get("through") == "ms-swift" else megatron.initialize

    def body(rank: int) -> list[tuple[int, ...]]:
        initialize(case.topology)
        return _expected(vars(parallel_state), case)

    backend = str(case.options.get("backend", "nccl"))
    declared = {"_initialize_mpu": 0.0}  # our rewrite reads what it reduced only to wait for the device
    found = schedule.check(case.topology.world, lambda _: restore(), body, backend=backend, declared=declared)
    if found.status != PASSED:
        return Outcome(found.status, f"{found.text()}; {found.times()}")
    wanted = found.values
    issued = {rank: _issued(steps) for rank, steps in found.programs.items()}
    expects_some = case.topology.ep > 1 and "gloo" not in (backend, backend.removeprefix("cpu:"))
    if expects_some != any(wanted.values()) and not (expects_some and case.options.get("may_pass")):
        raise AssertionError(f"unexpected groups to warm up: {case.topology.text()}")
    wrong = {rank for rank in wanted if issued[rank] != wanted[rank]}
    if wrong:
        return Outcome(DIFFERS, f"{_difference(wrong, issued, wanted)}; {found.times()}")
    each = sorted({len(groups) for groups in wanted.values()})
    return Outcome(PASSED, f"{' or '.join(map(str, each))} collectives of one element on each rank; {found.times()}")


def _expected(names: dict[str, Any], case: Case) -> list[tuple[int, ...]]:
    """Return the ranks of each distinct group, larger than 1, that this rank has to warm up, in order."""
    import torch.distributed as dist

    if case.topology.ep == 1 or "nccl" not in str(case.options.get("backend", "nccl")).replace("hccl", "nccl"):
        return []
    groups: list[Any] = []
    for name in _GROUPS:
        group = names.get(name)
        if group is not None and not any(group is other for other in groups) and dist.get_world_size(group) > 1:
            groups.append(group)
    return [tuple(dist.get_process_group_ranks(group)) for group in groups]


def _issued(steps: list[Any]) -> list[tuple[int, ...]]:
    """Return the group of each step of a rank that is an all-reduce of one element, and () for any other step."""
    return [
        step.ranks if isinstance(step, Operation) and step.kind == "all_reduce" and "1 x " in step.signature[:4] else ()
        for step in steps
    ]


def _difference(
    wrong: set[int], issued: dict[int, list[tuple[int, ...]]], wanted: dict[int, list[tuple[int, ...]]]
) -> str:
    """Return how the first rank that is wrong differs."""
    rank = min(wrong)
    missing = [group for group in wanted[rank] if group not in issued[rank]]
    counts = f"rank {ranges(wrong)}: {len(issued[rank])} collectives at initialization, expected {len(wanted[rank])}"
    if missing:
        return f"{counts}; rank {rank} does not use its group {ranges(missing[0])} {_COLD}"
    return f"{counts}; on groups {issued[rank]}"


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
        for name in _AROUND_SWIFT:
            sys.modules[name] = _StandIn(name)
        sys.modules.setdefault("mcore_bridge", _StandIn("mcore_bridge"))  # it may be missing
    return importlib.import_module(_SWIFT)


class _StandIn(ModuleType):
    """A module with every name, each a function that does nothing."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__: list[str] = []
        self.get_logger = lambda *_, **__: logging.getLogger("swift")
        self.get_current_device = lambda: "cpu"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: None
