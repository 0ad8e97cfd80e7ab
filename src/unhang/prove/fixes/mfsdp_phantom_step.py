"""megatron-core: the real Megatron-FSDP, model and optimizer, on real ranks, beside the same training without it.

``Counting`` stands in for optimizers that count steps in their groups, as Transformer Engine's FusedAdam does, which
needs a GPU. A checkpoint of the optimizer is loaded as DCP does: in place, into the states that are there.
"""

from __future__ import annotations

import ast
import inspect
from typing import TYPE_CHECKING, Any, NamedTuple

from ..cases import DIFFERS, PASSED, Case, Topology
from ..ranks import megatron_fsdp, shims

if TYPE_CHECKING:
    from collections.abc import Sequence

_AT = "not as without Megatron-FSDP"
_ONE, _TWO = Topology(), Topology(dp=2)
_DECAY = {"weight_decay": 0.1}
_RATE, _STEPS = 0.01, 4
_ADAMW: dict[str, Any] = {"kind": "AdamW", "given": _DECAY}
_GROUPS: tuple[dict[str, float], ...] = ({}, {"weight_decay": 0.0})
_OPTIMIZERS: dict[str, tuple[dict[str, Any], str]] = {
    "AdamW": ({**_ADAMW, "groups": _GROUPS}, DIFFERS),
    "Adam": ({"kind": "Adam", "given": _DECAY}, DIFFERS),
    "Adam at a rate of a tensor": ({"kind": "Adam", "given": {"foreach": False}, "tensor": True}, DIFFERS),
    "Adam without decay": ({"kind": "Adam", "given": {"amsgrad": True}}, DIFFERS),
    "SGD": ({"kind": "SGD"}, PASSED),
    "SGD with decay": ({"kind": "SGD", "given": _DECAY}, DIFFERS),
    "SGD with momentum": ({"kind": "SGD", "given": {"momentum": 0.9}}, PASSED),
    "SGD with momentum and decay": ({"kind": "SGD", "given": {"momentum": 0.9, **_DECAY}}, DIFFERS),
    # upstream leaves the step sizes of a learning rate of 0
    "Rprop": ({"kind": "Rprop", "strategy": "no_shard", "beyond": True}, PASSED),
    "NAdam": ({"kind": "NAdam", "beyond": True}, DIFFERS),  # upstream leaves its second count as it is
    "Adagrad": ({"kind": "Adagrad", "given": {"lr_decay": 0.1}}, DIFFERS),  # has its states from the start
    "own counts": ({"kind": "Counting", "groups": ({}, {})}, DIFFERS),
    "own counts in tensors": ({"kind": "Counting", "tensor": True, "groups": ({}, {})}, DIFFERS),
    "a decay of another name": ({"kind": "Counting", "given": {"shrinks": 0.1}}, DIFFERS),
}
CASES = (
    Case("adamw", _ONE, DIFFERS, _AT, _ADAMW, core=True),
    Case("adam-2", _TWO, DIFFERS, _AT, _OPTIMIZERS["Adam"][0], core=True),
    Case("no-decay", _ONE, DIFFERS, _AT, _OPTIMIZERS["Adam without decay"][0], core=True),
    Case("momentum", _ONE, DIFFERS, _AT, _OPTIMIZERS["SGD with momentum and decay"][0], core=True),
    Case("sgd", _ONE, PASSED, options=_OPTIMIZERS["SGD"][0], core=True),
    Case("rprop", _ONE, PASSED, options=_OPTIMIZERS["Rprop"][0], core=True),
    Case("resumed-2", _TWO, PASSED, options={**_ADAMW, "loads": True}, core=True),
    Case("not-called", _ONE, PASSED, options={**_ADAMW, "late": _STEPS}),
)
GRID = [  # of two ranks: before 0.17, one alone doubles its gradient
    Case(f"{name}, {job}", _TWO, also or untouched, options={**optimizer, **options})
    for job, names, also, options in (
        ("from the start", [*_OPTIMIZERS], "", {}),
        ("weights whole", ["AdamW"], "", {"strategy": "no_shard", "groups": _GROUPS[::-1]}),
        ("loaded", ["AdamW", "own counts", "own counts in tensors"], PASSED, {"loads": True}),
        # upstream counts from 0 again
        ("wrapped after two steps", ["AdamW", "own counts", "own counts in tensors"], "", {"late": 2, "beyond": True}),
        ("not wrapped", ["AdamW"], PASSED, {"late": _STEPS}),
    )
    for name in names
    for optimizer, untouched in (_OPTIMIZERS[name],)
]
HELD = {
    r"optimizer\.param_groups:|_megatron_fsdp_model": "refuses what is no optimizer of Megatron-FSDP",
    r"param\.numel\(\) == 0": "no model has a weight without elements",
    "preprocess_optimizer_state_dict_for_uneven_dtensor": "what a checkpoint is made of comes later",
    "dict_nested_shallow_copy": "what a checkpoint is made of comes later",
    '"lr" in group': "of upstream's fix: each optimizer has one",
    "before_optimizer_step|install_optimized_model_weights|zero_grad_buffer": "later, in a step, by its arguments",
}
YOURS = Case("yours", _TWO, DIFFERS, _AT, _ADAMW)


def settings(case: Case) -> dict[str, Any]:
    """Return what the user of a case's job sets."""
    options, given = case.options, case.options.get("given", {})
    counts = options["kind"] not in ("SGD", "Rprop")
    return {
        "code that calls Megatron-FSDP's fully_shard or fully_shard_optimizer": options.get("late", 0) < _STEPS,
        "an optimizer that counts steps or decays weights": counts or "weight_decay" in given,
        "a start without the optimizer's checkpoint": not options.get("loads", False),
    }


def has_feature(function: ast.FunctionDef) -> bool:
    """Return whether the function makes states, which a checkpoint is loaded into."""
    return "zeros_like" in ast.unparse(function)


def caveat(case: Case) -> str:
    """Return what the case leaves open."""
    return (
        ""
        if case.is_control
        else "only code that calls fully_shard or fully_shard_optimizer; --use-megatron-fsdp does not"
    )


class Seen(NamedTuple):
    """What one rank has, before the first step and after each."""

    weights: list[list[list[float]]]
    """This rank's part of each weight."""
    losses: list[float]


def prepare() -> None:
    """Import Megatron-FSDP for a CPU."""
    megatron_fsdp.prepare()


def on_rank(case: Case, rank: int) -> Seen:
    """Train the model under Megatron-FSDP."""
    shims.gloo_as_nccl()
    wrap = megatron_fsdp.module().fully_shard_optimizer
    late, strategy = _late(case), case.options.get("strategy", "optim_grads_params")
    start, earlier, (whole,), _ = _plain(case)
    model = megatron_fsdp.wrapped(
        start,
        zero_dp_strategy=strategy,
        calculate_per_token_loss=True,  # gloo cannot scale what it reduces
    )
    optimizer = _optimizer(case, model.parameters())
    parts = [getattr(it, "_local_tensor", it).detach() for it in model.parameters()]
    saved, seen = [it.clone() for it in parts], Seen([], [])
    for step in range(_STEPS + 1):
        if step == late < _STEPS:
            given = {
                "model": model,
                "optimizer": optimizer,
                "preproc_state_dict_for_dcp_ckpt": case.options["kind"] == "AdamW",
            }
            wrap(**{name: given[name] for name in inspect.signature(wrap).parameters})
        if _earlier(case) and not step:
            for part, value in zip(parts, saved):
                part.copy_(value)
            _load(optimizer, earlier, whole, saved)
            model.install_optimized_model_weights()
        seen.weights.append(_numbers(parts))
        if step == _STEPS:
            break
        loss = _loss(model, rank)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step < late:  # what a wrapped optimizer does
            model.install_optimized_model_weights()
            model.zero_grad_buffer()
        seen.losses.append(loss.item())
    return seen


def wrong(case: Case, ranks: Sequence[Seen]) -> str:
    """Return what differs from the same training without Megatron-FSDP; empty if nothing does."""
    whole = case.options.get("strategy") == "no_shard"
    _, _, weights, losses = _plain(case, _STEPS)
    for step, due in enumerate(weights):
        for number, wanted in enumerate(due):
            parts = [it.weights[step][number] for it in ranks]
            for found in parts if whole else [[value for part in parts for value in part]]:
                if not _close(found, wanted):
                    when = f"after step {step}" if step else "before the first step"
                    return f"weight {number} {when} is {_AT}: {_rounded(found)}, due {_rounded(wanted)}"
    if not all(_close(it.losses, due) for it, due in zip(ranks, losses)):
        return f"the losses are {_AT}: {[_rounded(it.losses) for it in ranks]}, due {losses}"
    return ""


def right(case: Case, ranks: Sequence[Seen]) -> str:
    """Return what was seen."""
    return (
        f"the weights are those of the training without Megatron-FSDP, {_rounded(ranks[0].weights[1][0])} after step 1"
    )


def _earlier(case: Case) -> int:
    """Return how many steps before the job a checkpoint has that it loads, where there are states to load into."""
    return 2 if case.options.get("loads") and case.options.get("feature", True) else 0


def _late(case: Case) -> int:
    """Return after how many steps the optimizer is wrapped: before it has states, where that forgets them."""
    late: int = case.options.get("late", 0)
    return late if late == _STEPS or case.options.get("feature", True) else 0


def _plain(case: Case, steps: int = 0) -> tuple[Any, Any, list[list[list[float]]], list[list[float]]]:
    """Train in one process on what all ranks get. Return the model, its optimizer, and the weights and losses."""
    import torch

    torch.manual_seed(0)
    unit = type("Unit", (torch.nn.Sequential,), {})
    units = [unit(torch.nn.Linear(3, rows, bias=False)) for rows in (3, 1)]
    model = torch.nn.Sequential(*units)
    optimizer, earlier = _optimizer(case, model.parameters()), _earlier(case)
    weights, losses = [], [[] for _ in range(case.topology.world)]  # type: ignore[var-annotated]
    for step in range(earlier + steps + 1):
        if step >= earlier:
            weights.append(_numbers(model.parameters()))
        if step == earlier + steps:
            break
        for rank, each in enumerate(losses):
            loss = _loss(model, rank)
            loss.backward()
            each.extend([loss.item()] * (step >= earlier))
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer, weights, losses


def _loss(model: Any, rank: int) -> Any:
    import torch

    return (model(torch.tensor([[1.0, 2.0, -1.0 - rank], [0.5, -1.0, 3.0]])) - 1).pow(2).sum()


def _optimizer(case: Case, parameters: Any) -> Any:
    import torch

    class Counting(torch.optim.Optimizer):  # type: ignore[misc]
        """Counts steps in its groups, and in its states, and needs both counts."""

        def __init__(self, of: Any, lr: Any, shrinks: float = 0.0) -> None:
            super().__init__(of, {"lr": lr, "shrinks": shrinks})

        def step(self) -> None:
            for group in self.param_groups:
                group.setdefault("step", group["lr"] * 0)
                group["step"] += 1  # a tensor in place
                for it in group["params"]:
                    if it.grad is not None:
                        state = self.state[it]
                        state["step"] = state.get("step", 0) + 1
                        mean = state.setdefault("mean", torch.zeros_like(it)).mul_(0.9).add_(it.grad)
                        mean = mean * (1 - 0.9 ** float(group["step"])) * (1 - 0.5 ** state["step"])
                        it.data.sub_(float(group["lr"]) * (mean + group["shrinks"] * it.detach()))

    kind = {"Counting": Counting}.get(case.options["kind"]) or getattr(torch.optim, case.options["kind"])
    rate = torch.tensor(_RATE) if case.options.get("tensor") else _RATE
    # one for each weight, with what it has for itself; up to 0.15, upstream makes one of all
    groups = case.options.get("feature", True) and case.options.get("groups")
    of = [{"params": [it], **own} for it, own in zip(parameters, groups)] if groups else parameters
    return kind(of, lr=rate, **case.options.get("given", {}))


def _load(optimizer: Any, earlier: Any, whole: Sequence[list[float]], parts: Sequence[Any]) -> None:
    """Load what an optimizer without Megatron-FSDP has into the states that are there: this rank's part of it."""
    theirs, ours = earlier.state_dict(), optimizer.state_dict()
    for number, state in ours["state"].items():  # none of an empty part
        first = whole[number].index(float(parts[number].flatten()[0]))
        for key, value in theirs["state"][number].items():
            if key in state and getattr(value, "ndim", False):
                mine = getattr(state[key], "_local_tensor", state[key])
                mine.copy_(value.flatten()[first : first + mine.numel()].view_as(mine))
            elif key in state:
                state[key] = value
    for mine, other in zip(ours["param_groups"], theirs["param_groups"]):
        mine.update({key: other[key] for key in ("step",) if key in mine})
    optimizer.load_state_dict(ours)


def _numbers(tensors: Any) -> list[list[float]]:
    return [it.detach().flatten().tolist() for it in tensors]


def _close(found: Sequence[float], due: Sequence[float]) -> bool:
    return len(found) == len(due) and all(abs(one - other) <= 1e-5 for one, other in zip(found, due))


def _rounded(values: Sequence[float]) -> list[float]:
    return [round(value, 5) for value in values]
