"""verl: its real worker and engine send a small model with LoRA to a rollout, three times while the adapters grow.

The rollout has the base weights from the start, and room for adapters; its policy is compared with what peft merges in
one process. The sender hands over what it is given. FSDP1 copies to the CPU as it does from a GPU.
"""

from __future__ import annotations

import asyncio
import inspect
from contextlib import contextmanager, nullcontext, suppress
from copy import deepcopy
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock, patch

from ..cases import DIFFERS, PASSED, Case, Topology
from ..ranks import shims, verl_lora
from ..ranks.verl_lora import ENGINE, RANK, UTILS, module

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WARM = ("torch", "torch.distributed.fsdp", "transformers", "peft", "tensordict")
_ONE, _TWO = Topology(), Topology(dp=2)
_WHERE = "the rollout's weights are"
CASES = (
    Case("fsdp2-two", _TWO, DIFFERS, _WHERE, core=True),
    Case("fsdp2-two-bfloat16", _TWO, DIFFERS, _WHERE, {"dtype": "bfloat16"}),
    Case("fsdp2-two-offload", _TWO, DIFFERS, _WHERE, {"offload": True}),
    Case("fsdp2-two-policy", _TWO, DIFFERS, _WHERE, {"policy": True}),
    Case("fsdp2-one", _ONE, DIFFERS, _WHERE, core=True),
    Case("fsdp1-two", _TWO, DIFFERS, _WHERE, {"fsdp": 1}, core=True),
    Case("fsdp1-two-offload", _TWO, DIFFERS, _WHERE, {"fsdp": 1, "offload": True}, core=True),
    Case("fsdp1-one", _ONE, DIFFERS, _WHERE, {"fsdp": 1}),
    Case("colocated", _ONE, PASSED, options={"backend": "naive"}, core=True),
    Case("merged-two", _TWO, PASSED, options={"fsdp": 1, "merge": True}, core=True),
    Case("no-lora-two", _TWO, PASSED, options={"lora": False}, core=True),
)
GRID = [
    *CASES,
    Case("one, by the policy", _ONE, DIFFERS, options={"policy": True, "beyond": True}),
    Case("colocated, offloaded", _ONE, PASSED, options={"backend": "naive", "offload": True}),
    Case("FSDP1, no LoRA", _TWO, PASSED, options={"fsdp": 1, "lora": False}),
    Case("no LoRA, offloaded", _TWO, PASSED, options={"lora": False, "offload": True}),
    Case("breaks", _TWO, PASSED, options={"breaks": True, "offload": True}),
    Case("breaks, FSDP1", _TWO, PASSED, options={"breaks": True, "offload": True, "fsdp": 1}),
]
HELD = {
    "delta_sharded": "it takes the weights from the engine itself",
    "metrics or|mode != .auto": "a sender's own answer, and a caller's own backend",
    "free_cache|resume_weights|is_sglang|sleep_level|do_lora_base_sync|peft_config is not|base_sync_done": "one GPU",
}
YOURS = Case("yours", Topology(), DIFFERS, _WHERE)
_WORKERS = "verl.workers.engine_workers"
_STEPS = ("load_fsdp_model_to_gpu", "merged_lora_context")  # what the worker itself may do to the model
Sync = tuple[dict[str, Any], bool, list[str]]  # what is sent, whether the model is itself again, and the steps
_CLOSE = 0.02  # how far rounding to bfloat16 may take the weights of one layer


def settings(case: Case) -> dict[str, Any] | None:
    """Return what the user of such a job sets; None for a sender that fails."""
    options, rollout = case.options, "actor_rollout_ref.rollout"
    known = {f"{rollout}.name": "vllm", f"{rollout}.checkpoint_engine.backend": options.get("backend", "nccl")}
    lora = {"lora_rank": RANK if options.get("lora", True) else 0, "lora.merge": options.get("merge", False)}
    strategy = "fsdp" if options.get("fsdp") == 1 else "fsdp2"
    return None if "breaks" in options else {"strategy": strategy, **lora, **known}


def prepare() -> None:
    """Import the real worker and engine for a CPU."""
    verl_lora.prepare(_WORKERS)
    module("verl.single_controller.base.decorator").register = lambda **_: lambda function: function
    module(_WORKERS)


def on_rank(case: Case, rank: int) -> list[Sync]:
    """Sync several times; after each, the adapters grow."""
    case = case._replace(options={"merge": False, **case.options})
    engine = verl_lora.fsdp_engine(case, _job(case))
    engine.to = lambda *_, **__: None
    is_late = case.options.get("fsdp") == 1 and shims.DEVICE == "cpu"
    with _late_copies() if is_late else nullcontext(verl_lora.wait) as wait:
        worker: Any = object.__new__(module(_WORKERS).ActorRolloutRefWorker)
        return [_sync(case, engine, worker, wait) for _ in range(3)]


def _sync(case: Case, engine: Any, worker: Any, wait: Callable[[], None]) -> Sync:
    """Let a worker of the engine send to this process, and wait for what still copies to the CPU."""
    before, arrived = verl_lora.parts(engine.module), dict[str, Any]()

    async def send(weights: Any, **_: Any) -> dict[str, Any]:
        for name, weight in weights:
            arrived[name] = weight.detach().float().clone()
            if "breaks" in case.options:
                raise BrokenPipeError
        return {}

    rollout = {"free_cache_engine": False, "load_format": "auto", "get": lambda _, default=None: default}
    backend = SimpleNamespace(backend=case.options.get("backend", "nccl"))
    worker.config = SimpleNamespace(rollout=SimpleNamespace(checkpoint_engine=backend, **rollout))
    worker.actor, worker.checkpoint_engine = SimpleNamespace(engine=engine), SimpleNamespace(send_weights=send)
    worker.rollout, worker.base_sync_done = SimpleNamespace(update_weights=send), True
    worker.layered_summon, worker.peft_merge = backend.backend != "naive", case.options["merge"]
    steps = Mock(**{f"{name}.side_effect": vars(module(ENGINE))[name] for name in _STEPS})
    vars(module(UTILS)).update({name: getattr(steps, name) for name in _STEPS})
    given = {"global_steps": 1} if "global_steps" in inspect.signature(worker.update_weights).parameters else {}
    with suppress(BrokenPipeError):
        asyncio.run(worker.update_weights(**given))
        assert "breaks" not in case.options, "nobody hears that the sender failed"
    wait()
    is_kept = all(bool((one == other).all()) for one, other in zip(before, verl_lora.parts(engine.module)))
    is_kept &= any(it.requires_grad for it in engine.module.parameters())
    verl_lora.grow(engine.module)
    return arrived, is_kept, [name for name, *_ in steps.mock_calls]


@contextmanager
def _late_copies() -> Iterator[Callable[[], None]]:
    """Copy to the CPU as from a GPU: to other memory, and late in an offload. Yield what waits for that, as a GPU."""
    import torch

    engine, late = module(ENGINE), list[tuple[Any, Any]]()
    offloads = engine.offload_fsdp_model_to_cpu

    def offload(model: Any) -> None:
        offloads(model)
        late.extend((it.data, it.data.clone()) for it in model.parameters())
        for host, _ in late:
            host.zero_()

    def wait() -> None:
        while late:
            host, values = late.pop()
            host.copy_(values)

    with (
        patch.object(torch.Tensor, "cpu", lambda self, *_, **__: self.detach().clone()),
        patch.object(engine, "offload_fsdp_model_to_cpu", offload),
        patch.dict(vars(module("verl.utils.device")), get_torch_device=lambda: SimpleNamespace(synchronize=wait)),
    ):
        yield wait


def wrong(case: Case, ranks: list[list[Sync]]) -> str:
    """Return what is wrong with the syncs; empty where nothing is."""
    is_unmerged = case.options.get("lora", True) and not case.options.get("merge", False)
    due = [*_STEPS[not case.options.get("offload", False) :]] if is_unmerged else []
    for syncs in ranks:
        if not all(is_kept for _, is_kept, _ in syncs):
            return "the model does not have its own weights after a sync"
        if any(steps not in ([], due) for *_, steps in syncs):
            return f"the worker does {', '.join(syncs[0][2])}"
        if "breaks" not in case.options and max(off for off, _ in _offs(case, syncs)) > _CLOSE:
            return right(case, [syncs])
    return ""


def right(case: Case, ranks: list[list[Sync]]) -> str:
    """Return how far the rollout's weights are from those that it must have, and how far the adapters move them."""
    off, moved = (", ".join(f"{it:.3f}" for it in column) for column in zip(*_offs(case, ranks[0])))
    return f"{_WHERE} off by {off}; the adapters change them by {moved}"


def _offs(case: Case, syncs: list[Sync]) -> Iterator[tuple[float, float]]:
    """Yield of each sync how far the rollout is from the right weights, and these from the base; inf: other names."""
    model = verl_lora.small_model(_job(case))
    base = has = _weights(case, model, merges=False)
    own = "lora_" if "beyond" not in case.options else "no such name"  # the pull request changes the receiver, too
    for arrived, *_ in syncs:
        has = has | arrived
        policy = {name: it + _delta(name, has) for name, it in has.items() if own not in name}
        due = _weights(case, model, merges=True)
        off = max(float((policy[name] - it).norm()) for name, it in due.items())
        moved = max(float((base[name] - it).norm()) for name, it in due.items())
        yield off if policy.keys() == due.keys() else float("inf"), moved
        verl_lora.grow(model)


def _delta(name: str, has: dict[str, Any]) -> Any:
    """Return what the adapter that the rollout has adds to a weight."""
    layer, _, own = name.rpartition(".")
    parts = [has.get(f"base_model.model.{layer.replace('.base_layer', '')}.lora_{it}.{own}") for it in "BA"]
    return 0 if parts[0] is None else parts[0] @ parts[1] * (8 / RANK)  # peft's alpha is 8


def _job(case: Case) -> Any:
    options = case.options
    return SimpleNamespace(lora=options.get("lora", True), dtype=options.get("dtype", "float32"), has_whole=True)


def _weights(case: Case, model: Any, *, merges: bool) -> dict[str, Any]:
    """Return the weights of one process by the rollout's names, which are peft's; merged by peft, or the base alone."""
    plain, without = deepcopy(model), ".base_layer" if case.options.get("merge") else ""
    mine = [name.replace("base_model.model.", "") for name in model.state_dict() if "lora_" not in name]
    names = [name.replace("block", "stem").replace(without, "") for name in mine]
    if hasattr(plain, "peft_config"):
        plain = plain.merge_and_unload() if merges else plain.unload()
    return {name: it.detach().float() for name, it in zip(names, plain.state_dict().values())}
