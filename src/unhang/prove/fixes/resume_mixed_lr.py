"""megatron-core: real optimizers, DDP and scheduler, saved after two steps and loaded into new ones.

The rates and the weights a step later are compared with those of a run without a break. Stand-ins: the groups are the
case's own, as ms-swift makes its own, or Megatron's, by ``decoupled_lr``. Weights, and the moments of the distributed
optimizer, are copied: other functions load these.
"""

from __future__ import annotations

import ast
import copy
import importlib
import sys
from typing import Any
from unittest.mock import patch

from ..cases import DIFFERS, PASSED, Case, Topology
from ..ranks import megatron, shims

WARM = ("torch",)
_FILTER, _LOAD = "MegatronOptimizer._filter_and_reorder_param_groups", "DistributedOptimizer.load_state_dict"
_AT, _STEPS, _SAVED, _DECAY = "the rates of the next step are", 3, 2, 0.1
_BASE: dict[str, Any] = {"max_lr": 0.01, "min_lr": 0.0}
_HEAD, _NORM = {"max_lr": 0.1, "min_lr": 0.001}, {**_BASE, "wd_mult": 0.0}
_KINDS: dict[str, list[dict[str, Any]]] = {
    "rates": [_BASE, _HEAD, _NORM],
    "three rates": [_BASE, _HEAD, {**_BASE, "max_lr": 0.05}],
    "final rates": [_BASE, {**_BASE, "min_lr": 0.009}, _NORM],
    "betas": [_BASE, {**_BASE, "betas": (0.5, 0.9)}, _NORM],
    "one rate twice": [_BASE, _BASE, _NORM],
    "norm second": [_BASE, _NORM, {**_BASE, "max_lr": 0.05}],
    "keys": [_BASE, {**_BASE, "wd_mult": 0.5}, _NORM],
}
"""What sets each weight's group apart. Only those of the last all differ in the keys."""
_CHANGED = ("reversed", "doubled", "another torch", "from 0.15")
_ONE = "another torch for one", 1  # so that two groups of "one rate twice" are nearest to one and the same
_MORE = ("norm second", "doubled"), ("one rate twice", _ONE[0])


def _case(name: str, ranks: int, kind: str = "rates", how: str = "again", core: bool = False, **options: Any) -> Case:
    """Return a case of a distributed optimizer on these ranks; of a whole one with none."""
    beyond = how in _CHANGED or kind in ("betas", "one rate twice")  # upstream's fix has no answer
    options = {"kind": kind, "how": how, "sharded": ranks > 0, "beyond": beyond, **options}
    options["may_pass"] = kind == "one rate twice"  # with the distributed optimizer
    is_right = kind == "keys" or how == "fresh" or (options["may_pass"] and ranks > 0)
    return Case(name, Topology(dp=ranks or 1), PASSED if is_right else DIFFERS, "" if is_right else _AT, options, core)


CASES = (
    _case("decoupled-lr", 1, core=True, own=False),
    _case("decoupled-lr-2", 2, core=True, own=False),
    _case("decoupled-lr-whole", 0, core=True, own=False),
    _case("three-rates", 1, "three rates", core=True),
    _case("one-rate", 1, "keys", core=True),
    _case("not-resumed", 1, how="fresh", core=True, own=False),
)
GRID = [
    _case(f"{kind}, {how}, {ranks}", ranks, kind, how, of=[_LOAD if ranks else _FILTER], twice=ranks > 1)
    for ranks in (0, 1, 2)
    for kind in _KINDS
    for how in ("again", "NeMo's names", _ONE[0], *_CHANGED)
    if how == "again" or (kind in ("three rates", "keys") and how != _ONE[0]) or (kind, how) in _MORE
]
_OTHER = "another optimizer, format or dtype than these"
HELD = {
    "key not in loaded_groups_map|pre_{key}": "a group that no saved one goes with is refused",
    r"fsdp|Hybrid|steps|in g$|aware|remainders|numel|offload|param_to|APEX|scaler|fp16|_state|sharding|flag or": _OTHER,
}
YOURS = _case("yours", 1, own=False)


def settings(case: Case) -> dict[str, Any]:
    """Return what the user of such a job sets."""
    own, kind = case.options.get("own", True), case.options["kind"]
    return {
        **{"decoupled_lr": None if own else 0.1, "version megatron-core": "0.18.2", "use_megatron_fsdp": False},
        **{"use_mup": False, "vit_lr": None, "aligner_lr": None},
        "groups of parameters with rates of their own (Bridge's LoRA+, config_overrides)": own and kind != "keys",
        "a checkpoint is loaded with its optimizer": case.options["how"] != "fresh",
    }


def has_feature(function: ast.FunctionDef) -> bool:
    """Return whether the function finds a saved group by its keys, and not by its place."""
    return "groups_map" in ast.unparse(function)


def prepare() -> None:
    """Import the optimizers for a CPU, without Transformer Engine and apex, whose Adam needs a GPU."""
    shims.cuda_on_cpu()
    sys.modules.update(dict.fromkeys(("transformer_engine", "apex", "amp_C")))  # type: ignore[arg-type]
    importlib.import_module("megatron.core.distributed")
    optimizer: Any = importlib.import_module("megatron.core.optimizer")
    optimizer.DistributedOptimizer._optimizer_state_offloader = None  # a commit may ask for it


@shims.on_cpu()
def on_rank(case: Case, rank: int) -> tuple[list[Any], list[Any]]:
    """Train with a break and without one. Return the rates of the next step of both, and the weights."""
    shims.gloo_as_nccl()
    megatron.initialize(case.topology, more={"create_gloo_process_groups": True})
    job, whole = _Job(case), _Job(case)
    for step in range(_STEPS):
        if step == _SAVED and case.options["how"] != "fresh":
            job = _Job(case, 2 if case.options["how"] == "doubled" else 1).loaded(job)
        for each in (job, whole):
            for weight, gradient in zip(each.weights, _numbers(step + 1)):
                weight.main_grad.copy_(gradient)
            each.optimizer.step()
            each.scheduler.step(1)
    rates = [[it["lr"] for it in each.optimizer.param_groups] for each in (job, whole)]
    return rates, [[it.tolist() for it in each.weights] for each in (job, whole)]


class _Job:
    """A model of three weights, its optimizer and its scheduler."""

    def __init__(self, case: Case, factor: int = 1) -> None:
        import torch
        from megatron.core import distributed, optimizer, optimizer_param_scheduler
        from megatron.core.transformer.transformer_config import TransformerConfig

        self.how, self.sharded = case.options["how"], case.options["sharded"]
        self.is_twice = case.options.get("twice", False)
        model = torch.nn.ParameterList(_numbers(0))
        self.weights = [*model]
        self.weights[1].is_embedding_or_output_parameter = True
        config = TransformerConfig(num_layers=1, hidden_size=4, num_attention_heads=4)
        parallel = distributed.DistributedDataParallelConfig(use_distributed_optimizer=self.sharded)
        rates = {"lr": 0.01, "min_lr": 0.0, "decoupled_lr": 0.1, "decoupled_min_lr": 0.001, "weight_decay": _DECAY}
        given = optimizer.OptimizerConfig(clip_grad=0.0, use_distributed_optimizer=self.sharded, **rates)
        lr_mult = "pre_lr_mult" if self.how == "NeMo's names" else "lr_mult"
        keys = {"wd_mult": 1.0, lr_mult: 1.0, "is_expert_parallel": False, "is_decoupled_lr": False}
        every = zip(_KINDS[case.options["kind"]], self.weights)
        groups = [{**keys, **own, **{name: own[name] * factor for name in _BASE}, "params": [it]} for own, it in every]
        made_by = (lambda *_, **__: groups) if case.options.get("own", True) else optimizer._get_param_groups
        wrapped = [distributed.DistributedDataParallel(config, parallel, model)]
        with patch.object(optimizer, "_get_param_groups", made_by):
            made = optimizer.get_megatron_optimizer(given, wrapped)
        self.optimizer = getattr(made, "chained_optimizers", [made])[0]
        self.scheduler = optimizer_param_scheduler.OptimizerParamScheduler(
            *(self.optimizer, 0.0, 0.01, 0.0, 0, 10, "linear", _DECAY, _DECAY, 0, "constant")  # 10 steps, no warm-up
        )

    def loaded(self, other: _Job) -> _Job:
        """Return this, with another job's state; a distributed checkpoint has the weights in the order of this one."""
        for mine, theirs in zip(self.weights, other.weights):
            mine.data.copy_(theirs.data)
        saved = copy.deepcopy(other.optimizer.state_dict())
        groups = saved.get("optimizer", saved)["param_groups"]
        groups[:] = groups[::-1] if self.how in ("reversed", "another torch") else groups
        for place, group in enumerate(groups):
            group["params"] = [place]
            group |= {"foreach": False} if self.how == "another torch" or (self.how, place) == _ONE else {}
            group |= {"is_decoupled_lr": group["max_lr"] == 0.1} if self.how == "from 0.15" else {}
        for _ in range(1 + self.is_twice):  # as for a distributed checkpoint: states are there at the second time
            self.optimizer.load_state_dict(copy.deepcopy(saved))
        for group, its in zip(self.optimizer.param_groups, other.optimizer.param_groups * self.sharded):
            for mine, theirs in zip(group["params"], its["params"]):
                self.optimizer.optimizer.state[mine] = copy.deepcopy(other.optimizer.optimizer.state[theirs])
        self.scheduler.load_state_dict(other.scheduler.state_dict())
        return self


def wrong(case: Case, ranks: Any) -> str:
    """Return what is wrong with the rates or the weights; empty where nothing is."""
    return "" if all(job == whole for seen in ranks for job, whole in seen) else right(case, ranks)


def right(case: Case, ranks: Any) -> str:
    """Return what was seen."""
    (rates, due), (weights, wanted) = ranks[0]
    shown, same = [", ".join(f"{it:.4f}" for it in row) for row in (rates, due)], map(list.__eq__, weights, wanted)
    return f"{_AT} {shown[0]}, due {shown[1]}; weights as without a break: {sum(same)} of 3"


def _numbers(seed: int) -> list[Any]:
    import torch

    torch.manual_seed(seed)
    return [torch.randn(4, 4), torch.randn(4, 4), torch.randn(4)]
