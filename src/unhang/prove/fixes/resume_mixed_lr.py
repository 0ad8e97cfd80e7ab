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
    r"use_megatron_fsdp|custom_fsdp|HybridDevice|len\(steps\)|precision_aware|store_param_rem|numel\(\)": _OTHERS,
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
    from torch.overrides import TorchFunctionMode

    class OnCpu(TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            named = dict(kwargs or {})
            return function(*args, **named, **({"device": "cpu"} if named.pop("device", None) is not None else {}))
