"""ms-swift: its real patch of ``GPTBridge.save_weights`` on real ranks, and the real ``safe_ddp_context``.

The loader and mcore-bridge are stand-ins. The loader asks for one file of a model's own code, through the real
``patch_get_dynamic_module``, as transformers does for a model with remote code. Nothing is written: what would save a
part of the model notes itself, and file locks are left out.
"""

from __future__ import annotations

import importlib
import itertools
import sys
import tempfile
from contextlib import nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest.mock import MagicMock

from ..cases import HUNG, PASSED, Case, Topology
from ..ranks import shims
from ..ranks.around import Around, Filled

if TYPE_CHECKING:
    from collections.abc import Sequence

WARM = ("torch", "transformers.dynamic_module_utils", "transformers.trainer", "datasets", "peft", "accelerate")
_WHERE, _TWO = "in safe_ddp_context", Topology(dp=2)
CASES = (
    Case("two", _TWO, HUNG, _WHERE, {"remote": True}, core=True),
    Case("four", Topology(dp=4), HUNG, _WHERE, {"remote": True}),
    Case("two-no-code", _TWO, PASSED, options={"remote": False}, core=True),
    Case("two-own-model", _TWO, PASSED, options={"remote": True, "own": True}, core=True),
    Case("one", Topology(), PASSED, options={"remote": True}),
)
_BOTH, _ON = ("args", "processor"), (False, True)
_SAVES = (("minimax", _BOTH), *(("another", given) for given in (_BOTH, _BOTH[:1], _BOTH[1:])))
GRID = [
    Case(
        f"{ranks} ranks, remote {remote}, own model {own}, {' and '.join(given)}, peft {peft}, {model}",
        Topology(dp=ranks),
        HUNG if remote and not own and given == _BOTH and ranks > 1 else PASSED,
        options={"remote": remote, "own": own, "given": given, "peft": peft, "model": model},
    )
    for ranks, remote, own, peft, (model, given) in itertools.product((1, 2, 4), _ON, _ON, _ON, _SAVES)
    if model == "minimax" or (remote and not own and not peft)
]
_LATER = "comes after the model is loaded; no rank waits there but in the last barrier, which every rank reaches"
HELD = {
    "save_missing_weights": "only what mcore-bridge is given",
    r"fp8|mtp_num_layers|quantization|llm_config|key in|args\.(target_modules|model_type)": _LATER,
    "task_type|is_multimodal|_auto_class|FileNotFoundError|modules_to_not_convert": _LATER,
}
_REAL = {f"swift.{name}" for name in ("utils.env", "utils.torch_utils", "model.patcher", "megatron.init")}
YOURS = Case("yours", Topology(), HUNG, _WHERE, {"remote": True})
RULED_OUT = ("world", "one process waits for no other")


def caveat(case: Case) -> str:
    """Return what the case leaves open."""
    return "only a model with code of its own waits, and only if its bridge has no get_hf_meta_model"


def settings(case: Case) -> dict[str, Any]:
    """Return what the user of such a job sets."""
    return {
        "ranks": case.topology.world,
        "a model that brings its own code, such as MiniMax": case.options["remote"] and not case.options.get("own"),
        "a checkpoint is saved": case.options.get("given", _BOTH) == _BOTH,
    }


class Seen(NamedTuple):
    """What one rank did in two saves."""

    total: float  # of the ranks' ones, reduced after each save, as the next step of a training does
    loaded: list[Any]  # the device, folder, type and kind of each model
    saved: list[Any]  # what, on which device, and whether ``safe_ddp_context`` had no barriers then
    is_off: bool  # whether it still has none


def prepare() -> None:
    """Import the real modules among stand-ins."""
    for package in ("swift", "modelscope", "mcore_bridge"):
        sys.meta_path.insert(0, Around(package, _REAL, Filled))
    for name in ("env", "torch_utils"):
        vars(_real("utils")).update(vars(_real(f"utils.{name}")))
    _real("model.patcher")
    _real("megatron.init").require_version = lambda *_: None
    vars(_real("utils.torch_utils")).update(get_cache_dir=tempfile.gettempdir, FileLock=lambda _: nullcontext())


def on_rank(case: Case, rank: int) -> Seen:
    """Save twice, and reduce after each."""
    import torch
    from transformers import dynamic_module_utils

    module, seen = _real("megatron.init"), Seen(0.0, [], [], False)
    group = torch.distributed.new_group()  # a step's, which no barrier meets
    dynamic_module_utils.get_cached_module_file = lambda *_: "modeling.py"

    def load(model_dir: str, model_type: str | None = None, return_dummy_model: bool = False) -> tuple[Any, Any]:
        seen.loaded.append((str(torch.empty(0).device), model_dir, model_type, return_dummy_model))
        with _real("model.patcher").patch_get_dynamic_module():
            if case.options["remote"]:
                dynamic_module_utils.get_cached_module_file(model_dir, "modeling.py")
        return _model("loaded"), None

    def note(what: str) -> None:
        seen.saved.append((what, torch.empty(0).device.type, _real("utils.torch_utils")._DISABLE_USE_BARRIER))

    own = {"get_hf_meta_model": lambda _: _model("own")} if case.options.get("own") else {}
    bridge_class = type("GPTBridge", (), {"save_weights": lambda *_, **__: note("weights"), **own})
    vars(importlib.import_module("mcore_bridge")).update(GPTBridge=bridge_class, __version__="1.0.2")
    module.get_model_processor = load
    module.save_checkpoint = lambda *_, additional_saved_files, **__: note(additional_saved_files)
    module._patch_mcore_bridge()
    bridge: Any = bridge_class()
    hf_config = MagicMock(save_pretrained=lambda _: note("config"))
    hf_config.__deepcopy__ = hf_config.__copy__ = lambda *_: hf_config
    bridge.config = SimpleNamespace(hf_config=hf_config, mtp_num_layers=None, fp8=None, task_type="causal_lm")
    bridge._adapter_name, bridge.is_multimodal = "default", False
    bridge._peft_target_modules, bridge._peft_modules_to_save = ["linear"], []
    peft = SimpleNamespace(target_modules=[], save_pretrained=lambda _: note("peft"))
    told = {"model_type": case.options.get("model", "minimax"), "model_dir": "dir", "target_modules": ["all-linear"]}
    every = {"args": SimpleNamespace(**told), "processor": _model("processor")}
    given = {name: every[name] for name in case.options.get("given", _BOTH)}
    for folder in ("first", "second"):
        models = [SimpleNamespace(peft_config={"default": peft})]
        bridge.save_weights(models, folder, peft_format=case.options.get("peft", False), **given)
        one = torch.ones(1)
        torch.distributed.all_reduce(one, group=group)
    return seen._replace(total=float(one), is_off=_real("utils.torch_utils")._DISABLE_USE_BARRIER)


def _model(name: str) -> Any:
    """Return a model, or what has its meta data: that names the files to save beside it."""
    meta = SimpleNamespace(additional_saved_files=f"files of {name}")
    return SimpleNamespace(_auto_class=None, model_info=name, model_meta=meta)


def wrong(case: Case, ranks: Sequence[Seen]) -> str:
    """Return what is wrong with what the ranks did; empty where nothing is."""
    own, peft, given = (case.options.get(name, also) for name, also in (("own", 0), ("peft", 0), ("given", _BOTH)))
    for number, rank in enumerate(ranks):
        is_master = given == _BOTH and number == 0
        model = ("meta", "dir", case.options.get("model", "minimax"), True)
        files = ["peft"] if peft else ["config", f"files of {'processor' if own else 'loaded'}"]
        saved = [(what, shims.DEVICE, False) for what in ["weights", *files * is_master] * 2]
        due = Seen(float(case.topology.world), [model] * (is_master and not own), saved, False)
        if rank != due:
            return f"rank {number} has {rank}, not {due}"
    return ""


def right(case: Case, ranks: Sequence[Seen]) -> str:
    """Return what was seen."""
    return "every rank is done"


def _real(name: str) -> Any:
    return importlib.import_module(f"swift.{name}")
