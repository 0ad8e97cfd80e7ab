"""fsdp-dynamic-bsz: how many micro-batches each rank runs, and what its method returns.

Each forward pass, backward pass and optimizer step of an FSDP model is a collective of all ranks.
"""

from __future__ import annotations

import ast
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from unhang.compat.endstates.endstate import EndState, Outcome, Source, called, parameters
from unhang.compat.endstates.standin import StandIn, strict
from unhang.compat.endstates.tensors import Nested, Tensor, Watch, torch, unwatched
from unhang.shapes.branches import branches
from unhang.shapes.shape import Function

CUTS = ("prepare_dynamic_batch", "rearrange_micro_batches")
WORLD, SHARD = "world", "shard"
BOUND = 100
LENGTHS = (
    ((90, 100, 90, 100), (40, 50, 40, 50)),
    ((40, 50, 40, 50), (60, 70, 50, 40), (90, 100, 90, 100)),
    ((90, 100, 90, 100), (100, 90, 100, 90)),
    ((60, 70, 50, 40), (40, 50, 40, 50)),
    ((90, 100, 90, 100),),
)
"""The tokens of each row, of each rank."""
FIELDS = (
    *("responses", "input_ids", "attention_mask", "position_ids", "prompts", "old_log_probs", "advantages"),
    *("ref_log_prob", "values", "returns", "loss_mask", "response_mask", "rollout_is_weights"),
)


class Setting(NamedTuple):
    """One worker group: what its ranks have, and the settings of the method."""

    lengths: tuple[tuple[int, ...], ...] = LENGTHS[0]
    dynamic: bool = True
    right: bool = False
    """Whether ``rearrange_micro_batches`` takes no group for all ranks. The target is about one that does not."""
    sp: int = 1
    epochs: int = 1
    minis: int = 1
    data: str = "plain"
    """``plain``, or what else the method branches on."""


class Config(StandIn):
    """A configuration, which is read by attribute or like a mapping."""

    def get(self, name: str, default: Any = None) -> Any:
        return getattr(self, name, default)


class Fields(dict[str, Tensor], StandIn):
    """The tensors of a batch, by name. Each row has the place of its sample as its values; a mask hides nothing."""

    def __init__(self, rows: Sequence[int], names: Iterable[str]) -> None:
        plain, mask = _of(rows, rows), _of([1] * len(rows), rows)
        dict.__init__(self, {name: mask if "mask" in name else plain for name in names})
        StandIn.__init__(self, "batch", rows=tuple(rows), batch_size=(len(rows),))

    def to(self, device: object) -> Fields:
        return self

    def split(self, size: int) -> list[Fields]:
        return [self.of(self.rows[start : start + size]) for start in range(0, len(self.rows), size)]

    def of(self, rows: Sequence[int]) -> Fields:
        return Fields(rows, [*self])

    def __len__(self) -> int:
        return len(self.rows)


class Data(StandIn):
    """A DataProto."""

    def __init__(self, batch: Fields, others: dict[str, Any], meta_info: dict[str, Any]) -> None:
        super().__init__("data", batch=batch, non_tensor_batch=others, meta_info=meta_info)

    def select(self, batch_keys: Sequence[str], non_tensor_batch_keys: Sequence[str] = ()) -> Data:
        batch = Fields(self.batch.rows, [name for name in batch_keys if name in self.batch])
        return Data(batch, {name: self.non_tensor_batch[name] for name in non_tensor_batch_keys}, self.meta_info)

    def of(self, rows: Sequence[int]) -> Data:
        return Data(self.batch.of(rows), self.non_tensor_batch, self.meta_info)

    def split(self, split_size: int) -> list[Data]:
        return [self.of(part.rows) for part in self.batch.split(split_size)]

    def chunk(self, chunks: int) -> list[Data]:
        return self.split(len(self.batch) // chunks)

    def to(self, device: object) -> Data:
        return self

    def __len__(self) -> int:
        return len(self.batch)


def _of(values: Sequence[int], rows: Sequence[int], watch: Watch = unwatched) -> Tensor:
    """Return a tensor with a row for each sample, computed from these samples."""
    doubled = [float(value) for value in values for _ in range(2)]
    return Tensor(doubled, "float32", "cpu", rows, (len(rows), 2), watch)


class Outputs(dict[str, Tensor]):
    """What a forward pass of the actor returns: by name, or as older releases have it, entropy and log probability."""

    def __iter__(self) -> Iterator[Any]:
        return iter((self["entropys"], self["log_probs"]))


class Seen(NamedTuple):
    """What one rank did."""

    ran: list[tuple[str, tuple[int, ...]]]
    """Each collective, and the rows that it is about."""
    output: list[tuple[int, ...]]
    """The rows of each tensor that it returns."""


def run_rank(source: Source, setting: Setting, rank: int) -> Seen:
    """Run the method as one rank."""
    ran: list[tuple[str, tuple[int, ...]]] = []

    def record(kind: str, rows: Sequence[int] = ()) -> None:
        ran.append((kind, tuple(rows)))

    def cut(
        data: Any,
        max_token_len: int,
        dp_group: Any = None,
        num_batches_divided_by: int | None = None,
        same_micro_num_in_dp: bool = True,
        min_num_micro_batch: int | None = None,
        use_dynamic_bsz_balance: bool = True,
    ) -> tuple[list[Any], list[list[int]]]:
        rows = (data.batch if isinstance(data, Data) else data).rows
        counts = [min(len(rows), math.ceil(sum(mine[row] for row in rows) / max_token_len)) for mine in setting.lengths]
        counts = [max(count, min_num_micro_batch or 1) for count in counts]
        count = counts[rank]
        if dp_group is None and setting.right:
            dp_group = WORLD
        if dp_group is not None and same_micro_num_in_dp:
            record(f"count in {dp_group}")
            count = max(counts) if dp_group == WORLD else count  # a shard group may hold this rank alone
        divisor = num_batches_divided_by or 1
        count = min(len(rows), -(-count // divisor) * divisor)
        places = [[*range(len(rows))][start::count] for start in reversed(range(count))]
        return [data.of([rows[place] for place in part]) for part in places], places

    def forward(micro_batch: Any, temperature: float = 1.0, calculate_entropy: bool = False) -> Any:
        rows = [int(row) for row in micro_batch["input_ids"].values_[::2]]
        record("forward", rows)
        names = ("log_probs", "entropys", "sum_pi_squared")
        return tensor(rows) if critic else Outputs({name: tensor(rows) for name in names})

    def watch(event: str, of: Tensor) -> None:
        if event == "backward":
            record("backward", sorted(map(int, of.origin)))

    def tensor(rows: Sequence[int]) -> Tensor:
        return _of(rows, rows, watch)

    def restored(data: Tensor, batch_idx_list: Sequence[Sequence[int]]) -> Tensor:
        places = [place for part in batch_idx_list for place in part]
        return data[[places.index(place) for place in range(len(places))]]

    def step() -> Tensor:
        record("step")
        return Tensor(0.0)

    def loss(
        old_log_prob: Tensor,
        log_prob: Tensor,
        advantages: Tensor,
        response_mask: Tensor,
        loss_agg_mode: str,
        config: Config | None = None,
        rollout_is_weights: Tensor | None = None,
        rollout_log_probs: Tensor | None = None,
    ) -> tuple[Any, ...]:
        return log_prob.mean(), {"actor/clip": 1.0}

    def older_loss(
        old_log_prob: Tensor,
        log_prob: Tensor,
        advantages: Tensor,
        response_mask: Tensor | None = None,
        cliprange: float | None = None,
        cliprange_low: float | None = None,
        cliprange_high: float | None = None,
        clip_ratio_c: float = 3.0,
        loss_agg_mode: str = "",
        config: Config | None = None,
        rollout_is_weights: Tensor | None = None,
        rollout_log_probs: Tensor | None = None,
        eos_mask: Tensor | None = None,
    ) -> tuple[Any, ...]:
        return (log_prob.mean(),) * 4

    def agg_loss(loss_mat: Tensor, loss_mask: Tensor, loss_agg_mode: str) -> Any:
        return loss_mat.mean()

    def kl_penalty(logprob: Tensor, ref_logprob: Tensor, kl_penalty: str) -> Tensor:
        return logprob

    critic = "Critic" in source.name
    of_two = "pg_clipfrac_lower" not in source.text.partition("def update_policy")[2]
    which, rows = setting.data, range(len(setting.lengths[rank]))
    mini = len(rows) // setting.minis
    absent = {"no mask": {"response_mask"}, "no weights": {"rollout_is_weights"}}.get(which, set())
    names = [name for name in FIELDS if name not in absent]
    others: dict[str, Any] = {"multi-modal": {"multi_modal_inputs": []}, "prefix": {"uid": []}}.get(which, {})
    meta_info = {
        "micro_batch_size": 2,
        "temperature": 1.0,
        "use_dynamic_bsz": setting.dynamic,
        "max_token_len": BOUND // setting.sp,
        "multi_turn": which == "multi-turn",
    }
    config = Config(
        "self.config",
        use_dynamic_bsz=setting.dynamic,
        ppo_mini_batch_size=mini,
        ppo_micro_batch_size_per_gpu=1,
        ppo_max_token_len_per_gpu=BOUND // setting.sp,
        ppo_epochs=setting.epochs,
        use_kl_loss=which == "kl",
        kl_loss_type="kl",
        kl_loss_coef=0.5,
        entropy_coeff=0.5 if which == "entropy" else 0,
        calculate_entropy=which == "entropy",
        calculate_sum_pi_squared=which == "pi",
        loss_agg_mode="token-mean",
        policy_loss=Config("self.config.policy_loss", loss_mode="gpg" if which == "loss mode" else "vanilla"),
        clip_ratio=0.2,
        clip_ratio_c=3.0,
        clip_ratio_low=0.1 if which == "clip" else None,
        clip_ratio_high=0.3 if which == "clip" else None,
        cliprange_value=0.5,
        tis_imp_ratio_cap=2.0 if which == "importance" else 0.0,
        use_rollout_log_probs=which == "own rollout",
    )
    model = StandIn("module", eval=lambda: None, train=lambda: None)
    optimizer = StandIn("optimizer", zero_grad=lambda: None)
    worker = StandIn(
        "self",
        config=config,
        ulysses_sequence_parallel_size=setting.sp,
        use_prefix_grouper=which == "prefix",
        use_remove_padding=which != "no padding",
        scaler=StandIn("scaler", scale=lambda outputs: outputs) if which == "scaler" else None,
        actor_module=model,
        critic_module=model,
        actor_optimizer=optimizer,
        critic_optimizer=optimizer,
        _forward_micro_batch=forward,
        _optimizer_step=step,
        gradient_accumulation=1,  # 0.4 does not set it for a multi-modal batch
    )
    device = StandIn("device", current_device=lambda: 0)
    distributed = StandIn(
        "torch.distributed",
        group=StandIn("torch.distributed.group", WORLD=WORLD),
        get_rank=lambda group=None: rank,
        get_world_size=lambda group=None: len(setting.lengths),
    )
    of_losses: dict[str, Callable[..., Any]] = {
        "agg_loss": agg_loss,
        "kl_penalty": kl_penalty,
        "compute_policy_loss": older_loss,
        "get_policy_loss_fn": lambda name: loss if of_two else older_loss,
    }
    names_of_file: dict[str, Any] = {
        **{name: strict(name, function) for name, function in of_losses.items()},
        "torch": torch(distributed=distributed, cuda=device),
        "DataProto": Data,
        "prepare_dynamic_batch": cut,  # it has all of upstream's arguments: any other one is an error there too
        "rearrange_micro_batches": lambda batch, max_token_len, **more: cut(batch, max_token_len, **more),
        "restore_dynamic_batch": restored,
        "get_reverse_idx": lambda idx_map: [idx_map.index(place) for place in range(len(idx_map))],
        "itertools": itertools,
        "get_device_id": lambda: 0,
        "get_device_name": lambda: "cpu",
        "get_torch_device": lambda: device,
        "masked_mean": lambda values, mask: values.mean(),
        "core_algos": StandIn(
            "core_algos",
            compute_value_loss=lambda vpreds, values, returns, cliprange_value, response_mask=None, **more: (
                vpreds.mean(),
                vpreds.mean(),
            ),
            **of_losses,
        ),
        "append_to_dict": lambda data, new_data: None,
    }
    asked = {"calculate_entropy": True} if which == "entropy" and "compute" in source.name else {}
    output = called(source, names_of_file)(worker, Data(Fields(rows, names), others, meta_info), **asked)
    parts = output.values() if isinstance(output, dict) else output if isinstance(output, tuple) else (output,)
    return Seen(ran, [tuple(map(int, part.values_[::2])) for part in parts if isinstance(part, Tensor)])


class DynamicBatch(EndState):
    """The end state of the four methods."""

    varied: ClassVar[dict[str, str]] = {
        **dict.fromkeys(("use_dynamic_bsz", "self.config.use_dynamic_bsz"), "dynamic"),
        **dict.fromkeys(("self.config.ppo_epochs", "mini_batches", "on_policy"), "epochs and minis"),
        **dict.fromkeys(("has_multi_modal_inputs", "data.non_tensor_batch.keys"), "multi-modal"),
        **dict.fromkeys(("calculate_entropy", "entropy", "entropy_coeff", "self.config.calculate_entropy"), "entropy"),
        **dict.fromkeys(("self.use_prefix_grouper", "data.non_tensor_batch"), "prefix"),
        **dict.fromkeys(("self.config.clip_ratio_high", "self.config.clip_ratio_low"), "clip"),
        **dict.fromkeys(("loss_mode", "self.config.policy_loss.loss_mode"), "loss mode"),
        **dict.fromkeys(("data.batch.keys", "self.config.tis_imp_ratio_cap"), "no weights"),
        "data.batch": "no mask",
        "calculate_sum_pi_squared": "pi",
        "self.config.use_kl_loss": "kl",
        "self.config.use_rollout_log_probs": "own rollout",
        "self.scaler": "scaler",
        "multi_turn": "multi-turn",
    }
    held: ClassVar[dict[str, str]] = {
        **dict.fromkeys(("DataProto", "data", "micro_batch", "isinstance", "hasattr", "len"), "names no setting"),
        **dict.fromkeys(("torch.Tensor", "dict", "k", "v", "self.config"), "names no setting"),
        "rollout_log_prob": "none is given: with some, a metric is computed in another module",
    }
    without: ClassVar[dict[str, Any]] = {"right": True}

    def configurations(self, function: Function) -> Iterator[Setting]:
        found = {self.varied[name] for name in branches(function) if name in self.varied}
        updates = "epochs and minis" in found or "update" in function.name
        times = ((1, 1), (1, 2), (2, 2)) if updates else ((1, 1),)
        variants = ["plain", *sorted(found - {"dynamic", "epochs and minis"})]
        for lengths, dynamic, right, sp, (epochs, minis), which in itertools.product(
            LENGTHS, (True, False), (False, True), (1, 2), times, variants
        ):
            yield Setting(lengths, dynamic, right, sp, epochs, minis, which)

    def has_feature(self, source: Source) -> bool:
        return any(isinstance(node, ast.Name) and node.id in CUTS for node in ast.walk(source.function))

    def concerned(self, configuration: Setting) -> bool:
        return configuration.dynamic and not configuration.right

    def observe(self, source: Source, configuration: Setting) -> Outcome:
        seen = [run_rank(source, configuration, rank) for rank in range(len(configuration.lengths))]
        return Outcome(frozenset(_faults(configuration, seen, "update" in source.name)), repr(seen))


def _faults(setting: Setting, seen: Sequence[Seen], updates: bool) -> Iterator[str]:
    if len({tuple(kind for kind, _ in one.ran) for one in seen}) > 1:
        yield "ranks do not run the same collectives"
    kinds = [kind for one in seen for kind, _ in one.ran]
    if not setting.dynamic and any(kind.startswith("count") for kind in kinds):
        yield "a number is agreed on, although nothing is cut by its tokens"
    wanted = sorted([*range(len(setting.lengths[0]))] * (setting.epochs if updates else 1))
    for kind in ("forward", "backward") if updates else ("forward",):
        if any(sorted(row for kind_, rows in one.ran if kind_ == kind for row in rows) != wanted for one in seen):
            yield f"a row has no {kind} pass, or more than one"
    agreed = setting.minis == 1 and any(kind.startswith("count") for kind in kinds)
    most = max(math.ceil(sum(mine) / BOUND) for mine in setting.lengths)
    if agreed and kinds.count("forward") > most * len(seen) * setting.epochs:
        yield "more micro-batches than the rank with the most tokens needs"
    if any(kinds.count("step") != len(seen) * setting.epochs * setting.minis for _ in [updates] if updates):
        yield "another number of optimizer steps"
    if any(rows != tuple(range(len(setting.lengths[0]))) for one in seen for rows in one.output):
        yield "what is returned is not in the order of the batch"


class Cut(NamedTuple):
    """How ``rearrange_micro_batches`` is called."""

    group: str | None = None
    initialized: bool = True
    same: bool = True
    nested: bool = False
    minimum: int | None = None
    divided: int | None = None
    balance: bool = True
    together: int = 1


TOKENS = ((48,) * 8, (20,) * 8)
"""The tokens of each row of the two ranks: also in pairs of rows, the ranks need different numbers."""


class Rows(list[int]):
    """A batch, as the places of its rows."""

    fields: Mapping[str, Tensor]

    def __getitem__(self, key: Any) -> Any:
        return self.fields[key] if isinstance(key, str) else Rows(super().__getitem__(key))


class Rearrange(EndState):
    """The end state of ``rearrange_micro_batches``: right if ranks that pass no group cut into the same number."""

    varied: ClassVar[dict[str, str]] = {
        "dist.is_initialized": "initialized",
        "dp_group": "group",
        "force_group_size": "together",
        "input_ids.is_nested": "nested",
        "min_num_micro_batch": "minimum",
        "num_batches_divided_by": "divided",
        "same_micro_num_in_dp": "same",
        "use_dynamic_bsz_balance": "balance",
    }
    held: ClassVar[dict[str, str]] = {
        "partition": "there is no empty one",
        **dict.fromkeys(("max_group_token_len", "max_token_len", "min_num_groups"), "no row is too long"),
        **dict.fromkeys(("num_micro_batches", "within_limit"), "no row is too long"),
        "sync_micro_batch_count": "names other conditions",
    }

    def configurations(self, function: Function) -> Iterator[Cut]:
        given = parameters(function)
        choices: dict[str, tuple[Any, ...]] = {
            "group": (None, WORLD),
            "initialized": (True, False),
            "same": (True, False) if "same_micro_num_in_dp" in given else (True,),
            "nested": (False, True) if "input_ids.is_nested" in branches(function) else (False,),
            "minimum": (None, 3) if "min_num_micro_batch" in given else (None,),
            "divided": (None, 2) if "num_batches_divided_by" in given else (None,),
            "balance": (True, False) if "use_dynamic_bsz_balance" in given else (True,),
            "together": (1, 2) if "force_group_size" in given else (1,),
        }
        for values in itertools.product(*choices.values()):
            yield Cut(*values)

    def has_feature(self, source: Source) -> bool:
        return "dp_group" in branches(source.function)

    def concerned(self, configuration: Cut) -> bool:
        return configuration.group is None and configuration.initialized and configuration.same

    def observe(self, source: Source, configuration: Cut) -> Outcome:
        agreed: list[list[int]] = []
        while True:
            seen: list[list[list[int]]] = []
            asking: list[_Asks] = []
            for rank in range(len(TOKENS)):
                try:
                    seen.append(_cut(source, configuration, rank, agreed))
                except _Asks as asks:
                    asking.append(asks)
            if not asking:
                break
            if seen:
                return Outcome(frozenset({"a rank agrees on a number with one that does not"}), ())
            agreed.append([asking[0].op(values) for values in zip(*(one.values for one in asking))])
        faults = set()
        if configuration.initialized and configuration.same and len({len(parts) for parts in seen}) > 1:
            faults.add("ranks cut into different numbers of micro-batches")
        if agreed and not (configuration.initialized and configuration.same):
            faults.add("a number is agreed on that need not be the same")
        if any(sorted(row for part in parts for row in part) != [*range(8)] for parts in seen):
            faults.add("a row is lost, or in two micro-batches")
        return Outcome(frozenset(faults), repr(seen))


class _Asks(Exception):
    """A rank is in a collective whose result is not known yet."""

    def __init__(self, op: Callable[[Sequence[int]], int], values: Sequence[int]) -> None:
        self.op, self.values = op, values


def _cut(source: Source, configuration: Cut, rank: int, agreed: Sequence[list[int]]) -> list[list[int]]:
    """Return the micro-batches of one rank, as the places of their rows. Raises _Asks."""
    left = iter(agreed)

    def all_reduce(tensor: Tensor, op: Any, group: str | None = None) -> None:
        for values in left:
            tensor.values_ = values
            return
        raise _Asks(op, tensor.values_)

    def parts(seqlen_list: Sequence[int], k_partitions: int, equal_size: bool) -> list[list[int]]:
        return [[*range(len(seqlen_list))][start::k_partitions] for start in range(k_partitions)]

    dist = StandIn(
        "dist",
        is_initialized=lambda: configuration.initialized,
        all_reduce=all_reduce,
        ReduceOp=StandIn("dist.ReduceOp", MAX=max, MIN=min),
    )
    names: dict[str, Any] = {
        "torch": torch(cat=lambda rows: Rows(itertools.chain.from_iterable(rows))),
        "dist": dist,
        "tu": StandIn("tu", index_select_tensor_dict=lambda batch, indices: Rows(indices)),
        "ceildiv": lambda a, b: -(-a // b),
        "roundup_divisible": lambda a, b: -(-a // b) * b,
        "get_device_name": lambda: "cpu",
        "get_seqlen_balanced_partitions": strict("get_seqlen_balanced_partitions", parts),
        "calculate_workload": lambda seqlen_list: seqlen_list,
    }
    batch, tokens = Rows(range(8)), TOKENS[rank]
    mask = Tensor([[1] * count + [0] * (BOUND - count) for count in tokens], "int64", "cpu")
    batch.fields = {"attention_mask": mask, "input_ids": Nested(tokens, device="cpu") if configuration.nested else mask}
    asked = {
        "same_micro_num_in_dp": configuration.same,
        "min_num_micro_batch": configuration.minimum,
        "num_batches_divided_by": configuration.divided,
        "use_dynamic_bsz_balance": configuration.balance,
        "force_group_size": configuration.together,
    }
    asked = {name: value for name, value in asked.items() if name in parameters(source.function)}
    found, places = called(source, names)(batch, BOUND, dp_group=configuration.group, **asked)
    return [list(part) for part in places] if len(found) == len(places) else []


END_STATES = {
    **dict.fromkeys(
        (
            "DataParallelPPOActor.compute_log_prob",
            "DataParallelPPOActor.update_policy",
            "DataParallelPPOCritic.compute_values",
            "DataParallelPPOCritic.update_critic",
        ),
        DynamicBatch(),
    ),
    "rearrange_micro_batches": Rearrange(),
}
