"""Megatron-FSDP: the real names of a checkpoint, of real models on the stages of real pipelines.

Each layer has its number for a weight, and ten times that in the optimizer. A checkpoint is a stand-in that, as
PyTorch's does, has one tensor for each name, whichever stage wrote it. The optimizer is its states alone, by the names
that Megatron's gives them. A plain module with a number stands in for a Mamba layer, which needs a GPU.
"""

from __future__ import annotations

import ast
import importlib
import os
import sys
import typing
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from ..cases import CRASHED, DIFFERS, PASSED, Case, Topology
from ..ranks import megatron, megatron_fsdp, sites
from ..ranks.around import Around, Filled

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

WARM = ("transformers.utils",)
BESIDE = {name: ("megatron-core",) for name in ("megatron-lm", "megatron-bridge", "ms-swift")}
_NAME = "preprocess_fsdp_dtensor_state_dict"
_PLACES = {
    "megatron.bridge.training.checkpointing": _NAME,
    "swift.megatron.utils.megatron_fsdp_checkpoint": "_preprocess_state_dict",
    "megatron.training.checkpointing": _NAME,
}
_LAYERS, _NONE = 4, -1.0
_AT = "layers"
_TWO, _FOUR = Topology(pp=2), Topology(pp=4)
_DENSE, _GATED, _EXPERTS = {"kind": "dense"}, {"kind": "gated"}, {"kind": "experts"}
_OLD = {"is_old": True}
CASES = (
    Case("pp2", _TWO, DIFFERS, _AT, core=True),
    Case("pp1-to-pp2", _TWO, DIFFERS, _AT, {"saved": 1}, core=True),
    Case("pp2-to-pp1", _TWO, CRASHED, "Missing key", {"loaded": 1}),
    Case("pp4-to-pp2", _FOUR, CRASHED, "Missing key", {"loaded": 2}),
    Case("pp2-dp2", Topology(pp=2, dp=2), DIFFERS, _AT, {"kind": "gated"}),
    Case("pp1", Topology(dp=2), PASSED, options=_GATED, core=True),
    Case("pp1-old", Topology(dp=2), PASSED, options=_OLD, core=True),
    Case("pp1-old-to-pp2", _TWO, DIFFERS, _AT, {"saved": 1, **_OLD}, core=True),
    Case("pp2-old", _TWO, DIFFERS, _AT, _OLD, patched=CRASHED),
    Case("pp2-old-partial", _TWO, DIFFERS, _AT, {"is_partial": True, **_OLD}, core=True, patched=DIFFERS),
)
GRID = [
    *(case for case in CASES if case.patched == PASSED),
    Case("gated", _TWO, DIFFERS, options=_GATED),
    Case("gated, weights alone", _TWO, DIFFERS, options={**_GATED, "has_optimizer": False}),
    Case("weights alone", _TWO, DIFFERS, options={"has_optimizer": False}),
    Case("experts", Topology(pp=2, dp=2, ep=2), DIFFERS, options=_EXPERTS),
    Case("experts, one stage", Topology(dp=2, ep=2), PASSED, options=_EXPERTS),
    Case("MTP", _TWO, DIFFERS, options={"mtp": 1}),
    Case("MTP, saved on one stage", _TWO, DIFFERS, options={"mtp": 1, "saved": 1}),
    Case("hybrid", _TWO, DIFFERS, options={"kind": "hybrid"}),
    Case("hybrid, one stage", Topology(dp=2), PASSED, options={"kind": "hybrid"}),
    Case("uneven stages", _TWO, DIFFERS, options={"first": 3}),
]
HELD = {"handle_gdn_in_state_dict|handle_mla": "no-ops for these models, which older cores lack"}
YOURS = Case("yours", _TWO, DIFFERS, _AT)
RULED_OUT = ("pp", "with PP 1 each layer has a name of its own")


def settings(case: Case) -> dict[str, Any]:
    """Return what the user of a case's job sets."""
    options = case.options
    return {
        "use_megatron_fsdp": True,
        "pipeline_model_parallel_size": case.topology.pp,
        "a checkpoint is saved or loaded": True,
        "strict_fsdp_dtensor_load": not options.get("is_partial", False),
        "a load of a checkpoint that was saved at PP over 1 without the fix": (
            "is_old" in options and options.get("saved", case.topology.pp) > 1
        ),
    }


def prepare() -> None:
    """Import the real function, and stand-ins for the rest of Megatron-Bridge and ms-swift."""
    import typing_extensions

    if not hasattr(typing, "override"):  # before Python 3.12, which upstream requires
        typing.override = typing_extensions.override  # type: ignore[attr-defined]
    megatron_fsdp.prepare()
    around = [Around("swift", _PLACES, Filled), _AroundBridge("megatron", _PLACES, Filled)]
    sys.meta_path[:0] = [*around, Around("modelopt", (), Filled)]
    if sites.ROOTS:
        importlib.import_module(_module())


class _AroundBridge(Around):
    """Leaves megatron-core and Megatron-LM alone, which share the package."""

    def find_spec(self, fullname: str, path: Any = None, target: object = None) -> Any:
        """Return the spec of a stand-in for one of Megatron-Bridge's modules."""
        return super().find_spec(fullname, path, target) if fullname.startswith("megatron.bridge") else None


def _module() -> str:
    """Return the name of the module of the upstream that the variant has files of."""
    paths = {name: f"{name.replace('.', os.sep)}.py" for name in _PLACES}
    return next(it for it in _PLACES if any(os.path.exists(os.path.join(root, paths[it])) for root in sites.ROOTS))


def on_rank(case: Case, rank: int) -> dict[str, list[float]]:
    """Save and load. Return what each layer then has, by its number, and what all else has."""
    import torch.distributed as dist

    options, parts = case.options, [None] * case.topology.world
    written = _Stage(case, rank, options.get("saved", case.topology.pp), 1.0)
    dist.all_gather_object(parts, {name: it.flatten().tolist() for name, it in written.named("is_old" in options).items()})
    checkpoint: dict[Any, Any] = {}
    for part in reversed(parts):
        checkpoint.update(part or {})
    read = _Stage(case, rank, options.get("loaded", case.topology.pp), _NONE)
    for name, it in read.named().items():
        if name in checkpoint:
            it.copy_(it.new_tensor(checkpoint[name]).view_as(it))
        elif not options.get("is_partial"):
            raise RuntimeError(f"Missing key in checkpoint state_dict: {name}")
    return read.has()


class _Stage:
    """What one rank has of a model under Megatron-FSDP, and of its optimizer."""

    def __init__(self, case: Case, rank: int, stages: int, factor: float) -> None:
        import torch
        from megatron.core import parallel_state
        from megatron.core.transformer.fsdp_dtensor_checkpoint import handle_experts_in_state_dict

        options, size = case.options, case.topology
        megatron.initialize(size._replace(pp=stages, dp=size.world // stages))
        stage, layers = parallel_state.get_pipeline_model_parallel_rank(), _LAYERS // stages
        self._first = options.get("first", layers) * min(stage, 1) + layers * max(stage - 1, 0) + 1
        apart = size.world if size.dp == 1 else stages
        self._shard, self._case = rank % (size.world // apart), case
        self._args = SimpleNamespace(
            swiglu=options.get("kind") == "gated", num_experts=2 if options.get("kind") == "experts" else None
        )
        model = _model(case, stages)
        self.model = megatron_fsdp.wrapped(model, size.ep, apart=apart, fsdp_unit_modules=[type(model.module.decoder.layers[-1])])
        self.model.config = model.config
        self.weights = {f"module.{name}": it for name, it in self.model.named_parameters()}
        self.weights = handle_experts_in_state_dict(self.weights, self._args.num_experts)
        self.optimizer: dict[str, Any] = {"state": {}, "param_to_group_meta": {}}
        for name, it in self.weights.items():
            of = self._of(name)
            it._local_tensor.fill_(of * factor)
            moments = {moment: torch.full_like(it, of * factor) for moment in ("exp_avg", "exp_avg_sq")}
            self.optimizer["state"][name] = moments
            self.optimizer["param_to_group_meta"][name] = {"lr": torch.tensor(of * factor)}

    def _of(self, name: str) -> int:
        """Return the number of the layer that has a weight, and others for those that are in none."""
        _, found, rest = name.partition("decoder.layers.")
        return self._first + int(rest.partition(".")[0]) if found else _LAYERS + 1 + ("mtp." in name)

    def named(self, is_old: bool = False) -> dict[Any, Any]:
        """Return the tensors by their names in a checkpoint, such as those of before the fix on one stage."""
        state: dict[str, Any] = {"model": self.model.state_dict()}
        if self._case.options.get("has_optimizer", True):
            state["optimizer"] = self.optimizer
        if not is_old:
            module: Any = importlib.import_module(self._case.options.get("module") or _module())
            function = getattr(module, self._case.options.get("function") or _PLACES[module.__name__])
            state = function(self._args, state, self.model)
        found = {("model", name): it for name, it in state["model"].items() if not name.endswith("_extra_state")}
        for part, states in state.get("optimizer", {}).items():
            found |= {(part, name, key): it for name, inner in states.items() for key, it in inner.items()}
        return {(*name, self._shard): getattr(it, "_local_tensor", it).detach() for name, it in found.items()}

    def has(self) -> dict[str, list[float]]:
        """Return the values of the weights and in the optimizer, by the layer's number."""
        found: dict[str, list[float]] = {}
        for name, it in self.weights.items():
            inner = [*self.optimizer["state"][name].values(), *self.optimizer["param_to_group_meta"][name].values()]
            inner = inner if self._case.options.get("has_optimizer", True) else []
            values = {value for each in (it, *inner) for value in getattr(each, "_local_tensor", each).flatten().tolist()}
            found[str(self._of(name))] = sorted({*found.get(str(self._of(name)), ()), *values})
        return found


def _model(case: Case, stages: int) -> Any:
    """Return this stage of a model, as Megatron wraps it below its FSDP."""
    import torch
    from megatron.core import parallel_state
    from megatron.core.models.gpt import gpt_layer_specs
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.module import Float16Module
    from megatron.core.transformer.transformer_config import TransformerConfig

    kind, mtp = case.options.get("kind"), case.options.get("mtp")
    first = {"num_layers_in_first_pipeline_stage": case.options["first"]} if "first" in case.options else {}
    experts = {"num_moe_experts": 2, "expert_model_parallel_size": case.topology.ep} if kind == "experts" else {}
    gated = {"gated_linear_unit": True, "activation_func": torch.nn.functional.silu} if kind == "gated" else {}
    config = TransformerConfig(
        **{"num_layers": _LAYERS, "hidden_size": 8, "num_attention_heads": 2, "use_cpu_initialization": True},
        **{"pipeline_model_parallel_size": stages, "pipeline_dtype": torch.bfloat16, "bf16": True},
        **{"mtp_num_layers": mtp, "masked_softmax_fusion": False, **first, **experts, **gated},
    )
    is_first, is_last = parallel_state.is_pipeline_first_stage(), parallel_state.is_pipeline_last_stage()
    spec = gpt_layer_specs.get_gpt_layer_local_spec(num_experts=2 if experts else None)
    block = gpt_layer_specs.get_gpt_mtp_block_spec(config, spec, use_transformer_engine=False) if mtp and is_last else None
    own = {"share_embeddings_and_output_weights": False, "mtp_block_spec": block}
    model = GPTModel(config, spec, 16, 8, pre_process=is_first, post_process=is_last, **own)
    if kind == "hybrid":
        number = model.decoder.layers[0].layer_number
        model.decoder.layers[0] = torch.nn.Linear(2, 2)
        model.decoder.layers[0].layer_number = number
    return Float16Module(config, model)


def wrong(case: Case, ranks: Sequence[Mapping[str, list[float]]]) -> str:
    """Return what the layers have that is not theirs; empty if nothing is."""
    found = {of: values for rank in ranks for of, values in rank.items()}
    numbers = [str(it) for it in range(1, _LAYERS + 1)]
    if any(values != [float(of)] for rank in ranks for of, values in rank.items()) or not {*numbers} <= {*found}:
        return f"{_AT} {' '.join(numbers)} are {' '.join(str(int(found[it][-1])) for it in numbers)}"
    return ""


def right(case: Case, ranks: Sequence[Mapping[str, list[float]]]) -> str:
    """Return what was seen."""
    return f"{_AT} {' '.join(numbers := [str(it) for it in range(1, _LAYERS + 1)])} are {' '.join(numbers)}"
