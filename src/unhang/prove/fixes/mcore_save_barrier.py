"""ms-swift: its real patch of ``GPTBridge.save_weights`` on real ranks, and the real ``safe_ddp_context``.

The loader and mcore-bridge are stand-ins. The loader asks for one file of a model's own code, through the real
``patch_get_dynamic_module``, as transformers does for a model with remote code.
"""

from __future__ import annotations

import importlib
import sys
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

from ..cases import DIFFERS, HUNG, PASSED, Case, Outcome, Topology
from ..ranks import gloo, tidy
from ..ranks.around import Around, Filled

WARM = ("torch", "transformers.dynamic_module_utils", "transformers.trainer", "datasets", "peft", "accelerate")
_WHERE = "in safe_ddp_context"
_TWO = Topology(dp=2)
CASES = (
    Case("two", _TWO, "ranks", HUNG, _WHERE, {"remote": True}, core=True),
    Case("four", Topology(dp=4), "ranks", HUNG, _WHERE, {"remote": True}),
    Case("two-no-code", _TWO, "ranks", PASSED, options={"remote": False}, core=True),
    Case("two-own-model", _TWO, "ranks", PASSED, options={"remote": True, "own": True}, core=True),
    Case("one", Topology(), "ranks", PASSED, options={"remote": True}),
)
_REAL = {f"swift.{name}" for name in ("utils.env", "utils.torch_utils", "model.patcher", "megatron.init")}
YOURS = Case("yours", Topology(), "ranks", HUNG, _WHERE, {"remote": True})
RULED_OUT = ("world", "one process waits for no other")


def caveat(case: Case) -> str:
    """Return what the case leaves open."""
    return "only a model with code of its own waits, and only if its bridge has no get_hf_meta_model"


def prepare() -> None:
    """Import the real modules among stand-ins."""
    for package in ("swift", "modelscope", "mcore_bridge"):
        sys.meta_path.insert(0, Around(package, _REAL, Filled))
    for name in ("env", "torch_utils"):
        vars(_real("utils")).update(vars(_real(f"utils.{name}")))
    _real("model.patcher")
    _real("megatron.init").require_version = lambda *_: None


def run(case: Case, deadline_s: float) -> Outcome:
    """Run one case: save twice, and reduce after each, as the next step of a training does."""
    with tidy.folder("unhang-locks-") as (folder, _):
        _real("utils.torch_utils").get_cache_dir = lambda: folder
        world = gloo.run(case.topology.world, lambda rank: _saved(case), deadline_s=deadline_s)
    if world.status != PASSED:
        return Outcome(world.status, world.text())
    for number, rank in enumerate(world.ranks):
        wanted = (case.topology.world, False, 0 if number or case.options.get("own") else 1)
        if rank.value != wanted:
            return Outcome(DIFFERS, f"rank {number} has {rank.value}, not {wanted}")
    return Outcome(PASSED, "every rank is done")


def _saved(case: Case) -> tuple[float, bool, int]:
    """Save twice. Return the sum of ones, whether the barriers are still off, and how many models were loaded."""
    import torch
    import torch.distributed as dist
    from transformers import dynamic_module_utils

    module, loaded = _real("megatron.init"), []
    dynamic_module_utils.get_cached_module_file = lambda *_: "modeling.py"

    def load(model_dir: str, **_: Any) -> tuple[Any, Any]:
        loaded.append(str(torch.empty(0).device))
        with _real("model.patcher").patch_get_dynamic_module():
            if case.options["remote"]:
                dynamic_module_utils.get_cached_module_file(model_dir, "modeling.py")
        return MagicMock(_auto_class=None), None

    own = {"get_hf_meta_model": lambda _: MagicMock(_auto_class=None)} if case.options.get("own") else {}
    bridge_class = type("GPTBridge", (), {"save_weights": lambda *_, **__: None, **own})
    vars(importlib.import_module("mcore_bridge")).update(GPTBridge=bridge_class, __version__="1.0.2")
    module.get_model_processor = load
    module._patch_mcore_bridge()
    bridge: Any = bridge_class()
    bridge.config = SimpleNamespace(hf_config=MagicMock(), mtp_num_layers=None, fp8=None)
    for folder in ("first", "second"):
        bridge.save_weights([], folder, args=MagicMock(), processor=MagicMock())
        one = torch.ones(1)
        dist.all_reduce(one)
    return float(one), _real("utils.torch_utils")._DISABLE_USE_BARRIER, loaded.count("meta")


def _real(name: str) -> Any:
    return importlib.import_module(f"swift.{name}")
