"""critic-microbatch-scale: how much of each token's loss the micro-batches of all ranks add up to, and what is logged.

A loss knows how much of each token is in it, and so its value and where its gradient goes. Each rank runs each of its
micro-batches; the engine adds them up, and averages the gradients of the ranks.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

from unhang.compat.endstates.endstate import EndState, Outcome, Source, called, importing, parameters
from unhang.compat.endstates.standin import StandIn, strict
from unhang.shapes.branches import words
from unhang.shapes.shape import Function

ROWS, WIDTH = 4, 4
MODES = ("token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm", "seq-mean-token-mean")
LENGTHS = MappingProxyType(
    {
        "equal": (3, 3, 3, 3),
        "uneven": (4, 1, 2, 3),
        "empty row": (4, 1, 0, 3),
        "empty micro-batch": (4, 1, 0, 0),
    }
)
"""The tokens of each row on the first rank; each other rank has one more token, and one in each row at least."""
ABSENT = "absent"
Token = tuple[int, ...]


class Setting(NamedTuple):
    """One mini-batch of a job."""

    mode: str = MODES[0]
    dp: int = 1
    micro: int = 1
    """In so many micro-batches each rank cuts it."""
    lengths: str = "equal"
    scale: int | str | None = ABSENT
    """The constant by which the third mode divides; a config without it goes with a function that takes no numbers."""
    has_size: bool = True
    """Whether the data has the number of rows of the whole mini-batch, as verl's trainers give it."""
    narrow: bool = False
    """Whether a micro-batch is as wide as its longest row. Else each is as wide as the mini-batch."""
    has_sums: bool = True
    """Whether verl can log a sum over micro-batches. 0.7.0 averages whatever is logged."""

    def counts(self, rank: int) -> list[int]:
        """Return the number of tokens in each row of a rank."""
        given = LENGTHS[self.lengths]
        return [*given] if not rank or self.lengths == "equal" else [min(count + 1, WIDTH) for count in given]

    def parts(self, rank: int) -> list[list[int]]:
        """Return the rows of each micro-batch of a rank, by number."""
        size = ROWS // self.micro
        return [[*range(at, at + size)] for at in range(0, ROWS, size)]

    def width(self, rank: int, rows: Sequence[int]) -> int:
        """Return how wide a micro-batch is."""
        return max(1, *(self.counts(rank)[row] for row in rows)) if self.narrow else WIDTH

    @property
    def is_known(self) -> bool:
        """Whether the data has the number by which the loss of the mini-batch is divided."""
        return self.has_size or self.mode == MODES[0]

    @property
    def tokens(self) -> int:
        """How many tokens all ranks have."""
        return sum(sum(self.counts(rank)) for rank in range(self.dp))

    def share(self, is_whole: bool) -> dict[Token, float]:
        """Return how much of each token is to be in the loss; or is, where each micro-batch is by itself."""
        found: dict[Token, float] = {}
        for rank in range(self.dp):
            counts = self.counts(rank)
            for rows in self.parts(rank):
                tokens, filled = sum(counts[row] for row in rows), sum(counts[row] > 0 for row in rows)
                tokens, filled = (self.tokens, self.dp * ROWS) if is_whole else (tokens * self.dp, filled * self.dp)
                constant = self.scale if is_whole and isinstance(self.scale, int) else self.width(rank, rows)
                for row in rows:
                    by = {
                        MODES[0]: tokens,
                        MODES[1]: filled,
                        MODES[2]: filled * constant,
                        MODES[3]: filled * (counts[row] + 1e-8),
                    }[self.mode]
                    found.update({(rank, row, at): 0.5 / by for at in range(counts[row])})
        return found


class Loss(StandIn):
    """A number on the graph: how much of each token is in it."""

    def __init__(self, ways: Mapping[Token, float]) -> None:
        super().__init__("a loss", ways=ways)

    def __add__(self, other: Any) -> Any:
        if not isinstance(other, Loss):
            return self if other == 0 else NotImplemented
        places = {*self.ways, *other.ways}
        return Loss({place: self.ways.get(place, 0.0) + other.ways.get(place, 0.0) for place in places})

    __radd__ = __add__

    def __mul__(self, by: float) -> Loss:
        return Loss({place: way * by for place, way in self.ways.items()})

    __rmul__ = __mul__

    def __truediv__(self, by: float) -> Loss:
        return Loss({place: over(way, by) for place, way in self.ways.items()})

    def masked_fill(self, mask: Flag, value: float) -> Loss:
        return Loss({(-1,): value}) if mask.is_on else self

    def detach(self) -> Loss:
        return self

    def item(self) -> float:
        return math.fsum(way * _value(place) for place, way in sorted(self.ways.items()))


class Mean(StandIn):
    """A number off the graph."""

    def __init__(self, value: float) -> None:
        super().__init__("a mean", value=value)

    def detach(self) -> Mean:
        return self

    def item(self) -> float:
        return float(self.value)


class Flag(StandIn):
    """A truth value on the device."""

    def __init__(self, is_on: bool) -> None:
        super().__init__("a flag", is_on=is_on)

    def __invert__(self) -> Flag:
        return Flag(not self.is_on)

    def __bool__(self) -> bool:
        raise RuntimeError("the host waits for the device")


class Grid(StandIn):
    """A tensor of rows."""

    def __init__(self, rows: Sequence[Sequence[Any]]) -> None:
        super().__init__("a tensor", rows=rows)

    def to(self, dtype: type) -> Grid:
        return Grid([[*map(dtype, row)] for row in self.rows])

    def float(self) -> Grid:
        return self.to(float)

    def any(self) -> Flag:
        return Flag(any(itertools.chain(*self.rows)))

    def sum(self) -> Any:
        return sum(itertools.chain(*self.rows))

    def with_each(self, other: Any, combine: Callable[[Any, Any], Any]) -> Grid:
        """Combine each cell with that of another tensor, or with a number."""
        others = other.rows if isinstance(other, Grid) else [[other] * len(row) for row in self.rows]
        return Grid([[combine(*cells) for cells in zip(*rows)] for rows in zip(self.rows, others)])

    def __add__(self, other: Any) -> Grid:
        return self.with_each(other, lambda one, two: one + two)

    def __sub__(self, other: Any) -> Grid:
        return self.with_each(other, lambda one, two: one - two)

    def __pow__(self, power: int) -> Grid:
        return self.with_each(power, lambda one, two: one**two)


def over(number: Any, by: float) -> Any:
    """Divide as torch does."""
    return number / by if by else number * math.nan


def _value(place: Token) -> float:
    """Return the loss of a token; of one with a mark, what is predicted for it."""
    return 1.0 + sum(number * base for number, base in zip(place, (16, 5, 1, 1000)))


def agg_loss(
    loss_mat: Grid,
    loss_mask: Grid,
    loss_agg_mode: str,
    dp_size: int = 1,
    batch_num_tokens: int | None = None,
    global_batch_size: int | None = None,
    loss_scale_factor: int | None = None,
) -> Any:
    """Return what verl's function of this name does: a mean over what is given, or a part of that over a mini-batch."""
    both = zip(loss_mat.rows, loss_mask.rows)
    rows = [(sum(cell * is_in for cell, is_in in zip(cells, mask)), sum(mask)) for cells, mask in both]
    is_per_token = loss_agg_mode == MODES[0]
    size = batch_num_tokens if is_per_token else global_batch_size
    if loss_agg_mode not in MODES or (size is None and dp_size > 1):
        raise ValueError("a number of the mini-batch is required")
    if size is None:
        size = sum(count if is_per_token else count > 0 for _, count in rows)
    if loss_agg_mode == MODES[3]:
        rows = [(over(total, count + 1e-8), count) for total, count in rows]
    found = over(sum(total for total, _ in rows), size) * dp_size
    return over(found, loss_scale_factor or len(loss_mask.rows[0])) if loss_agg_mode == MODES[2] else found


class Data(StandIn):
    """A micro-batch: tensors by name, and numbers."""

    def __init__(self, items: Mapping[str, Any]) -> None:
        super().__init__("data", items=items)

    def __getitem__(self, key: str) -> Any:
        return self.items[key]

    def keys(self) -> list[str]:
        return [*self.items]

    def select(self, *keys: str) -> Data:
        return Data({key: self.items[key] for key in keys})

    def to_padded_tensor(self) -> Data:
        return self


class Metric(NamedTuple):
    """What is logged of each micro-batch, and how these are put together."""

    aggregation: str
    value: Any = None


class Micro(NamedTuple):
    """What the function returned for a micro-batch."""

    loss: Any
    metrics: dict[str, Any]


def run(source: Source, setting: Setting, rank: int, rows: Sequence[int]) -> Micro:
    """Run the function on some rows of a rank."""
    counts, width = [setting.counts(rank)[row] for row in rows], setting.width(rank, rows)
    mask = Grid([[int(at < count) for at in range(width)] for count in counts])
    places = [[(rank, row, at) for at in range(width)] for row in rows]
    predicted = Grid([[Loss({(*place, 1): 1.0}) for place in row] for row in places])
    numbers = {"dp_size": setting.dp, "batch_num_tokens": setting.tokens}
    if setting.has_size:
        numbers["global_batch_size"] = setting.dp * ROWS
    data = Data({"values": "values", "returns": "returns", "response_mask": mask, "prompts": "prompts", **numbers})

    def padded(tensor: str, data: Data) -> Grid:
        assert (tensor, data["prompts"]) == ("model output", "prompts")
        return predicted

    def compute_value_loss(
        vpreds: Grid,
        returns: str,
        values: str,
        response_mask: Grid,
        cliprange_value: float,
        loss_agg_mode: str = MODES[0],
        **of_batch: Any,
    ) -> Any:
        if of_batch and setting.scale == ABSENT:
            raise TypeError("it takes no numbers of the mini-batch")
        assert (vpreds, returns, values, cliprange_value) == (predicted, "returns", "values", 0.5)
        losses = Grid([[Loss({place: 1.0}) for place in row] for row in places])
        return 0.5 * agg_loss(losses, response_mask, loss_agg_mode, **of_batch), Mean(sum(rows))

    config = StandIn(
        "config",
        ["loss_scale_factor"] if setting.scale == ABSENT else [],
        cliprange_value=0.5,
        loss_agg_mode=setting.mode,
        **{} if setting.scale == ABSENT else {"loss_scale_factor": setting.scale},
    )
    metric = {
        "Metric": strict("Metric", Metric),
        "AggregationType": StandIn("AggregationType", **{name: name for name in ("MEAN", "SUM", "MIN", "MAX")}),
    }
    module = StandIn("verl.utils.metric", **metric) if setting.has_sums else StandIn("verl.utils.metric", [*metric])
    names = {
        **metric,
        "__builtins__": importing({"verl.utils": StandIn("verl.utils", metric=module)}),
        "compute_value_loss": strict("compute_value_loss", compute_value_loss),
        "agg_loss": agg_loss,
        **dict.fromkeys(("no_padding_2_padding", "_slice_response_from_unpad_output"), strict("padded", padded)),
        "masked_mean": lambda values, mask: Mean(sum(itertools.chain(*mask.rows)) + 0.25),
        "torch": StandIn("torch", distributed=StandIn("torch.distributed", get_rank=lambda group=None: rank)),
    }
    loss, metrics = called(source, names)(config=config, model_output={"values": "model output"}, data=data)
    return Micro(loss, metrics)


class ValueLoss(EndState):
    """The end state of value_loss."""

    varied: ClassVar[dict[str, str]] = {
        "config.loss_scale_factor": "scale",
        "dp_size": "dp",
        "global_batch_size": "has_size",
    }
    held: ClassVar[dict[str, str]] = {"batch_num_tokens": "each engine counts them"}

    def configurations(self, function: Function) -> Iterator[Setting]:
        reads = words(function)
        scales = (None, 8) if {"config", "loss_scale_factor"} <= reads and "getattr" not in reads else (ABSENT, None, 8)
        for mode, dp, micro, lengths in itertools.product(MODES, (1, 2), (1, 2, 4), LENGTHS):
            for scale, has_size, narrow in itertools.product(scales, (True, False), (False, True)):
                yield Setting(mode, dp, micro, lengths, scale, has_size, narrow)
            if "Metric" not in reads or "hasattr" in reads:  # upstream's own fix came after the metrics that add up
                yield from (Setting(mode, dp, micro, lengths, has_size=size, has_sums=False) for size in (True, False))

    def concerned(self, configuration: Setting) -> bool:
        return not configuration.has_size or not _alike(configuration.share(False), configuration.share(True))

    def control(self, configuration: Setting) -> Setting | None:
        if not (configuration.has_size and self.concerned(configuration)):
            return None  # upstream's own fix takes no data without the number of rows
        return Setting(configuration.mode)

    def observe(self, source: Source, configuration: Setting) -> Outcome:
        try:
            ranks = [
                [run(source, configuration, rank, rows) for rows in configuration.parts(rank)]
                for rank in range(configuration.dp)
            ]
        except ValueError:
            if configuration.has_size or configuration.dp == 1 or configuration.mode == MODES[0]:
                raise
            return Outcome(frozenset(), "it says that the number of rows is required")
        return Outcome(frozenset(_faults(configuration, ranks)), repr(_logged(ranks)))


def _faults(setting: Setting, ranks: Sequence[Sequence[Micro]]) -> Iterator[str]:
    losses = [micro.loss for micro in itertools.chain(*ranks)]
    if not all(isinstance(loss, Loss) for loss in losses):
        yield "a loss without a gradient"
        return
    due = setting.share(True)
    whole = sum(losses) * (1 / setting.dp)
    if not _alike(whole.ways, due):
        yield "the micro-batches add up to another gradient"
    logged = _logged(ranks)
    value = logged.pop("critic/vf_loss", None)
    mean = Loss(setting.share(False)).item() / setting.micro
    wanted = Loss(due).item() if setting.is_known and setting.has_sums else mean
    if value is None or not math.isclose(value, wanted, rel_tol=1e-9):
        yield "another loss is logged"
    parts = [(rank, rows) for rank in range(setting.dp) for rows in setting.parts(rank)]
    sizes = [sum(setting.counts(rank)[row] for row in rows) + 0.25 for rank, rows in parts]
    clipped = [sum(rows) for _, rows in parts]
    others = {"critic/vf_clipfrac": sum(clipped) / len(parts), "critic/vpred_mean": sum(sizes) / len(parts)}
    if logged != others:
        yield "something else is logged"


def _logged(ranks: Sequence[Sequence[Micro]]) -> dict[str, float]:
    """Return what is logged of the mini-batch, as verl puts it together; a number is averaged."""
    found = {}
    for key in ranks[0][0].metrics:
        values = [[micro.metrics[key] for micro in rank] for rank in ranks]
        plain = [[_number(value) for value in rank] for rank in values]
        total = sum(sum(rank) for rank in plain) / len(ranks)
        kind = getattr(values[0][0], "aggregation", "MEAN")
        found[key] = {"SUM": total, "MEAN": total / len(plain[0])}.get(kind, math.nan)
    return found


def _number(value: Any) -> float:
    given = value.value if isinstance(value, Metric) else value
    return float(given.item() if isinstance(given, Loss) else given)


def _alike(one: Mapping[Token, float], other: Mapping[Token, float]) -> bool:
    return all(
        math.isclose(one.get(place, 0.0), other.get(place, 0.0), rel_tol=1e-9, abs_tol=1e-12)
        for place in {*one, *other}
    )


class Cut(NamedTuple):
    """Rows that a critic cuts into micro-batches."""

    mode: str = MODES[0]
    micro: int = 1
    clip: float = 0.5


class ComputeValueLoss(EndState):
    """The end state of compute_value_loss: by itself, the losses of the micro-batches add up to too much."""

    varied: ClassVar[dict[str, str]] = {}

    def configurations(self, function: Function) -> Iterator[Cut]:
        modes = MODES if "loss_agg_mode" in parameters(function) else MODES[:1]
        yield from itertools.starmap(Cut, itertools.product(modes, (1, 2, 4), (0.5, 2.0)))

    def concerned(self, configuration: Cut) -> bool:
        return configuration.micro > 1

    def observe(self, source: Source, configuration: Cut) -> Outcome:
        size = ROWS // configuration.micro
        found = [self.loss(source, configuration, range(at, at + size)) for at in range(0, ROWS, size)]
        losses, clipped = [loss for loss, _ in found], [part for _, part in found]
        whole = self.loss(source, configuration._replace(micro=1), range(ROWS))[0]
        is_sum = math.isclose(sum(losses), whole)
        return Outcome(frozenset() if is_sum else frozenset({"they add up to another loss"}), repr((losses, clipped)))

    def loss(self, source: Source, cut: Cut, rows: Sequence[int]) -> Any:
        """Return what the function returns for some rows."""
        predicted, returns, values = (
            Grid([[float((7 * row + 3 * at + by) % 5) for at in range(WIDTH)] for row in rows]) for by in (0, 1, 3)
        )
        mask = Grid([[int(at <= row) for at in range(WIDTH)] for row in rows])
        clipped: dict[str, Callable[..., Any]] = {
            "clip_by_value": lambda x, tensor_min, tensor_max: x.with_each(tensor_min, max).with_each(tensor_max, min),
            "masked_mean": lambda values, mask, axis=None: agg_loss(values, mask, MODES[0]),
        }
        names = {
            "agg_loss": strict("agg_loss", agg_loss),
            "verl_F": StandIn("verl_F", **clipped),
            "torch": StandIn(
                "torch",
                max=lambda input, other: input.with_each(other, max),
                gt=lambda input, other: input.with_each(other, lambda one, two: one > two),
            ),
        }
        mode = [cut.mode] if "loss_agg_mode" in parameters(source.function) else []
        return called(source, names)(predicted, returns, values, mask, cut.clip, *mode)


END_STATES = {
    "value_loss": ValueLoss(),
    "compute_value_loss": ComputeValueLoss(),
}
