"""empty-expert-hang: which rows and splits the grouped linears get, and what the forward returns."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterator
from functools import partial
from typing import Any, ClassVar, NamedTuple

from unhang.compat.endstates.endstate import EndState, Outcome, Source, called, parameters
from unhang.compat.endstates.standin import StandIn
from unhang.compat.endstates.tensors import Misfit, Tensor, cat, chunk, split, torch
from unhang.shapes.branches import branches
from unhang.shapes.shape import Function

HIDDEN = 2
ALIGNMENTS = {"none": 1, "fp8": 16, "mxfp8": 32, "fp4": 32}
"""The multiple that a grouped GEMM of each precision needs each expert's rows to be."""
FAILS = ("empty input", "empty expert")
"""What a grouped GEMM may fail on. Transformer Engine 2.0 and 2.1 fail on the second, if it is the last expert."""
ACTIVATIONS: dict[str, tuple[str, dict[str, object]]] = {
    "plain": ("", {}),
    "glu": ("self.config.gated_linear_unit", {"gated_linear_unit": True}),
    "clamped glu": (
        "self.config.activation_func_clamp_value",
        {"gated_linear_unit": True, "activation_func_clamp_value": 7.0},
    ),
    "interleaved glu": (
        "self.config.moe_mlp_glu_interleave_size",
        {"gated_linear_unit": True, "moe_mlp_glu_interleave_size": 8},
    ),
    "te": ("self.config.use_te_activation_func", {"use_te_activation_func": True}),
    "interleaved te": (
        "with_glu_interleaving",
        {"gated_linear_unit": True, "use_te_activation_func": True, "moe_mlp_glu_interleave_size": 8},
    ),
    "fused swiglu": ("F.silu", {"gated_linear_unit": True, "bias_activation_fusion": True, "func": "silu"}),
    "fused geglu": ("F.gelu", {"gated_linear_unit": True, "bias_activation_fusion": True, "func": "gelu"}),
    "fused gelu": ("F.gelu", {"bias_activation_fusion": True, "func": "gelu"}),
    "fused quick geglu": (
        "quick_gelu",
        {"gated_linear_unit": True, "bias_activation_fusion": True, "func": "quick_gelu"},
    ),
    "fused squared relu": ("squared_relu", {"use_fused_weighted_squared_relu": True, "func": "squared_relu"}),
    "unknown fusion": ("self.config.bias_activation_fusion", {"bias_activation_fusion": True}),
}
"""Each activation: the condition by which the forward knows it, and its settings."""


class Setting(NamedTuple):
    """One configuration of the layer, its input and its grouped GEMM."""

    precision: str = "none"
    bias: bool = False
    padded: str = "no"
    """Who has padded the tokens already: no one, the router, or the dispatcher (HybridEP)."""
    recompute: bool = False
    on_input: bool = False
    activation: str = "plain"
    offload: bool = False
    path: str = "plain"
    """``fused`` and ``grouped`` are upstream's other two."""
    tokens: str = "none"
    spare: int = 0
    """Rows of an over-allocated buffer, which belong to no expert."""
    fails: str = ""
    cuts_graph: bool = False
    """Whether the grouped GEMM returns a fresh tensor for an empty input."""
    experts: int = 3
    """Of this rank."""
    grad: bool = True
    """Whether it trains."""

    @property
    def counts(self) -> list[int]:
        """The tokens of each expert. Who pads them aligns them."""
        counts = {"none": (0, 0, 0), "one": (1, 0, 0), "one empty": (2, 0, 1), "all": (1, 2, 3)}[self.tokens]
        return padded(counts[: self.experts], ALIGNMENTS[self.precision] if self.padded != "no" else 1)


def padded(counts: Any, alignment: int) -> list[int]:
    """Return these counts, each rounded up to a multiple."""
    return [-(-count // alignment) * alignment for count in counts]


def _segments(rows: Tensor, counts: list[int]) -> list[Tensor]:
    ends = itertools.accumulate(counts)
    return [rows[end - count : end] for end, count in zip(ends, counts)]


class Layer(StandIn):
    """The attributes of TEGroupedMLP that its forward uses."""

    def __init__(self, setting: Setting) -> None:
        super().__init__("self", setting=setting, calls=[], num_local_experts=setting.experts)
        self.training = setting.grad
        self.activation_recompute = setting.recompute
        self.offload_expert_fc1 = self.offload_moe_act = setting.offload
        self._use_grouped_tensor, self._with_fused_impl = setting.path == "grouped", setting.path == "fused"
        chosen = dict(ACTIVATIONS[setting.activation][1])
        self.activation_func = Activation(str(chosen.pop("func", "relu")))
        self.config = StandIn(
            "self.config",
            fp8="hybrid" if "fp8" in setting.precision else None,
            fp8_recipe=setting.precision,
            fp4="nvfp4" if setting.precision == "fp4" else None,
            fp4_recipe=setting.precision,
            moe_router_padding_for_quantization=setting.padded == "router",
            moe_router_padding_for_fp8=setting.padded == "router",
            skip=setting.padded != "no",
            moe_apply_probs_on_input=setting.on_input,
            moe_router_topk=1,
            add_bias_linear=setting.bias,
            activation_func=self.activation_func,
            activation_func_fp8_input_store=False,
            delay_offload_until_cuda_graph=False,
            glu_linear_offset=0.0,
            **{
                **dict.fromkeys(("gated_linear_unit", "bias_activation_fusion", "use_te_activation_func"), False),
                **dict.fromkeys(("activation_func_clamp_value", "moe_mlp_glu_interleave_size")),
                "use_fused_weighted_squared_relu": False,
                **chosen,
            },
        )
        self.linear_fc1 = partial(self._linear, "fc1", HIDDEN * (2 if self.config.gated_linear_unit else 1))
        self.linear_fc2 = partial(self._linear, "fc2", HIDDEN)
        self.fp8_padding = self.quantization_padding = self._pad
        self.fp8_unpadding = self.quantization_unpadding = self._unpad

    def _linear(self, name: str, width: int, given: Tensor, counts: Any) -> tuple[Tensor, list[Tensor] | None]:
        each, setting = list(counts.values_ if isinstance(counts, Tensor) else counts), self.setting
        self.calls.append((name, given.described(), type(counts).__name__, tuple(each)))
        if (setting.fails == "empty input" and not len(given)) or (setting.fails == "empty expert" and 0 in each):
            raise Misfit(f"{name}: the grouped GEMM fails on an {setting.fails}")
        if len(each) != setting.experts or sum(each) > len(given):
            raise Misfit(f"{name}: tokens_per_expert counts more rows than there are, or other experts")
        if each != padded(each, ALIGNMENTS[setting.precision]):
            raise Misfit(f"{name}: the rows are not aligned for {setting.precision}")
        rows = []
        for expert, segment in enumerate(_segments(given, each)):
            sums = (sum(segment.values_[at : at + given.shape[1]]) for at in range(0, segment.numel(), given.shape[1]))
            rows += [value * (expert + 2) + 1.0 for value in sums for _ in range(width)]  # zeros do not stay zero
        output = given.new_full((len(given), width), 0.0)
        output.values_[: len(rows)] = rows
        if not (setting.cuts_graph and not len(given)):
            output.origin, output.requires_grad = given.origin | {name}, given.requires_grad
        bias = [given.new_full((1, width), expert + 0.5) for expert in range(setting.experts)] if setting.bias else None
        return output, bias

    def bias_act_func(self, given: Tensor, bias: list[Tensor] | None, probs: Tensor) -> Any:
        return self._apply_bias(given, bias, [len(given)], probs) * probs if not bias else given * probs

    def _apply_bias(self, output: Tensor, bias: list[Tensor] | None, counts: Any, probs: Tensor) -> Tensor:
        if bias is None:
            return output
        counts = counts.tolist() if isinstance(counts, Tensor) else counts
        self.calls.append(("bias", tuple(counts)))
        return cat([part + each * p for part, each, p in zip(split(output, counts), bias, split(probs, counts))])

    def _fused_forward(self, given: Tensor, tokens: Tensor, probs: Tensor, *buffers: None) -> Tensor:
        self.calls.append(("fused", given.described(), tuple(tokens.values_)))
        return given

    def _remove_glu_interleaving(self, given: Tensor, size: int) -> Tensor:
        return given

    def _pad(self, given: Tensor, counts: list[int]) -> tuple[Tensor, list[int]]:
        if not isinstance(counts, list):
            raise Misfit("the padding takes a list")
        plain = self.setting.precision == "none" and self.setting.path == "plain"
        if plain or sum(counts) > len(given):
            raise Misfit("there is a padding for fp8 and fp4 only, and not of more rows than there are")
        wanted = padded(counts, ALIGNMENTS[self.setting.precision])
        parts: list[Tensor] = [given[:0]]
        for rows, count in zip(_segments(given, counts), wanted):
            parts += [rows, given.new_full((count - len(rows), *given.shape[1:]), 0.0)]
        return cat(parts), wanted

    def _unpad(self, given: Tensor, counts: list[int]) -> Tensor:
        self.calls.append(("unpad", tuple(counts)))
        parts = zip(split(given, padded(counts, ALIGNMENTS[self.setting.precision])), counts)
        return cat([given[:0], *(part[:count] for part, count in parts)])


class Activation(str):
    """An activation function, compared by its name; it changes nothing."""

    def __call__(self, given: Tensor) -> Tensor:
        return given


def fused(given: Tensor, bias: object, *others: object) -> Tensor:
    """Return what a fused gated activation does: it takes no bias per expert, and halves the rows."""
    if bias is not None:
        raise Misfit("a fused activation takes no bias per expert")
    half = chunk(given, 2, -1)[0]
    return half * others[0] if others and isinstance(others[0], Tensor) else half


def fused_gelu(given: Tensor, bias: object) -> Tensor:
    """Return what a fused gelu does: likewise, but it is not gated."""
    if bias is not None:
        raise Misfit("a fused activation takes no bias per expert")
    return given


class Offload(StandIn):
    """Activation offloading in the forms that releases use; it only hands its tensor on."""

    tensor: Tensor

    def __init__(self, enabled: bool, tensor: Tensor, name: str) -> None:
        super().__init__("offload", tensor=tensor)

    def __enter__(self) -> Tensor:
        return self.tensor

    def __exit__(self, *_: object) -> None:
        pass

    def group_offload(self, tensor: Tensor, forced_released_tensors: Any = (), delay_offload: bool = False) -> Tensor:
        return tensor

    @staticmethod
    def group_commit(tensor: Tensor, name: str = "", forced_released_tensors: Any = ()) -> Tensor:
        return tensor

    @staticmethod
    def commit_all(*tensors: Tensor, name: str = "", forced_released_tensors: Any = ()) -> tuple[Tensor, ...]:
        return tensors


class Checkpoint(StandIn):
    """Recomputation, as the forward uses it."""

    def __init__(self, fp8: object = False) -> None:
        super().__init__("checkpoint")

    def checkpoint(self, function: Any, *arguments: Any) -> Any:
        return function(*arguments)

    def discard_output_and_register_recompute(self, output: Tensor) -> None:
        if not isinstance(output, Tensor):
            raise Misfit("no output to discard")


NAMESPACE: dict[str, Any] = {
    "logging": StandIn("logging", getLogger=lambda name: StandIn("logger", warning=lambda msg: None)),
    "__name__": "experts",
    "F": StandIn("F", silu="silu", gelu="gelu"),
    "quick_gelu": "quick_gelu",
    "squared_relu": "squared_relu",
    **dict.fromkeys(("weighted_bias_swiglu_impl", "weighted_bias_quick_geglu_impl"), fused),
    **dict.fromkeys(("bias_swiglu_impl", "bias_geglu_impl"), fused),
    "bias_gelu_impl": fused_gelu,
    "weighted_squared_relu_impl": lambda given, probs: given * probs,
    "tensor_parallel": StandIn("tensor_parallel", CheckpointWithoutOutput=Checkpoint),
    "off_interface": Offload,
    "apply_module": lambda module: module,
    "fine_grained_offloading_group_start": lambda tensor, name: tensor,
    "fine_grained_offloading_group_commit": Offload.commit_all,
    "get_fine_grained_offloading_context": lambda enabled: Offload(enabled, Tensor([]), ""),
    "skip_routed_expert_padding": lambda config: config.skip,
    "get_align_size_for_quantization": lambda config: ALIGNMENTS[config.fp8_recipe] if config.fp8 or config.fp4 else 0,
}


class Forward(EndState):
    """The end state of TEGroupedMLP.forward."""

    varied: ClassVar[dict[str, str]] = {
        **dict.fromkeys(("self.config.fp8", "self.config.fp4"), "precision"),
        "bias_parallel": "bias",
        **dict.fromkeys(("self.config.moe_router_padding_for_quantization", "skip_routed_expert_padding"), "padded"),
        "self.activation_recompute": "recompute",
        "self.config.moe_apply_probs_on_input": "on_input",
        **dict.fromkeys((condition for condition, _ in ACTIVATIONS.values() if condition), "activation"),
        **dict.fromkeys(("self.activation_func", "self.config.use_fused_weighted_squared_relu"), "activation"),
        **dict.fromkeys(("self.offload_expert_fc1", "self.offload_moe_act"), "offload"),
        **dict.fromkeys(("self._with_fused_impl", "self._use_grouped_tensor"), "path"),
        "is_dummy_forward": "tokens",
    }
    held: ClassVar[dict[str, str]] = {
        "permuted_probs": "the router always gives probabilities, where the forward takes them",
        "unpadded_tokens_per_expert": "None unless this forward pads, which `precision` and `padded` decide",
        **dict.fromkeys(("self.config", "isinstance", "tokens_per_expert", "torch.Tensor"), "names no setting"),
    }
    without: ClassVar[dict[str, Any]] = {"fails": "", "cuts_graph": False}

    def configurations(self, function: Function) -> Iterator[Setting]:
        conditions = set(branches(function))
        by_router = "self.config.moe_router_padding_for_quantization" in conditions
        by_dispatcher = "skip_routed_expert_padding" in conditions
        dimensions: dict[str, list[Any]] = {
            "precision": [
                *("none", "fp8"),  # a kernel needs aligned rows, also where the forward asks for no precision
                *(["mxfp8"] if "self.config.fp8" in conditions else []),
                *(["fp4"] if "self.config.fp4" in conditions else []),
            ],
            "bias": [False, True],
            "padded": ["no", "router", *(["dispatcher"] if by_dispatcher else [])],
            "recompute": [False, *([True] if "self.activation_recompute" in conditions else [])],
            "on_input": [False, *([True] if "self.config.moe_apply_probs_on_input" in conditions else [])],
            "activation": [name for name, (by, _) in ACTIVATIONS.items() if not by or by in conditions],
        }
        for values in itertools.product(*dimensions.values()):
            chosen = Setting(**dict(zip(dimensions, values)))
            if chosen.precision == "none" and chosen.padded != "no" and not (by_router or by_dispatcher):
                continue  # nothing is padded
            yield from self._inputs(chosen)
            if chosen.activation == "plain" and chosen.padded == "no":
                yield from self._inputs(chosen._replace(experts=1))
                yield from self._inputs(chosen._replace(grad=False))
            if chosen.activation == "plain" and any("offload" in name for name in conditions):
                yield from self._inputs(chosen._replace(offload=True))
            if "self._use_grouped_tensor" in conditions:
                yield from (chosen._replace(path="grouped", tokens=tokens) for tokens in ("none", "one", "all"))
        if "self._with_fused_impl" in conditions:
            yield from (Setting(path="fused", tokens=tokens) for tokens in ("none", "one", "all"))

    @staticmethod
    def _inputs(chosen: Setting) -> Iterator[Setting]:
        """Yield a setting with every input, and with every grouped GEMM that fails on some.

        The activations see rows one by one: fewer inputs do for all but the plain one.
        """
        if chosen.activation != "plain":
            yield from (chosen._replace(tokens=tokens) for tokens in ("none", "all"))
            yield chosen._replace(fails="empty input")
            return
        for tokens in ("none", "one", "one empty", "all"):
            yield chosen._replace(tokens=tokens)
        yield from (chosen._replace(tokens=tokens, spare=4) for tokens in ("none", "one"))
        yield chosen._replace(cuts_graph=True)
        yield from (chosen._replace(tokens=tokens, fails=fails) for fails in FAILS for tokens in ("none", "one"))

    def concerned(self, configuration: Setting) -> bool:
        return configuration.path == "plain" and configuration.tokens == "none" and not configuration.spare

    def observe(self, source: Source, configuration: Setting) -> Outcome:
        # whether a rank has tokens depends on the router alone, so each rank must do the same
        ranks = (0, 1) if self.concerned(configuration) and configuration.activation == "plain" else (0,)
        outcomes = [self._observe(source, configuration, rank) for rank in ranks]
        faults = frozenset().union(*(outcome.faults for outcome in outcomes))
        if ranks[1:] and not faults:
            with contextlib.suppress(Exception):  # what upstream cannot do with tokens is none of ours
                with_tokens = self._observe(source, configuration._replace(tokens="all", fails=""), 0)
                if (with_tokens.seen[2] is None) != (outcomes[0].seen[2] is None):
                    faults = frozenset({"the second result is another one than with tokens"})
        return Outcome(faults, outcomes[0].seen)

    @staticmethod
    def _observe(source: Source, configuration: Setting, rank: int) -> Outcome:
        layer = Layer(configuration)
        weighted = "permuted_probs" in parameters(source.function)  # 0.10 to 0.12.0 do not take them
        fetched: list[str] = []

        def watch(event: str, of: Tensor) -> None:
            fetched.append(of.device)

        def given(name: str, shape: tuple[int, ...], value: float) -> Tensor:
            rows = [value + row for row in range(shape[0]) for _ in range(math.prod(shape[1:]))]
            return Tensor(rows, "bfloat16", "cuda", {name}, shape, watch, configuration.grad)

        count = sum(configuration.counts) + configuration.spare
        arguments = [
            given("hidden", (count, HIDDEN), 1.0),
            Tensor(configuration.counts, "int64", "cuda" if configuration.path == "grouped" else "cpu", watch=watch),
            *([given("probs", (count,), 0.5)] if weighted else []),
        ]
        distributed = StandIn(
            "torch.distributed", get_rank=lambda group=None: rank, get_world_size=lambda group=None: 2
        )
        stand_in = torch(watch, distributed=distributed, is_grad_enabled=lambda: configuration.grad)
        output, bias = called(source, {**NAMESPACE, "torch": stand_in})(layer, *arguments)
        left = None if bias is None else tuple(each.described() for each in bias)
        seen = tuple(layer.calls), output.described(), left, tuple(fetched)
        return Outcome(frozenset(_faults(configuration, layer.calls, output, weighted, fetched)), seen)


def _faults(
    setting: Setting, calls: list[tuple[Any, ...]], output: Tensor, weighted: bool, fetched: list[str]
) -> Iterator[str]:
    if setting.path == "fused":
        return
    linears = [call for call in calls if call[0] in ("fc1", "fc2")]
    if [call[0] for call in linears] != ["fc1", "fc2"]:
        yield "fc1 and fc2 do not run once each"
        return
    if len(output) != sum(setting.counts) + setting.spare:
        yield "the output has not as many rows as the input"
    if setting.grad and not output.origin >= {"hidden", "fc1", "fc2", *(["probs"] if weighted else [])}:
        yield "the graph is cut"
    (_, (_, _, first, *_), kind, _), (_, (_, _, second, *_), _, _) = linears
    if setting.path == "plain" and kind != "list":
        yield "tokens_per_expert is no list"
    if setting.tokens == "none" and not setting.spare and any(first):
        yield "a row that no token has is not zero"
    if setting.tokens == "none" and weighted and not setting.on_input and not setting.spare and any(second):
        yield "a row that no token has has a probability"
    if setting.path == "plain" and fetched != ["cpu"]:
        yield "tokens_per_expert is fetched again"


END_STATES = {"TEGroupedMLP.forward": Forward()}
