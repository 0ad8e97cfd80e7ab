"""What each rank of a tensor-parallel group broadcasts, sender against receiver, and what a batch then has."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple

from independent.interpreter import BeyondError, Function, Names, Walk
from independent.tensors import Tensor, torch

METADATA = ("cu_seqlens", "max_seqlen")
STAGES = ("only", "first", "middle", "last")


class Setting(NamedTuple):
    """What both ranks share. ``hybrid`` is hybrid or dynamic context parallelism."""

    sft: bool
    stage: str
    mtp: bool
    mask: bool
    hybrid: bool


class Rank(NamedTuple):
    """What a rank broadcast, as (content, dtype, elements, source, group), and what its batch has."""

    sent: list[tuple[Any, ...]]
    batch: dict[str, Any]
    error: str


class Pair(NamedTuple):
    """TP rank 0 and another one."""

    sender: Rank
    receiver: Rank
    problem: str
    """Where the two do not fit together."""


SETTINGS = [Setting(*it) for it in product((True, False), STAGES, (False, True), (False, True), (False, True))]


def state(data: bytes, function: str) -> str:
    """Say whether both ranks get the metadata of a packed batch on every stage."""
    if not _knows_sft(data, function):
        return "not-affected"
    pairs = [(setting, _pair(data, function, setting)) for setting in SETTINGS if setting.sft and not setting.hybrid]
    if any(pair.problem or _lacks(pair) for _, pair in pairs):
        return "affected"
    # upstream's own fix is the function that takes the batch; one older function broadcast the metadata rightly
    return "fixed" if "batch" in _function(Walk(data, {}), function).parameters else "not-affected"


def wrong(before: bytes, after: bytes, function: str, as_written: bool = False) -> Iterator[str]:
    """Yield what is wrong with a rewrite.

    Where the pull request ``as_written`` edits an arm, the rewrite gives what it gives of the untouched function.
    """
    for setting in SETTINGS:
        now = _pair(after, function, setting)
        edited = as_written and not setting.mtp and setting.stage in ("middle", "last")
        was = now if edited else _pair(before, function, setting)
        if not setting.sft:
            # where metadata is always broadcast, 0.16 did so twice
            less = any(map(_is_metadata, was.sender.sent)) and len(now.sender.sent) < len(was.sender.sent)
            same = now.sender.batch == was.sender.batch and now.receiver.batch == was.receiver.batch
            if now != was and not (less and same and now.problem == was.problem and _rest(now) == _rest(was)):
                if now.problem or not was.problem:
                    yield f"{setting}: without packed batches it does another thing than before"
        elif setting.hybrid:
            if not was.problem and not _lacks(was) and (now.problem or _lacks(now)):
                yield f"{setting}: {now.problem or _lacks(now)}, and it worked before"
        else:
            # 0.16 sends the metadata on every stage already, and leaves a middle stage its empty tensors
            clears = _is_middle(setting) and (as_written or not any(map(_is_metadata, was.sender.sent)))
            yield from (f"{setting}: {line}" for line in _wrong(setting, was, now, clears))


def _wrong(setting: Setting, was: Pair, now: Pair, clears: bool) -> Iterator[str]:
    """Yield what is wrong with packed batches. ``clears``: a receiver is to have the metadata alone."""
    if now.problem or _lacks(now):
        yield now.problem or _lacks(now)
    if _rest(now) != _rest(was):
        yield "other tensors than before are broadcast"
    if _is_middle(setting) and any(it[0] != "padding_mask" for it in _rest(now)):
        yield "a middle stage has no use for what is broadcast"
    if sum(map(_is_metadata, now.sender.sent)) != 3:
        yield "not one broadcast each of the count, cu_seqlens and max_seqlen"
    for name in {*was.sender.batch} - {*METADATA}:
        if now.sender.batch.get(name) != was.sender.batch[name]:
            yield f"the sender has another {name} than before"
        mine = now.receiver.batch.get(name)
        if clears and name != "padding_mask" and mine is not None:
            yield f"a middle stage receives {name}: {mine}"
        elif not clears and not was.receiver.error and mine != was.receiver.batch[name]:
            yield f"the receiver has another {name} than before"


def _is_middle(setting: Setting) -> bool:
    return setting.stage == "middle" and not setting.mtp


def _lacks(pair: Pair) -> str:
    """Say which rank lacks the metadata."""
    for who, rank in ("sender", pair.sender), ("receiver", pair.receiver):
        for name in METADATA:
            if (rank.batch.get(name) or ("",))[0] != name:
                return f"the {who} has no {name}"
    return ""


def _rest(pair: Pair) -> list[tuple[Any, ...]]:
    return [it for it in pair.sender.sent if not _is_metadata(it)]


def _is_metadata(sent: tuple[Any, ...]) -> bool:
    content, _, elements, *_ = sent
    return isinstance(content, int) or content in METADATA or elements == 0


def _knows_sft(data: bytes, function: str) -> bool:
    """Return whether the function asks if batches are packed."""
    made = _function(Walk(data, {}), function)
    if {"is_sft", "has_cu_seqlens"} & {*made.parameters}:
        return True
    arguments = [_arguments(setting) for setting in SETTINGS]
    for setting, names in zip(SETTINGS, arguments):
        for rank in (0, 1):
            _run(data, function, setting, rank, [], names)
    return any("sft" in names.read for names in arguments)


def _pair(data: bytes, function: str, setting: Setting) -> Pair:
    sender = _run(data, function, setting, 0, [])
    feed = list(sender.sent)
    receiver = _run(data, function, setting, 1, feed)
    problem = f"the sender raises {sender.error}" if sender.error else ""
    problem = problem or (f"the receiver raises {receiver.error}" if receiver.error else "")
    return Pair(sender, receiver, problem or (f"the receiver leaves {feed}" if feed else ""))


def _function(walk: Walk, function: str) -> Function:
    return walk.function(function)


def _arguments(setting: Setting) -> Names:
    return Names(
        {
            "sft": setting.sft,
            "micro_batch_size": 1,
            "seq_length": 8,
            "pipeline_model_parallel_size": 1 if setting.stage == "only" else 3,
            "create_attention_mask_in_dataloader": setting.mask,
            "hybrid_context_parallel": setting.hybrid,
            "dynamic_context_parallel": setting.hybrid,
            "cuda_graph_impl": "none",
        }
    )


def _data(setting: Setting) -> dict[str, Tensor | None]:
    shape = (8,) if setting.hybrid else (1, 8)
    found: dict[str, Tensor | None] = {
        name: Tensor(shape, "float32" if name == "loss_mask" else "int64", name)
        for name in ("tokens", "labels", "loss_mask", "position_ids")
    }
    found["padding_mask"] = Tensor(shape, "bool", "padding_mask")
    if setting.mask:
        found["attention_mask"] = Tensor((1, 1, 8, 8), "bool", "attention_mask")
    if setting.sft or setting.hybrid:
        found["cu_seqlens"] = Tensor((1, 3), "int32", "cu_seqlens")
        found["max_seqlen"] = Tensor((1,), "int32", "max_seqlen")
    if setting.hybrid:
        found["local_cp_size"] = Tensor((1,), "int32", "local_cp_size")
    return found


def _run(
    data: bytes, function: str, setting: Setting, rank: int, feed: list[tuple[Any, ...]], arguments: Names | None = None
) -> Rank:
    """Run a rank. A receiver takes what it receives out of ``feed``."""
    sent: list[tuple[Any, ...]] = []

    def broadcast(item: Tensor, src: int, group: str) -> None:
        if rank == 0:
            sent.append((item.content, item.dtype, item.numel(), src, group))
            return
        if not feed:
            raise RuntimeError(f"waits for the sender, with {item.dtype} of {item.shape}")
        content, *rest = feed.pop(0)
        if rest != [item.dtype, item.numel(), src, group]:
            raise RuntimeError(f"{content}, {rest}, meets {item.dtype} of {item.shape} from {src} in {group}")
        item.content = content
        sent.append((content, *rest))

    arguments = arguments or _arguments(setting)
    walk = Walk(
        data,
        {
            "torch": torch(Names({"broadcast": broadcast})),
            "get_args": lambda: arguments,
            "mpu": Names(
                {
                    "get_tensor_model_parallel_rank": lambda: rank,
                    "get_tensor_model_parallel_src_rank": lambda: 0,
                    "get_tensor_model_parallel_group": lambda: "the TP group",
                    "is_pipeline_first_stage": lambda: setting.stage in ("only", "first"),
                    "is_pipeline_last_stage": lambda: setting.stage in ("only", "last"),
                }
            ),
        },
    )
    made = _function(walk, function)
    given: dict[str, Any] = {"mtp_on_this_rank": setting.mtp}
    batch = _data(setting)
    if "batch" in made.parameters:
        names = ("attention_mask", *METADATA, "cu_seqlens_padded", "local_cp_size", "hybrid_cp_group")
        given |= {
            "batch": dict.fromkeys(names) | batch if rank == 0 else {},
            "is_sft": setting.sft,
            "has_cu_seqlens": setting.sft,
            "is_hybrid_cp": setting.hybrid,
            "create_attention_mask_in_dataloader": setting.mask,
            "broadcast_src_rank": 0,
            "broadcast_group": "the TP group",
            "cp_size": 1,
            "tp_rank": rank,
            "micro_batch_size": 1,
            "seq_length": 8,
            "pipeline_model_parallel_size": arguments.attributes["pipeline_model_parallel_size"],
            "is_pipeline_first_stage": setting.stage in ("only", "first"),
            "is_pipeline_last_stage": setting.stage in ("only", "last"),
        }
    else:
        given["data_iterator"] = iter([batch]) if rank == 0 else None
    returned: Any = {}
    error = ""
    try:
        returned = made(**{name: value for name, value in given.items() if name in made.parameters})
    except BeyondError:
        raise
    except Exception as problem:
        error = repr(problem)
    values = {name: _seen(value) for name, value in (returned or {}).items()}
    return Rank(sent, values, error)


def _seen(value: Any) -> Any:
    return (value.content, value.dtype, value.shape, value.device) if isinstance(value, Tensor) else value
