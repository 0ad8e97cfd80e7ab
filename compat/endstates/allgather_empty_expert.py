"""allgather-empty-expert: what is fused, and which rows a rank hands to its experts and to the reduce-scatter.

Each function runs beside a mate as the fix leaves it: where no token is for a local expert, that one does not fuse.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, NamedTuple, cast

from unhang.compat.endstates.endstate import EndState, Outcome, Source, called
from unhang.compat.endstates.standin import StandIn
from unhang.compat.endstates.tensors import Misfit, Tensor, cat, joined, torch
from unhang.shapes.branches import branches, words
from unhang.shapes.shape import Function

HIDDEN = 2
ROUTED: dict[str, tuple[tuple[int, ...], ...]] = {
    "none": ((0, 1), (1,), (0,), (0, 1)),
    "one": ((0, 1), (1,), (3,), (0, 1)),
    "one expert": ((0, 2), (2,), (2,), (0, 1)),
    "both experts": ((0, 3), (2, 3), (3,), (1, 2)),
    "no batch": (),
}
"""The experts of each token of the group. With expert parallelism, the last two are the local ones."""


class Setting(NamedTuple):
    """One job, one step of it, and its Transformer Engine."""

    routed: str = "none"
    fusion: bool = True
    refuses: bool = False
    """Whether the fused permutation refuses to return no row, as in Transformer Engine from 2.15 on."""
    tp: int = 1
    ep: int = 2
    bias: bool = False
    rank: int = 0
    experts: int = 4
    """Of all ranks. With two, each of two ranks has one."""
    grad: bool = True
    """Whether it trains."""

    @property
    def chosen(self) -> tuple[tuple[int, ...], ...]:
        """The experts of each token."""
        return tuple(tuple({expert * self.experts // 4 for expert in each}) for each in ROUTED[self.routed])

    @property
    def local(self) -> range:
        """The local experts."""
        return range(self.experts - self.experts // self.ep, self.experts)

    @property
    def counts(self) -> list[int]:
        """The tokens for each local expert."""
        return [sum(expert in experts for experts in self.chosen) for expert in self.local]

    @property
    def order(self) -> list[int]:
        """The token of each permuted row."""
        every = enumerate(self.chosen)
        return [token for expert, (token, experts) in itertools.product(self.local, [*every]) if expert in experts]


class Map(NamedTuple):
    """Where permuted rows come from. The map of the fused kernel is none for the other one."""

    fused: bool
    order: list[int]


class Dispatcher(StandIn):
    """What the functions use of the dispatcher, and the functions that they call."""

    def __init__(self, setting: Setting, function: Function) -> None:
        super().__init__("self", setting=setting, calls=[], returned=_returned(function))
        self.fetched: list[str] = []
        self.fuses = setting.fusion and _has_fusion(function)
        self.tp_size, self.ep_size, self.tp_ep_group = setting.tp, setting.ep, "tp-ep"
        self.local_expert_indices, self.add_bias = list(setting.local), setting.bias
        self.num_local_experts, self.training = len(setting.local), setting.grad
        self.config = StandIn(
            "self.config",
            moe_permute_fusion=setting.fusion,
            tensor_model_parallel_size=setting.tp,
            expert_model_parallel_size=setting.ep,
            num_moe_experts=setting.experts,
        )
        tokens = len(setting.chosen)
        self.hidden = self.tensor(_rows(range(tokens)), HIDDEN, "hidden")
        self.probs = self.tensor([1.0] * (tokens * setting.experts), setting.experts, "probs")
        routed = [expert in experts for experts in setting.chosen for expert in range(setting.experts)]
        self.routing_map = self.tensor(routed, setting.experts, "routing", "bool")

    def tensor(self, values: list[Any], width: int, name: str, dtype: str = "bfloat16") -> Tensor:
        def watch(event: str, of: Tensor) -> None:
            if of.device != "cpu":
                self.fetched.append(of.device)

        shape = (len(values) // width, width)
        return Tensor(values, dtype, "cuda", {name}, shape, watch, self.setting.grad and dtype == "bfloat16")

    def received(self) -> None:
        """Set what the permutation leaves to the unpermutation."""
        first = self.setting.local[0]
        self.hidden_shape = len(self.hidden) // self.setting.tp // self.setting.ep, HIDDEN
        self.hidden_shape_before_permute = self.hidden.shape
        self.local_map, self.local_probs = self.routing_map[:, first:], self.probs[:, first:]
        order = self.setting.order
        self.reversed_local_input_permutation_mapping = Map(self.fuses and bool(order), order)
        self._empty_local_dispatch = not order  # by pull request 3626

    def permute(
        self, tokens: Tensor, routing_map: Tensor, num_out_tokens: Any = None, fused: Any = False
    ) -> tuple[Any, ...]:
        order, fused = self.setting.order, bool(fused)
        asked = num_out_tokens.values_[0] if isinstance(num_out_tokens, Tensor) else num_out_tokens
        self.calls.append(("permute", fused, tokens.described(), routing_map.described(), asked))
        if asked not in (None, len(order)):
            raise Misfit("another number of permuted rows")
        broken = fused and len(tokens) > 0 and not order
        if broken and self.setting.refuses:
            raise Misfit("the fused permutation refuses to return no row")
        rows = cat([tokens[:0], *(tokens[token : token + 1] for token in order)])
        rows.origin |= {_BROKEN} if broken else set()
        left = Map(fused, order)
        return {2: (rows, left), 3: (rows, None, left), 5: (rows, None, left, None, None)}[self.returned]

    def unpermute(
        self, rows: Tensor, order: Map, restore_shape: Any, routing_map: Any = None, fused: Any = False
    ) -> Tensor:
        fused = bool(fused)
        self.calls.append(("unpermute", fused, rows.described(), restore_shape))
        if fused and not len(rows):
            return rows  # whatever the shape to restore
        if order.fused != fused or len(order.order) != len(rows):
            raise Misfit("a map of another permutation")
        return joined([rows], _summed(order.order, rows, restore_shape[0]), (restore_shape[0], HIDDEN))

    def gather(self, local: Tensor, group: object = None, use_global_buffer: bool = False) -> Tensor:
        self.calls.append(("gather", group, use_global_buffer))
        return {"hidden": self.hidden, "probs": self.probs}.get("".join(map(str, local.origin)), self.routing_map)

    def reduce_scatter(self, given: Tensor, group: object = None) -> Tensor:
        self.calls.append(("reduce-scatter", group))
        if len(given) != len(self.hidden):
            raise Misfit("this rank and its peers give the reduce-scatter different numbers of rows")
        return given[: self.hidden_shape[0]]

    def namespace(self) -> dict[str, Any]:
        """Return what the functions take from their module."""
        setting = self.setting
        distributed = StandIn(
            "torch.distributed",
            get_rank=lambda group=None: setting.rank,
            get_world_size=lambda group=None: setting.tp * setting.ep,
        )
        return {
            "torch": torch(distributed=distributed, is_grad_enabled=lambda: setting.grad),
            "permute": self.permute,
            "unpermute": self.unpermute,
            "gather_from_sequence_parallel_region": self.gather,
            "reduce_scatter_to_sequence_parallel_region": self.reduce_scatter,
            "tensor_parallel": StandIn(
                "tensor_parallel",
                gather_from_sequence_parallel_region_to_moe=self.gather,
                reduce_scatter_to_sequence_parallel_region_from_moe=self.reduce_scatter,
            ),
            "parallel_state": StandIn("parallel_state", get_tensor_model_parallel_world_size=lambda: setting.tp),
        }


def _rows(numbers: Iterable[int]) -> list[float]:
    """Return the values of rows with these numbers."""
    return [float(number + 1) for number in numbers for _ in range(HIDDEN)]


def _summed(order: list[int], rows: Tensor, count: int) -> list[float]:
    """Return the sum of the rows of each token."""
    sums = [0.0] * (count * HIDDEN)
    for place, token in enumerate(order):
        for column in range(HIDDEN):
            sums[token * HIDDEN + column] += rows.values_[place * HIDDEN + column]
    return sums


_BROKEN = "a permutation whose backward pass fails"


def _returned(function: Function) -> int:
    """Return how many values ``permute`` returns in this release: as many as the function takes."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and ast.unparse(node.value).startswith("permute("):
            return len(cast("ast.Tuple", node.targets[0]).elts)
    return 0


def _has_fusion(function: Function) -> bool:
    return "moe_permute_fusion" in words(function)


class _Alone(EndState):
    """What both functions have in common."""

    varied: ClassVar[dict[str, str]] = {
        **dict.fromkeys(("self.tp_size", "self.config.tensor_model_parallel_size"), "tp"),
        **dict.fromkeys(("self.ep_size", "self.config.expert_model_parallel_size"), "ep"),
        "self.config.moe_permute_fusion": "fusion",
        "self.add_bias": "bias",
        "bias": "bias",
        "self._empty_local_dispatch": "routed",
        "hidden_states.requires_grad": "grad",
    }
    without: ClassVar[dict[str, Any]] = {"fusion": False}

    def has_feature(self, source: Source) -> bool:
        return _has_fusion(source.function)

    def configurations(self, function: Function) -> Iterator[Setting]:
        biases = (False, True) if "self.add_bias" in branches(function) else (False,)
        for routed, tp, ep, bias, rank in itertools.product(ROUTED, (1, 2), (1, 2), biases, (0, 1)):
            for fusion, refuses in (True, False), (True, True), (False, False):
                yield Setting(routed, fusion, refuses, tp, ep, bias, rank, experts=4 if rank else 2)
                yield Setting(routed, fusion, refuses, tp, ep, bias, rank, experts=2 if rank else 4, grad=False)

    def concerned(self, configuration: Setting) -> bool:
        return configuration.fusion and not configuration.order


class Permutation(_Alone):
    """The end state of what permutes the rows for the local experts."""

    def observe(self, source: Source, configuration: Setting) -> Outcome:
        beside = Dispatcher(configuration, source.function)
        function = called(source, beside.namespace())
        given = [beside.hidden, beside.probs, beside.routing_map][: len(source.function.args.args) - 1]
        rows, counts, *probs = function(beside, *given)
        left = beside.reversed_local_input_permutation_mapping
        seen = (
            beside.calls,
            rows.described(),
            counts.described(),
            [one.described() for one in probs],
            left,
            beside.fetched,
        )
        return Outcome(frozenset(self._faults(configuration, beside, rows, counts)), repr(seen))

    @staticmethod
    def _faults(setting: Setting, beside: Dispatcher, rows: Tensor, counts: Tensor) -> Iterator[str]:
        if [call[0] for call in beside.calls if call[0] != "gather"] != ["permute"]:
            yield "the rows are not permuted once"
        if rows.values_ != _rows(setting.order):
            yield "the rows are not those for the local experts"
        if setting.grad and (not rows.origin >= {"hidden"} or _BROKEN in rows.origin):
            yield "the backward pass of the permutation fails"
        if (counts.values_, counts.device) != (setting.counts, "cpu"):
            yield "tokens_per_expert is wrong"
        if not setting.order and len(beside.hidden) and beside.reversed_local_input_permutation_mapping.fused:
            yield "the map is that of the fused kernel"
        if setting.order and beside.reversed_local_input_permutation_mapping.fused != beside.fuses:
            yield "the map is not that of its mate's kernel"
        if len(beside.fetched) != 1:
            yield "the host waits for the GPU again"


class Unpermutation(_Alone):
    """The end state of what brings the experts' output back into the order of the tokens."""

    def observe(self, source: Source, configuration: Setting) -> Outcome:
        beside = Dispatcher(configuration, source.function)
        beside.received()
        function = called(source, beside.namespace())
        rows = _rows(range(len(configuration.order)))
        names = ("rows", *(["bias"] if configuration.bias else []))
        given = [beside.tensor(rows, HIDDEN, name) for name in names]
        found = function(beside, *given)
        outputs = [one for one in (found if isinstance(found, tuple) else (found,)) if one is not None]
        seen = beside.calls, [one.described() for one in outputs], beside.fetched
        return Outcome(frozenset(self._faults(configuration, beside, outputs)), repr(seen))

    @staticmethod
    def _faults(setting: Setting, beside: Dispatcher, outputs: list[Tensor]) -> Iterator[str]:
        scattered = any(call[0] == "reduce-scatter" for call in beside.calls)
        rows = beside.tensor(_rows(range(len(setting.order))), HIDDEN, "")
        wanted = _summed(setting.order, rows, len(beside.hidden))
        if [call[0] for call in beside.calls].count("unpermute") != len(outputs) or len(outputs) != 1 + setting.bias:
            yield "the rows are not unpermuted once"
        if outputs[0].values_ != wanted[: beside.hidden_shape[0] * HIDDEN if scattered else None]:
            yield "not every token has the sum of its rows"
        for output, name in zip(outputs, ("rows", "bias")):
            if setting.grad and (len(output) != len(outputs[0]) or name not in output.origin):
                yield "the graph is cut"
        if beside.fetched:
            yield "the host waits for the GPU"


END_STATES = {
    "MoEAllGatherTokenDispatcher.dispatch_postprocess": Permutation(),
    "MoEAllGatherTokenDispatcher.combine_preprocess": Unpermutation(),
    "MoEAllGatherTokenDispatcher.token_permutation": Permutation(),
    "MoEAllGatherTokenDispatcher.token_unpermutation": Unpermutation(),
}
