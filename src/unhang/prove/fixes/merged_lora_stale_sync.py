"""verl: its real engine sends a small model with LoRA, under torch's real FSDP, three times while the adapters grow.

The weights that arrive are kept until all are there, and then compared with those that peft merges in one process. What
the engine imports of verl besides its FSDP utilities are stand-ins, such as the quantizer of QAT: it keeps the signs.
"""

from __future__ import annotations

import importlib
import sys
from collections import OrderedDict
from copy import deepcopy
from itertools import groupby
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest.mock import MagicMock

from ..cases import DIFFERS, PASSED, Case, Outcome, Topology
from ..ranks import gloo, shims
from ..ranks.around import Around, any_module

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

WARM = ("torch", "torch.distributed.fsdp", "transformers", "peft", "tensordict", "accelerate")
_ONE, _TWO = Topology(), Topology(dp=2)
_WHERE = "the rollout's weights are"
CASES = (
    Case("two", _TWO, "ranks", DIFFERS, _WHERE, core=True),
    Case("two-bfloat16", _TWO, "ranks", DIFFERS, _WHERE, {"dtype": "bfloat16"}),
    Case("two-offload", _TWO, "ranks", DIFFERS, _WHERE, {"offload": True}),
    Case("two-policy", _TWO, "ranks", DIFFERS, _WHERE, {"policy": True}),
    Case("two-quantized", _TWO, "ranks", DIFFERS, _WHERE, {"qat": True}, core=True),
    Case("one", _ONE, "ranks", DIFFERS, _WHERE),
    Case("one-bfloat16", _ONE, "ranks", DIFFERS, _WHERE, {"dtype": "bfloat16"}, core=True),
    Case("one-bfloat16-quantized", _ONE, "ranks", DIFFERS, _WHERE, {"dtype": "bfloat16", "qat": True}),
    Case("fsdp1-two", _TWO, "ranks", PASSED, options={"fsdp": 1}, core=True),
    Case("fsdp1-two-offload", _TWO, "ranks", PASSED, options={"fsdp": 1, "offload": True}),
    Case("fsdp1-two-quantized", _TWO, "ranks", PASSED, options={"fsdp": 1, "qat": True}),
    Case("fsdp1-one", _ONE, "ranks", PASSED, options={"fsdp": 1}),
    Case("unmerged-two", _TWO, "ranks", PASSED, options={"merge": False}),
    Case("no-lora-two", _TWO, "ranks", PASSED, options={"lora": False}, core=True),
)
YOURS = Case("yours", Topology(), "ranks", DIFFERS, _WHERE)
_ENGINE, _UTILS = "verl.workers.engine.fsdp.transformer_impl", "verl.utils.fsdp_utils"
_SYNCS, _WIDTH, _RANK = 3, 16, 4
_CLOSE = 0.02
"""How far rounding to bfloat16 may take the weights of one layer."""


class Sync(NamedTuple):
    """One sync."""

    off: float
    """How far what arrived is from what is right: the norm of the difference, of the layer that differs most."""
    adapters: float
    """The same of the right weights and the base weights."""
    kept: bool
    """Whether the model has its own weights afterwards."""


def caveat(case: Case) -> str:
    """Return what the case leaves open."""
    return (
        ""
        if case.is_control
        else "a job with LoRA, model.lora.merge=True and the strategy fsdp2, which may not be yours"
    )


def prepare() -> None:
    """Import the real engine for a CPU."""
    shims.cuda_on_cpu()
    sys.meta_path.insert(0, Around("verl", (_ENGINE, _UTILS, "verl.utils.model"), any_module))
    _module(_ENGINE).get_device_id = lambda: "cpu"
    utils = _module(_UTILS)
    utils.get_device_name, utils.get_torch_device = lambda: "cpu", MagicMock()
    sys.modules["verl.utils.qat.quantizer"] = SimpleNamespace(QATQuantizer=_Quantizer)  # type: ignore[assignment]


def run(case: Case, deadline_s: float) -> Outcome:
    """Sync on every rank."""
    world = gloo.run(case.topology.world, lambda rank: list(_synced(case)), deadline_s=deadline_s)
    return world.outcome(_wrong, lambda ranks: _text(ranks[0]))


def _wrong(ranks: Sequence[Sequence[Sync]]) -> str:
    """Return what is wrong with the syncs; empty where nothing is."""
    for syncs in ranks:
        if any(sync.off > _CLOSE for sync in syncs):
            return _text(syncs)
        if not all(sync.kept for sync in syncs):
            return "the model does not have its own weights after a sync"
    return ""


def _text(syncs: Sequence[Sync]) -> str:
    off, adapters = (", ".join(f"{it:.3f}" for it in column) for column in list(zip(*syncs))[:2])
    return f"{_WHERE} off by {off}; the adapters change them by {adapters}"


def _synced(case: Case) -> Iterator[Sync]:
    """Sync several times; after each, the adapters grow."""
    import torch

    one, engine = _model(case), _engine(case)
    for _ in range(_SYNCS):
        before = _parts(engine.module)
        sent, _ = engine.get_per_tensor_param(base_sync_done=False)
        arrived = {name.replace(".base_layer", ""): it for name, it in list(sent)}
        right, base = _weights(case, one, case.options.get("merge", True)), _weights(case, one, False)
        assert arrived.keys() == right.keys()
        yield Sync(
            max(float((arrived[name].float() - it).norm()) for name, it in right.items()),
            max(float((base[name] - it).norm()) for name, it in right.items()),
            all(torch.equal(*pair) for pair in zip(before, _parts(engine.module))),
        )
        with torch.no_grad():
            for model in (one, engine.module):
                for name, weight in model.named_parameters():
                    if "lora_B" in name:
                        weight.mul_(1.5)


def _model(case: Case) -> Any:
    """Return a model of three layers, of which two have an adapter."""
    import torch
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(0)
    layers = {name: torch.nn.Linear(_WIDTH, _WIDTH) for name in ("q", "norm", "head")}
    block = torch.nn.Sequential(OrderedDict([(name, layers[name]) for name in ("q", "norm")]))
    model: Any = torch.nn.Sequential(OrderedDict(block=block, head=layers["head"]))
    if case.options.get("lora", True):
        model = get_peft_model(model, LoraConfig(r=_RANK, target_modules=["q"], init_lora_weights=False))
    return model.to(getattr(torch, case.options.get("dtype", "float32")))


def _weights(case: Case, model: Any, is_merged: bool) -> dict[str, Any]:
    """Return the weights of one process, merged by peft or not, as the rollout must get them."""
    model = deepcopy(model)
    if hasattr(model, "peft_config"):
        model = model.merge_and_unload() if is_merged else model.unload()
    return {
        name: it.float().sign() if case.options.get("qat") else it.float() for name, it in model.state_dict().items()
    }


def _engine(case: Case) -> Any:
    """Return an engine with a model under FSDP, as verl sets it up."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import (
        CPUOffloadPolicy,
        FullStateDictConfig,
        FullyShardedDataParallel,
        OffloadPolicy,
        ShardedStateDictConfig,
        StateDictType,
        fully_shard,
    )

    model, ranks = _model(case), case.topology.world
    mesh = init_device_mesh("cpu", (ranks,))
    if case.options.get("fsdp") == 1:
        _module(_UTILS).get_device_id = lambda: 0
        model = FullyShardedDataParallel(model, device_mesh=mesh, use_orig_params=True, device_id=torch.device("cpu"))
        kinds = (StateDictType.FULL_STATE_DICT, FullStateDictConfig())
        if ranks > 1:
            kinds = (StateDictType.SHARDED_STATE_DICT, ShardedStateDictConfig())
        FullyShardedDataParallel.set_state_dict_type(model, *kinds)
    else:
        _module(_UTILS).get_device_id = lambda: "cpu"
        policy = CPUOffloadPolicy(pin_memory=False) if case.options.get("policy") else OffloadPolicy()
        for part in ((model.base_model.model if hasattr(model, "peft_config") else model).block, model):
            fully_shard(part, mesh=mesh, offload_policy=policy)
    engine = object.__new__(_module(_ENGINE).FSDPEngine)
    engine.module, engine._is_offload_param = model, case.options.get("offload", False)
    engine.model_config = SimpleNamespace(lora={"merge": case.options.get("merge", True)}, hf_config=MagicMock())
    engine._uses_fsdp2_cpu_offload_policy = case.options.get("policy", False)
    engine._qat_enabled = case.options.get("qat", False)
    engine._qat_config, engine.engine_config = MagicMock(ignore_patterns=()), SimpleNamespace(mixed_precision=None)
    return engine


def _parts(model: Any) -> list[Any]:
    """Return a copy of what this rank has of each weight."""
    parts = [getattr(it, "_local_tensor", it) for it in model.parameters()]
    return [it.detach().clone() for it in parts]


def _module(name: str) -> Any:
    return importlib.import_module(name)


class _Quantizer:
    """Gives the signs of the weights of a layer when the next one begins."""

    def __init__(self, **_: Any) -> None:
        pass

    def quantize_with_fusion(self, params: Iterable[tuple[str, Any]], target_device: Any) -> Iterator[tuple[str, Any]]:
        """Yield names and signs."""
        for _, pairs in groupby(params, lambda pair: pair[0].rpartition(".")[0]):
            for name, weight in list(pairs):
                yield name, weight.sign().to(target_device)
