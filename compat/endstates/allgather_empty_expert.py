"""allgather-empty-expert: what is fused, and which rows a rank hands to its experts and to the reduce-scatter.

Each function runs beside a mate as the fix leaves it: where no token is for a local expert, that one does not fuse.
"""

from __future__ import annotations

import ast
import contextlib
import itertools
from collections.abc import Iterator, Set
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple, cast

from unhang.compat.endstates.branches import branches, words
from unhang.compat.endstates.endstate import EndState, Outcome, Source, code_of, defined
from unhang.shapes.shape import Function

EXPERTS, HIDDEN = 4, 2
ROUTED: dict[str, tuple[tuple[int, ...], ...]] = {
    "none": ((0, 1), (1,), (0,), (0, 1)),
    "one": ((0, 1), (1,), (3,), (0, 1)),
    "one expert": ((0, 2), (2,), (2,), (0, 1)),
    "both experts": ((0, 3), (2, 3), (3,), (1, 2)),
    "no batch": (),
}
"""The experts of each token of the group. With expert parallelism, the last two are the local ones."""


class Misfit(Exception):
    """What a kernel or a collective does not take: a real function fails there, or its peers wait."""


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

    @property
    def local(self) -> range:
        """The local experts."""
        return range(EXPERTS - EXPERTS // self.ep, EXPERTS)

    @property
    def counts(self) -> list[int]:
        """The tokens for each local expert."""
        return [sum(expert in experts for experts in ROUTED[self.routed]) for expert in self.local]

    @property
    def order(self) -> list[int]:
        """The token of each permuted row."""
        every = enumerate(ROUTED[self.routed])
        return [token for expert, (token, experts) in itertools.product(self.local, [*every]) if expert in experts]


class Tensor:
    """A scalar, a vector or a matrix. ``origin`` is what it was computed from, as in an autograd graph."""

    requires_grad, dtype = True, "bfloat16"

    def __init__(self, values: Any, width: int | None = None, origin: Set[str] = frozenset(), device: str = "cuda"):
        self.values, self.width, self.origin, self.device = values, width, frozenset(origin), device

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.values),) if self.width is None else (len(self.values), self.width)

    def __len__(self) -> int:
        return len(self.values)

    def _like(self, values: Any, width: int | None = None) -> Tensor:
        return Tensor(values, width, self.origin, self.device)

    def __getitem__(self, part: tuple[slice, slice]) -> Tensor:
        rows, columns = part
        return self._like([row[columns] for row in self.values[rows]], len(range(EXPERTS)[columns]))

    @property
    def T(self) -> Tensor:
        return self._like([[row[index] for row in self.values] for index in range(self.width or 0)], len(self))

    def contiguous(self) -> Tensor:
        return self

    def long(self) -> Tensor:
        return self

    def to(self, *_: object) -> Tensor:
        return self

    def cpu(self) -> Tensor:
        self._fetch()
        return Tensor(self.values, self.width, self.origin, "cpu")

    def sum(self, dim: int | None = None) -> Tensor:
        if dim is not None:
            return self._like([sum(column) for column in self.T.values])
        return self._like(sum(self.values) if self.width is None else sum(map(sum, self.values)))

    def item(self) -> Any:
        self._fetch()
        return self.values

    tolist = item

    def __bool__(self) -> bool:
        return bool(self.item())

    def __gt__(self, other: float) -> Tensor:
        return self._like(self.values > other)

    def size(self, dimension: int) -> int:
        return self.shape[dimension]

    def _fetch(self) -> None:
        if self.device != "cpu":
            FETCHED.append(self.device)

    def masked_select(self, mask: Tensor) -> Tensor:
        pairs = zip(itertools.chain(*self.values), itertools.chain(*mask.values))
        return self._like([value for value, chosen in pairs if chosen])

    def unsqueeze(self, dimension: int) -> Tensor:
        return self._like([[value] for value in self.values], 1)

    def __mul__(self, other: Any) -> Tensor:
        if not isinstance(other, Tensor):
            return self._like(self.values * other)
        if len(self) != len(other):
            raise Misfit("the two factors do not have the same rows")
        rows = [[value * factor for value in row] for row, (factor,) in zip(self.values, other.values)]
        return Tensor(rows, self.width, self.origin | other.origin, self.device)

    def __truediv__(self, other: int) -> Tensor:
        return self._like([[value / other for value in row] for row in self.values], self.width)

    def __add__(self, other: Tensor) -> Tensor:
        rows = [[value + other.values for value in row] for row in self.values]
        return Tensor(rows, self.width, self.origin | other.origin, self.device)

    def view(self, *wanted: Any) -> Tensor:
        if wanted[0] not in (-1, self.shape):
            raise Misfit(f"the shape {wanted[0]} is invalid for input of shape {self.shape}")
        return self

    def described(self) -> object:
        return self.shape, self.values, sorted(self.origin), self.device


FETCHED: list[str] = []
"""The device of each fetch of values for which the host waits."""


class Map(NamedTuple):
    """Where permuted rows come from. The map of the fused kernel is none for the other one."""

    fused: bool
    order: list[int]


class Dispatcher:
    """What the functions use of the dispatcher, and the functions that they call."""

    def __init__(self, setting: Setting, function: Function) -> None:
        self.setting, self.calls, self.returned = setting, list[tuple[Any, ...]](), _returned(function)
        self.fuses = setting.fusion and _has_fusion(function)
        self.tp_size, self.ep_size, self.tp_ep_group = setting.tp, setting.ep, "tp-ep"
        self.local_expert_indices, self.add_bias = list(setting.local), setting.bias
        self.config = SimpleNamespace(
            moe_permute_fusion=setting.fusion,
            tensor_model_parallel_size=setting.tp,
            expert_model_parallel_size=setting.ep,
        )
        routed = ROUTED[setting.routed]
        chosen = [[expert in experts for expert in range(EXPERTS)] for experts in routed]
        self.hidden = Tensor([[float(token + 1)] * HIDDEN for token in range(len(routed))], HIDDEN, {"hidden"})
        self.probs = Tensor([[1.0] * EXPERTS for _ in routed], EXPERTS, {"probs"})
        self.routing_map = Tensor(chosen, EXPERTS)

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
        asked = num_out_tokens.values if isinstance(num_out_tokens, Tensor) else num_out_tokens
        self.calls.append(("permute", fused, tokens.described(), routing_map.described(), asked))
        if asked not in (None, len(order)):
            raise Misfit("another number of permuted rows")
        broken = fused and len(tokens) > 0 and not order
        if broken and self.setting.refuses:
            raise Misfit("the fused permutation refuses to return no row")
        origin = tokens.origin | ({_BROKEN} if broken else set())
        rows = Tensor([tokens.values[token] for token in order], HIDDEN, origin)
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
        values = [[0.0] * HIDDEN for _ in range(restore_shape[0])]
        for token, row in zip(order.order, rows.values):
            values[token] = [one + other for one, other in zip(values[token], row)]
        return Tensor(values, HIDDEN, rows.origin)

    def gather(self, local: Tensor, group: object = None, use_global_buffer: bool = False) -> Tensor:
        self.calls.append(("gather", group, use_global_buffer))
        return {"hidden": self.hidden, "probs": self.probs}.get("".join(local.origin), self.routing_map)

    def reduce_scatter(self, given: Tensor, group: object = None) -> Tensor:
        self.calls.append(("reduce-scatter", group))
        if len(given) != len(self.hidden):
            raise Misfit("this rank and its peers give the reduce-scatter different numbers of rows")
        return Tensor(given.values[: self.hidden_shape[0]], HIDDEN, given.origin)

    def namespace(self) -> dict[str, Any]:
        """Return what the functions take from their module."""
        groups = dict.fromkeys(("get_tensor_model_parallel_world_size",), lambda: self.setting.tp)
        return {
            "torch": SimpleNamespace(
                no_grad=contextlib.nullcontext, distributed=SimpleNamespace(get_rank=lambda: self.setting.rank)
            ),
            "permute": self.permute,
            "unpermute": self.unpermute,
            "gather_from_sequence_parallel_region": self.gather,
            "reduce_scatter_to_sequence_parallel_region": self.reduce_scatter,
            "tensor_parallel": SimpleNamespace(
                gather_from_sequence_parallel_region_to_moe=self.gather,
                reduce_scatter_to_sequence_parallel_region_from_moe=self.reduce_scatter,
            ),
            "parallel_state": SimpleNamespace(**groups),
        }


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
    }
    held: ClassVar[dict[str, str]] = {"hidden_states.requires_grad": "without a graph there is none to keep"}

    def has_feature(self, source: Source) -> bool:
        return _has_fusion(source.function)

    def configurations(self, function: Function) -> Iterator[Setting]:
        biases = (False, True) if "self.add_bias" in branches(function) else (False,)
        for routed, tp, ep, bias, rank in itertools.product(ROUTED, (1, 2), (1, 2), biases, (0, 1)):
            for fusion, refuses in (True, False), (True, True), (False, False):
                yield Setting(routed, fusion, refuses, tp, ep, bias, rank)

    def concerned(self, configuration: Setting) -> bool:
        return configuration.fusion and not configuration.order

    def control(self, configuration: Setting) -> Setting | None:
        return configuration._replace(fusion=False) if self.concerned(configuration) else None


class Permutation(_Alone):
    """The end state of what permutes the rows for the local experts."""

    def observe(self, source: Source, configuration: Setting) -> Outcome:
        FETCHED.clear()
        beside = Dispatcher(configuration, source.function)
        function = defined(code_of(source), source.function.name, beside.namespace())
        given = [beside.hidden, beside.probs, beside.routing_map][: len(source.function.args.args) - 1]
        rows, counts, *probs = function(beside, *given)
        left = beside.reversed_local_input_permutation_mapping
        seen = beside.calls, rows.described(), counts.described(), [one.described() for one in probs], left, FETCHED
        return Outcome(frozenset(self._faults(configuration, beside, rows, counts)), repr(seen))

    @staticmethod
    def _faults(setting: Setting, beside: Dispatcher, rows: Tensor, counts: Tensor) -> Iterator[str]:
        if [call[0] for call in beside.calls if call[0] != "gather"] != ["permute"]:
            yield "the rows are not permuted once"
        if rows.values != [beside.hidden.values[token] for token in setting.order]:
            yield "the rows are not those for the local experts"
        if not rows.origin >= {"hidden"} or _BROKEN in rows.origin:
            yield "the backward pass of the permutation fails"
        if (counts.values, counts.device) != (setting.counts, "cpu"):
            yield "tokens_per_expert is wrong"
        if not setting.order and len(beside.hidden) and beside.reversed_local_input_permutation_mapping.fused:
            yield "the map is that of the fused kernel"
        if len(FETCHED) != 1:
            yield "the host waits for the GPU again"


class Unpermutation(_Alone):
    """The end state of what brings the experts' output back into the order of the tokens."""

    def observe(self, source: Source, configuration: Setting) -> Outcome:
        FETCHED.clear()
        beside = Dispatcher(configuration, source.function)
        beside.received()
        function = defined(code_of(source), source.function.name, beside.namespace())
        rows = [[float(index + 1)] * HIDDEN for index in range(len(configuration.order))]
        given = [Tensor(rows, HIDDEN, {name}) for name in ("rows", *(["bias"] if configuration.bias else []))]
        found = function(beside, *given)
        outputs = [one for one in (found if isinstance(found, tuple) else (found,)) if one is not None]
        seen = beside.calls, [one.described() for one in outputs], FETCHED
        return Outcome(frozenset(self._faults(configuration, beside, outputs)), repr(seen))

    @staticmethod
    def _faults(setting: Setting, beside: Dispatcher, outputs: list[Tensor]) -> Iterator[str]:
        scattered = any(call[0] == "reduce-scatter" for call in beside.calls)
        wanted = [[0.0] * HIDDEN for _ in range(len(beside.hidden))]
        for index, token in enumerate(setting.order):
            wanted[token] = [value + index + 1 for value in wanted[token]]
        if [call[0] for call in beside.calls].count("unpermute") != len(outputs) or len(outputs) != 1 + setting.bias:
            yield "the rows are not unpermuted once"
        if outputs[0].values != wanted[: beside.hidden_shape[0] if scattered else None]:
            yield "not every token has the sum of its rows"
        for output, name in zip(outputs, ("rows", "bias")):
            if len(output) != len(outputs[0]) or name not in output.origin:
                yield "the graph is cut"
        if FETCHED:
            yield "the host waits for the GPU"


END_STATES = {
    "MoEAllGatherTokenDispatcher.dispatch_postprocess": Permutation(),
    "MoEAllGatherTokenDispatcher.combine_preprocess": Unpermutation(),
    "MoEAllGatherTokenDispatcher.token_permutation": Permutation(),
    "MoEAllGatherTokenDispatcher.token_unpermutation": Unpermutation(),
}
