"""empty-expert-hang: which rows and splits the grouped linears get, and what the forward returns."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple

from unhang.compat.endstates.branches import branches
from unhang.compat.endstates.endstate import EndState, Outcome, Source, code_of, defined
from unhang.shapes.shape import Function

EXPERTS, HIDDEN = 3, 2
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


class Misfit(Exception):
    """Tensors that do not fit together, or that a kernel does not take: a real forward fails there."""


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

    @property
    def counts(self) -> list[int]:
        """The tokens of each expert. Who pads them aligns them."""
        counts = {"none": (0, 0, 0), "one": (1, 0, 0), "one empty": (2, 0, 1), "all": (1, 2, 3)}[self.tokens]
        return padded(counts, ALIGNMENTS[self.precision] if self.padded != "no" else 1)


def padded(counts: Any, alignment: int) -> list[int]:
    """Return these counts, each rounded up to a multiple."""
    return [-(-count // alignment) * alignment for count in counts]


class Tensor:
    """A vector, or a matrix as a list of rows. ``origin`` is what it was computed from, as in an autograd graph."""

    def __init__(
        self,
        rows: list[Any],
        width: int | None,
        origin: frozenset[str] = frozenset(),
        device: str = "cuda",
        dtype: str = "bfloat16",
    ) -> None:
        self.rows, self.width, self.origin, self.device, self.dtype = rows, width, origin, device, dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.rows),) if self.width is None else (len(self.rows), self.width)

    def size(self, dimension: int) -> int:
        return self.shape[dimension]

    def to(self, *_: object, device: str | None = None, dtype: object = None, non_blocking: bool = False) -> Tensor:
        return Tensor(self.rows, self.width, self.origin, device or self.device)

    def view(self, *_: object) -> Tensor:
        return self

    def tolist(self) -> list[Any]:
        FETCHED.append(self.device)
        return list(self.rows)

    def unsqueeze(self, dimension: int) -> Tensor:
        if (dimension, self.width) != (-1, None):
            raise Misfit("a second column")
        return Tensor([[value] for value in self.rows], 1, self.origin, self.device)

    def new_full(self, size: Any, value: float, dtype: str | None = None, device: str | None = None) -> Tensor:
        count, width = [*(size[0] if isinstance(size[0], tuple) else size), None][:2]
        rows = [value if width is None else [value] * width for _ in range(count)]
        return Tensor(rows, width, device=device or self.device, dtype=dtype or self.dtype)

    def new_zeros(self, *size: Any, **options: Any) -> Tensor:
        return self.new_full(size, 0.0, **options)

    def new_ones(self, *size: Any, **options: Any) -> Tensor:
        return self.new_full(size, 1.0, **options)

    def detach(self) -> Tensor:
        return Tensor(self.rows, self.width, device=self.device, dtype=self.dtype)

    def clamp(self, min: float | None, max: float | None) -> Tensor:
        return self

    def __getitem__(self, part: slice) -> Tensor:
        return Tensor(self.rows[part], self.width, self.origin, self.device)

    def __add__(self, other: Any) -> Tensor:
        if isinstance(other, (int, float)):
            return Tensor([[value + other for value in row] for row in self.rows], self.width, self.origin)
        return self._with(other, lambda a, b: a + b)

    def __mul__(self, other: Any) -> Tensor:
        return self._with(other, lambda a, b: a * b)

    def _with(self, other: Any, combine: Any) -> Tensor:
        """Combine two matrices; one row, or one column, stands for many."""
        if not isinstance(other, Tensor):
            raise TypeError(f"a tensor and a {type(other).__name__}")
        mine, theirs = self.rows, other.rows
        if len(mine) != len(theirs):
            if 1 not in (len(mine), len(theirs)):
                raise Misfit("the two operands do not have the same rows")
            mine, theirs = (mine * len(theirs), theirs) if len(mine) == 1 else (mine, theirs * len(mine))
        width = max(self.width or 0, other.width or 0)
        rows = [[combine(a[index % len(a)], b[index % len(b)]) for index in range(width)] for a, b in zip(mine, theirs)]
        return Tensor(rows, width, self.origin | other.origin)

    def described(self) -> object:
        return self.shape, tuple(map(tuple, self.rows)) if self.width is not None else tuple(self.rows), self.origin


RANK = [0]
"""The rank that runs the forward."""
FETCHED: list[str] = []
"""The device of each fetch of values, in order: the host waits for a GPU then."""


def split(given: Tensor, counts: list[int]) -> list[Tensor]:
    """Split a tensor's rows, as ``torch.split`` does."""
    if sum(counts) != len(given.rows):
        raise Misfit("split: the counts do not sum to the rows")
    return [Tensor(rows, given.width, given.origin) for rows in _segments(given.rows, counts)]


def cat(tensors: list[Tensor], dim: int = 0) -> Tensor:
    """Concatenate the rows of tensors. ``torch.cat`` takes several dtypes too, but no kernel takes its result."""
    if dim or len({(tensor.width, tensor.device, tensor.dtype) for tensor in tensors}) != 1:
        raise Misfit("cat: the tensors differ in width, device or dtype")
    rows = [row for tensor in tensors for row in tensor.rows]
    return Tensor(rows, tensors[0].width, frozenset().union(*(tensor.origin for tensor in tensors)))


def chunk(given: Tensor, number: int, dim: int) -> list[Tensor]:
    """Return the left and the right half of each row."""
    half = (given.width or 0) // number
    parts = ([row[part * half : part * half + half] for row in given.rows] for part in range(number))
    return [Tensor(rows, half, given.origin) for rows in parts]


def _segments(rows: list[Any], counts: list[int]) -> list[list[Any]]:
    ends = list(itertools.accumulate(counts))
    return [rows[end - count : end] for end, count in zip(ends, counts)]


class Layer:
    """The attributes of TEGroupedMLP that its forward uses."""

    def __init__(self, setting: Setting) -> None:
        self.setting, self.calls = setting, list[tuple[Any, ...]]()
        self.num_local_experts = EXPERTS
        self.activation_recompute = setting.recompute
        self.offload_expert_fc1 = self.offload_moe_act = setting.offload
        self._use_grouped_tensor, self._with_fused_impl = setting.path == "grouped", setting.path == "fused"
        chosen = dict(ACTIVATIONS[setting.activation][1])
        self.activation_func = Activation(str(chosen.pop("func", "relu")))
        self.config = SimpleNamespace(
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
        each, setting = list(counts.rows if isinstance(counts, Tensor) else counts), self.setting
        self.calls.append((name, given.described(), type(counts).__name__, tuple(each)))
        if (setting.fails == "empty input" and not given.rows) or (setting.fails == "empty expert" and 0 in each):
            raise Misfit(f"{name}: the grouped GEMM fails on an {setting.fails}")
        if sum(each) > len(given.rows):
            raise Misfit(f"{name}: tokens_per_expert counts more rows than there are")
        if each != padded(each, ALIGNMENTS[setting.precision]):
            raise Misfit(f"{name}: the rows are not aligned for {setting.precision}")
        rows = []
        for expert, segment in enumerate(_segments(given.rows, each)):
            rows += [[sum(row) * (expert + 2) + 1.0] * width for row in segment]  # rows of zeros do not stay zero
        rows += [[0.0] * width] * (len(given.rows) - len(rows))
        origin = frozenset[str]() if setting.cuts_graph and not given.rows else given.origin | {name}
        bias = [Tensor([[expert + 0.5] * width], width) for expert in range(EXPERTS)] if setting.bias else None
        return Tensor(rows, width, origin), bias

    def bias_act_func(self, given: Tensor, bias: list[Tensor] | None, probs: Tensor) -> Tensor:
        return self._apply_bias(given, bias, [len(given.rows)], probs) * probs if not bias else given * probs

    def _apply_bias(self, output: Tensor, bias: list[Tensor] | None, counts: Any, probs: Tensor) -> Tensor:
        if bias is None:
            return output
        counts = counts.tolist() if isinstance(counts, Tensor) else counts
        self.calls.append(("bias", tuple(counts)))
        return cat([part + each * p for part, each, p in zip(split(output, counts), bias, split(probs, counts))])

    def _fused_forward(self, given: Tensor, tokens: Tensor, probs: Tensor, *buffers: None) -> Tensor:
        self.calls.append(("fused", given.described(), tuple(tokens.rows)))
        return given

    def _remove_glu_interleaving(self, given: Tensor, size: int) -> Tensor:
        return given

    def _pad(self, given: Tensor, counts: list[int]) -> tuple[Tensor, list[int]]:
        if not isinstance(counts, list):
            raise Misfit("the padding takes a list")
        plain = self.setting.precision == "none" and self.setting.path == "plain"
        if plain or sum(counts) > len(given.rows):
            raise Misfit("there is a padding for fp8 and fp4 only, and not of more rows than there are")
        wanted = padded(counts, ALIGNMENTS[self.setting.precision])
        zero: Any = [0.0] * given.width if given.width is not None else 0.0
        parts = zip(_segments(given.rows, counts), wanted)
        return Tensor(
            [row for rows, count in parts for row in rows + [zero] * (count - len(rows))], given.width, given.origin
        ), wanted

    def _unpad(self, given: Tensor, counts: list[int]) -> Tensor:
        self.calls.append(("unpad", tuple(counts)))
        parts = zip(split(given, padded(counts, ALIGNMENTS[self.setting.precision])), counts)
        return Tensor([row for part, count in parts for row in part.rows[:count]], given.width, given.origin)


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


class Offload:
    """Activation offloading in the forms that releases use; it only hands its tensor on."""

    def __init__(self, enabled: bool, tensor: Tensor, name: str) -> None:
        self.tensor = tensor

    def __enter__(self) -> Tensor:
        return self.tensor

    def __exit__(self, *_: object) -> None:
        pass

    def group_offload(self, tensor: Tensor, **_: object) -> Tensor:
        return tensor

    @staticmethod
    def group_commit(tensor: Tensor, **_: object) -> Tensor:
        return tensor

    @staticmethod
    def commit_all(*tensors: Tensor, **_: object) -> tuple[Tensor, ...]:
        return tensors


class Checkpoint:
    """Recomputation, as the forward uses it."""

    def checkpoint(self, function: Any, *arguments: Any) -> Any:
        return function(*arguments)

    def discard_output_and_register_recompute(self, output: Tensor) -> None:
        if not isinstance(output, Tensor):
            raise Misfit("no output to discard")


NAMESPACE: dict[str, Any] = {
    "logging": SimpleNamespace(getLogger=lambda name: SimpleNamespace(warning=lambda text: None)),
    "torch": SimpleNamespace(
        Tensor=Tensor,
        **{name: name for name in ("int64", "float32")},
        distributed=SimpleNamespace(get_rank=lambda: RANK[0]),
        cat=cat,
        split=split,
        chunk=chunk,
        full=lambda size, value, dtype, device: Tensor([value] * size[0], None, device=device),
        tensor=lambda values, dtype, device: Tensor(list(values), None, device=device),
        ones_like=lambda given: Tensor([[1.0]] * len(given.rows), 1),
    ),
    "F": SimpleNamespace(silu="silu", gelu="gelu"),
    "quick_gelu": "quick_gelu",
    "squared_relu": "squared_relu",
    **dict.fromkeys(("weighted_bias_swiglu_impl", "weighted_bias_quick_geglu_impl"), fused),
    **dict.fromkeys(("bias_swiglu_impl", "bias_geglu_impl"), fused),
    "bias_gelu_impl": fused_gelu,
    "weighted_squared_relu_impl": lambda given, probs: given * probs,
    "tensor_parallel": SimpleNamespace(CheckpointWithoutOutput=Checkpoint),
    "off_interface": Offload,
    "apply_module": lambda module: module,
    "fine_grained_offloading_group_start": lambda tensor, name: tensor,
    "fine_grained_offloading_group_commit": Offload.commit_all,
    "get_fine_grained_offloading_context": lambda enabled: Offload(enabled, Tensor([], 0), ""),
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

    def control(self, configuration: Setting) -> Setting | None:
        if not self.concerned(configuration):
            return None
        return configuration._replace(fails="", cuts_graph=False)

    def observe(self, source: Source, configuration: Setting) -> Outcome:
        # whether a rank has tokens depends on the router alone, so each rank must do the same
        ranks = (0, 1) if self.concerned(configuration) and configuration.activation == "plain" else (0,)
        outcomes = [self._observe(source, configuration, rank) for rank in ranks]
        return Outcome(frozenset().union(*(outcome.faults for outcome in outcomes)), outcomes[0].seen)

    @staticmethod
    def _observe(source: Source, configuration: Setting, rank: int) -> Outcome:
        RANK[0] = rank
        layer, weighted = Layer(configuration), _is_weighted(source.function)
        count = sum(configuration.counts) + configuration.spare
        hidden = Tensor([[float(index + 1)] * HIDDEN for index in range(count)], HIDDEN, frozenset({"hidden"}))
        probs = Tensor([0.5 + index for index in range(count)], None, frozenset({"probs"}))
        tokens = Tensor(configuration.counts, None, device="cuda" if configuration.path == "grouped" else "cpu")
        FETCHED.clear()
        forward = defined(code_of(source), source.function.name, NAMESPACE)
        output, bias = forward(layer, hidden, tokens, *([probs] if weighted else []))
        left = None if bias is None else tuple(each.described() for each in bias)
        seen = tuple(layer.calls), output.described(), left, tuple(FETCHED)
        return Outcome(frozenset(_faults(configuration, layer.calls, output, weighted)), seen)


def _faults(setting: Setting, calls: list[tuple[Any, ...]], output: Tensor, weighted: bool) -> Iterator[str]:
    if setting.path == "fused":
        return
    linears = [call for call in calls if call[0] in ("fc1", "fc2")]
    if [call[0] for call in linears] != ["fc1", "fc2"]:
        yield "fc1 and fc2 do not run once each"
        return
    if len(output.rows) != sum(setting.counts) + setting.spare:
        yield "the output has not as many rows as the input"
    if not output.origin >= {"hidden", "fc1", "fc2", *(["probs"] if weighted else [])}:
        yield "the graph is cut"
    (_, (_, first, _), kind, _), (_, (_, second, _), _, _) = linears
    if setting.path == "plain" and kind != "list":
        yield "tokens_per_expert is no list"
    if setting.tokens == "none" and not setting.spare and any(map(any, first)):
        yield "a row that no token has is not zero"
    if setting.tokens == "none" and weighted and not setting.on_input and not setting.spare and any(map(any, second)):
        yield "a row that no token has has a probability"
    if setting.path == "plain" and FETCHED != ["cpu"]:
        yield "tokens_per_expert is fetched again"


def _is_weighted(function: Function) -> bool:
    """Return whether the forward takes the probabilities; 0.10 to 0.12.0 do not."""
    return "permuted_probs" in {argument.arg for argument in function.args.args}


END_STATES = {"TEGroupedMLP.forward": Forward()}
