"""megatron-core: real optimizers and the real scheduler, saved after two steps and loaded into new ones.

The rates and the weights from there on are compared with those of AdamW alone, without a break. Stand-ins: the groups
are the case's own, as ms-swift makes its own, or Megatron's, by ``decoupled_lr``. Weights, and the moments of the
distributed optimizer, are copied.
"""

from __future__ import annotations

import copy
import importlib
import sys
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from ..cases import DIFFERS, PASSED, Case, Topology
from ..ranks import megatron, shims

if TYPE_CHECKING:
    from collections.abc import Sequence

WARM = ("torch",)
_FILTER, _LOAD = "MegatronOptimizer._filter_and_reorder_param_groups", "DistributedOptimizer.load_state_dict"
_AT = "the rates of the next step are"
_STEPS, _SAVED, _LAST, _DECAY = 4, 2, 10, 0.1
_BASE, _HEAD = {"max_lr": 0.01, "min_lr": 0.0}, {"max_lr": 0.1, "min_lr": 0.001}
_NORM: dict[str, Any] = {**_BASE, "wd_mult": 0.0}
_KINDS: dict[str, list[dict[str, Any]]] = {
    "rates": [_BASE, _HEAD, _NORM],
    "the large first": [_HEAD, _BASE, _NORM],
    "three rates": [_BASE, _HEAD, {**_BASE, "max_lr": 0.05}],
    "final rates": [_BASE, {**_BASE, "min_lr": 0.009}, _NORM],
    "betas": [_BASE, {**_BASE, "betas": (0.5, 0.9)}, _NORM],
    "keys": [_BASE, {**_BASE, "wd_mult": 0.5}, _NORM],
}
"""What sets each weight's group apart. Only those of the last differ in the keys."""
_REAL, _SHARDED = {"kind": "rates", "megatrons": True}, {"sharded": True}
CASES = (
    Case("decoupled-lr", Topology(), DIFFERS, _AT, {**_REAL, **_SHARDED}, core=True),
    Case("decoupled-lr-2", Topology(dp=2), DIFFERS, _AT, {**_REAL, **_SHARDED}, core=True),
    Case("decoupled-lr-whole", Topology(), DIFFERS, _AT, _REAL, core=True),
    Case("doubled", Topology(), DIFFERS, _AT, {"kind": "rates", "how": "doubled", **_SHARDED}),
    Case("one-rate", Topology(), PASSED, options={"kind": "keys", **_SHARDED}, core=True),
    Case("not-resumed", Topology(), PASSED, options={**_REAL, **_SHARDED, "how": "fresh"}, core=True),
)
GRID = [
    Case(
        f"{kind}, {how}, {f'sharded over {ranks}' if ranks else 'whole'}",
        Topology(dp=ranks or 1),
        PASSED if kind == "keys" else DIFFERS,
        options={
            **{"kind": kind, "how": how, "sharded": ranks > 0, "of": [_LOAD if ranks else _FILTER]},
            "beyond": how in ("reversed", "doubled", "one doubled") or kind == "betas",  # upstream refuses other rates
        },
    )
    for ranks in (0, 1, 2)
    for kind in _KINDS
    for how in ("again", "reversed", "doubled", "one doubled", "NeMo's names", "into states")
    if (how == "again" or kind in ("rates", "keys")) and (ranks or how != "into states")
]
_OTHERS = "another optimizer, format or dtype than these"
HELD = {
    "key not in loaded_groups_map|pre_{key}": "a group that no saved one goes with is refused",
    r"_fsdp|HybridDevice|steps|in g$|precision_aware|store_param_rem|numel\(\)": _OTHERS,
    r"param_to_group_meta|HAVE_APEX|grad_scaler|config\.fp16|param_state|sharding_type": _OTHERS,
}
YOURS = Case("yours", Topology(), DIFFERS, _AT, {**_REAL, **_SHARDED})


def settings(case: Case) -> dict[str, Any]:
    """Return what the user of such a job sets."""
    return {
        **{"decoupled_lr": 0.1 if case.options.get("megatrons") else None, "version megatron-core": "0.18.2"},
        "groups of parameters with rates of their own (Bridge's LoRA+, config_overrides)": case.options["kind"]
        != "keys",
        "a checkpoint is loaded with its optimizer": case.options.get("how") != "fresh",
    }


def caveat(case: Case) -> str:
    """Return what the case leaves open."""
    return "only a job with decoupled_lr, which yours may not have" if case.name == "yours" else ""


def prepare() -> None:
    """Import the optimizers for a CPU, without Transformer Engine and apex, whose Adam needs a GPU."""
    shims.cuda_on_cpu()
    import torch

    of_type, tensor = torch.Tensor.type, torch.tensor
    torch.Tensor.type = lambda self, *given: of_type(self, *given) if given else "torch.cuda.FloatTensor"
    torch.tensor = lambda *given, device=None, **named: tensor(*given, **named)
    sys.modules.update(dict.fromkeys(("transformer_engine", "apex", "amp_C")))  # type: ignore[arg-type]
    importlib.import_module("megatron.core.distributed")
    importlib.import_module("megatron.core.optimizer")


def on_rank(case: Case, rank: int) -> tuple[list[list[float]], list[list[Any]]]:
    """Train, break off, load into a new job, and train on. Return each further step's rates, and weights after it."""
    shims.gloo_as_nccl()
    megatron.initialize(case.topology)
    how = case.options.get("how", "again")
    job, seen = _Job(case, ""), ([], [])  # type: ignore[var-annotated]
    for step in range(_STEPS):
        if step == _SAVED and how != "fresh":
            earlier, job = job, _Job(case, how)
            job.load(earlier)
        if step >= _SAVED:
            seen[0].append([job.group(number)["lr"] for number in range(3)])
        for weight, gradient in zip(job.weights, _numbers(step + 1)):
            weight.main_grad.copy_(gradient)
        job.optimizer.step()
        job.scheduler.step(1)
        if step >= _SAVED:
            seen[1].append([it.detach().clone() for it in job.weights])
    return seen


class _Job:
    """A model of three weights, its optimizer and its scheduler."""

    def __init__(self, case: Case, how: str) -> None:
        import torch
        from megatron.core import distributed, optimizer, optimizer_param_scheduler
        from megatron.core.transformer.transformer_config import TransformerConfig

        self.sharded, self.how = bool(case.options.get("sharded")), how
        self.order = [2, 1, 0] if how == "reversed" else [0, 1, 2]
        model, config = torch.nn.Module(), TransformerConfig(num_layers=1, hidden_size=4, num_attention_heads=4)
        model.weights = torch.nn.ParameterList(_numbers(0))
        self.weights = [*model.weights]
        self.weights[1].is_embedding_or_output_parameter = True
        groups, nemo = [], case.options.get("how") == "NeMo's names"
        for number, own in enumerate(_KINDS[case.options["kind"]]):
            keys = {
                "wd_mult": 1.0,
                "pre_" * nemo + "lr_mult": 1.0,
                "is_expert_parallel": False,
                "is_decoupled_lr": False,
            }
            factor = 2 if how == "doubled" or (how == "one doubled" and number == 0) else 1
            groups.append({**keys, **own, "max_lr": factor * own["max_lr"], "params": [self.weights[number]]})
        own_groups = [groups[number] for number in self.order]
        parallel = distributed.DistributedDataParallelConfig(use_distributed_optimizer=self.sharded)
        wrapped = distributed.DistributedDataParallel(config, parallel, model)
        given = optimizer.OptimizerConfig(
            **{"optimizer": "adam", "clip_grad": 0.0, "params_dtype": torch.float32, "weight_decay": _DECAY},
            **{"lr": 0.01, "min_lr": 0.0, "decoupled_lr": 0.1, "decoupled_min_lr": 0.001},
            use_distributed_optimizer=self.sharded,
        )
        megatrons = optimizer._get_param_groups if case.options.get("megatrons") else lambda *_, **__: own_groups
        with patch.object(optimizer, "_get_param_groups", megatrons):
            made = optimizer.get_megatron_optimizer(given, [wrapped], use_gloo_process_groups=False)
        self.optimizer = getattr(made, "chained_optimizers", [made])[0]
        self.scheduler = optimizer_param_scheduler.OptimizerParamScheduler(
            **{"optimizer": self.optimizer, "init_lr": 0.0, "max_lr": 0.01, "min_lr": 0.0, "lr_warmup_steps": 0},
            **{"lr_decay_steps": _LAST, "lr_decay_style": "linear", "start_wd": _DECAY, "end_wd": _DECAY},
            **{"wd_incr_steps": 0, "wd_incr_style": "constant"},
        )

    def group(self, number: int) -> Any:
        return self.optimizer.param_groups[self.order.index(number)]

    def load(self, other: _Job) -> None:
        """Load another job's state, in which a distributed checkpoint orders the weights as they are here."""
        if self.how == "into states":
            self.optimizer.step()
        for mine, theirs in zip(self.weights, other.weights):
            mine.data.copy_(theirs.data)
        saved = copy.deepcopy(other.optimizer.state_dict())
        if not self.sharded:
            saved["state"] = {self.order.index(number): state for number, state in saved["state"].items()}
            for place, group in enumerate(saved["param_groups"]):
                group["params"] = [place]
        self.optimizer.load_state_dict(saved)
        for number in range(3 * self.sharded):
            for mine, theirs in zip(self.group(number)["params"], other.group(number)["params"]):
                mine.data.copy_(theirs.data)
                self.optimizer.optimizer.state[mine] = copy.deepcopy(other.optimizer.optimizer.state[theirs])
        self.scheduler.load_state_dict(other.scheduler.state_dict())


def wrong(case: Case, ranks: Sequence[Any]) -> str:
    """Return which rate or weight differs from training without a break; empty where none does."""
    due = _due(case)
    for rates, weights in ranks:
        if any(abs(one - other) > 1e-9 for one, other in zip(rates[0], due[0][0])):
            return f"{_AT} {_rounded(rates[0])}, due {_rounded(due[0][0])}"
        for found, wanted in zip(weights, due[1]):
            for number, off in enumerate(float((one - other).abs().max()) for one, other in zip(found, wanted)):
                if not off < 1e-5:
                    return f"weight {number} is off by {off:.5f}"
    return ""


def right(case: Case, ranks: Sequence[Any]) -> str:
    """Return what was seen."""
    return f"{_AT} {_rounded(ranks[0][0][0])}, as without a break"


def _due(case: Case) -> tuple[list[list[float]], list[list[Any]]]:
    """Return what plain AdamW does, with each rate by its formula."""
    import torch

    kinds, weights, seen = _KINDS[case.options["kind"]], [*map(torch.nn.Parameter, _numbers(0))], ([], [])  # type: ignore[var-annotated]
    adam = torch.optim.AdamW(
        {"params": [it], "betas": own.get("betas", (0.9, 0.999))} for it, own in zip(weights, kinds)
    )
    for step in range(_STEPS):
        for group, own, gradient in zip(adam.param_groups, kinds, _numbers(step + 1)):
            group["lr"] = own["min_lr"] + (own["max_lr"] - own["min_lr"]) * (1 - step / _LAST)
            group["weight_decay"], group["params"][0].grad = _DECAY * own.get("wd_mult", 1.0), gradient
        adam.step()
        if step >= _SAVED:
            seen[0].append([group["lr"] for group in adam.param_groups])
            seen[1].append([it.detach().clone() for it in weights])
    return seen


def _numbers(seed: int) -> list[Any]:
    import torch

    torch.manual_seed(seed)
    return [torch.randn(4, 4), torch.randn(4, 4), torch.randn(4)]


def _rounded(rates: Sequence[float]) -> str:
    return ", ".join(f"{it:.4f}" for it in rates)
