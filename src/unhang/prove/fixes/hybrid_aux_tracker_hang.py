"""Megatron-LM: the real routers of a hybrid model and the real ``training_log``, on the stages of a real pipeline.

The routers of each stage with MoE layers route random tokens, and so record their losses. Then every stage logs. The
rest of the model is left out, and so is what ``training_log`` logs at its interval, such as the time of a step. The
arguments of the job are stand-ins. gloo aborts an all-reduce of two sizes, or waits. What NCCL does with one, a CPU
cannot show.
"""

from __future__ import annotations

import importlib
import typing
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from ..cases import CRASHED, MISMATCH, PASSED, Case, Outcome, Topology
from ..ranks import routers

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

WARM = ("transformers",)
BESIDE = {"megatron-lm": ("megatron-core",)}
_TRAINING = "megatron.training.training"
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
_PATTERN, _LAYERS, _DENSE, _MICRO_BATCHES, _STEPS = "M*ME*EME", 8, 2, 2, 2


def ruled_out(topology: Topology) -> str:
    """Return why the defect cannot occur; empty where it can."""
    return "with PP 1 there is one stage, and it has MoE layers" if topology.pp == 1 else ""


def case_for(topology: Topology, upstream: str, shapes: Collection[str]) -> Case:
    """Return the case of a user's job: a hybrid model without MoE layers on the first stage."""
    return Case("yours", topology, "schedule", MISMATCH, _REDUCE)


def caveat(case: Case) -> str:
    """Return what the case supposes of the user's model."""
    return "supposes a hybrid model, and no MoE layer on the first stage" if case.name == "yours" else ""


def prepare() -> None:
    """Import Megatron-LM's training loop for a CPU."""
    import typing_extensions

    if not hasattr(typing, "override"):  # before Python 3.12, which upstream requires
        typing.override = typing_extensions.override  # type: ignore[attr-defined]
    routers.on_cpu()
    importlib.import_module(_TRAINING)


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
    import torch
    from megatron.core import parallel_state

    training: Any = importlib.import_module(_TRAINING)
    stage = parallel_state.get_pipeline_model_parallel_rank()
    torch.manual_seed(stage)
    layers = routers.make(_moe_layers(case, stage), _LAYERS, _mtp(case))
    logged: dict[str, Any] = {}
    writer = SimpleNamespace(add_scalar=lambda name, value, _: logged.update({name: value}))
    training.get_args = lambda: _arguments(case)
    training.get_tensorboard_writer = lambda: writer
    training.get_num_microbatches = lambda: _MICRO_BATCHES
    for name in ("get_timers", "get_wandb_writer", "get_one_logger", "get_energy_monitor"):
        setattr(training, name, lambda: None)
    seen = []
    for step in range(_STEPS):
        for _batch in range(_MICRO_BATCHES):
            for router in layers:
                router(torch.randn(4, 1, routers.HIDDEN))
        recorded = routers.recorded()
        training.training_log(
            loss_dict={},
            total_loss_dict={},
            learning_rate=1.0,
            iteration=step + 1,
            loss_scale=1.0,
            report_memory_flag=False,
            skipped_iter=0,
            grad_norm=None,
            params_norm=None,
            num_zeros_in_grad=None,
            max_attention_logit=None,
        )
        seen.append(Seen(recorded, routers.logged(logged)))
    return seen


def _arguments(case: Case) -> _Arguments:
    pattern, mtp = _pattern(case), _mtp(case)
    return _Arguments(
        num_experts=routers.EXPERTS,
        num_layers=_LAYERS,
        mtp_num_layers=mtp,
        moe_layer_freq=1 if pattern else [int(layer >= _DENSE) for layer in range(_LAYERS)],
        moe_router_load_balancing_type="aux_loss",
        moe_z_loss_coeff=0.001,
        is_hybrid_model=bool(pattern),
        hybrid_override_pattern=pattern or None,
        hybrid_layer_pattern=pattern + "/*E" * (mtp or 0) if pattern else None,
        dsa_indexer_loss_coeff=None,
        log_interval=1000,
        tensorboard_log_interval=1000,
    )


def _mtp(case: Case) -> int | None:
    mtp: int | None = case.options.get("mtp")
    return mtp


def _pattern(case: Case) -> str:
    return str(case.options.get("pattern", _PATTERN))


def _moe_layers(case: Case, stage: int) -> list[int]:
    """Return the numbers of a stage's layers with experts, from 1 on. The last stage has the MTP layers too."""
    pattern = _pattern(case) or "*" * _DENSE + "E" * (_LAYERS - _DENSE)
    each, last = _LAYERS // case.topology.pp, stage == case.topology.pp - 1
    own = range(each * stage, _LAYERS if last else each * (stage + 1))
    layers = [layer + 1 for layer in own if pattern[layer] == "E"]
    return [*layers, *(_LAYERS + 1 + layer for layer in range(_mtp(case) or 0) if last)]


def _wrong(case: Case, ranks: list[list[Seen]]) -> str:
    """Return what is wrong; empty where every rank logs, in each step, the mean of what the layers recorded.

    Of a hybrid model upstream counts each MTP layer twice.
    """
    mtp = _mtp(case) or 0
    count = _pattern(case).count("E") + 2 * mtp if _pattern(case) else _LAYERS - _DENSE + mtp
    for step in range(_STEPS):
        for rank, steps in enumerate(ranks):
            for name in routers.NAMES if case.topology.world == case.topology.pp else ():
                mean = sum(other[step].recorded[name] for other in ranks) / _MICRO_BATCHES / count
                if abs(steps[step].logged[name] - mean) > 1e-5 * mean:
                    return f"rank {rank} logs {name} {steps[step].logged[name]}, but the mean is {mean}"
    return ""
