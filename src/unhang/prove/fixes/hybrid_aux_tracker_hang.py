"""The real routers of a hybrid model and the real ``training_log``, on the stages of a real pipeline.

That function is Megatron-LM's, or Megatron-Bridge's, whose other modules are then stand-ins. The routers of each stage
with MoE layers route random tokens, and so record their losses. Then every stage logs. The rest of the model is left
out, and so is what ``training_log`` logs at its interval, such as the time of a step. The arguments of the job are
stand-ins. gloo aborts an all-reduce of two sizes, or waits. What NCCL does with one, a CPU cannot show.
"""

from __future__ import annotations

import importlib
import os
import sys
import typing
from importlib.machinery import PathFinder
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest.mock import MagicMock

from ..cases import CRASHED, MISMATCH, PASSED, Case, Outcome, Topology
from ..ranks import routers, sites

if TYPE_CHECKING:
    from collections.abc import Mapping

WARM = ("transformers",)
BESIDE = {"megatron-lm": ("megatron-core",), "megatron-bridge": ("megatron-core",)}
_TRAINING, _BRIDGE = "megatron.training.training", "megatron.bridge.training.utils.train_utils"
_REDUCE = "transformer/moe/moe_"  # the file of the all-reduce: moe_utils.py, or from 0.18 on moe_logging.py
_PP3, _MANY = Topology(pp=3), Topology(tp=2, pp=4, cp=2, dp=2)
_EVERYWHERE, _NOT_HYBRID = {"pattern": "ME*EEMEM"}, {"pattern": ""}
CASES = (
    Case("pp3", _PP3, "ranks", CRASHED, _REDUCE, core=True),
    Case("pp3-mtp", _PP3, "ranks", CRASHED, _REDUCE, {"mtp": 1}),
    Case("tp2-pp2-dp2", Topology(tp=2, pp=2, dp=2), "ranks", CRASHED, _REDUCE, {"pattern": "M*M*EEME"}),
    Case("pp3-experts-on-all-stages", _PP3, "ranks", PASSED, options=_EVERYWHERE, core=True),
    Case("pp3-not-hybrid", _PP3, "ranks", PASSED, options=_NOT_HYBRID, core=True),
    Case("pp3-not-hybrid-mtp", _PP3, "ranks", PASSED, options={**_NOT_HYBRID, "mtp": 1}),
    Case("schedule-32", _MANY, "schedule", MISMATCH, _REDUCE, core=True),
    Case("schedule-32-not-hybrid", _MANY, "schedule", PASSED, options=_NOT_HYBRID, core=True),
    Case("schedule-256", Topology(tp=4, pp=8, dp=8), "schedule", MISMATCH, _REDUCE),
)
_PATTERN, _LAYERS, _DENSE = "M*ME*EME", 8, 2
YOURS = Case("yours", Topology(), "schedule", MISMATCH, _REDUCE)  # a hybrid model, no MoE layer on the first stage
RULED_OUT = ("pp", "with PP 1 there is one stage, and it has MoE layers")


def caveat(case: Case) -> str:
    """Return what the case supposes of the user's model."""
    return "supposes a hybrid model, and no MoE layer on the first stage" if case.name == "yours" else ""


def prepare() -> None:
    """Import the module of ``training_log`` for a CPU."""
    import typing_extensions

    if not hasattr(typing, "override"):  # before Python 3.12, which upstream requires
        typing.override = typing_extensions.override  # type: ignore[attr-defined]
    routers.on_cpu()
    if _module() == _BRIDGE:
        _stand_in_for_the_rest()
    importlib.import_module(_module())


def _module() -> str:
    """Return the name of the module of ``training_log``: of the upstream that the variant has files of."""
    path = f"{_BRIDGE.replace('.', os.sep)}.py"
    return _BRIDGE if any(os.path.exists(os.path.join(root, path)) for root in sites.ROOTS) else _TRAINING


def _stand_in_for_the_rest() -> None:
    """Put stand-ins in the place of what Megatron-Bridge's module imports of its own: all models, with their needs."""
    import megatron

    (root,) = PathFinder.find_spec("megatron.bridge", megatron.__path__).submodule_search_locations  # type: ignore[union-attr, misc]
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
    logged: Mapping[str, float]


def run(case: Case, deadline_s: float) -> Outcome:
    """Run two steps on every rank. With real ranks, compare what is logged with what the routers recorded."""
    # what is logged depends on what is reduced, and no collective on that
    declared = dict.fromkeys(("training_log", *routers.READS), 1.0)
    return routers.run(case, _steps, _wrong, declared, deadline_s)


class _Arguments(SimpleNamespace):
    """The arguments of a job. What is not set is off."""

    def __getattr__(self, name: str) -> int:
        return 0


def _steps(case: Case) -> list[Seen]:
    log: Any = importlib.import_module(_module())
    layers = routers.make(_experts(case), case.options.get("mtp"))
    logged: dict[str, Any] = {}
    writer = SimpleNamespace(add_scalar=lambda name, value, _: logged.update({name: value}))
    log.get_num_microbatches = lambda: routers.MICRO_BATCHES
    job = _of_bridge if _module() == _BRIDGE else _of_megatron_lm
    seen = []
    for step in range(routers.STEPS):
        recorded = routers.train(layers)
        log.training_log(
            loss_dict={},
            total_loss_dict={},
            learning_rate=1.0,
            loss_scale=1.0,
            report_memory_flag=False,
            skipped_iter=0,
            grad_norm=None,
            params_norm=None,
            num_zeros_in_grad=None,
            **job(log, _arguments(case), writer, step + 1),
        )
        seen.append(Seen(recorded, routers.logged(logged)))
    return seen


def _of_megatron_lm(log: Any, args: _Arguments, writer: Any, iteration: int) -> dict[str, Any]:
    """Give Megatron-LM's module what it takes of a job; return the arguments that only its function has."""
    log.get_args = lambda: args
    log.get_tensorboard_writer = lambda: writer
    for name in ("get_timers", "get_wandb_writer", "get_one_logger", "get_energy_monitor"):
        setattr(log, name, lambda: None)
    return {"iteration": iteration, "max_attention_logit": None}


def _of_bridge(log: Any, args: _Arguments, writer: Any, iteration: int) -> dict[str, Any]:
    """Do the same for Megatron-Bridge's."""
    from megatron.core.process_groups_config import ProcessGroupCollection

    log.get_pg_collection = lambda _: ProcessGroupCollection.use_mpu_process_groups()
    off = dict.fromkeys(("timers", "wandb_logger", "mlflow_logger", "comet_logger", "energy_monitor"))
    return {
        "config": _Arguments(model=args, logger=args, train=_Arguments()),
        "global_state": _Arguments(train_state=_Arguments(step=iteration), tensorboard_logger=writer, **off),
        "decoupled_learning_rate": None,
        "history_wct": [],
        "model": [],
    }


def _arguments(case: Case) -> _Arguments:
    pattern, mtp = _pattern(case), case.options.get("mtp")
    return _Arguments(
        num_experts=routers.EXPERTS,
        num_moe_experts=routers.EXPERTS,
        num_layers=_LAYERS,
        mtp_num_layers=mtp,
        moe_layer_freq=1 if pattern else [*map(int, _experts(case))],
        moe_router_load_balancing_type="aux_loss",
        moe_z_loss_coeff=0.001,
        is_hybrid_model=bool(pattern),
        hybrid_override_pattern=pattern or None,
        hybrid_layer_pattern=pattern + "/*E" * (mtp or 0) if pattern else None,
        dsa_indexer_loss_coeff=None,
        log_interval=1000,
        tensorboard_log_interval=1000,
    )


def _pattern(case: Case) -> str:
    return str(case.options.get("pattern", _PATTERN))


def _experts(case: Case) -> list[bool]:
    """Return of each layer whether it has experts."""
    return [kind == "E" for kind in _pattern(case) or "*" * _DENSE + "E" * (_LAYERS - _DENSE)]


def _wrong(case: Case, ranks: list[list[Seen]]) -> str:
    """Return what is wrong; empty where every rank logs, in each step, the mean of what the layers recorded.

    Of a hybrid model upstream counts each MTP layer twice.
    """
    mtp = case.options.get("mtp") or 0
    return routers.off_the_mean(case, ranks, sum(_experts(case)) + (2 * mtp if _pattern(case) else mtp))
