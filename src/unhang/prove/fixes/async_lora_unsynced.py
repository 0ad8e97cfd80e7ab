"""verl: its real worker and engine send a small model with LoRA to a rollout, three times while the adapters grow.

The model is under torch's real FSDP. The rollout has the base weights from the start, and room for an adapter beside
each layer, by peft's names; its policy is compared with what peft merges in one process. The checkpoint engine hands
over what it is given. What the worker and the engine import besides are stand-ins. A CPU has no other device: to copy
to it makes a copy under FSDP1, as it does from a GPU.
"""

from __future__ import annotations

import ast
import asyncio
import importlib
import inspect
import sys
from collections import OrderedDict
from copy import deepcopy
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest.mock import MagicMock

from ..cases import DIFFERS, PASSED, Case, Topology
from ..ranks import shims
from ..ranks.around import Around, any_module

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

WARM = ("torch", "torch.distributed.fsdp", "transformers", "peft", "tensordict", "omegaconf", "ray")
_ONE, _TWO = Topology(), Topology(dp=2)
_WHERE = "the rollout's weights are"
CASES = (
    Case("fsdp2-two", _TWO, DIFFERS, _WHERE, core=True),
    Case("fsdp2-two-bfloat16", _TWO, DIFFERS, _WHERE, {"dtype": "bfloat16"}),
    Case("fsdp2-two-offload", _TWO, DIFFERS, _WHERE, {"offload": True}),
    Case("fsdp2-two-policy", _TWO, DIFFERS, _WHERE, {"policy": True}),
    Case("fsdp2-one", _ONE, DIFFERS, _WHERE, core=True),
    Case("fsdp1-two", _TWO, DIFFERS, _WHERE, {"fsdp": 1}, core=True),
    Case("fsdp1-two-offload", _TWO, DIFFERS, _WHERE, {"fsdp": 1, "offload": True}),
    Case("fsdp1-one", _ONE, DIFFERS, _WHERE, {"fsdp": 1}),
    Case("colocated", _ONE, PASSED, options={"backend": "naive"}, core=True),
    Case("merged-two", _TWO, PASSED, options={"fsdp": 1, "merge": True}, core=True),
    Case("no-lora-two", _TWO, PASSED, options={"lora": False}, core=True),
)
GRID = [
    *CASES,
    Case("one, by the policy", _ONE, DIFFERS, options={"policy": True}),
    Case("one, offloaded", _ONE, DIFFERS, options={"offload": True}),
    Case("by its mode", _ONE, DIFFERS, options={"mode": "nccl"}),
    Case("FSDP1, offloaded", _ONE, DIFFERS, options={"fsdp": 1, "offload": True}),
    Case("colocated, offloaded", _ONE, PASSED, options={"backend": "naive", "offload": True}),
    Case("FSDP1, no LoRA", _TWO, PASSED, options={"fsdp": 1, "lora": False}),
    Case("no LoRA, offloaded", _TWO, PASSED, options={"lora": False, "offload": True}),
    Case("breaks", _TWO, PASSED, options={"breaks": True}),
    Case("FSDP1, breaks", _TWO, PASSED, options={"fsdp": 1, "breaks": True, "offload": True}),
]
HELD = {
    "delta_sharded": "it takes the weights from the engine itself",
    "metrics or": "it only hands on what the sender returns",
    "free_cache|resume_weights|is_sglang|do_lora_base_sync|peft_config is not|base_sync_done": "those of one GPU",
}
YOURS = Case("yours", Topology(), DIFFERS, _WHERE)
_WORKERS, _ENGINE = "verl.workers.engine_workers", "verl.workers.engine.fsdp.transformer_impl"
_UTILS, _REGISTER = "verl.utils.fsdp_utils", "verl.single_controller.base.decorator"
_SYNCS, _WIDTH, _RANK = 3, 16, 4
_CLOSE = 0.02
"""How far rounding to bfloat16 may take the weights of one layer."""


class Sync(NamedTuple):
    """One sync of a rank."""

    arrived: dict[str, Any]
    """The weights that are sent, by name."""
    is_kept: bool
    """Whether the model has its own weights again."""
    steps: list[str]
    """What the worker itself asks for: to load the model, and to merge it."""


def caveat(case: Case) -> str:
    """Return what the case leaves open."""
    return "" if case.is_control else "a job with unmerged LoRA and a rollout on other GPUs, which may not be yours"


def settings(case: Case) -> dict[str, Any] | None:
    """Return what the user of such a job sets; None for a sender that fails."""
    options = case.options
    if "breaks" in options:
        return None
    return {
        "strategy": "fsdp" if options.get("fsdp") == 1 else "fsdp2",
        "actor_rollout_ref.rollout.checkpoint_engine.backend": options.get("backend", "nccl"),
        "lora_rank": _RANK if options.get("lora", True) else 0,
        "lora.merge": options.get("merge", False),
    }


def has_feature(function: ast.FunctionDef) -> bool:
    """Return whether the function sends weights to other GPUs."""
    return "send_weights" in ast.unparse(function)


def prepare() -> None:
    """Import the real worker and engine for a CPU."""
    shims.cuda_on_cpu()
    sys.meta_path.insert(0, Around("verl", (_WORKERS, _ENGINE, _UTILS, "verl.utils.model"), any_module))
    _module(_REGISTER).register = lambda **_: lambda function: function
    engine, utils, _ = _module(_ENGINE), _module(_UTILS), _module(_WORKERS)
    engine.get_device_id = lambda: shims.DEVICE
    engine.unfuse_moe_params = lambda params, model_type: params  # it splits the experts of some models
    utils.get_device_name, utils.get_torch_device = lambda: shims.DEVICE, MagicMock()


def on_rank(case: Case, rank: int) -> list[Sync]:
    """Sync several times; after each, the adapters grow."""
    import torch

    model = _sharded(case)
    worker = _worker(case, _engine(case, model))
    if case.options.get("fsdp") == 1:
        torch.Tensor.cpu = lambda self, *_, **__: self.detach().clone()
    syncs = []
    for number in range(_SYNCS):
        worker.arrived.clear()
        before, steps = _parts(model), _followed()
        try:
            asyncio.run(worker.update_weights(global_steps=number, **worker.mode))
        except BrokenPipeError:
            pass
        is_kept = all(bool((one == other).all()) for one, other in zip(before, _parts(model)))
        syncs.append(Sync(dict(worker.arrived), is_kept, steps))
        _grow(model)
    return syncs


def _followed() -> list[str]:
    """Return a list to which the steps of a sync will be added."""
    utils, engine, steps = _module(_UTILS), _module(_ENGINE), list[str]()

    def following(step: str, real: Any) -> Any:
        def followed(*given: Any, **others: Any) -> Any:
            steps.append(step)
            return real(*given, **others)

        return followed

    for step, name in (("loads", "load_fsdp_model_to_gpu"), ("merges", "merged_lora_context")):
        setattr(utils, name, following(step, getattr(engine, name, None)))  # those of the engine stay as they are
    return steps


def wrong(case: Case, ranks: Sequence[Sequence[Sync]]) -> str:
    """Return what is wrong with the syncs; empty where nothing is."""
    for syncs in ranks:
        if not all(sync.is_kept for sync in syncs):
            return "the model does not have its own weights after a sync"
        steps = [*["loads"] * case.options.get("offload", False), "merges"]
        if any(sync.steps not in ([], steps) for sync in syncs):
            return f"the worker {', '.join(syncs[0].steps)}"
        offs = [off for off, _ in _offs(case, syncs)]
        if "breaks" not in case.options and max(offs) > _CLOSE:
            return right(case, [syncs])
    return ""


def right(case: Case, ranks: Sequence[Sequence[Sync]]) -> str:
    """Return how far the rollout's weights are from those that it must have, and how far the adapters move them."""
    texts = [", ".join(f"{it:.3f}" for it in column) for column in zip(*_offs(case, ranks[0]))]
    return f"{_WHERE} off by {texts[0]}; the adapters change them by {texts[1]}"


def _offs(case: Case, syncs: Sequence[Sync]) -> list[tuple[float, float]]:
    """Return of each sync how far the rollout is from the right weights, and these from the base; inf: a strange name."""
    model = _model(case)
    base = _weights(case, model, False)
    has, adapter, found = dict(base), dict[str, Any](), list[tuple[float, float]]()
    for sync in syncs:
        due = _weights(case, model, True)
        for name, weight in sync.arrived.items():
            (adapter if "lora_" in name else has)[name] = weight
        policy = {name: weight + _delta(name, adapter) for name, weight in has.items()}
        off = max(_off(policy[name], it) for name, it in due.items()) if policy.keys() == due.keys() else float("inf")
        found.append((off, max(_off(base[name], it) for name, it in due.items())))
        _grow(model)
    return found


def _delta(name: str, adapter: dict[str, Any]) -> Any:
    """Return what the adapter that the rollout has adds to a weight."""
    layer, _, own = name.rpartition(".")
    parts = [adapter.get(f"base_model.model.{layer.replace('.base_layer', '')}.lora_{it}.{own}") for it in "BA"]
    return 0 if parts[0] is None else parts[0] @ parts[1] * _SCALE


def _off(one: Any, other: Any) -> float:
    return float((one - other).norm())


_SCALE = 2.0


def _model(case: Case) -> Any:
    """Return a model of three layers, of which one has an adapter."""
    import torch
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(0)
    layers: dict[str, Any] = {name: torch.nn.Linear(_WIDTH, _WIDTH) for name in ("q", "norm", "head")}
    block = torch.nn.Sequential(OrderedDict((name, layers[name]) for name in ("q", "norm")))
    model: Any = torch.nn.Sequential(OrderedDict(block=block, head=layers["head"]))
    model._checkpoint_conversion_mapping = {"^stem": "block"}  # as transformers renames weights
    if case.options.get("lora", True):
        given = {"r": _RANK, "lora_alpha": _SCALE * _RANK, "init_lora_weights": False}
        model = get_peft_model(model, LoraConfig(target_modules=["q"], **given))
    return model.to(getattr(torch, case.options.get("dtype", "float32")))


def _weights(case: Case, model: Any, merges: bool) -> dict[str, Any]:
    """Return the weights of one process by the rollout's names, which are peft's; merged by peft, or the base alone."""
    plain = deepcopy(model)
    names = [name for name in plain.state_dict() if "lora_" not in name]
    if hasattr(plain, "peft_config"):
        plain = plain.merge_and_unload() if merges else plain.unload()
    names = [name.replace("base_model.model.", "").replace("block", "stem") for name in names]
    if case.options.get("merge"):
        names = [name.replace(".base_layer", "") for name in names]
    return {name: it.detach().float() for name, it in zip(names, plain.state_dict().values())}


def _grow(model: Any) -> None:
    import torch

    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.mul_(1.5)


def _parts(model: Any) -> list[Any]:
    """Return a copy of what this rank has of each weight."""
    return [getattr(it, "_local_tensor", it).detach().clone() for it in model.parameters()]


def _sharded(case: Case) -> Any:
    """Return the model under FSDP, as verl sets it up."""
    import torch
    from torch.distributed import fsdp
    from torch.distributed.device_mesh import init_device_mesh

    model, ranks = _model(case), case.topology.world
    mesh = init_device_mesh(shims.DEVICE, (ranks,))
    if case.options.get("fsdp") == 1:
        _module(_UTILS).get_device_id = lambda: 0
        device = torch.device(shims.DEVICE)
        model = fsdp.FullyShardedDataParallel(model, device_mesh=mesh, use_orig_params=True, device_id=device)
        kinds: tuple[Any, Any] = (fsdp.StateDictType.FULL_STATE_DICT, fsdp.FullStateDictConfig())
        if ranks > 1:
            kinds = (fsdp.StateDictType.SHARDED_STATE_DICT, fsdp.ShardedStateDictConfig())
        fsdp.FullyShardedDataParallel.set_state_dict_type(model, *kinds)
        return model
    _module(_UTILS).get_device_id = lambda: shims.DEVICE
    policy = fsdp.CPUOffloadPolicy(pin_memory=False) if case.options.get("policy") else fsdp.OffloadPolicy()
    for part in ((model.base_model.model if hasattr(model, "peft_config") else model).block, model):
        fsdp.fully_shard(part, mesh=mesh, offload_policy=policy)
    return model


def _engine(case: Case, model: Any) -> Any:
    """Return the engine of a model."""
    engine = object.__new__(_module(_ENGINE).FSDPEngine)
    engine.module, engine._is_offload_param, engine._qat_enabled = model, case.options.get("offload", False), False
    engine.model_config = SimpleNamespace(lora={"merge": case.options.get("merge", False)}, hf_config=MagicMock())
    engine._uses_fsdp2_cpu_offload_policy = case.options.get("policy", False)
    engine.to = lambda *_, **__: None
    return engine


def _worker(case: Case, engine: Any) -> Any:
    """Return the worker of an engine, which sends to the same process."""
    arrived: dict[str, Any] = {}

    async def send(weights: Iterable[tuple[str, Any]], **_: Any) -> dict[str, Any]:
        for name, weight in weights:
            if "breaks" in case.options:
                raise BrokenPipeError(name)
            arrived[name] = weight.detach().float().clone()
            await asyncio.sleep(0)
        return {}

    worker: Any = object.__new__(_module(_WORKERS).ActorRolloutRefWorker)
    backend = case.options.get("backend", "nccl") if case.options.get("feature", True) else "naive"
    worker.config = SimpleNamespace(
        rollout=SimpleNamespace(
            checkpoint_engine=SimpleNamespace(backend="kimi" if "mode" in case.options else backend),
            **{"free_cache_engine": False, "load_format": "auto", "get": lambda _, default=None: default},
        )
    )
    worker.actor, worker.checkpoint_engine = SimpleNamespace(engine=engine), SimpleNamespace(send_weights=send)
    worker.rollout = SimpleNamespace(update_weights=send)
    worker.layered_summon, worker.base_sync_done, worker.peft_merge = False, True, case.options.get("merge", False)
    takes_mode = "mode" in inspect.signature(worker.update_weights).parameters and "mode" in case.options
    worker.arrived, worker.mode = arrived, {"mode": case.options["mode"]} if takes_mode else {}
    return worker


def _module(name: str) -> Any:
    return importlib.import_module(name)
