"""megatron-core: real optimizers and the real scheduler, saved after two steps and loaded into new ones.

The rates of the next steps, and the weights, are compared with those of AdamW alone, without a break. Stand-ins: groups
of parameters are the case's own, as ms-swift makes its own; or Megatron's, by ``decoupled_lr``. What is loaded apart
from the function, weights and the moments of the distributed optimizer, is copied.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import sys
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest.mock import patch

from ..cases import DIFFERS, PASSED, Case, Topology
from ..ranks import megatron, shims

if TYPE_CHECKING:
    from collections.abc import Sequence

WARM = ("torch",)
_FILTER, _LOAD = "MegatronOptimizer._filter_and_reorder_param_groups", "DistributedOptimizer.load_state_dict"
_AT = "the rates of the next step are"
_BASE, _HEAD = {"max_lr": 0.01, "min_lr": 0.0}, {"max_lr": 0.1, "min_lr": 0.001}
_KINDS: dict[str, list[dict[str, Any]]] = {
    "rates": [_BASE, _HEAD, {**_BASE, "wd_mult": 0.0}],
    "rates, the large first": [_HEAD, _BASE, {**_HEAD, "wd_mult": 0.0}],
    "three rates": [_BASE, _HEAD, {**_BASE, "max_lr": 0.05}],
    "final rates": [_BASE, {**_BASE, "min_lr": 0.009}, {**_BASE, "wd_mult": 0.0}],
    "betas": [_BASE, {**_BASE, "betas": (0.5, 0.9)}, {**_BASE, "wd_mult": 0.0}],
    "keys": [_BASE, {**_BASE, "wd_mult": 0.5}, {**_BASE, "wd_mult": 0.0}],
}
"""What sets each weight's group apart. Only those of the last differ in the keys."""
_HOWS = ("again", "reversed", "doubled", "one doubled", "names of NeMo", "into states")
"""How it is resumed: groups in another order, with other rates, ..., or into an optimizer with states."""
_SHARDED, _DECOUPLED = {"sharded": True}, {"kind": "rates", "megatrons": True}
CASES = (
    Case("decoupled-lr", Topology(), DIFFERS, _AT, {**_DECOUPLED, **_SHARDED}, core=True),
    Case("decoupled-lr-2", Topology(dp=2), DIFFERS, _AT, {**_DECOUPLED, **_SHARDED}, core=True),
    Case("decoupled-lr-whole", Topology(), DIFFERS, _AT, _DECOUPLED, core=True),
    Case("three-rates", Topology(), DIFFERS, _AT, {"kind": "three rates", **_SHARDED}),
    Case("reversed", Topology(), DIFFERS, _AT, {"kind": "rates", "how": "reversed", **_SHARDED}),
    Case("one-rate", Topology(), PASSED, options={"kind": "keys", **_SHARDED}, core=True),
    Case("not-resumed", Topology(), PASSED, options={**_DECOUPLED, **_SHARDED, "how": "fresh"}, core=True),
)
GRID = [
    Case(
        f"{kind}, {how}, {'sharded' if sharded else 'whole'}",
        Topology(dp=ranks),
        PASSED if kind == "keys" else DIFFERS,
        options={
            **{"kind": kind, "how": how, "sharded": sharded, "of": [_LOAD if sharded else _FILTER]},
            "beyond": how in ("reversed", "doubled", "one doubled") or kind == "betas",  # upstream refuses other rates
        },
    )
    for sharded, ranks in ((False, 1), (True, 1), (True, 2))
    for kind in _KINDS
    for how in (_HOWS if kind in ("rates", "keys") else _HOWS[:1])
    if sharded or how != "into states"
]
_OTHERS = "another optimizer, format or dtype than these"
HELD = {
    "key not in loaded_groups_map|f'pre_{key}'|pre_{key}": "groups that no saved one goes with are refused",
    r"use_megatron_fsdp|custom_fsdp|HybridDevice|steps|in g$|precision_aware|store_param_rem|numel\(\)": _OTHERS,
    r"param_to_group_meta|HAVE_APEX|grad_scaler|config\.fp16|param_state|sharding_type": _OTHERS,
}
YOURS = Case("yours", Topology(), DIFFERS, _AT, {**_DECOUPLED, **_SHARDED})
_STEPS, _SAVED, _LAST, _DECAY = 4, 2, 10, 0.1


class Seen(NamedTuple):
    """What a rank has after each step from the break on."""

    rates: list[list[float]]
    weights: list[list[Any]]


def settings(case: Case) -> dict[str, Any]:
    """Return what the user of such a job sets."""
    kind = case.options["kind"]
    return {
        "decoupled_lr": _HEAD["max_lr"] if case.options.get("megatrons") else None,
        "version megatron-core": "0.18.2",
        "groups of parameters with rates of their own (Bridge's LoRA+, config_overrides)": kind != "keys",
        "a checkpoint is loaded with its optimizer": case.options.get("how") != "fresh",
    }


def caveat(case: Case) -> str:
    """Return what the case leaves open."""
    return "only a job that loads a checkpoint with its optimizer, with decoupled_lr" if case.name == "yours" else ""


def prepare() -> None:
    """Import the optimizers for a CPU, without Transformer Engine and apex, whose Adam needs a GPU."""
    shims.cuda_on_cpu()
    import torch

    of_type, tensor = torch.Tensor.type, torch.tensor
    torch.Tensor.type = lambda self, *given: of_type(self, *given) if given else "torch.cuda.FloatTensor"
    torch.tensor = lambda *given, device=None, **named: tensor(*given, **named)
    blocked: dict[str, Any] = dict.fromkeys(("transformer_engine", "apex", "amp_C"))
    sys.modules.update(blocked)
    importlib.import_module("megatron.core.distributed")
    importlib.import_module("megatron.core.optimizer")


def on_rank(case: Case, rank: int) -> Seen:
    """Train, break off, load into a new job, and train on."""
    megatron.initialize(case.topology)
    shims.gloo_as_nccl()
    how, first, seen = case.options.get("how", "again"), _Job(case), Seen([], [])
    for step in range(_SAVED):
        first.step(step)
    job = first if how == "fresh" else _Job(case, how)
    if job is not first:
        if how == "into states":
            job.optimizer.step()
        job.load(first)
    for step in range(_SAVED, _STEPS):
        seen.rates.append([job.group(number)["lr"] for number in range(3)])
        job.step(step)
        seen.weights.append([it.detach().clone() for it in job.weights])
    return seen


class _Job:
    """A model of three weights, its optimizer and its scheduler."""

    def __init__(self, case: Case, how: str = "") -> None:
        import torch
        from megatron.core import optimizer
        from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
        from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
        from megatron.core.transformer.transformer_config import TransformerConfig

        self.sharded = bool(case.options.get("sharded"))
        self.order = [2, 1, 0] if how == "reversed" else [0, 1, 2]
        model, config = torch.nn.Module(), TransformerConfig(num_layers=1, hidden_size=4, num_attention_heads=4)
        model.weights = torch.nn.ParameterList(_weights())
        model.weights[1].is_embedding_or_output_parameter = True
        parallel = DistributedDataParallelConfig(use_distributed_optimizer=self.sharded)
        wrapped = DistributedDataParallel(config, parallel, model)
        self.weights = [*model.weights]
        given = optimizer.OptimizerConfig(
            **{"optimizer": "adam", "clip_grad": 0.0, "params_dtype": torch.float32, "weight_decay": _DECAY},
            **{"lr": _BASE["max_lr"], "min_lr": _BASE["min_lr"], "use_distributed_optimizer": self.sharded},
            **{"decoupled_lr": _HEAD["max_lr"], "decoupled_min_lr": _HEAD["min_lr"]},
        )
        makes = optimizer._get_param_groups
        if not case.options.get("megatrons"):
            makes = lambda *_, **__: [dict(it) for it in self._groups(case, how)]  # noqa: E731
        with patch.object(optimizer, "_get_param_groups", makes):
            made = optimizer.get_megatron_optimizer(given, [wrapped], use_gloo_process_groups=False)
        self.optimizer = getattr(made, "chained_optimizers", [made])[0]
        self.scheduler = OptimizerParamScheduler(
            **{"optimizer": self.optimizer, "init_lr": 0.0, "max_lr": _BASE["max_lr"], "min_lr": _BASE["min_lr"]},
            **{"lr_warmup_steps": 0, "lr_decay_steps": _LAST, "lr_decay_style": "linear", "start_wd": _DECAY},
            **{"end_wd": _DECAY, "wd_incr_steps": 0, "wd_incr_style": "constant"},
        )

    def _groups(self, case: Case, how: str) -> list[dict[str, Any]]:
        keys = {"wd_mult": 1.0, "lr_mult": 1.0, "is_expert_parallel": False, "is_decoupled_lr": False}
        made = []
        for number, own in enumerate(_KINDS[case.options["kind"]]):
            factor = 2 if how == "doubled" or (how, number) == ("one doubled", 0) else 1
            group = {**keys, **own, "max_lr": factor * own["max_lr"], "params": [self.weights[number]]}
            if case.options.get("how") == "names of NeMo":
                group["pre_lr_mult"] = group.pop("lr_mult")
            made.append(group)
        return [made[number] for number in self.order]

    def group(self, number: int) -> dict[str, Any]:
        """Return the optimizer's group of a weight."""
        found: dict[str, Any] = self.optimizer.param_groups[self.order.index(number)]
        return found

    def step(self, step: int) -> None:
        for number, (weight, gradient) in enumerate(zip(self.weights, _gradients(step))):
            weight.main_grad.copy_(gradient)
        self.optimizer.step()
        self.scheduler.step(1)

    def load(self, other: _Job) -> None:
        """Load the state of another job, with what a distributed checkpoint orders as it is here."""
        for mine, theirs in zip(self.weights, other.weights):
            mine.data.copy_(theirs.data)
        saved = copy.deepcopy(other.optimizer.state_dict())
        if not self.sharded:
            saved["state"] = {self.order.index(number): state for number, state in saved["state"].items()}
            for place, group in enumerate(saved["param_groups"]):
                group["params"] = [place]
        self.optimizer.load_state_dict(saved)
        for number in range(3) if self.sharded else ():
            for mine, theirs in zip(self.group(number)["params"], other.group(number)["params"]):
                mine.data.copy_(theirs.data)
                self.optimizer.optimizer.state[mine] = copy.deepcopy(other.optimizer.optimizer.state[theirs])
        self.scheduler.load_state_dict(other.scheduler.state_dict())


def wrong(case: Case, ranks: Sequence[Seen]) -> str:
    """Return which rate or weight differs from training without a break; empty where none does."""
    due = _due(case)
    for seen in ranks:
        if any(abs(one - other) > 1e-9 for one, other in zip(seen.rates[0], due.rates[0])):
            return f"{_AT} {_rounded(seen.rates[0])}, due {_rounded(due.rates[0])}"
        for found, wanted in zip(seen.weights, due.weights):
            for number, (one, other) in enumerate(zip(found, wanted)):
                if not bool((one - other).abs().max() < 1e-5):
                    return f"weight {number} is off by {float((one - other).abs().max()):.5f}"
    return ""


def right(case: Case, ranks: Sequence[Seen]) -> str:
    """Return what was seen."""
    return f"{_AT} {_rounded(ranks[0].rates[0])}, as without a break"


def _due(case: Case) -> Seen:
    """Return what plain AdamW does, with each rate by its formula."""
    import torch

    kind, weights, seen = _KINDS[case.options["kind"]], [torch.nn.Parameter(it) for it in _weights()], Seen([], [])
    adam = torch.optim.AdamW([{"params": [weight], "betas": it.get("betas", (0.9, 0.999))} for weight, it in zip(weights, kind)])
    for step in range(_STEPS):
        for group, it, gradient in zip(adam.param_groups, kind, _gradients(step)):
            group["lr"] = it["min_lr"] + (it["max_lr"] - it["min_lr"]) * (1 - step / _LAST)
            group["weight_decay"] = _DECAY * it.get("wd_mult", 1.0)
            group["params"][0].grad = gradient
        if step >= _SAVED:
            seen.rates.append([group["lr"] for group in adam.param_groups])
        adam.step()
        if step >= _SAVED:
            seen.weights.append([it.detach().clone() for it in weights])
    return seen


def _weights() -> list[Any]:
    import torch

    torch.manual_seed(0)
    return [torch.randn(4, 4), torch.randn(4, 4), torch.ones(4)]


def _gradients(step: int) -> list[Any]:
    import torch

    torch.manual_seed(step + 1)
    return [torch.randn_like(it) for it in (torch.empty(4, 4), torch.empty(4, 4), torch.empty(4))]


def _rounded(rates: Sequence[float]) -> str:
    return ", ".join(f"{it:.4f}" for it in rates)
