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

from ..cases import DIFFERS, PASSED, Case, Outcome, Topology
from ..ranks import gloo, megatron, shims
from ..ranks.around import Around

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

_AT = "the gradient norm is"
_TWO, _FOUR, _SHARDS = Topology(tp=2, ep=2), Topology(tp=4, ep=2), Topology(tp=2, etp=2)
_SHARDED, _MARKED, _LORA = {"sharded": True}, {"engine": "2.12"}, {"lora": True}
CASES = (
    Case("tp2-ep2", _TWO, "ranks", DIFFERS, _AT, core=True),
    Case("tp2-ep2-sharded", _TWO, "ranks", DIFFERS, _AT, _SHARDED, core=True),
    Case("tp4-ep2", _FOUR, "ranks", DIFFERS, f"{_AT} 5.1174, 5.1174, 0.7906", core=True),
    Case("tp4-ep2-sharded", _FOUR, "ranks", DIFFERS, _AT, _SHARDED, core=True),
    Case("tp4-ep4", Topology(tp=4, ep=4), "ranks", DIFFERS, _AT),
    Case("tp2-etp2", _SHARDS, "ranks", DIFFERS, _AT, core=True),
    Case("tp2-etp2-sharded", _SHARDS, "ranks", DIFFERS, _AT, _SHARDED),
    Case("tp2-dp2-ep2", Topology(tp=2, dp=2, ep=2), "ranks", DIFFERS, _AT),
    Case("tp2-dp2-ep2-sharded", Topology(tp=2, dp=2, ep=2), "ranks", DIFFERS, _AT, _SHARDED),
    Case("tp2-dp2-ep2-etp2", Topology(tp=2, dp=2, ep=2, etp=2), "ranks", DIFFERS, _AT),
    Case("tp4-ep2-etp2", Topology(tp=4, ep=2, etp=2), "ranks", DIFFERS, _AT),
    Case("tp2-ep2-lora", _TWO, "ranks", DIFFERS, _AT, _LORA, core=True),
    Case("tp2-ep2-lora-sharded", _TWO, "ranks", DIFFERS, _AT, {**_LORA, **_SHARDED}),
    Case("tp4-ep2-lora", _FOUR, "ranks", DIFFERS, _AT, _LORA),
    Case("tp4-ep2-lora-sharded", _FOUR, "ranks", DIFFERS, _AT, {**_LORA, **_SHARDED}),
    Case("tp2-etp2-lora", _SHARDS, "ranks", DIFFERS, _AT, _LORA, core=True),
    Case("tp2-lora", Topology(tp=2), "ranks", PASSED, options=_LORA, core=True),
    Case("tp2", Topology(tp=2), "ranks", PASSED, core=True),
    Case("tp2-sharded", Topology(tp=2), "ranks", PASSED, options=_SHARDED, core=True),
    Case("dp2-ep2", Topology(dp=2, ep=2), "ranks", PASSED, core=True),
    Case("one", Topology(), "ranks", PASSED),
    Case("tp2-ep2-marked", _TWO, "ranks", PASSED, options=_MARKED, core=True),
    Case("tp4-ep2-marked", _FOUR, "ranks", PASSED, options=_MARKED),
)
RULED_OUT = ("tp", "with TP 1 no other rank has experts to count")
_CORE, _ENGINE = "megatron.core.extensions.transformer_engine", "transformer_engine.pytorch"
_EXPERTS, _HIDDEN, _WIDE, _RANK = 4, 4, 8, 2


def case_for(topology: Topology, upstream: str, shapes: Collection[str]) -> Case:
    """Return a small job in which ranks share the experts as in the user's."""
    if topology.ep > 1:
        return Case("yours", _TWO, "ranks", DIFFERS, _AT)
    if topology.etp == topology.tp:
        return Case("yours", _SHARDS, "ranks", DIFFERS, _AT)
    return Case("yours", Topology(tp=2), "ranks", PASSED)


def caveat(case: Case) -> str:
    """Return what the case supposes of the user's job."""
    return "" if case.is_control else "supposes grouped experts, and Transformer Engine from 2.13 on"


def prepare() -> None:
    """Import the optimizer for a CPU, without Transformer Engine, and then what is made for that, with a stand-in."""
    shims.cuda_on_cpu()
    import torch

    of_type = torch.Tensor.type
    torch.Tensor.type = lambda self, *given, **named: (  # the optimizer takes parameters on a GPU alone
        of_type(self, *given, **named) if given or named else f"torch.cuda.{of_type(self).rpartition('.')[2]}"
    )
    blocked: dict[str, Any] = dict.fromkeys(("transformer_engine", "apex", "amp_C"))  # they need a GPU
    sys.modules.update(blocked)
    for name in ("optimizer", "distributed"):
        importlib.import_module(f"megatron.core.{name}")
    del sys.modules["transformer_engine"]
    sys.modules.pop(_CORE, None)
    sys.meta_path.insert(0, Around("transformer_engine", (), _Module))
    vars(importlib.import_module(_ENGINE))["GroupedLinear"] = _grouped_linear()
    importlib.import_module(_CORE)


class Seen(NamedTuple):
    """What the optimizer of a rank makes of all gradients."""

    norm: float
    zeros: float


def run(case: Case, deadline_s: float) -> Outcome:
    """Run one step up to the norm on every rank, and compare that with the norm of all gradients."""
    world = gloo.run(case.topology.world, lambda rank: _on_rank(case, rank), deadline_s=deadline_s)
    grads = _grads(case).values()
    norm = sum(float((grad**2).sum()) for grad in grads) ** 0.5
    zeros = sum(int((grad == 0).sum()) for grad in grads)

    def wrong(ranks: list[Seen]) -> str:
        right = all(abs(it.norm - norm) < 1e-4 and it.zeros == zeros for it in ranks)
        each = ", ".join(f"{it.norm:.4f}" for it in ranks)
        zero = ", ".join(f"{it.zeros:.0f}" for it in ranks)
        return "" if right else f"{_AT} {each} on the ranks, due {norm:.4f}; zeros {zero}, due {zeros}"

    return world.outcome(wrong, lambda ranks: f"{_AT} {ranks[0].norm:.4f} on each rank, as in one process")


def _on_rank(case: Case, rank: int) -> Seen:
    """Return the norm and the number of zeros that the optimizer of this rank finds."""
    import torch
    from megatron.core import distributed, optimizer, parallel_state

    topology, sharded = case.topology, bool(case.options.get("sharded"))
    shims.gloo_as_nccl()
    with _on_cpu():
        megatron.initialize(topology)
        config = _config(topology)
        model = _model(config, case)
        options = distributed.DistributedDataParallelConfig(use_distributed_optimizer=sharded, grad_reduce_in_fp32=True)
        wrapped = distributed.DistributedDataParallel(config, options, model)
        wanted = {"use_gloo_process_groups": False}
        known = inspect.signature(optimizer.get_megatron_optimizer).parameters
        updates = optimizer.get_megatron_optimizer(
            optimizer.OptimizerConfig(
                optimizer="adam",
                lr=1.0,
                bf16=True,
                params_dtype=torch.bfloat16,
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
        return Seen(float(updates.get_grad_norm()), float(updates.count_zeros()))


def _grads(case: Case) -> dict[str, Any]:
    """Return the gradient of each layer of the whole model, of all experts, in fractions that no sum rounds.

    One of two matrices of LoRA is not split: each rank that has the expert has it in whole.
    """
    import torch

    random = torch.Generator().manual_seed(1)
    shapes = {"norm": (_HIDDEN,), "fc1": (_EXPERTS, _WIDE, _HIDDEN), "fc2": (_EXPERTS, _HIDDEN, _WIDE)}
    if case.options.get("lora"):
        shapes["lora"] = _EXPERTS, _RANK, _HIDDEN
    return {name: torch.randint(-3, 4, shape, generator=random) / 4 for name, shape in shapes.items()}


def _own(name: str, case: Case, expert_rank: int, shard: int) -> Any:
    """Return this rank's part of the gradient of a parameter."""
    layer, _, weight = name.partition(".weight")
    whole = _grads(case)[layer]
    if not weight:
        return whole
    expert = whole[expert_rank * _EXPERTS // case.topology.ep + int(weight)]
    return expert if layer == "lora" else expert.chunk(case.topology.etp, dim=0 if layer == "fc1" else 1)[shard]


def _config(topology: Topology) -> Any:
    import torch
    from megatron.core.transformer.transformer_config import TransformerConfig

    return TransformerConfig(
        num_layers=1,
        hidden_size=_HIDDEN,
        num_attention_heads=4,
        num_moe_experts=_EXPERTS,
        moe_grouped_gemm=True,
        tensor_model_parallel_size=topology.tp,
        expert_model_parallel_size=topology.ep,
        expert_tensor_parallel_size=topology.etp,
        sequence_parallel=topology.tp > 1,
        add_bias_linear=False,
        params_dtype=torch.bfloat16,
        bf16=True,
    )


def _model(config: Any, case: Case) -> Any:
    """Return the layers of the experts of this rank, and a norm that every rank has in whole."""
    import torch

    engine = importlib.import_module(_CORE)
    sys.modules[_ENGINE].GroupedLinear.version = case.options.get("engine", "2.13")

    def layer(cls: Any, *sizes: int, **mode: None) -> Any:
        return cls(
            _EXPERTS // config.expert_model_parallel_size,
            *sizes,
            config=config,
            init_method=torch.nn.init.zeros_,
            bias=False,
            skip_bias_add=False,
            is_expert=True,
            **mode,
        )

    model = torch.nn.Module()
    model.config = config
    model.fc1 = layer(engine.TEColumnParallelGroupedLinear, _HIDDEN, _WIDE)
    model.fc2 = layer(engine.TERowParallelGroupedLinear, _WIDE, _HIDDEN)
    if case.options.get("lora"):
        model.lora = layer(engine.TEGroupedLinear, _HIDDEN, _RANK, parallel_mode=None)
    model.norm = torch.nn.Parameter(torch.zeros(_HIDDEN, dtype=torch.bfloat16))
    return model


@contextlib.contextmanager
def _on_cpu() -> Iterator[None]:
    """Make tensors on the CPU that are asked for on a GPU."""
    from torch.overrides import TorchFunctionMode

    class OnCpu(TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            named = dict(kwargs or {})
            if str(named.get("device")).startswith("cuda"):
                named["device"] = shims.DEVICE
            return function(*args, **named)

    with OnCpu():
        yield


def _grouped_linear() -> Any:
    """Return a stand-in for Transformer Engine's grouped linear."""
    import torch

    class GroupedLinear(torch.nn.Module):  # type: ignore[misc]
        version = ""

        def __init__(
            self, num_gemms: int, in_features: int, out_features: int, params_dtype: Any = None, **_: object
        ) -> None:
            super().__init__()
            for number in range(num_gemms):
                weight = torch.nn.Parameter(torch.zeros(out_features, in_features, dtype=params_dtype))
                if self.version == "2.12":
                    weight.tensor_model_parallel, weight.partition_dim, weight.partition_stride = True, 0, 1
                self.register_parameter(f"weight{number}", weight)

        def _register_load_state_dict_pre_hook(self, *_: object, **__: object) -> None:
            """No state is loaded here."""

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
