"""Megatron-FSDP: the real names of a checkpoint, of real models on the stages of real pipelines.

Each weight is its layer's number, and so are its moments and learning rate. The checkpoint is a stand-in: as
PyTorch's, it has one tensor for each name, whichever stage wrote that. The optimizer is its states alone, by the names
that Megatron gives them. A plain module with a number stands in for a Mamba layer, which needs a GPU.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import MagicMock

from ..cases import CRASHED, DIFFERS, PASSED, Case, Topology
from ..ranks import megatron, megatron_fsdp, shims, sites
from ..ranks.around import Around, Filled

if TYPE_CHECKING:
    from collections.abc import Sequence

WARM = ("transformers.utils",)
BESIDE = dict.fromkeys(("megatron-lm", "megatron-bridge", "ms-swift"), ("megatron-core",))
_NAME = "preprocess_fsdp_dtensor_state_dict"
_PLACES = {
    "megatron.bridge.training.checkpointing": _NAME,
    "swift.megatron.utils.megatron_fsdp_checkpoint": "_preprocess_state_dict",
    "megatron.training.checkpointing": _NAME,
}
_LATER = ("handle_gdn_in_state_dict", "handle_mla_down_proj_in_state_dict", "handle_mtp_in_state_dict")
_LAYERS, _AT, _MISSING, _CUT = 4, "layers 1 2 3 4 are", "Missing key in checkpoint", "__create_chunk_list__"
_ONE, _TWO, _IN = Topology(dp=2), Topology(pp=2), "coder.layers."  # of decoder, or encoder
_FIRST, _EXPERTS, _GATED = "num_layers_in_first_pipeline_stage", "num_moe_experts", "gated_linear_unit"
_OLD, _SLOW, _MOMENTS = {"is_old": True}, {"on_gpu": False}, ("exp_avg", "exp_avg_sq")
CASES = (
    Case("pp2", _TWO, DIFFERS, _AT, core=True),
    Case("pp1-to-pp2", _TWO, DIFFERS, _AT, {"saved": 1}, core=True),
    Case("pp2-to-pp1", _TWO, CRASHED, _MISSING, {"loaded": 1}),
    Case("pp4-to-pp2", Topology(pp=4), CRASHED, _MISSING, {"loaded": 2}),
    Case("pp2-dp2-ep2", Topology(pp=2, dp=2, ep=2), DIFFERS, _AT, {_EXPERTS: 2, _GATED: True, **_SLOW}, core=True),
    Case("pp1", _ONE, PASSED, options={_GATED: True, **_SLOW}, core=True),
    Case("pp1-old", _ONE, PASSED, options={**_OLD, **_SLOW}, core=True),
    Case("pp1-old-to-pp2", _TWO, DIFFERS, _AT, {"saved": 1, **_OLD}, core=True),
    Case("pp2-old", _TWO, DIFFERS, _AT, _OLD, core=True, patched=CRASHED),
    Case("pp2-old-partial", _TWO, DIFFERS, _AT, {"is_partial": True, **_OLD}, core=True, patched=DIFFERS),
)
_LONG = {"saved": 1}, {_GATED: True, **_SLOW}  # others have these beside other options
GRID = [
    *(it for it in CASES if it.patched == PASSED and it.topology in (_TWO, _ONE) and it.options not in _LONG),
    Case("gated, weights alone", _TWO, DIFFERS, options={_GATED: True, "is_bare": True}),
    Case("weights alone", _TWO, DIFFERS, options={"is_none": True}),
    Case("gated experts", _TWO, DIFFERS, options={_EXPERTS: 2, _GATED: True}),
    Case("two MTP layers", _TWO, DIFFERS, options={"mtp_num_layers": 2, "saved": 1}),
    Case("hybrid, uneven stages", _TWO, DIFFERS, options={_FIRST: 1, "num_layers": 12, "is_hybrid": True}),
    Case("uneven stages, the optimizer named", _TWO, DIFFERS, options={_FIRST: 3, "is_named": True}),
]
HELD = {"|".join(_LATER): "no-ops for these models, which older cores lack"}
YOURS = Case("yours", _TWO, DIFFERS, _AT)
RULED_OUT = ("pp", "with PP 1 each layer has a name of its own")


def settings(case: Case) -> dict[str, Any]:
    """Return what the user of a case's job sets."""
    stages, old = case.topology.pp, "a load, at PP over 1, of a checkpoint that was saved at PP over 1 without this fix"
    return {
        **{"use_megatron_fsdp": True, "pipeline_model_parallel_size": stages, "a checkpoint is saved or loaded": True},
        "strict_fsdp_dtensor_load": "is_partial" not in case.options,
        old: "is_old" in case.options and case.options.get("saved", stages) > 1,
    }


def prepare() -> None:
    """Import the real function, and stand-ins for the rest of Megatron-Bridge and ms-swift."""
    shims.newer_typing()
    megatron_fsdp.prepare()
    bridge = partial(Filled, make=lambda _: MagicMock(return_value=(None, False)))  # it imports what may not be there
    filled: dict[str, Any] = {"megatron.bridge": bridge, "swift": Filled, "modelopt": Filled}
    sys.meta_path[:0] = [Around(package, _PLACES, module) for package, module in filled.items()]
    if sites.ROOTS:
        importlib.import_module(_module())


def _module() -> str:
    """Return the name of the module of the upstream that the variant has files of."""
    places = ((it, os.path.join(root, *it.split("."))) for it in _PLACES for root in sites.ROOTS)
    return next(it for it, path in places if os.path.exists(f"{path}.py"))


def on_rank(case: Case, rank: int) -> list[tuple[int, list[float]]]:
    """Save and load. Return what the weights then are, and what the optimizer has for them, by the layer's number."""
    import torch.distributed as dist

    options, stages = case.options, case.topology.pp
    written = _Stage(case, rank, options.get("saved", stages), 1.0)
    here = {name: it.flatten().tolist() for name, it in written.named("is_old" in options).items()}
    dist.all_gather_object(parts := [here] * case.topology.world, here)
    checkpoint = {name: it for part in reversed(parts) for name, it in part.items()}
    read = _Stage(case, rank, options.get("loaded", stages), -1.0)
    for name, it in read.named().items():
        if name in checkpoint:
            it.copy_(it.new_tensor(checkpoint[name]).view_as(it))
        elif not options.get("is_partial"):
            raise RuntimeError(f"{_MISSING} state_dict: {name}")
    return [(of, sorted({*_local(it).flatten().tolist()})) for of, it in read.rows]


class _Stage:
    """What one rank has of a model under Megatron-FSDP, and of its optimizer."""

    def __init__(self, case: Case, rank: int, stages: int, factor: float) -> None:
        import torch
        from megatron.core import parallel_state
        from megatron.core.transformer.fsdp_dtensor_checkpoint import handle_experts_in_state_dict

        size, options = case.topology, case.options
        megatron.initialize(size._replace(pp=stages, dp=size.world // stages))
        self._before = parallel_state.get_pipeline_model_parallel_rank() * options.get(_FIRST, _LAYERS // stages)
        apart = size.world if size.dp == 1 else stages  # or the ranks of a stage share its weights
        self._shard, self._options, self._state = rank % (size.world // apart), options, {}
        self._args = SimpleNamespace(swiglu=_GATED in options, num_experts=options.get(_EXPERTS))
        self._experts: Any = lambda state, of=self._args.num_experts: handle_experts_in_state_dict(state, of)
        model = _model(case, stages)
        layer = type(model.module.decoder.layers[-1])
        self._model = megatron_fsdp.wrapped(model, size.ep, apart=apart, fsdp_unit_modules=[layer])
        self._model.config = model.config
        weights = {f"module.{name}": it for name, it in self._model.named_parameters()}
        self.rows = [(self._of(name), it) for name, it in weights.items()]
        if not {"is_bare", "is_none"} & options.keys():
            names = self._experts(weights)
            states = {name: {key: torch.zeros_like(it) for key in _MOMENTS} for name, it in names.items()}
            self._state = {"state": states, "param_to_group_meta": {name: {"lr": torch.zeros(1)} for name in names}}
            inner = (row for part in self._state.values() for row in part.items())
            self.rows += [(self._of(name), it) for name, row in inner for it in row.values()]
        for of, it in self.rows:
            _local(it).fill_(of * factor)
        if "is_named" in options:  # so by somebody else already
            for part, found in self._state.items():
                self._state[part] = {re.sub(rf"{_IN}\d+", f"{_IN}{self._of(it) - 1}", it): found[it] for it in found}

    def _of(self, name: str) -> int:
        """Return the number of the layer that has a weight; one more for those that are in none, two for MTP."""
        _, found, rest = name.partition(_IN)
        return self._before + int(rest.partition(".")[0]) + 1 if found else _LAYERS + 1 + ("mtp." in name)

    def named(self, is_old: bool = False) -> dict[Any, Any]:
        """Return the tensors by their names in a checkpoint, if ``is_old`` by those of the modules."""
        given = {} if "is_bare" in self._options else {"optimizer": self._state or None}
        state = {"model": self._model.state_dict(), **given}
        if not is_old:
            module: Any = importlib.import_module(self._options.get("module") or _module())
            for name in _LATER:  # what commits use, and their closest releases lack
                vars(module).setdefault(name, lambda _, model, optimizer: (model, optimizer))
            module.handle_experts_in_state_dict = self._experts  # some commits do not say how many there are
            function = getattr(module, self._options.get("function") or _PLACES[module.__name__])
            state = function(self._args, state, self._model)
        found: dict[Any, Any] = {("model", name): it for name, it in state["model"].items() if "_extra" not in name}
        for part, states in (state.get("optimizer") or {}).items():
            found |= {(part, name, key): it for name, inner in states.items() for key, it in inner.items()}
        assert is_old or all(hasattr(it._local_tensor, _CUT) for it in found.values() if hasattr(it, "_local_tensor"))
        return {(*name, self._shard): _local(it) for name, it in found.items()}


def _local(it: Any) -> Any:
    return getattr(it, "_local_tensor", it).detach()


def _model(case: Case, stages: int) -> Any:
    """Return this stage of a model, as Megatron wraps it below its FSDP."""
    import torch
    from megatron.core import parallel_state
    from megatron.core.models.gpt import gpt_layer_specs, gpt_model
    from megatron.core.transformer.module import Float16Module
    from megatron.core.transformer.transformer_config import TransformerConfig

    own = {name: it for name, it in case.options.items() if name in TransformerConfig.__dataclass_fields__}
    config = TransformerConfig(
        **{"hidden_size": 8, "num_attention_heads": 2, "use_cpu_initialization": True, "add_bias_linear": False},
        **{"pipeline_model_parallel_size": stages, "pipeline_dtype": torch.bfloat16, "num_layers": _LAYERS, **own},
        **{"activation_func": torch.nn.functional.silu, "bf16": True, "expert_model_parallel_size": case.topology.ep},
    )
    first, last = parallel_state.is_pipeline_first_stage(), parallel_state.is_pipeline_last_stage()
    spec = gpt_layer_specs.get_gpt_layer_local_spec(num_experts=config.num_moe_experts)
    own = {"share_embeddings_and_output_weights": False, "pre_process": first, "post_process": last}
    if config.mtp_num_layers and last:
        own["mtp_block_spec"] = gpt_layer_specs.get_gpt_mtp_block_spec(config, spec, use_transformer_engine=False)
    model = gpt_model.GPTModel(config, spec, 16, 8, **own)
    numbers = *[[it.layer_number for it in model.decoder.layers]] * 2, (None,), (0, 1), (3, 3)  # after two: of no stage
    lists = [[type("Layer", (torch.nn.Linear,), {"layer_number": it})(2, 2) for it in of] for of in numbers]
    if "is_hybrid" in case.options:
        model.decoder.layers[0] = lists[0][0]
    model.encoder, *others = (torch.nn.ModuleDict({"layers": torch.nn.ModuleList(it)}) for it in lists[1:])
    model.own = torch.nn.ModuleList(others)
    return Float16Module(config, model)


def wrong(case: Case, ranks: Sequence[list[tuple[int, list[float]]]]) -> str:
    """Return what the layers have that is not theirs; empty if nothing is."""
    rows = [(of, values) for rank in ranks for of, values in rank if values]
    found = dict(rows)
    if len(found) > _LAYERS and all(values == [of] for of, values in rows):
        return ""
    return f"{_AT} {' '.join(str(int(found[it + 1][-1])) for it in range(_LAYERS))}"


def right(case: Case, ranks: Sequence[list[tuple[int, list[float]]]]) -> str:
    """Return what was seen."""
    return f"{_AT} 1 2 3 4"
