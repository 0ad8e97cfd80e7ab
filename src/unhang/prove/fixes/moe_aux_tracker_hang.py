"""megatron-core: the real routers and the real ``track_moe_metrics``, on the stages of a real pipeline.

The routers of each stage with MoE layers route random tokens, and so record their losses. Then every stage tracks them
as ``training_log`` of Megatron-LM does. The rest of the model is left out. gloo aborts an all-reduce of two sizes. What
NCCL does with one, a CPU cannot show.
"""

from __future__ import annotations

import inspect
import itertools
import math
from contextlib import suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from ..cases import CRASHED, HUNG, MISMATCH, PASSED, Case, Topology
from ..ranks import megatron, routers, shims

if TYPE_CHECKING:
    import ast
    from collections.abc import Sequence

_REDUCE = "reduce_aux_losses_tracker_across_ranks"
_NO_MTP, _MOE = {"mtp": None}, {"dense": 0}
_PP3 = Topology(pp=3)
CASES = (
    Case("pp3", _PP3, CRASHED, _REDUCE, core=True),
    Case("pp3-two-mtp-layers", _PP3, HUNG, _REDUCE, {"mtp": 2}),
    Case("pp3-two-dense-stages", _PP3, CRASHED, _REDUCE, {"dense": 2}),
    Case("tp2-pp2-dp2", Topology(tp=2, pp=2, dp=2), CRASHED, _REDUCE),
    Case("pp3-no-mtp", _PP3, PASSED, options=_NO_MTP, core=True),
    Case("pp3-moe-on-all-stages", _PP3, PASSED, options=_MOE, core=True),
    Case("pp1", Topology(dp=2), PASSED, options=_MOE),
)
_LAYERS = 8
YOURS = Case("yours", Topology(), CRASHED, _REDUCE)  # one MTP layer, no MoE layer on the first stage
RULED_OUT = ("pp", "with PP 1 there is one stage, and it has MoE layers")
_LEFT_OUT: dict[str, tuple[str, ...]] = {
    "writer": ("wandb_writer",),
    "nothing": ("writer", "wandb_writer"),
    "per layer": ("wandb_writer",),
    "wandb": ("total_loss_dict",),
    "wandb per layer": (),
}
"""What the function does not get, by what it is to log."""
HELD = {"isinstance\\(moe_layer_freq, list": "of anything else it raises"}
_JOBS: dict[Topology, tuple[Any, ...]] = {
    Topology(): (None, 1, 3, [0, 1, 1, 0]),
    Topology(pp=2): ([0, 0, 1, 1], None, 2, 3, [0, 1, 1, 0], [1, 1, 0, 0]),
    _PP3: ([0, 0, 1, 1, 1, 1], 4, [1, 1, 0, 0, 1, 1], [0, 0, 0, 0, 0, 1]),
    Topology(pp=2, dp=2): ([0, 0, 1, 1],),
}
"""Topologies, and how often a layer has experts there: each list says of each layer whether it has some."""


def _grid() -> Any:
    """Yield the settings: entries are made on each stage without one, or, if all stages have routers, on none."""
    logs, others = itertools.cycle(_LEFT_OUT), itertools.cycle(((True, 1), (False, 0), (True, 0)))
    for topology, frequencies in _JOBS.items():
        for frequency, mtp in [*itertools.product(frequencies, (None, 2)), *itertools.product(frequencies[:1], (0, 1))]:
            options = {"layers": 6 if topology.pp == 3 else 4, "frequency": frequency, "mtp": mtp}
            case = Case("", topology, PASSED, options=options)
            routed = [routers.numbers(_experts(case), mtp, topology.pp, stage) for stage in range(topology.pp)]
            for force, names in ((True, 2), next(others)):
                if (force and names) or all(routed):
                    log = next(logs)
                    yield case._replace(
                        name=f"PP {topology.pp}, DP {topology.dp}, {frequency}, MTP {mtp}, {force}, {names}, {log}",
                        untouched=MISMATCH if mtp and not all(routed) else PASSED,
                        options={**options, "force": force, "names": names, "log": log, "steps": 1},
                    )


class Seen(NamedTuple):
    """What one rank did in one step."""

    experts: list[int]
    """Which layers have experts."""
    recorded: dict[str, list[float]]
    """What its routers recorded of each layer, by the loss."""
    logged: dict[str, float]
    wandb: dict[str, float]
    total: dict[str, float]
    left: bool
    """Whether a value is left in the tracker."""
    devices: list[str]
    """Where it wants the entries that it makes; from 0.18 on, another function makes them."""


def settings(case: Case) -> dict[str, Any]:
    """Return what the user of a case's job sets."""
    stages = case.topology.pp
    routed = [routers.numbers(_experts(case), _mtp(case), stages, stage) for stage in range(stages)]
    return {
        "mtp_num_layers": _mtp(case),
        "pipeline_model_parallel_size": stages,
        "MoE layers on some pipeline stages alone": any(routed) and not all(routed),
    }


def caveat(case: Case) -> str:
    """Return what the case supposes of the user's model."""
    return "supposes multi-token prediction, and no MoE layer on the first stage" if case.name == "yours" else ""


def has_feature(function: ast.FunctionDef) -> bool:
    """Return whether the function knows the layers of multi-token prediction."""
    return "mtp_num_layers" in {argument.arg for argument in function.args.args}


def prepare() -> None:
    """Import megatron-core for a CPU.

    A commit after 0.19.2 gives the tracker a number of layers, too, which is None here: no release takes that yet.
    """
    routers.on_cpu()
    with suppress(ImportError):
        from megatron.core.transformer.moe.moe_logging import MoEMetricsTracker

        report = MoEMetricsTracker.report
        MoEMetricsTracker.report = lambda self, num_moe_layers=None, **given: report(self, **given)


def on_rank(case: Case, rank: int) -> list[Seen]:
    """Route tokens, and track what the routers record, for two steps."""
    from megatron.core.transformer.moe import moe_utils

    shims.gloo_as_nccl()
    megatron.initialize(case.topology)
    routers.forget()
    known = inspect.signature(moe_utils.track_moe_metrics).parameters
    if "force_initialize" not in known:  # no stage is without experts then, and each layer has some
        case = case._replace(options={**case.options, "frequency": None})
    options, layers = case.options, routers.make(_experts(case), _mtp(case))
    names, log = options.get("names", 2), options.get("log", "per layer")
    seen = []
    for step in range(options.get("steps", routers.STEPS)):
        routers.train(layers)
        recorded = routers.recorded_by_layer()
        logged: dict[str, Any] = {}
        wandb: dict[str, Any] = {}
        total: dict[str, Any] = {routers.NAMES[0]: 1.0}
        given = {
            "loss_scale": 1 / routers.MICRO_BATCHES,
            "iteration": step,
            "writer": SimpleNamespace(add_scalar=lambda name, value, at: logged.update({name: (value, at)})),  # noqa: B023
            "wandb_writer": SimpleNamespace(log=lambda data, at: wandb.update({it: (data[it], at) for it in data})),  # noqa: B023
            "total_loss_dict": total,
            "per_layer_logging": "per layer" in log,
            "force_initialize": options.get("force", True),
            "track_names": list(routers.NAMES[:names]) or None,
            "num_layers": len(_experts(case)),
            "moe_layer_freq": _frequency(case),
            "mtp_num_layers": _mtp(case),
        }
        given.update(dict.fromkeys(_LEFT_OUT[log]))
        routers.ASKED.clear()
        moe_utils.track_moe_metrics(**{name: value for name, value in given.items() if name in known})
        assert all(at == step for _, at in (*logged.values(), *wandb.values()))
        ours, theirs = ({name: float(value) for name, (value, _) in it.items()} for it in (logged, wandb))
        left = any(map(any, routers.recorded_by_layer().values()))
        devices = [] if hasattr(moe_utils, "get_moe_metrics_tracker") else [*routers.ASKED]
        totals = {name: float(value) for name, value in total.items()}
        seen.append(Seen(_experts(case), recorded, ours, theirs, totals, left, devices))
    return seen


def _mtp(case: Case) -> int | None:
    mtp: int | None = case.options.get("mtp", 1)
    return mtp if case.options.get("feature", True) else None


def _frequency(case: Case) -> Any:
    """Return how often a layer has experts, as the function takes it: those of the first stages have none."""
    dense = _LAYERS // case.topology.pp * int(case.options.get("dense", 1))
    return case.options.get("frequency", [int(layer >= dense) for layer in range(_LAYERS)])


def _experts(case: Case) -> list[int]:
    """Return 1 for each layer with experts."""
    frequency, layers = _frequency(case), case.options.get("layers", _LAYERS)
    return frequency if isinstance(frequency, list) else [int(it % (frequency or 1) == 0) for it in range(layers)]


def wrong(case: Case, ranks: Sequence[list[Seen]]) -> str:
    """Return what is wrong; empty where every rank logs, in each step, the mean of what the layers recorded."""
    names = routers.NAMES[: case.options.get("names", 2)] or routers.NAMES
    log, mtp = case.options.get("log", "per layer"), _mtp(case) or 0
    experts = sum(ranks[0][0].experts) + mtp
    pipelines = len(ranks) // case.topology.pp
    for step, (rank, steps) in itertools.product(range(len(ranks[0])), enumerate(ranks)):
        stages = [other[step].recorded for other in ranks[rank % pipelines :: pipelines]]
        seen, due, total = steps[step], dict[str, float](), {routers.NAMES[0]: 1.0}
        for name in names:
            layers = zip(*(stage[name] for stage in stages if name in stage))
            values = [sum(it) / routers.MICRO_BATCHES for it in layers]
            due[name] = sum(values) / experts
            if "per layer" in log:
                due.update({f"moe/{name}_layer_{number}": value for number, value in enumerate(values)})
            total[name] = total.get(name, 0.0) + due[name]
        logs = {
            "logs": (seen.logged, {} if log == "nothing" else due),
            "logs to W&B": (seen.wandb, due if "wandb" in log else {}),
            # up to 0.12, nothing is added without a writer
            "adds": (seen.total, seen.total if log in ("wandb", "nothing") else total),
        }
        for what, (found, wanted) in logs.items():
            for name, value in wanted.items():
                if not math.isclose(found.get(name, math.nan), value, rel_tol=1e-5, abs_tol=1e-9):
                    return f"rank {rank} {what} {name} {found.get(name)}, but the mean is {value}"
        if {*seen.devices} - {"cuda"}:
            return f"rank {rank} makes an entry on {seen.devices}"
        if seen.left:
            return f"rank {rank} has a value left in the tracker"
    return ""


def right(case: Case, ranks: Sequence[list[Seen]]) -> str:
    """Return what was seen."""
    return "every stage logs the mean of what the routers recorded"


GRID = [*_grid()]
