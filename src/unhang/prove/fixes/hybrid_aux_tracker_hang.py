"""The real routers of a hybrid model and the real ``training_log``, on the stages of a real pipeline.

That function is Megatron-LM's, or Megatron-Bridge's, whose other modules are then stand-ins. The routers of each stage
with MoE layers route random tokens, and so record their losses. Then every stage logs. The rest of the model is left
out, and so is what ``training_log`` logs at its interval, such as the time of a step. The arguments of the job are
stand-ins. gloo aborts an all-reduce of two sizes, or waits. What NCCL does with one, a CPU cannot show.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import itertools
import math
import os
import sys
from contextlib import suppress
from functools import partial
from importlib.machinery import PathFinder
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest.mock import MagicMock

from ..cases import CRASHED, MISMATCH, PASSED, Case, Topology
from ..ranks import megatron, routers, shims, sites

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

WARM = ("transformers",)
BESIDE = {"megatron-lm": ("megatron-core",), "megatron-bridge": ("megatron-core",)}
_TRAINING, _BRIDGE = "megatron.training.training", "megatron.bridge.training.utils.train_utils"
_PATTERNS = "megatron.core.models.hybrid.hybrid_layer_allocation", "megatron.core.ssm.mamba_hybrid_layer_allocation"
_REDUCE = "transformer/moe/moe_"  # the file of the all-reduce: moe_utils.py, or from 0.18 on moe_logging.py
_PP3 = Topology(pp=3)
_EVERYWHERE, _NOT_HYBRID = {"pattern": "ME*EEMEM"}, {"pattern": ""}
CASES = (
    Case("pp3", _PP3, CRASHED, _REDUCE, core=True),
    Case("pp3-mtp", _PP3, CRASHED, _REDUCE, {"mtp": 1}),
    Case("tp2-pp2-dp2", Topology(tp=2, pp=2, dp=2), CRASHED, _REDUCE, {"pattern": "M*M*EEME"}),
    Case("pp3-experts-on-all-stages", _PP3, PASSED, options=_EVERYWHERE, core=True),
    Case("pp3-not-hybrid", _PP3, PASSED, options=_NOT_HYBRID, core=True),
    Case("pp3-not-hybrid-mtp", _PP3, PASSED, options={**_NOT_HYBRID, "mtp": 1}),
    Case("pp3-mtp-0.16", _PP3, CRASHED, _REDUCE, {"mtp": 1, "without": "moe-aux-tracker-hang"}, patched=CRASHED),
)
_PATTERN, _LAYERS = "M*ME*EME", 8
_DENSE = [0, 0, 1, 1, 1, 1, 1, 1]
YOURS = Case("yours", Topology(), CRASHED, _REDUCE)  # a hybrid model, no MoE layer on the first stage
RULED_OUT = ("pp", "with PP 1 there is one stage, and it has MoE layers")
_LOSSES = {"aux_loss": "load_balancing_loss", "seq_aux_loss": "seq_load_balancing_loss"}
_LOSSES |= {"global_aux_loss": "global_load_balancing_loss"}
HELD = {
    r"^(?!.*(moe|mtp|hybrid|pattern|experts|aux_loss))": "of what else is logged",
    r"overload|num_experts|mtp_num_layers\W.*(is not None|or 0)": "of what else is logged",
    r'pattern or ""|moe_layer_freq, list': "never the other way",
}


def _grid() -> Iterator[Case]:
    """Yield the settings: models whose first stage has experts or not, hybrid and others, and what follows them."""
    patterns = ("M*EE", "", "M*M-|EEME", "*M*M*EE*EE", "MEME", "")
    depths: tuple[dict[str, Any], ...] = ({}, {"mtp": 1}, {"mtp": 2, "depth": "EEE"}, {"mtp": 0})
    depths += ({"mtp": 1, "depth": "*-"}, {"mtp": 2, "repeated": True})
    often = itertools.cycle((1, [0, 0, 0, 0, 0, 0, 1, 1, 0, 1], None, 3, [1, 0, 1, 0, 0, 1, 0, 1, 1, 0]))
    few: tuple[dict[str, Any], ...] = ({}, {"losses": ["seq_aux_loss", *_LOSSES]}, {"losses": "none"}, {"z_loss": None})
    losses = itertools.cycle(few)
    yield Case("no experts", Topology(), PASSED, options={"experts": None})
    for pattern, depth in itertools.product(patterns, depths):
        layers = len(pattern.replace("|", "")) or 8
        options: dict[str, Any] = {"pattern": pattern, **depth, "layers": layers, **next(losses)}
        frequency = next(often)
        options["frequency"] = frequency[-layers:] if isinstance(frequency, list) else frequency
        name = ", ".join(f"{name} {value}" for name, value in options.items())
        case = Case(name, Topology(pp=2), PASSED, options=options)
        yield case._replace(untouched=MISMATCH if pattern and not any(_experts(case)[: layers // 2]) else PASSED)


def settings(case: Case) -> dict[str, Any]:
    """Return what the user of a case's job sets."""
    experts, stages = _experts(case) if case.options.get("experts", 1) else [False], case.topology.pp
    routed = [routers.numbers(experts, case.options.get("mtp"), stages, stage) for stage in range(stages)]
    return {
        "hybrid_layer_pattern": _pattern(case) or None,
        "hybrid_override_pattern": None,
        "pipeline_model_parallel_size": stages,
        "MoE layers on some pipeline stages alone": any(routed) and not all(routed),
    }


def caveat(case: Case) -> str:
    """Return what the case supposes of the user's model."""
    return "supposes a hybrid model, and no MoE layer on the first stage" if case.name == "yours" else ""


def has_feature(function: ast.FunctionDef) -> bool:
    """Return whether the function knows hybrid models by their pattern, as it was called before 0.17, or is now."""
    return any(it in ast.unparse(function) for it in ("hybrid_override_pattern", "hybrid_layer_pattern"))


def prepare() -> None:
    """Import what ``training_log`` needs for a CPU.

    Upstream's own fix on main gives the tracker the number of MoE layers, which no release takes.
    """
    import megatron

    shims.newer_typing()
    routers.on_cpu()
    if bridge := PathFinder.find_spec("megatron.bridge", megatron.__path__):
        _stand_in_for_the_rest(*bridge.submodule_search_locations or ())
    with suppress(ImportError):
        from megatron.core.transformer.moe.moe_logging import MoEMetricsTracker

        report = MoEMetricsTracker.report
        MoEMetricsTracker.report = lambda self, num_moe_layers=None, **given: report(
            self, **{**given, **({} if num_moe_layers is None else {"moe_layer_freq": [1] * num_moe_layers})}
        )
    for one, other in itertools.permutations(_PATTERNS):  # a commit has it elsewhere than its closest release
        with suppress(ImportError):
            sys.modules.setdefault(one, importlib.import_module(other))
    if sites.ROOTS:
        importlib.import_module(_module())


def _module() -> str:
    """Return the name of the module of ``training_log``: of the upstream that the variant has files of."""
    path = f"{_BRIDGE.replace('.', os.sep)}.py"
    return _BRIDGE if any(os.path.exists(os.path.join(root, path)) for root in sites.ROOTS) else _TRAINING


def _stand_in_for_the_rest(root: str) -> None:
    """Put stand-ins in the place of what Megatron-Bridge's module imports of its own: all models, with their needs."""
    for name in ("", ".utils", ".training", ".training.utils"):
        sys.modules[f"megatron.bridge{name}"] = _StandIn(f"megatron.bridge{name}", f"{root}{name.replace('.', os.sep)}")
    needs = ("mlflow_utils", "pg_utils", "theoretical_memory_utils", "flop_utils")
    for name in (
        "utils.common_utils",
        *(f"training.{name}" for name in ("config", "forward_step_func_types", "state")),
        *(f"training.utils.{name}" for name in needs),
    ):
        sys.modules[f"megatron.bridge.{name}"] = _StandIn(name, "")


class _StandIn(ModuleType):
    """A module with every name, in whose folder the real modules are found."""

    def __init__(self, name: str, path: str) -> None:
        super().__init__(name)
        self.__path__ = [path]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock(name=name)


class Seen(NamedTuple):
    """What one rank did in one step."""

    recorded: Mapping[str, float]
    """The sum of the losses that its routers recorded, by name."""
    logged: Sequence[Mapping[str, float]]
    """Of the writer, of W&B, and of the printed log."""
    layers: int
    """By how many layers the function is to have them divided."""


class _Arguments(SimpleNamespace):
    """The arguments of a job. What is not set is off."""

    def __getattr__(self, name: str) -> int:
        return 0


def on_rank(case: Case, rank: int) -> list[Seen]:
    """Route tokens, and log what the routers record, for two steps."""
    from megatron.core.transformer.moe import moe_utils

    shims.gloo_as_nccl()
    megatron.initialize(case.topology)
    routers.forget()
    log: Any = importlib.import_module(case.options.get("module", _module()))
    code = log.training_log.__code__
    given = {name for it in code.co_consts if isinstance(it, tuple) for name in it}
    case = _known(case, {*code.co_names, *code.co_consts}, given)
    layers = routers.make(_experts(case), case.options.get("mtp"))
    # what commits use, and their closest releases lack; before 0.12 the tracker took the length of an entry
    vars(log).setdefault("_build_moe_metric_writer", lambda writer, *_: writer)
    track = moe_utils.track_moe_metrics
    log.track_moe_metrics = track if "num_layers" in given else partial(track, num_layers=len(_experts(case)))
    logs: tuple[dict[str, Any], ...] = {}, {}, {}
    writer = SimpleNamespace(add_scalar=lambda name, value, _: logs[0].update({name: value}))
    wandb = SimpleNamespace(log=lambda values, _: logs[1].update(values))
    log.get_num_microbatches = lambda: routers.MICRO_BATCHES
    job = _of_megatron_lm if log.__name__ == _TRAINING else _of_bridge
    seen = []
    for step in range(routers.STEPS):
        recorded = routers.train(layers)
        for one in logs:
            one.clear()
        values = {
            **{"loss_dict": {}, "total_loss_dict": logs[2], "learning_rate": 1.0, "loss_scale": 1.0, "skipped_iter": 0},
            **job(log, _arguments(case), writer, wandb, 1001 + step),  # as after a checkpoint
        }
        log.training_log(**{name: values.get(name) for name in inspect.signature(log.training_log).parameters})
        losses = [{name: float(value) for name, value in one.items() if name.endswith("loss")} for one in logs]
        seen.append(Seen(recorded, losses, _count(case)))
    return seen


def _of_megatron_lm(log: Any, args: _Arguments, writer: Any, wandb: Any, iteration: int) -> dict[str, Any]:
    """Give Megatron-LM's module what it takes of a job; return the arguments that only its function has."""
    log.get_args = lambda: args
    log.get_tensorboard_writer, log.get_wandb_writer = lambda: writer, lambda: wandb
    for name in ("get_timers", "get_one_logger", "get_energy_monitor"):
        setattr(log, name, lambda: None)
    return {"iteration": iteration}


def _of_bridge(log: Any, args: _Arguments, writer: Any, wandb: Any, iteration: int) -> dict[str, Any]:
    """Do the same for Megatron-Bridge's."""
    from megatron.core.process_groups_config import ProcessGroupCollection

    log.get_pg_collection = lambda _: ProcessGroupCollection.use_mpu_process_groups()
    log.reduce_max_stat_across_model_parallel_group = lambda rate, *_, **__: rate  # it took no group at first
    off = dict.fromkeys(("timers", "mlflow_logger", "comet_logger", "energy_monitor"))
    if not args.is_hybrid_model:
        args.hybrid_layer_pattern = "ME" * (args.num_layers // 2)  # a pattern alone does not make it one
    writers = {"tensorboard_logger": writer, "wandb_logger": wandb}
    return {
        "config": _Arguments(model=args, logger=args, train=_Arguments()),
        "global_state": _Arguments(train_state=_Arguments(step=iteration), **writers, **off),
    }


def _known(case: Case, names: Collection[Any], given: Collection[Any]) -> Case:
    """Return the case as a function of its time knows it, by the names in its code and those that it gives.

    One that makes no entry needs a router on each stage. At first MTP layers had no place in an entry, then no pattern.
    ``whole`` says that it counts them by that alone, and ``once`` that it counts those of a repeated layer as one.
    """
    told: dict[str, Any] = {"whole": "parse_hybrid_pattern" in names, "once": "mtp_use_repeated_layer" in names}
    if "force_initialize" not in given:
        told |= {"pattern": "", "frequency": 1}
    if "hybrid_layer_pattern" not in names:
        told |= {"depth": "", **({} if "mtp_num_layers" in given else {"mtp": None})}
    if "global_load_balancing_loss" not in names and isinstance(case.options.get("losses"), list):
        told["losses"] = "seq_aux_loss"
    return case._replace(options={**case.options, **told})


def _arguments(case: Case) -> _Arguments:
    options, pattern, mtp = case.options, _pattern(case), case.options.get("mtp")
    experts = options.get("experts", routers.EXPERTS)
    depth = f"/{options.get('depth', '*E')}" * (mtp or 0)
    return _Arguments(
        num_experts=experts,
        num_moe_experts=experts,
        num_layers=len(_experts(case)),
        mtp_num_layers=mtp,
        mtp_use_repeated_layer=options.get("repeated", False),
        moe_layer_freq=_frequency(case),
        moe_router_load_balancing_type=options.get("losses", "aux_loss"),
        moe_z_loss_coeff=options.get("z_loss", 0.001),
        is_hybrid_model=bool(pattern),
        hybrid_override_pattern=pattern or None,
        hybrid_layer_pattern=pattern + depth if pattern else None,
        dsa_indexer_loss_coeff=None,
        log_interval=1000,
        tensorboard_log_interval=1000,
    )


def _pattern(case: Case) -> str:
    return str(case.options.get("pattern", _PATTERN))


def _frequency(case: Case) -> Any:
    """Return how often a layer has experts, as the function takes it; that of a hybrid model does not count."""
    return case.options.get("frequency", 1 if _pattern(case) else _DENSE)


def _experts(case: Case) -> list[bool]:
    """Return of each layer whether it has experts."""
    if pattern := _pattern(case):
        return [kind == "E" for kind in pattern.replace("|", "")]
    return _often(_frequency(case), case.options.get("layers", _LAYERS))


def _often(frequency: Any, layers: int) -> list[bool]:
    if isinstance(frequency, list):
        return [*map(bool, frequency)]
    return [it % (frequency or 1) == 0 for it in range(layers)]


def _count(case: Case) -> int:
    """Return by how many layers the function is to have the losses divided.

    Upstream counts each MTP layer; of a hybrid model once more by its pattern, until it parses that.
    """
    options, pattern, experts = case.options, _pattern(case), _experts(case)
    mtp: int = options.get("mtp") or 0
    uses = mtp
    if options["once"]:
        uses = min(mtp, 1) if options.get("repeated") else mtp
    if pattern and options.get("feature", True):
        own: int = sum(experts) + options.get("depth", "*E").count("E") * uses
        return own if options["whole"] else own + mtp
    each = _often(_frequency(case), len(experts))
    return sum(each) + (uses * each[-1] if options["once"] else mtp)


def wrong(case: Case, ranks: Sequence[list[Seen]]) -> str:
    """Return what is wrong; empty where every rank logs, in each step, the mean of what the layers recorded.

    Routers of newer releases record a part on each rank of TP and CP, and the stages that have them log its sum.
    """
    balancing = case.options.get("losses", "aux_loss")
    names = {name for kind, name in _LOSSES.items() if kind in balancing}
    names |= {"z_loss"} if case.options.get("z_loss", 1) else set()
    pipelines, parts = len(ranks) // case.topology.pp, case.topology.tp * case.topology.cp
    for step, (rank, steps) in itertools.product(range(routers.STEPS), enumerate(ranks)):
        first = rank % pipelines
        together = range(first - first % parts, first - first % parts + parts)
        for name in names if case.options.get("experts", 1) else ():
            sums = {it: sum(other[step].recorded.get(name, 0.0) for other in ranks[it::pipelines]) for it in together}
            divided = routers.MICRO_BATCHES * steps[step].layers
            mean, all_parts = sums[first] / divided, sum(sums.values()) / divided
            for found in (logged.get(name, 0.0) for logged in steps[step].logged):  # 0 of what no router records
                if not any(math.isclose(found, due, rel_tol=1e-5) for due in (mean, all_parts)):
                    return f"rank {rank} logs {name} {found}, but the mean is {mean}"
    return ""


def right(case: Case, ranks: Sequence[list[Seen]]) -> str:
    """Return what was seen."""
    return "every stage logs the mean of what the routers recorded"


GRID = [*_grid()]
