"""megatron-core and ms-swift: which collectives the real initialisation issues on the groups that it makes.

NCCL's own stall cannot be shown on a CPU. What is shown is its cause: that the expert data-parallel communicators are
not used until the first gradient reduction, or, patched, that right after initialisation every rank has issued one
all-reduce of one element on each of them, in one order. The fake backend poses as the device's.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import sys
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

from ..cases import CRASHED, DIFFERS, HUNG, PASSED, Case, Outcome, Topology
from ..ranks import megatron, schedule, shims
from ..ranks.operations import Operation, ranges

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

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
# In this order, wherever a release has them; one object may stand behind several names.
_GROUPS = (
    "_EXPERT_DATA_PARALLEL_GROUP",
    "_INTER_PARTIAL_EXPERT_DATA_PARALLEL_GROUP",
    "_INTRA_PARTIAL_EXPERT_DATA_PARALLEL_GROUP",
    "_INTRA_DISTRIBUTED_OPTIMIZER_INSTANCE_GROUP",
)
_SWIFT = "swift.megatron.utils.megatron_lm_utils"


def case_for(topology: Topology, upstream: str, shapes: Collection[str]) -> Case:
    """A user's job. Where no expert is replicated, whether a group is left to be warmed up depends on the release."""
    options: dict[str, Any] = dict(_THROUGH_SWIFT) if upstream == "ms-swift" else {}
    if topology.ep * topology.etp == topology.tp * topology.cp * topology.dp:
        options["may_pass"] = True
    if topology.ep == 1:
        return Case("yours", topology, "schedule", PASSED, options=options)
    return Case("yours", topology, "schedule", DIFFERS, _COLD, options)


def prepare() -> None:
    """Import megatron-core, for CPU."""
    shims.cuda_on_cpu()
    importlib.import_module("megatron.core.parallel_state")


def run(case: Case, deadline_s: float) -> Outcome:
    """Run the initialisation as every rank, and compare what each issued with what it should have."""
    from megatron.core import parallel_state

    megatron.remember_rank_lists()
    kept = megatron.Globals(parallel_state)
    wanted: dict[int, list[tuple[int, ...]]] = {}
    initialize = _swift if case.options.get("through") == "ms-swift" else megatron.initialize

    def body(rank: int) -> list[tuple[int, ...]]:
        initialize(case.topology)
        return _expected(vars(parallel_state), case)

    backend = str(case.options.get("backend", "nccl"))
    found = schedule.check(case.topology.world, lambda _: kept.restore(), body, backend=backend)
    seconds = f"recorded in {found.recording_s:.1f} s, played in {found.checking_s:.2f} s"
    if found.findings:
        raised = any(finding.kind == "raised" for finding in found.findings)
        return Outcome(CRASHED if raised else HUNG, f"{found.text()}; {seconds}")
    wanted = found.values
    issued = {rank: _issued(steps) for rank, steps in found.programs.items()}
    expects_some = case.topology.ep > 1 and "gloo" not in (backend, backend.removeprefix("cpu:"))
    if expects_some != any(wanted.values()) and not (expects_some and case.options.get("may_pass")):
        raise AssertionError(f"the topology has no group to be warmed up: {case.topology.text()}")
    wrong = {rank for rank in wanted if issued[rank] != wanted[rank]}
    if wrong:
        return Outcome(DIFFERS, f"{_difference(wrong, issued, wanted)}; {seconds}")
    each = sorted({len(groups) for groups in wanted.values()})
    return Outcome(PASSED, f"{' or '.join(map(str, each))} collectives of one element on each rank; {seconds}")


def _expected(names: dict[str, Any], case: Case) -> list[tuple[int, ...]]:
    """The ranks of each group that this rank has to warm up, in order: distinct ones, none of size 1."""
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
    """The groups on which a rank issued an all-reduce of one element; anything else stands as no group at all."""
    return [
        step.ranks if isinstance(step, Operation) and step.kind == "all_reduce" and "1 x " in step.signature[:4] else ()
        for step in steps
    ]


def _difference(
    wrong: set[int], issued: dict[int, list[tuple[int, ...]]], wanted: dict[int, list[tuple[int, ...]]]
) -> str:
    rank = min(wrong)
    missing = [group for group in wanted[rank] if group not in issued[rank]]
    told = f"rank {ranges(wrong)}: {len(issued[rank])} collectives at initialisation, {len(wanted[rank])} wanted"
    if missing:
        return f"{told}; rank {rank} does not use its group {ranges(missing[0])} {_COLD}"
    return f"{told}; on groups {issued[rank]}"


def _swift(topology: Topology) -> None:
    """The same by way of ms-swift's real ``_initialize_mpu``; what lies around it is a stand-in."""
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
        for name in ("swift", "swift.megatron", "swift.megatron.utils"):
            sys.modules[name] = _StandIn(name)
        for name in ("swift.utils", "swift.megatron.utils.patcher", "swift.megatron.utils.megatron_fsdp_checkpoint"):
            sys.modules[name] = _StandIn(name)
        with _absent("mcore_bridge"):
            return importlib.import_module(_SWIFT)
    return sys.modules[_SWIFT]


class _StandIn(ModuleType):
    """A module that has every name, each a function that does nothing."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__: list[str] = []
        self.get_logger = lambda *_, **__: logging.getLogger("swift")
        self.get_current_device = lambda: "cpu"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: None


@contextlib.contextmanager
def _absent(name: str) -> Iterator[None]:
    """A stand-in for a package that need not be installed."""
    sys.modules.setdefault(name, _StandIn(name))
    yield
