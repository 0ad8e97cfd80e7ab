"""megatron-core: the real gradient norm of a small mixture of experts, on real ranks.

Its two layers are made by the real constructors of grouped linears, wrapped by the real DDP, and given to the real
optimizer for bfloat16, with its copies in float32. Each rank fills in its part of gradients that are known; the norm
of all in one process is the reference. Transformer Engine is a stand-in: its grouped linear has the weights and does
not mark them, as 2.13 and later; or marks them all, as up to 2.12.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from ..cases import DIFFERS, PASSED, Case, Topology
from ..ranks import megatron, shims
from ..ranks.around import Around

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

_AT = "the gradient norm is"
_TWO, _FOUR, _SHARDS = Topology(tp=2, ep=2), Topology(tp=4, ep=2), Topology(tp=2, etp=2)
_SHARDED, _MARKED, _LORA = {"sharded": True}, {"engine": "2.12"}, {"lora": True}
CASES = (
    Case("tp2-ep2", _TWO, DIFFERS, _AT, core=True),
    Case("tp2-ep2-sharded", _TWO, DIFFERS, _AT, _SHARDED, core=True),
    Case("tp4-ep2", _FOUR, DIFFERS, f"{_AT} 5.1174, 5.1174, 0.7906", core=True),
    Case("tp4-ep2-sharded", _FOUR, DIFFERS, _AT, _SHARDED, core=True),
    Case("tp4-ep4", Topology(tp=4, ep=4), DIFFERS, _AT),
    Case("tp2-etp2", _SHARDS, DIFFERS, _AT, core=True),
    Case("tp2-etp2-sharded", _SHARDS, DIFFERS, _AT, _SHARDED),
    Case("tp2-dp2-ep2", Topology(tp=2, dp=2, ep=2), DIFFERS, _AT),
    Case("tp2-dp2-ep2-sharded", Topology(tp=2, dp=2, ep=2), DIFFERS, _AT, _SHARDED),
    Case("tp2-dp2-ep2-etp2", Topology(tp=2, dp=2, ep=2, etp=2), DIFFERS, _AT),
    Case("tp4-ep2-etp2", Topology(tp=4, ep=2, etp=2), DIFFERS, _AT),
    Case("tp2-ep2-lora", _TWO, DIFFERS, _AT, _LORA, core=True),
    Case("tp2-ep2-lora-sharded", _TWO, DIFFERS, _AT, {**_LORA, **_SHARDED}),
    Case("tp4-ep2-lora", _FOUR, DIFFERS, _AT, _LORA),
    Case("tp4-ep2-lora-sharded", _FOUR, DIFFERS, _AT, {**_LORA, **_SHARDED}),
    Case("tp2-etp2-lora", _SHARDS, DIFFERS, _AT, _LORA, core=True),
    Case("tp2-lora", Topology(tp=2), PASSED, options=_LORA, core=True),
    Case("tp2", Topology(tp=2), PASSED, core=True),
    Case("tp2-sharded", Topology(tp=2), PASSED, options=_SHARDED, core=True),
    Case("dp2-ep2", Topology(dp=2, ep=2), PASSED, core=True),
    Case("one", Topology(), PASSED),
    Case("tp2-ep2-marked", _TWO, PASSED, options=_MARKED, core=True),
    Case("tp4-ep2-marked", _FOUR, PASSED, options=_MARKED),
    Case("tp2-ep2-fsdp", _TWO, DIFFERS, _AT, {"fsdp": True}, core=True, patched=DIFFERS),
)
_ANOTHER = {
    "use_cpu_initialization": True,
    "perform_initialization": False,
    "init_model_with_meta_device": True,
    "pipeline_model_parallel_size": 2,
    "context_parallel_size": 2,
    "fp8": "hybrid",
}
"""Settings that have no part in the defect, each other than elsewhere: a job may have any of them."""
GRID = [
    *(it._replace(name=f"the case {it.name}") for it in CASES if it.patched == PASSED),
    *(
        Case(name, topology, untouched, options=options)
        for name, topology, untouched, options in (
            ("one weight, in float32", _TWO, DIFFERS, {"engine": "grouped", "type": "float32"}),
            ("one weight, in shards", _SHARDS, DIFFERS, {"engine": "grouped"}),
            ("eleven weights, of another job", _TWO, DIFFERS, {"experts": 22, "config": _ANOTHER}),
            ("a bias", _SHARDS, DIFFERS, {"bias": True}),
            ("a bias, marked", _SHARDS, PASSED, {"bias": True, **_MARKED}),
            ("LoRA in shards of two", Topology(tp=4, ep=2, etp=2), DIFFERS, {**_LORA, "left": ["lora"]}),
            # the gradients of copies differ, and no mark cures that
            ("shards of two", Topology(tp=4, etp=2), PASSED, {"left": ["fc1", "fc2"]}),
        )
    ),
]
HELD = {
    "is_expert": "the class makes layers of experts alone, and later asserts it",
    r"skip_bias_add|is_initialized|delay_wgrad|is_te_min_version|_gl_params|_init_params": "about an argument alone",
    r"GROUPED_TENSOR|NameError|overlap_disp|op_fuser|remat_size|moe_use_grouped_tensor": "about an argument alone",
    "pg_collection": "the groups are the same",
    **dict.fromkeys(("merge_extra_states", "normalize_grouped_parameter_keys"), "runs for a checkpoint"),
    **dict.fromkeys(("maybe_remap_param", "_split_grouped_checkpoint_tensor"), "runs for a checkpoint"),
}
RULED_OUT = ("tp", "with TP 1 no other rank has experts to count")
_CORE, _ENGINE = "megatron.core.extensions.transformer_engine", "transformer_engine.pytorch"
_HIDDEN, _WIDE, _RANK = 4, 8, 2
_OTHERS = *(f"bias{number}" for number in range(4)), "weight_scale0", "my_weight0", "child.weight0"
"""Parameters beside the weights, which each rank of shards has in whole: none may be counted twice."""
_SUMMED = ("allreduce", "sequence_parallel", "average_gradients_across_tp_domain")
"""By these marks DDP and the end of a step know over which ranks they sum a parameter's gradient."""
_LATER = ("overlap_dispatch_backward_with_experts_wgrad", "moe_use_grouped_tensor")
"""What the constructor of a commit may ask of a configuration, and its closest release lacks."""


def settings(case: Case) -> dict[str, Any]:
    """Return what the user of a case's job sets."""
    engine = case.options.get("engine", "2.13")
    return {
        "moe_grouped_gemm": True,
        "moe_single_grouped_weight": False,
        "tensor_model_parallel_size": case.topology.tp,
        "expert_model_parallel_size": case.topology.ep,
        "expert_tensor_parallel_size": case.topology.etp,
        "use_megatron_fsdp": case.options.get("fsdp", False),
        "version transformer-engine": "2.13" if engine == "grouped" else engine,
        "version megatron-core": "0.15.3" if case.options.get("fsdp") else "0.18.2",
    }


def case_for(topology: Topology, upstream: str, shapes: Collection[str]) -> Case:
    """Return a small job in which ranks share the experts as in the user's."""
    if topology.ep > 1:
        return Case("yours", _TWO, DIFFERS, _AT)
    if topology.etp == topology.tp:
        return Case("yours", _SHARDS, DIFFERS, _AT)
    return Case("yours", Topology(tp=2), PASSED)


def caveat(case: Case) -> str:
    """Return what the case supposes of the user's job."""
    return "" if case.is_control else "supposes grouped experts, and Transformer Engine from 2.13 on"


def prepare() -> None:
    """Import the optimizer for a CPU, without Transformer Engine, and then what is made for that, with a stand-in."""
    shims.cuda_on_cpu()
    blocked: dict[str, Any] = dict.fromkeys(("transformer_engine", "apex", "amp_C"))  # they need a GPU
    sys.modules.update(blocked)
    for name in ("optimizer", "distributed"):
        importlib.import_module(f"megatron.core.{name}")
    del sys.modules["transformer_engine"]
    sys.modules.pop(_CORE, None)
    sys.meta_path.insert(0, Around("transformer_engine", (), _Module))
    vars(importlib.import_module(_ENGINE))["GroupedLinear"] = _grouped_linear()
    engine = importlib.import_module(_CORE)
    # no such group is made
    vars(engine)["_init_gtp_remat_context"] = lambda _, size, *__, **___: contextlib.nullcontext(size)
    later = {  # which the constructor of a commit may use, and its closest release lacks
        "_TE_GROUPED_LINEAR_SUPPORTS_GROUPED_TENSOR": False,
        "get_tensor_model_parallel_group_if_none": lambda *_, **__: engine.get_expert_tensor_parallel_group(),
    }
    vars(engine).update({name: value for name, value in later.items() if name not in vars(engine)})
    with contextlib.suppress(ImportError):
        from megatron.core.process_groups_config import ProcessGroupCollection

        ProcessGroupCollection.expt_gtp_remat = getattr(ProcessGroupCollection, "expt_gtp_remat", None)


class Seen(NamedTuple):
    """What the layers and the optimizer of a rank are."""

    norm: float
    """That of all gradients."""
    zeros: float
    """The number of zeros in them."""
    told: list[str | None]
    """How Transformer Engine is told that each layer is split."""
    marks: dict[str, list[Any]]
    """Of each marked parameter the dimension in which it is split, and the stride. With TP 1 they mean nothing."""
    others: list[list[str]]
    """Of each parameter what else it is said to be; the first is the norm, no expert."""
    is_upstream: bool
    """Whether the constructor has upstream's own fix: with 0.19 every rank counts what is left here."""
    whole: dict[str, list[int]]
    """The sizes that Megatron-FSDP takes each expert for."""
    says: bool
    """Whether the constructor says itself in which dimension a weight is split, as from 0.17 on."""


def on_rank(case: Case, rank: int) -> Seen:
    """Take one step up to the norm and the number of zeros that the optimizer of this rank finds."""
    from megatron.core import distributed, optimizer, parallel_state

    topology, sharded = case.topology, bool(case.options.get("sharded"))
    shims.gloo_as_nccl()
    with shims.on_cpu():
        megatron.initialize(topology)
        config = _config(case)
        model = _model(config, case)
        others = [[it for it in _SUMMED if getattr(param, it, False)] for param in model.parameters()]
        options = distributed.DistributedDataParallelConfig(use_distributed_optimizer=sharded, grad_reduce_in_fp32=True)
        wrapped = distributed.DistributedDataParallel(config, options, model)
        wanted = {"use_gloo_process_groups": False}
        known = inspect.signature(optimizer.get_megatron_optimizer).parameters
        updates = optimizer.get_megatron_optimizer(
            optimizer.OptimizerConfig(
                optimizer="adam",
                lr=1.0,
                bf16=config.bf16,
                params_dtype=config.params_dtype,
                use_distributed_optimizer=sharded,
                log_num_zeros_in_grad=True,
            ),
            [wrapped],
            **{name: value for name, value in wanted.items() if name in known},
        )
        wrapped.zero_grad_buffer()
        updates.zero_grad()
        place = parallel_state.get_expert_model_parallel_rank(), parallel_state.get_expert_tensor_parallel_rank()
        copies = topology.world // (topology.ep * topology.etp)
        for name, param in model.named_parameters():
            # DDP sums over all copies of an expert, and divides by the number of data-parallel ranks
            part = topology.dp / copies if name != "norm" and not getattr(param, "allreduce", True) else 1
            param.main_grad.copy_(_own(name, case, *place) * part)
        wrapped.finish_grad_sync()
        updates.prepare_grads()
        layers = [module for module in model.modules() if hasattr(module, "told")]
        marks = {
            name: [getattr(param, it, None) for it in ("partition_dim", "partition_stride")]
            for name, param in model.named_parameters()
            if topology.tp > 1 and getattr(param, "tensor_model_parallel", False)
        }
        code = importlib.import_module(_CORE).TEGroupedLinear.__init__.__code__
        is_upstream = "_set_expert_parameter_attributes" in code.co_names
        # up to 0.11 the chain has none of its own, and its step adds up those of its optimizers
        is_whole = "get_grad_norm" in vars(type(updates))
        each = [updates] if is_whole else getattr(updates, "chained_optimizers", [updates])
        norm = sum(float(it.get_grad_norm()) ** 2 for it in each) ** 0.5
        zeros = sum(float(it.count_zeros()) for it in each)
        told = [it.told for it in layers]
        whole = _whole(model, topology) if case.options.get("fsdp") else {}
        return Seen(
            norm, zeros, told, marks, others, is_upstream, whole, is_upstream or "partition_stride" in code.co_consts
        )


def wrong(case: Case, ranks: Sequence[Seen]) -> str:
    """Return what is wrong with the norm and the marks; empty where they are as in one process."""
    norm, zeros = _due(case, ranks[0])
    kept = case.options.get("engine") == "2.12" and not ranks[0].says
    split = {"fc1": 0, "fc2": int(not kept), "lora": 0}
    for number, rank in enumerate(ranks):
        if abs(rank.norm - norm) > 1e-4 or rank.zeros != zeros:
            each = ", ".join(f"{it.norm:.4f}" for it in ranks)
            zero = ", ".join(f"{it.zeros:.0f}" for it in ranks)
            return f"{_AT} {each} on the ranks, due {norm:.4f}; zeros {zero}, due {zeros}"
        if any(rank.told) and max(case.topology.ep, case.topology.etp) > 1:
            return f"Transformer Engine of rank {number} is told {rank.told}, and would talk to other ranks"
        if rank.marks.keys() != ranks[0].marks.keys():
            return f"rank {number} marks {[*rank.marks]}, and rank 0 {[*ranks[0].marks]}"
        if not rank.is_upstream and any(it != ["allreduce"] * (case.topology.ep == 1) for it in rank.others[1:]):
            return f"rank {number} sets {rank.others[1:]} of the experts"
        for name, mark in rank.marks.items():
            if mark != [split[name.partition(".")[0]], 1]:
                return f"rank {number} says of {name} that it is split by {mark}"
        for name, sizes in rank.whole.items():
            if sizes != (due := [_HIDDEN, _WIDE] if name.startswith("fc2") else [_WIDE, _HIDDEN]):
                return f"Megatron-FSDP of rank {number} takes {name}, which is {due}, for a part of {sizes}"
    return ""


def right(case: Case, ranks: Sequence[Seen]) -> str:
    """Return what was seen."""
    return f"{_AT} {ranks[0].norm:.4f} on each rank, as in one process"


def _whole(model: Any, topology: Topology) -> dict[str, list[int]]:
    """Return the sizes that Megatron-FSDP takes each expert for, from the one mesh that it has for all weights."""
    from torch.distributed.device_mesh import init_device_mesh

    fsdp = "megatron.core.distributed.fsdp.src.megatron_fsdp"
    buffer, utils = (importlib.import_module(f"{fsdp}.{name}") for name in ("param_and_grad_buffer", "utils"))
    mesh = init_device_mesh(shims.DEVICE, (topology.world // topology.tp, topology.tp), mesh_dim_names=("dp", "tp"))
    index = utils.FSDPDistributedIndex(mesh, dp_shard_dim="dp", tp_dim="tp")
    return {
        name: list(buffer.make_fsdp_dtensor(param.data, param, index, False, is_expert_param=True).shape)
        for name, param in model.named_parameters()
        if name != "norm"
    }


def _due(case: Case, seen: Seen) -> tuple[float, int]:
    """Return the norm and the number of zeros of all gradients in one process.

    Of layers that stay uncounted on all TP ranks but the first, it is what that one has.
    """
    grads = _grads(case)
    for name in () if seen.is_upstream else case.options.get("left", ()):
        own = [_own(f"{name}.weight{number}", case, 0, 0) for number in range(_experts(case) // case.topology.ep)]
        grads[name] = importlib.import_module("torch").stack(own)
    return sum(float((it**2).sum()) for it in grads.values()) ** 0.5, sum(int((it == 0).sum()) for it in grads.values())


def _grads(case: Case) -> dict[str, Any]:
    """Return the gradient of each layer of the whole model, of all experts, in fractions that no sum rounds.

    One of two matrices of LoRA is not split: each rank that has the expert has it in whole. So it is with ``_OTHERS``.
    """
    import torch

    random = torch.Generator().manual_seed(1)
    experts = _experts(case)
    shapes: dict[str, tuple[int, ...]] = {"norm": (_HIDDEN,)}
    shapes |= {"fc1": (experts, _WIDE, _HIDDEN), "fc2": (experts, _HIDDEN, _WIDE)}
    if case.options.get("lora"):
        shapes["lora"] = experts, _RANK, _HIDDEN
    if case.options.get("bias"):
        shapes |= dict.fromkeys((f"fc2.{name}" for name in _OTHERS), (_HIDDEN,))
    return {name: torch.randint(-3, 4, shape, generator=random) / 4 for name, shape in shapes.items()}


def _own(name: str, case: Case, expert_rank: int, shard: int) -> Any:
    """Return this rank's part of the gradient of a parameter."""
    grads, topology = _grads(case), case.topology
    if name in grads and name not in ("fc1", "fc2", "lora"):
        return grads[name]
    layer, _, number = name.partition(".weight")
    experts = grads[layer].chunk(topology.ep)[expert_rank]
    if layer != "lora":
        experts = experts.chunk(topology.etp, dim=1 if layer == "fc1" else 2)[shard]
    return experts[int(number)] if number else experts


def _experts(case: Case) -> int:
    return int(case.options.get("experts", 4))


def _config(case: Case) -> Any:
    import torch
    from megatron.core.transformer.transformer_config import TransformerConfig

    topology, kind = case.topology, case.options.get("type", "bfloat16")
    config = TransformerConfig(
        num_layers=1,
        hidden_size=_HIDDEN,
        num_attention_heads=4,
        num_moe_experts=_experts(case),
        moe_grouped_gemm=True,
        tensor_model_parallel_size=topology.tp,
        expert_model_parallel_size=topology.ep,
        expert_tensor_parallel_size=topology.etp,
        sequence_parallel=topology.tp > 1,
        add_bias_linear=False,
        params_dtype=getattr(torch, kind),
        bf16=kind == "bfloat16",
    )
    vars(config).update(case.options.get("config", {}))
    for name in (it for it in _LATER if not hasattr(config, it)):
        setattr(config, name, False)
    return config


def _model(config: Any, case: Case) -> Any:
    """Return the layers of the experts of this rank, and a norm that every rank has in whole."""
    import torch

    engine = importlib.import_module(_CORE)
    sys.modules[_ENGINE].GroupedLinear.version = case.options.get("engine", "2.13")

    def layer(cls: Any, *sizes: int, bias: bool = False, **mode: None) -> Any:
        return cls(
            _experts(case) // config.expert_model_parallel_size,
            *sizes,
            config=config,
            init_method=torch.nn.init.zeros_,
            bias=bias,
            skip_bias_add=False,
            is_expert=True,
            **mode,
        )

    model = torch.nn.Module()
    model.config = config
    model.fc1 = layer(engine.TEColumnParallelGroupedLinear, _HIDDEN, _WIDE)
    model.fc2 = layer(engine.TERowParallelGroupedLinear, _WIDE, _HIDDEN, bias=bool(case.options.get("bias")))
    if case.options.get("lora"):
        model.lora = layer(engine.TEGroupedLinear, _HIDDEN, _RANK, parallel_mode=None)
    model.norm = torch.nn.Parameter(torch.zeros(_HIDDEN, dtype=config.params_dtype))
    return model


def _grouped_linear() -> Any:
    """Return a stand-in for Transformer Engine's grouped linear."""
    import torch

    class GroupedLinear(torch.nn.Module):  # type: ignore[misc]
        version = ""

        def __init__(
            self,
            num_gemms: int,
            in_features: int,
            out_features: int,
            params_dtype: Any,
            bias: bool,
            parallel_mode: str | None,
            **_: object,
        ) -> None:
            super().__init__()
            self.told = parallel_mode
            shapes: dict[str, tuple[int, ...]]
            shapes = {f"weight{number}": (out_features, in_features) for number in range(num_gemms)}
            if self.version == "grouped":
                shapes = {"weight": (num_gemms, out_features, in_features)}
            for name, shape in {**shapes, **dict.fromkeys(_OTHERS * bias, (out_features,))}.items():
                *child, own = name.split(".")
                for inner in child:
                    self.add_module(inner, torch.nn.Module())
                param = torch.nn.Parameter(torch.zeros(shape, dtype=params_dtype))
                if self.version == "2.12" and name in shapes:
                    param.tensor_model_parallel, param.partition_dim, param.partition_stride = True, 0, 1
                self.get_submodule(".".join(child)).register_parameter(own, param)

        def _register_load_state_dict_pre_hook(self, *_: object, **__: object) -> None:
            """No state is loaded here."""

        _normalize_grouped_parameter_keys = _register_load_state_dict_pre_hook  # a commit's own, which 0.17 lacks

    return GroupedLinear


class _Module(ModuleType):
    """A module of Transformer Engine, with any class and any module in it."""

    __version__ = "2.13.0"

    def __getattr__(self, name: str) -> Any:
        import torch

        if name.startswith("__"):
            raise AttributeError(name)
        if name[0].islower():
            return importlib.import_module(f"{self.__name__}.{name}")
        return type(name, (torch.nn.Module,), {})
