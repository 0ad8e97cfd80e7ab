"""Real routers of megatron-core, which record their losses in its tracker."""

from __future__ import annotations

import importlib
import inspect
from typing import TYPE_CHECKING, Any

from . import shims

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

EXPERTS, HIDDEN = 4, 8
MICRO_BATCHES, STEPS = 2, 2
NAMES = ("load_balancing_loss", "z_loss")
"""The losses that they record."""
ASKED: list[str] = []
"""The device of each tensor of zeros that was made."""


def on_cpu() -> None:
    """Import the routers for a CPU, and let their module make its tensors there."""
    import torch

    shims.cuda_on_cpu()
    real = torch.zeros

    def zeros(*size: Any, device: Any = None, **others: Any) -> Any:
        ASKED.append(str(device))
        return real(*size, device=shims.DEVICE if device == "cuda" else device, **others)

    torch.zeros = zeros
    moe_utils: Any = importlib.import_module("megatron.core.transformer.moe.moe_utils")
    vars(moe_utils).setdefault("te_general_gemm", None)
    places: Any = moe_utils, moe_utils.parallel_state  # the tracker moved from one to the other
    for name in ("get_moe_layer_wise_logging_tracker", "set_moe_layer_wise_logging_tracker"):
        found = next((vars(place)[name] for place in places if hasattr(place, name)), None)
        for place in places:
            vars(place).setdefault(name, found)
    importlib.import_module("megatron.core.transformer.moe.router")


def numbers(experts: Sequence[object], mtp: int | None, stages: int, stage: int) -> list[int]:
    """Return the numbers of a stage's layers with experts, from 1 on. The last stage has the MTP layers too."""
    layers, last = len(experts), stage == stages - 1
    own = range(layers // stages * stage, layers if last else layers // stages * (stage + 1))
    return [*(layer + 1 for layer in own if experts[layer]), *(layers + 1 + layer for layer in range(mtp or 0) if last)]


def make(experts: Sequence[object], mtp: int | None, **more: Any) -> list[Any]:
    """Return the routers of this rank's stage, which must have its groups; seed torch by the stage.

    ``experts`` says of each layer whether it has experts; ``mtp`` layers of multi-token prediction come beside them;
    ``more`` is what else the configuration has, or has in another way.
    """
    import torch
    from megatron.core import parallel_state
    from megatron.core.transformer.moe import moe_utils
    from megatron.core.transformer.moe.router import TopKRouter
    from megatron.core.transformer.transformer_config import TransformerConfig

    known: dict[str, Any] = {
        "num_layers": len(experts),
        "hidden_size": HIDDEN,
        "num_attention_heads": 2,
        "num_moe_experts": EXPERTS,
        "moe_router_topk": 2,
        "moe_router_load_balancing_type": "aux_loss",
        "moe_aux_loss_coeff": 0.01,
        "moe_z_loss_coeff": 0.001,
        **({"mtp_num_layers": mtp} if mtp else {}),  # not every release has it
        "add_bias_linear": False,
        "use_cpu_initialization": True,
    }
    config = TransformerConfig(**{**known, **more})
    accepted = inspect.signature(TopKRouter).parameters
    groups = {
        name: getattr(moe_utils, f"get_default_{name}")()
        for name in ("model_comm_pgs", "pg_collection")
        if name in accepted
    }
    made = []
    stage = parallel_state.get_pipeline_model_parallel_rank()
    torch.manual_seed(stage)
    for number in numbers(experts, mtp, parallel_state.get_pipeline_model_parallel_world_size(), stage):
        router = TopKRouter(config, **groups)
        router.set_layer_number(number)
        made.append(router.train())
    return made


def train(layers: Iterable[Any]) -> dict[str, float]:
    """Route random tokens as in one step of training; return what ``recorded`` does."""
    import torch

    for _batch in range(MICRO_BATCHES):
        for router in layers:
            router(torch.randn(4, 1, HIDDEN))
    return recorded()


def recorded() -> dict[str, float]:
    """Return the sum of the losses that this rank's routers have recorded since the last report, by name."""
    tracker = _tracker()
    return {name: float(tracker[name]["values"].sum()) if name in tracker else 0.0 for name in NAMES}


def recorded_by_layer() -> dict[str, list[float]]:
    """Return what this rank's routers have recorded of each layer since the last report, by the loss."""
    tracker = _tracker()
    return {name: tracker[name]["values"].tolist() for name in NAMES if name in tracker}


def forget() -> None:
    """Drop what another rank in this process has recorded."""
    if hasattr(_moe_utils(), "get_moe_metrics_tracker"):
        importlib.import_module("megatron.core.transformer.moe.moe_logging").destroy_moe_metrics_tracker()
    else:
        _tracker().clear()


def _tracker() -> Any:
    return _moe_utils().get_moe_layer_wise_logging_tracker()


def _moe_utils() -> Any:
    return importlib.import_module("megatron.core.transformer.moe.moe_utils")
