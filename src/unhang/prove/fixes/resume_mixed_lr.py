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
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from ..cases import DIFFERS, PASSED, Case, Topology
from ..ranks import megatron, shims

if TYPE_CHECKING:
    from collections.abc import Sequence

WARM = ("torch",)
_FILTER, _LOAD = "MegatronOptimizer._filter_and_reorder_param_groups", "DistributedOptimizer.load_state_dict"
_AT, _STEPS, _SAVED, _DECAY = "the rates of the next step are", 3, 2, 0.1
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
_HOW = ("again", "reversed", "doubled", "one doubled", "NeMo's names", "into states")


def _case(name: str, ranks: int, kind: str = "rates", how: str = "again", core: bool = False, **options: Any) -> Case:
    """Return a case: unless told, Megatron's own groups, sharded over these ranks, or whole with none."""
    options = {"kind": kind, "how": how, "sharded": ranks > 0, **options}
    is_right = kind == "keys" or how == "fresh"
    return Case(name, Topology(dp=ranks or 1), PASSED if is_right else DIFFERS, "" if is_right else _AT, options, core)


CASES = (
    _case("decoupled-lr", 1, core=True, own=False),
    _case("decoupled-lr-2", 2, core=True, own=False),
    _case("decoupled-lr-whole", 0, core=True, own=False),
    _case("three-rates", 1, "three rates", core=True),
    _case("doubled", 1, how="doubled"),
    _case("one-rate", 1, "keys", core=True),
    _case("not-resumed", 1, how="fresh", core=True, own=False),
)
GRID = [
    _case(f"{kind}, {how}, {ranks}", ranks, kind, how, of=[_LOAD if ranks else _FILTER], beyond=beyond)
    for ranks in (0, 1, 2)
    for kind in _KINDS
    for how in _HOW
    for beyond in [how in ("reversed", "doubled", "one doubled") or kind == "betas"]  # upstream refuses other rates
    if (how == "again" or kind in ("rates", "keys")) and (ranks or how != "into states")
]
_OTHERS = "another optimizer, format or dtype than these"
HELD = {
    "key not in loaded_groups_map|pre_{key}": "a group that no saved one goes with is refused",
    r"_fsdp|HybridDevice|steps|in g$|precision_aware|store_param_rem|numel\(\)": _OTHERS,
    r"param_to_group_meta|HAVE_APEX|grad_scaler|config\.fp16|param_state|sharding_type": _OTHERS,
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


def caveat(case: Case) -> str:
    """Return what the case leaves open."""
    return "only a job with decoupled_lr, which yours may not have"


def has_feature(function: ast.FunctionDef) -> bool:
    """Return whether the function finds a saved group by its keys, and not by its place."""
    return "groups_map" in ast.unparse(function)


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


def on_rank(case: Case, rank: int) -> list[tuple[list[float], list[Any]]]:
    """Train with a break and without one. Return the rates of the next step, and the weights, of each."""
    shims.gloo_as_nccl()
    megatron.initialize(case.topology, more={"create_gloo_process_groups": True})
    job, whole = _Job(case), _Job(case)
    for step in range(_STEPS):
        if step == _SAVED and case.options["how"] != "fresh":
            earlier, job = job, _Job(case, case.options["how"])
            job.load(earlier)
        job.train(step)
        whole.train(step)
    return [([it["lr"] for it in each.groups()], [it.tolist() for it in each.weights]) for each in (job, whole)]


class _Job:
    """A model of three weights, its optimizer and its scheduler."""

    def __init__(self, case: Case, how: str = "") -> None:
        import torch
        from megatron.core import distributed, optimizer, optimizer_param_scheduler
        from megatron.core.transformer.transformer_config import TransformerConfig

        self.sharded, self.how = case.options["sharded"], how
        self.order = [2, 1, 0] if how == "reversed" else [0, 1, 2]
        model, config = torch.nn.Module(), TransformerConfig(num_layers=1, hidden_size=4, num_attention_heads=4)
        model.weights = torch.nn.ParameterList(_numbers(0))
        self.weights = [*model.weights]
        self.weights[1].is_embedding_or_output_parameter = True
        parallel = distributed.DistributedDataParallelConfig(use_distributed_optimizer=self.sharded)
        wrapped = distributed.DistributedDataParallel(config, parallel, model)
        given = optimizer.OptimizerConfig(
            **{"optimizer": "adam", "clip_grad": 0.0, "params_dtype": torch.float32, "weight_decay": _DECAY},
            **{"lr": 0.01, "min_lr": 0.0, "decoupled_lr": 0.1, "decoupled_min_lr": 0.001},
            use_distributed_optimizer=self.sharded,
        )
        own = [self._group(case, number) for number in self.order]
        made_by = (lambda *_, **__: own) if case.options.get("own", True) else optimizer._get_param_groups
        with patch.object(optimizer, "_get_param_groups", made_by):
            made = optimizer.get_megatron_optimizer(given, [wrapped])
        self.optimizer = getattr(made, "chained_optimizers", [made])[0]
        self.scheduler = optimizer_param_scheduler.OptimizerParamScheduler(
            *(self.optimizer, 0.0, 0.01, 0.0, 0, 10, "linear", _DECAY, _DECAY, 0, "constant")  # 10 steps, no warm-up
        )

    def _group(self, case: Case, number: int) -> dict[str, Any]:
        """Return the group of a weight as the case has it."""
        own, pre = _KINDS[case.options["kind"]][number], "pre_" * (case.options["how"] == "NeMo's names")
        rate = own["max_lr"] * (2 if self.how == "doubled" or (self.how == "one doubled" and number == 0) else 1)
        keys = {"wd_mult": 1.0, f"{pre}lr_mult": 1.0, "is_expert_parallel": False, "is_decoupled_lr": False}
        return {**keys, **own, "max_lr": rate, "params": [self.weights[number]]}

    def groups(self) -> list[Any]:
        """Return the group of each weight."""
        return [self.optimizer.param_groups[self.order.index(number)] for number in range(3)]

    def train(self, step: int) -> None:
        for weight, gradient in zip(self.weights, _numbers(step + 1)):
            weight.main_grad.copy_(gradient)
        self.optimizer.step()
        self.scheduler.step(1)

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
        for ours, group in zip(self.groups(), other.groups() * self.sharded):
            for mine, theirs in zip(ours["params"], group["params"]):
                self.optimizer.optimizer.state[mine] = copy.deepcopy(other.optimizer.optimizer.state[theirs])
        self.scheduler.load_state_dict(other.scheduler.state_dict())


def wrong(case: Case, ranks: Sequence[Any]) -> str:
    """Return what is wrong with the rates or the weights; empty where nothing is."""
    return "" if all(job == whole for job, whole in ranks) else right(case, ranks)


def right(case: Case, ranks: Sequence[Any]) -> str:
    """Return what was seen."""
    (rates, weights), (due, wanted) = ranks[0]
    shown, same = [", ".join(f"{it:.4f}" for it in row) for row in (rates, due)], map(list.__eq__, weights, wanted)
    return f"{_AT} {shown[0]}, due {shown[1]}; weights as without a break: {sum(same)} of 3"


def _numbers(seed: int) -> list[Any]:
    import torch

    torch.manual_seed(seed)
    return [torch.randn(4, 4), torch.randn(4, 4), torch.randn(4)]
