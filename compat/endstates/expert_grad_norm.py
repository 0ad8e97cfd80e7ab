"""expert-grad-norm: which parameters of grouped experts carry the mark by which a rank counts them in the norm."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any, ClassVar, NamedTuple

from unhang.compat.endstates.endstate import EndState, Outcome, Source, called
from unhang.compat.endstates.standin import StandIn
from unhang.compat.endstates.tensors import torch
from unhang.shapes.shape import Function

NEW, OLD, GROUPED = "marks nothing", "marks its weights", "has one weight for all experts"
"""What Transformer Engine does: from 2.13 on, before, and from 2.14 on where it is asked to."""
_HELPER = "_set_expert_parameter_attributes"
_OTHERS = ("weight_scale0", "my_weight0", "scale")


class Setting(NamedTuple):
    """One layer of experts in a job."""

    tp: int = 2
    ep: int = 2
    etp: int = 1
    mode: str | None = "column"
    engine: str = NEW
    bias: bool = False
    is_expert: bool = True
    gemms: int = 2
    rank: int = 0
    given: bool = True
    """Whether the constructor gets its groups, if it takes them."""

    @property
    def is_split(self) -> bool:
        """Whether each rank of a tensor-parallel group has other weights."""
        if self.mode is None:  # as of LoRA, in whole on each rank that has the expert
            return self.etp == 1 and self.ep > 1
        return self.ep > 1 or self.etp == self.tp

    @property
    def is_explicit(self) -> bool:
        """Whether Transformer Engine is not told how the layer is split."""
        return self.is_expert and (self.etp > 1 or self.ep > 1)


class Layer(StandIn):
    """A grouped linear, as Transformer Engine makes it."""

    def make(self, setting: Setting, **of_engine: Any) -> None:
        """Make the parameters, as the constructor of the base class does."""
        vars(self)["of_engine"] = of_engine
        numbers = [str(number) for number in range(setting.gemms)]
        has = [""] if setting.engine == GROUPED else numbers
        own = [*(f"weight{number}" for number in has), *_OTHERS]
        own += [f"bias{number}" for number in has if setting.bias]
        params = {name: StandIn(name, _ABSENT) for name in (*own, "child.weight0")}
        for name in own:
            is_weight = name.rstrip("0123456789") == "weight"
            if setting.engine == OLD and (is_weight or (name.startswith("bias") and of_engine["parallel_mode"])):
                vars(params[name]).update(tensor_model_parallel=True, partition_dim=0, partition_stride=1)
        vars(self)["params"] = params
        vars(self).update({f"weight{number}": params.get(f"weight{number}") for number in numbers})

    def parameters(self) -> Iterator[StandIn]:
        return iter(self.params.values())

    def named_parameters(self, recurse: bool = True) -> Iterator[tuple[str, StandIn]]:
        return iter([(name, param) for name, param in self.params.items() if recurse or "." not in name])

    def _normalize_grouped_parameter_keys(self) -> None:
        """Run when a checkpoint is loaded."""


_ABSENT = ("allreduce", "tensor_model_parallel", "partition_dim", "partition_stride")


def run(source: Source, setting: Setting) -> Layer:
    """Run the constructor, and return the layer."""
    groups = {"tp": StandIn("tp_group", size=lambda: setting.tp), "etp": StandIn("etp_group", size=lambda: setting.etp)}
    mine = groups["etp" if setting.is_expert else "tp"]
    collection = StandIn("pg_collection", tp=groups["tp"], expt_tp=groups["etp"], expt_dp="edp", expt_gtp_remat=None)
    config = StandIn(
        "config",
        tensor_model_parallel_size=setting.tp,
        expert_model_parallel_size=setting.ep,
        expert_tensor_parallel_size=setting.etp,
        sequence_parallel=setting.tp > 1,
        gradient_accumulation_fusion=False,
        disable_parameter_transpose_cache=False,
        delay_wgrad_compute=False,
        overlap_dispatch_backward_with_experts_wgrad=False,
        moe_single_grouped_weight=setting.engine == GROUPED,
        moe_single_grouped_bias=setting.engine == GROUPED,
        moe_use_grouped_tensor=False,
        expert_gtp_weight_remat_size=1,
        gtp_weight_remat_size=1,
        quant_recipe=None,
    )
    layer = Layer(
        "layer",
        finish_init=lambda quant_config: None,
        _register_load_state_dict_pre_hook=lambda hook, with_module=False: None,
    )

    def context(*given: Any, **named: Any) -> Any:
        return nullcontext(given[1] if len(given) > 1 else None)

    distributed = StandIn("torch.distributed", is_initialized=lambda: True, get_rank=lambda group=None: setting.rank)
    names: dict[str, Any] = {
        "super": lambda: StandIn("super", __init__=lambda **given: layer.make(setting, **given)),
        "_get_extra_te_kwargs": lambda config: {},
        "is_te_min_version": lambda version, check_equality=True: True,
        "get_expert_parallel_rng_tracker_name": lambda: "expert",
        "get_cuda_rng_tracker": lambda: StandIn("tracker", is_initialized=lambda: True),
        "condition_init_method": lambda config, init_method: init_method,
        "divide": lambda numerator, denominator: numerator // denominator,
        "get_pg_size": lambda group=None: group.size() if group else 1,
        "get_tensor_model_parallel_group_if_none": lambda group, is_expert=False, check_initialized=True: group or mine,
        "get_expert_tensor_parallel_group": lambda check_initialized=True: groups["etp"],
        "get_expert_tensor_parallel_world_size": lambda: setting.etp,
        "get_tensor_model_parallel_group": lambda check_initialized=True: groups["tp"],
        "get_tensor_model_parallel_world_size": lambda: setting.tp,
        "ProcessGroupCollection": StandIn("ProcessGroupCollection", use_mpu_process_groups=lambda: collection),
        "get_quant_config_or_none": lambda name, recipe: None,
        "_get_fp8_model_init_for_quant_params": lambda params, training: nullcontext(),
        "_init_gtp_remat_context": context,
        "_TE_GROUPED_LINEAR_INIT_PARAMS": {"single_grouped_weight", "single_grouped_bias"},
        "_TE_GROUPED_LINEAR_SUPPORTS_GROUPED_TENSOR": True,
        "torch": torch(is_grad_enabled=lambda: True, distributed=distributed),
    }
    if _HELPER in source.bound:  # upstream's own fix
        pattern = StandIn("pattern", fullmatch=_fullmatch)
        helper = called(Source(source.text, _HELPER), {"_EXPERT_PARAMETER_NAME_PATTERN": pattern})
        names[_HELPER] = helper
    accepted = {one.arg for one in source.function.args.kwonlyargs}
    optional = {"pg_collection": collection, "tp_group": mine, "name": "experts"} if setting.given else {}
    called(source, names)(
        layer,
        setting.gemms,
        16,
        32,
        parallel_mode=setting.mode,
        config=config,
        init_method=None,
        bias=setting.bias,
        skip_bias_add=False,
        is_expert=setting.is_expert,
        tp_comm_buffer_name="fc",
        **{name: value for name, value in optional.items() if name in accepted},
    )
    return layer


def _fullmatch(name: str) -> Any:
    kind = name.rstrip("0123456789")
    return StandIn("match", group=lambda number: kind) if kind in ("weight", "bias") else None


def _faults(setting: Setting, layer: Layer) -> Iterator[str]:
    told = layer.of_engine["parallel_mode"]
    if told != (None if setting.is_explicit else setting.mode):
        yield "Transformer Engine is told something else"
    for name, param in layer.params.items():
        kind = name.rstrip("0123456789")
        if "." not in name and setting.is_expert and setting.ep > 1 and getattr(param, "allreduce", True):
            yield "an expert is reduced over all ranks"
        if setting.engine == OLD or (setting.mode is None and not setting.is_expert):
            continue
        if hasattr(param, "partition_dim") and (
            (param.partition_dim, getattr(param, "partition_stride", 0)) != (int(setting.mode == "row"), 1)
        ):
            yield f"{kind} is split along another dimension"
        marked = getattr(param, "tensor_model_parallel", False)
        if kind != "weight" and not (kind == "bias" and setting.mode == "column"):
            if marked:
                yield f"{kind} is marked"
        elif setting.tp == 1 or kind == "bias":
            continue
        elif marked != (setting.is_split or (setting.mode is not None and not (param.allreduce and setting.is_expert))):
            yield "a rank counts what another one does" if marked else "a rank does not count its weights"
        elif marked and setting.engine == NEW and not hasattr(param, "partition_dim"):
            yield "a marked weight does not say along which dimension it is split"


class Constructor(EndState):
    """The end state of the constructor."""

    varied: ClassVar[dict[str, str]] = {
        "bias": "bias",
        "is_expert": "is_expert",
        **dict.fromkeys(("parallel_mode", "original_parallel_mode"), "mode"),
        "pg_collection": "given",
        "self.expert_parallel": "ep",
        "self.explicit_expert_comm": "ep and etp",
        "self.config.tensor_model_parallel_size": "tp",
        **dict.fromkeys(("tp_size", "self.config.expert_tensor_parallel_size"), "etp"),
        "weight": "engine and gemms",
    }
    held: ClassVar[dict[str, str]] = {
        **dict.fromkeys(("skip_bias_add", "get_cuda_rng_tracker"), "is about an argument for the base class alone"),
        **dict.fromkeys(("is_te_min_version", "torch.distributed.is_initialized"), "is about arguments alone"),
        **dict.fromkeys(("self.config.delay_wgrad_compute", "self.delay_wgrad_compute"), "is about an argument alone"),
        **dict.fromkeys(("_gl_params", "grouped_linear_init_params"), "is about arguments alone"),
        **dict.fromkeys(
            (
                *("_TE_GROUPED_LINEAR_SUPPORTS_GROUPED_TENSOR", "config.moe_use_grouped_tensor"),
                *("self.config.overlap_dispatch_backward_with_experts_wgrad", "config.use_transformer_engine_op_fuser"),
            ),
            "is about an argument alone",
        ),
        **dict.fromkeys(
            ("self.config.expert_gtp_weight_remat_size", "self.config.gtp_weight_remat_size"), "is about DP"
        ),
        **dict.fromkeys(("isinstance", "getattr"), "a builtin"),
        **dict.fromkeys(
            (
                *("fp8_checkpoint", "prefix", "state_dict", "state_dict.get", "state_list", "self._decode_extra_state"),
                *(
                    "has_all_indexed_keys",
                    "has_any_indexed_key",
                    "has_grouped_key",
                    "single_grouped",
                    "self.use_bias",
                    "self",
                ),
                *("self.fp8", "self.fp8_calibration", "self.fp8_meta", "te.common.recipe.DelayedScaling"),
            ),
            "runs when a checkpoint is loaded",
        ),
    }
    without: ClassVar[dict[str, Any]] = {"tp": 1, "etp": 1}

    def configurations(self, function: Function) -> Iterator[Setting]:
        only_experts = any(isinstance(node, ast.Assert) for node in function.body)
        for tp, ep, etp, mode in itertools.product((1, 2, 4), (1, 2, 4), (1, 2, 4), ("column", "row", None)):
            for engine, bias, is_expert in itertools.product((NEW, OLD, GROUPED), (False, True), (True, False)):
                if etp <= tp and (is_expert or not only_experts):
                    yield Setting(tp, ep, etp, mode, engine, bias, is_expert, 11 if bias else 2, int(bias), not bias)

    def concerned(self, configuration: Setting) -> bool:
        return configuration.tp > 1 and configuration.is_split and configuration.engine != OLD

    def control(self, configuration: Setting) -> Setting | None:
        return super().control(configuration) if configuration.mode else None  # upstream leaves LoRA out

    def observe(self, source: Source, configuration: Setting) -> Outcome:
        layer = run(source, configuration)
        seen = {name: {key: getattr(it, key, None) for key in _ABSENT} for name, it in layer.params.items()}
        return Outcome(frozenset(_faults(configuration, layer)), repr((layer.of_engine["parallel_mode"], seen)))


END_STATES = {
    "TEGroupedLinear.__init__": Constructor(),
}
