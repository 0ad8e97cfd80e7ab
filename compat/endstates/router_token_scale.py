"""router-token-scale: the weight of a router's auxiliary losses, of which each rank of a group adds a part.

The finalizer divides all gradients by all tokens. So an auxiliary loss has to be multiplied by the tokens of the group
whose ranks add it up: its ``attach`` takes the count of one rank, times the size of the group. A function that hands
such a count on is judged by what ``attach`` makes of it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, NamedTuple

from unhang.compat.endstates.endstate import EndState, Outcome, Source, called, parameters
from unhang.compat.endstates.standin import StandIn
from unhang.compat.endstates.tensors import Tensor, torch
from unhang.shapes.branches import branches, words
from unhang.shapes.shape import Function

_COUNT = "valid_token_count"
_APPLY = "MoEAuxLossAutoScaler"
_LOSS, _COEFF, _LAYERS = 3.5, 0.25, 8
_NONE, _NUMBER, _TENSOR = "none", "number", "tensor"
_GATHERING = "alltoall_seq"
_SIZES = ((1, 1), (2, 1), (1, 2), (2, 2), (3, 2))
"""How many ranks TP and CP have."""


class Kept(Tensor):
    """A tensor that a test may invert and reshape, and that tells where the host waits for it."""

    def __invert__(self) -> Kept:
        return self._like([not value for value in self.values_], self.shape)

    def sum(self, dim: int | None = None) -> Tensor:
        summed = super().sum(dim)
        summed.dtype = "int64" if self.dtype == "bool" else self.dtype
        return summed

    def long(self) -> Tensor:
        whole = self._like([int(value) for value in self.values_], self.shape)
        whole.dtype = "int64"
        return whole

    def _like(self, values: Any, shape: Any) -> Kept:
        return Kept([*values], self.dtype, self.device, self.origin, shape, self.watch)


class Watched:
    """What a function did, and each time that the host waited for a tensor."""

    def __init__(self) -> None:
        self.attached: list[tuple[Any, Any]] = []
        self.recorded: list[tuple[Any, ...]] = []
        self.waits = 0

    def watch(self, event: str, of: Tensor) -> None:
        self.waits += 1

    def tensor(self, value: Any, dtype: str = "float32") -> Kept:
        return Kept(value, dtype, watch=self.watch)

    def apply(self, activation: Any, aux_loss: Any) -> Any:
        self.attached.append((activation, aux_loss))
        return activation

    def record(self, name: str, loss: Tensor, layer: int, layers: int, **of_groups: Any) -> None:
        self.recorded.append((name, loss.described(), layer, layers, sorted(of_groups)))

    def seen(self) -> str:
        """Return all of it, to compare."""
        attached = [loss.described() for _, loss in self.attached]
        return repr((attached, self.recorded, self.waits))


class Setting(NamedTuple):
    """One loss of a router."""

    sizes: tuple[int, int] = (2, 1)
    per_token: bool = True
    rows: int = 6
    given: str = _NONE
    """What it is given for the tokens that are not padded, or of which kind the mask is."""
    valid: int = 4
    mtp: int | None = None
    is_mtp: bool = False
    repeated: bool = False
    trains: bool = True
    has_gradients: bool = True
    coeff: float | None = _COEFF
    dispatcher: str = "alltoall"

    @property
    def group(self) -> int:
        """The size of the group."""
        return self.sizes[0] * self.sizes[1]

    @property
    def times(self) -> float:
        """By what the loss of a layer that runs several times is divided."""
        return self.mtp if self.is_mtp and self.repeated and self.mtp else 1

    @property
    def runs(self) -> bool:
        """Whether there is a loss."""
        return self.trains and self.has_gradients and self.coeff is not None


def group_of(size: int, name: str) -> StandIn:
    """Return a process group."""
    return StandIn(name, size=lambda: size, rank=lambda: 0)


def router(setting: Setting, every: int = 5, **others: Any) -> StandIn:
    """Return a router, with so many ranks in the group of all, and these other attributes."""
    (tp, cp), mtp = setting.sizes, {"mtp_num_layers": setting.mtp, "mtp_use_repeated_layer": setting.repeated}
    config = StandIn(
        "config",
        num_layers=_LAYERS,
        moe_aux_loss_coeff=setting.coeff or 0,
        moe_z_loss_coeff=setting.coeff,
        moe_token_dispatcher_type=setting.dispatcher,
        num_moe_experts=2,
        moe_router_fusion=False,
        **mtp,
    )
    return StandIn(
        "self",
        config=config,
        training=setting.trains,
        calculate_per_token_loss=setting.per_token,
        is_mtp_layer=setting.is_mtp,
        layer_number=2,
        mtp_layer_number=None,
        tp_group=group_of(tp, "tp"),
        cp_group=group_of(cp, "cp"),
        tp_cp_group=group_of(tp * cp, "tp-cp"),
        tp_dp_cp_group=group_of(tp * cp * every, "tp-dp-cp"),
        topk=2,
        **others,
    )


def names_of(setting: Setting, did: Watched, **others: Any) -> Mapping[str, Any]:
    """Return the globals of a function."""
    tp, cp = setting.sizes
    groups = StandIn(
        "parallel_state",
        get_context_parallel_group=lambda: group_of(cp, "cp"),
        get_tensor_model_parallel_world_size=lambda: tp,
        get_context_parallel_world_size=lambda: cp,
        get_tensor_and_context_parallel_world_size=lambda: tp * cp,
        get_tensor_and_context_parallel_group=lambda: group_of(tp * cp, "tp-cp"),
    )
    return {
        _APPLY: StandIn(_APPLY, apply=did.apply),
        "parallel_state": groups,
        "save_to_aux_losses_tracker": did.record,
        "get_moe_metrics_tracker": lambda: StandIn("tracker", record=did.record),
        "torch": torch(did.watch, is_grad_enabled=lambda: setting.has_gradients),
        **others,
    }


def faults_of(setting: Setting, did: Watched, activation: Tensor, tokens: float, loss: float) -> Iterator[str]:
    """Yield what is wrong with the loss that a function attaches, of which a rank has so many tokens."""
    if len(did.attached) != 1 or did.attached[0][0] is not activation or len(did.recorded) != 1:
        yield "the loss is attached or logged other than once"
        return
    wanted = loss * tokens * setting.group if setting.per_token else loss
    if not _same(did.attached[0][1], wanted):
        yield "the loss has another weight"
    if did.waits:
        yield "the host waits for a tensor"


def _same(found: Any, wanted: float) -> bool:
    (value,) = found.values_ if isinstance(found, Tensor) else (found,)
    return bool(abs(value - wanted) < 1e-9 * max(1.0, abs(wanted)))


class Loss(EndState):
    """What the end states of the functions that attach a loss have in common."""

    varied: ClassVar[dict[str, str]] = {
        "self.calculate_per_token_loss": "per_token",
        **dict.fromkeys((_COUNT, "padding_mask"), "given"),
        "self.is_mtp_layer": "is_mtp",
        "self.config.mtp_use_repeated_layer": "repeated",
        "self.config.mtp_num_layers": "mtp",
        "self.training": "trains",
        "torch.is_grad_enabled": "has_gradients",
        **dict.fromkeys(("self.config.moe_z_loss_coeff", "moe_aux_loss_coeff"), "coeff"),
        "self.config.moe_token_dispatcher_type": "dispatcher",
        **dict.fromkeys(
            ("self.tp_cp_group.size", "parallel_state.get_tensor_and_context_parallel_world_size"), "sizes"
        ),
    }
    held: ClassVar[dict[str, str]] = dict.fromkeys(
        ("self.mtp_layer_number", "self.layer_number"), "is about the log alone"
    )
    without: ClassVar[dict[str, Any]] = {"sizes": (1, 1)}

    def configurations(self, function: Function) -> Iterator[Setting]:
        counts = (_NONE, _NUMBER, _TENSOR) if {_COUNT, "padding_mask"} & parameters(function) else (_NONE,)
        layers = ((None, False, False), (2, False, True), (2, True, False), (2, True, True), (None, True, True))
        known = layers if "is_mtp_layer" in words(function) else layers[:2]
        for sizes, per_token, count, rows in itertools.product(_SIZES, (True, False), counts, (6, 7)):
            for mtp, is_mtp, repeated in known:
                yield Setting(sizes, per_token, rows, count, rows - 2, mtp, is_mtp, repeated)
            yield Setting(sizes, per_token, rows, count, rows - 2, dispatcher=_GATHERING)
        for trains, has_gradients, coeff in itertools.product((True, False), (True, False), (_COEFF, None, 2.0)):
            yield Setting((2, 2), True, 6, _NONE, 4, None, False, False, trains, has_gradients, coeff)

    def concerned(self, configuration: Setting) -> bool:
        return configuration.per_token and configuration.group > 1 and configuration.runs


class LoadBalancing(Loss):
    """The end state of the function that attaches the loss of a router which has one kind of it at a time."""

    def configurations(self, function: Function) -> Iterator[Setting]:
        asks = "moe_aux_loss_coeff" in branches(function)  # else, without a coefficient, the log is 0 / 0
        every = super().configurations(function)
        return (it for it in every if it.trains and it.has_gradients and (it.coeff or asks))

    def observe(self, source: Source, configuration: Setting) -> Outcome:
        did = Watched()
        activation, given = did.tensor([[1.0, 2.0, 3.0]] * configuration.rows), []

        def loss(moe_aux_loss_coeff: float, sequence_partition_group: Any) -> Tensor:
            given.append((moe_aux_loss_coeff, getattr(sequence_partition_group, "_name", None)))
            return did.tensor(_LOSS * moe_aux_loss_coeff)

        def switched(probs: str, counts: str, topk: int, coeff: float, sequence_partition_group: Any = None) -> Tensor:
            assert (probs, counts) == ("probs", "counts")
            return loss(coeff, sequence_partition_group)

        itself, names = router(configuration), names_of(configuration, did, switch_load_balancing_loss_func=switched)
        is_handed = "load_balancing_loss_func" in parameters(source.function)
        arguments = (activation, loss) if is_handed else ("probs", "counts", activation)
        kept = called(source, names)(itself, *arguments)
        seen = repr((did.seen(), given, kept is activation))
        if not configuration.coeff:
            return Outcome(frozenset({"there is a loss"} if did.attached or did.recorded else ()), seen)
        each = given[0][0] if given else 0
        is_gathered = configuration.dispatcher == _GATHERING and _GATHERING in words(
            source.function
        )  # what it counts, over TP
        tokens = configuration.rows / (configuration.sizes[0] if is_gathered else 1)
        return Outcome(frozenset(faults_of(configuration, did, activation, tokens, _LOSS * each)), seen)


class Attach(Loss):
    """The end state of the function that attaches a loss of any kind."""

    def configurations(self, function: Function) -> Iterator[Setting]:
        return (it for it in super().configurations(function) if it.runs)

    def observe(self, source: Source, configuration: Setting) -> Outcome:
        did = Watched()
        activation, valid = did.tensor([[1.0, 2.0, 3.0]] * configuration.rows), configuration.valid
        count = {_NONE: None, _NUMBER: valid, _TENSOR: did.tensor(float(valid))}[configuration.given]
        taken = parameters(source.function)
        kept = called(source, names_of(configuration, did))(
            router(configuration),
            activation,
            configuration.coeff,
            did.tensor(_LOSS),
            "load_balancing_loss",
            group_of(configuration.group, "tp-cp"),
            **({_COUNT: count} if _COUNT in taken else {}),
        )
        tokens = configuration.rows if count is None else valid
        found = faults_of(configuration, did, activation, tokens, _LOSS / configuration.times)
        logged = (_LOSS / configuration.times) / (configuration.coeff or 1)
        others = {"another loss is logged"} if not _is_logged(did, logged) else set()
        return Outcome(frozenset({*found, *others}), repr((did.seen(), kept is activation)))


class ZLoss(Loss):
    """The end state of the function that attaches the z loss, a mean over the tokens of each rank."""

    def observe(self, source: Source, configuration: Setting) -> Outcome:
        did = Watched()
        logits, given = did.tensor([[1.0, 2.0, 3.0]] * configuration.rows), []

        def mean(logits: Tensor, z_loss_coeff: float, padding_mask: Any = None) -> Tensor:
            given.append((z_loss_coeff, padding_mask is None))
            return did.tensor(_LOSS * z_loss_coeff)

        is_padded = [at >= configuration.valid for at in range(configuration.rows)]
        mask = None if configuration.given == _NONE else did.tensor(is_padded, "bool")
        named = {"padding_mask": mask} if "padding_mask" in parameters(source.function) else {}
        names = names_of(configuration, did, z_loss_func=mean)
        kept = called(source, names)(router(configuration), logits, **named)
        seen = repr((did.seen(), given, kept is logits))
        if not configuration.runs:
            return Outcome(frozenset({"there is a loss"} if did.attached or did.recorded else ()), seen)
        tokens = configuration.rows if mask is None else configuration.valid
        each = (configuration.coeff or 0) / configuration.group
        faults = set(faults_of(configuration, did, logits, tokens, _LOSS * each))
        faults |= {"another mean"} if given != [(each, mask is None)] else set()
        faults |= {"another loss is logged"} if not _is_logged(did, _LOSS / configuration.times) else set()
        return Outcome(frozenset(faults), seen)


def _is_logged(did: Watched, wanted: float) -> bool:
    return len(did.recorded) == 1 and abs(did.recorded[0][1][2][0] - wanted) < 1e-9


class Batch(NamedTuple):
    """One micro-batch on the ranks of a group."""

    sizes: tuple[int, int] = (2, 1)
    data_parallel: int = 2
    masked: bool = True
    length: int = 4
    """The tokens of a sequence on this rank."""
    sequences: int = 2
    valid: int = 22
    """The tokens of all ranks that are not padded, as the group counts them."""
    coeff: float = _COEFF
    rank: int = 0

    @property
    def group(self) -> int:
        """The size of the group that the count of a rank is multiplied by."""
        return self.sizes[0] * self.sizes[1]


class Handed(EndState):
    """What the end states of the functions that hand a count on have in common."""

    varied: ClassVar[dict[str, str]] = {
        **dict.fromkeys(("seq_aux_loss_coeff", "global_aux_loss_coeff"), "coeff"),
        "with_padding_mask": "masked",
    }

    def configurations(self, function: Function) -> Iterator[Batch]:
        for sizes, masked, sequences in itertools.product(_SIZES, (True, False), (1, 2, 3)):
            for data_parallel, length, valid in itertools.product((1, 2, 3), (4, 5), (22, 35)):
                yield Batch(sizes, data_parallel, masked, length, sequences, valid, rank=length % 2)
        yield Batch(coeff=0)

    def has_feature(self, source: Source) -> bool:
        return _COUNT in words(source.function)

    def observe(self, source: Source, configuration: Batch) -> Outcome:
        batch, did = configuration, Watched()
        handed: list[Any] = []
        probs = did.tensor([[1.0, 2.0]] * (batch.length * batch.sequences))

        def attach(*given: Any, valid_token_count: Any = None, **of_log: Any) -> Any:
            counted = given[0].shape[0] if valid_token_count is None else valid_token_count
            loss, group = given[2].described(), getattr(given[4], "_name", None)
            handed.append((counted, given[1], loss, given[3], group, sorted(of_log.items())))
            return given[0]

        def count(
            routing_map: Tensor, reduce_group: Any, topk: int | None = None, with_padding_mask: bool = False
        ) -> Any:
            if with_padding_mask:  # as it is after the rewrite: the mean over the group
                total = did.tensor(float(batch.valid))
                return did.tensor([3.0, 1.0]), total / reduce_group.size(), total
            return did.tensor([3.0, 1.0]), routing_map.shape[0], routing_map.shape[0] * reduce_group.size()

        itself = router(
            Setting(batch.sizes),
            batch.data_parallel,
            get_aux_loss_coeff=lambda name: batch.coeff,
            attach_and_log_load_balancing_loss=attach,
            global_tokens_per_expert=did.tensor([0.0, 0.0]),
            ga_steps=did.tensor(0.0),
        )
        names = {
            "get_tokens_per_expert_and_token_count": count,
            "switch_load_balancing_loss_func": lambda probs, total_num_tokens, **given: (
                did.tensor(_LOSS) * total_num_tokens
            ),
            "reduce_from_tensor_model_parallel_region": lambda tensor, group: tensor,
            "torch": torch(distributed=StandIn("torch.distributed", get_rank=lambda group=None: batch.rank)),
        }
        numbers = (batch.length, batch.sequences) if self.reduces == "tp-cp" else ()
        masked = {"with_padding_mask": batch.masked} if "with_padding_mask" in parameters(source.function) else {}
        kept = called(source, names)(itself, probs, probs, probs, *numbers, **masked)
        seen = repr([*handed, kept is probs, did.waits])
        if not batch.coeff:
            return Outcome(frozenset({"there is a loss"} if handed else ()), seen)
        faults = {"the host waits for a tensor"} if did.waits else set()
        if len(handed) != 1:
            faults.add("the loss is attached other than once")
        elif not _same(handed[0][0], self.due(batch, bool(masked))):
            faults.add("another count is handed on")
        return Outcome(frozenset(faults), seen)

    reduces: ClassVar[str]
    """The group whose ranks the count is of."""

    def due(self, batch: Batch, knows_masks: bool) -> float:
        """Return the count that, times the size of the group, is that of the tokens that the loss is a mean of."""
        raise NotImplementedError


class SequenceLoss(Handed):
    """The end state of the loss of each sequence."""

    reduces = "tp-cp"
    without: ClassVar[dict[str, Any]] = {"sequences": 1}

    def concerned(self, configuration: Batch) -> bool:
        return configuration.sequences > 1 and bool(configuration.coeff)

    def due(self, batch: Batch, knows_masks: bool) -> float:
        """All sequences of the micro-batch."""
        each = batch.valid / batch.group if knows_masks and batch.masked else batch.length
        return each * batch.sequences


class GlobalLoss(Handed):
    """The end state of the loss over all data-parallel ranks."""

    reduces = "tp-dp-cp"
    without: ClassVar[dict[str, Any]] = {"data_parallel": 1}

    def concerned(self, configuration: Batch) -> bool:
        return configuration.masked and configuration.data_parallel > 1 and bool(configuration.coeff)

    def due(self, batch: Batch, knows_masks: bool) -> float:
        """With a mask, all tokens, as released; else those of the rank."""
        if knows_masks and batch.masked:
            return batch.valid / batch.group
        return batch.length * batch.sequences


class Counted(NamedTuple):
    """The tokens of the ranks of a group."""

    ranks: tuple[int, ...] = (3, 2)
    """How many tokens each has that are not padded."""
    masked: bool = True
    topk: int = 2
    rows: int = 4
    rank: int = 0


class TokenCount(EndState):
    """The end state of the count. What it reduces is reduced in place, where that is contiguous, which a sum is."""

    varied: ClassVar[dict[str, str]] = {"with_padding_mask": "masked"}
    without: ClassVar[dict[str, Any]] = {"masked": False}

    def configurations(self, function: Function) -> Iterator[Counted]:
        groups = ((3,), (3, 3), (3, 2), (4, 0), (1, 2, 4), (4, 4, 4, 4))
        for ranks, masked, topk in itertools.product(groups, (True, False), (1, 2, 4)):
            for rows, rank in itertools.product((4, 5), range(len(ranks))):
                yield Counted(ranks, masked, topk, rows, rank)

    def concerned(self, configuration: Counted) -> bool:
        return configuration.masked and len(configuration.ranks) > 1

    def observe(self, source: Source, configuration: Counted) -> Outcome:
        did, reduced = Watched(), []
        group = group_of(len(configuration.ranks), "group")
        maps = [_routing(configuration, valid) for valid in configuration.ranks]

        def reduce(tensor: Tensor, of: Any) -> Tensor:
            reduced.append((tensor.described(), of is group))
            sums = [did.tensor(one, "int64").sum(dim=0).values_ for one in maps]
            tensor.values_[:] = [sum(each) for each in zip(*sums)]
            return tensor

        names = {"reduce_from_tensor_model_parallel_region": reduce, "torch": torch(did.watch)}
        mine = did.tensor(maps[configuration.rank], "bool")
        experts, local, total = called(source, names)(
            mine, group, topk=configuration.topk, with_padding_mask=configuration.masked
        )
        faults = set()
        every = sum(configuration.ranks) if configuration.masked else configuration.rows * len(configuration.ranks)
        if not _same(total, every):
            faults.add("another count of all tokens")
        if not _same(local, every / len(configuration.ranks)):
            faults.add("times the size of the group, the count of a rank is not that of all tokens")
        if sum(experts.values_) != configuration.topk * sum(configuration.ranks) or len(reduced) != 1:
            faults.add("another count of the experts' tokens")
        if did.waits:
            faults.add("the host waits for a tensor")
        counts = [one.described() if isinstance(one, Tensor) else one for one in (experts, local, total)]
        return Outcome(frozenset(faults), repr((counts, reduced, did.waits)))


def _routing(setting: Counted, valid: int) -> list[list[bool]]:
    """Return which experts each token of a rank goes to: the next ones for the next token, and none if it is padded."""
    experts = 6
    return [
        [row < valid and (at - row) % experts < setting.topk for at in range(experts)] for row in range(setting.rows)
    ]


END_STATES: Mapping[str, EndState] = {
    "TopKRouter.apply_load_balancing_loss": LoadBalancing(),
    "TopKRouter.attach_and_log_load_balancing_loss": Attach(),
    "TopKRouter.apply_z_loss": ZLoss(),
    "TopKRouter._apply_seq_aux_loss": SequenceLoss(),
    "TopKRouter._apply_global_aux_loss": GlobalLoss(),
    "get_tokens_per_expert_and_token_count": TokenCount(),
}
