"""Which ranks of a small grid join the reduction of the multi-token-prediction loss, and where its metrics end up."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple

from independent.interpreter import BeyondError, Instance, Names, Unknown, Walk

TWO = (0, 1)


class Setting(NamedTuple):
    """What all ranks of a job share."""

    mtp: bool
    micro_batches: int
    virtual: bool
    metrics: bool
    """Whether the losses have metrics already."""
    truth: bool
    """Of everything unknown."""


class Rank(NamedTuple):
    """What a rank did."""

    calls: int
    metrics: list[dict[str, Any]]
    error: str


SETTINGS = [Setting(*it) for it in product((True, False), (2, 0), (False, True), (True, False), (False, True))]


def state(data: bytes, function: str) -> str:
    """Say whether a rank joins that others of its group wait for."""
    called, alone = False, False
    for setting in SETTINGS:
        for stage, tensor in product(TWO, TWO):
            ranks = [_run(data, function, setting, stage, tensor, context) for context in TWO]
            if setting.micro_batches and any(rank.error for rank in ranks):
                return f"unclear: {ranks}"
            called |= any(rank.calls for rank in ranks)
            alone |= len({rank.calls for rank in ranks}) > 1
    return "affected" if alone else "fixed" if called else "not-affected"


def wrong(before: bytes, after: bytes, function: str) -> Iterator[str]:
    """Yield what is wrong with a rewrite."""
    for setting in SETTINGS:
        for stage, tensor, context in product(TWO, TWO, TWO):
            rank = _run(after, function, setting, stage, tensor, context)
            untouched = _run(before, function, setting, stage, tensor, context)
            where = f"{setting}, stage {stage}, TP {tensor}, CP {context}"
            joins = setting.mtp and stage == 1 and setting.micro_batches > 0
            if rank.calls != joins:
                yield f"{where}: {rank.calls} calls"
            if rank.error and not (untouched.error and not joins):
                yield f"{where}: {rank.error}"
            kept = {"loss": 1} if setting.metrics else {}
            source = joins and (tensor, context) == (0, 0)
            if rank.metrics and rank.metrics[0] != (kept | {"mtp": 1} if source else kept):
                yield f"{where}: metrics {rank.metrics[0]}"


def _run(data: bytes, function: str, setting: Setting, stage: int, tensor: int, context: int) -> Rank:
    calls = []
    last = stage == 1
    outputs: list[dict[str, Any]] = [
        {"metrics": {"loss": 1}} if setting.metrics else {} for _ in range(setting.micro_batches)
    ]
    losses = outputs if last else []

    def mtp_loss(micro_batches: Any) -> dict[str, int]:
        calls.append(micro_batches)
        return {"mtp": 1}

    def is_last(ignore_virtual: bool = False, **_: object) -> bool:
        return last and (ignore_virtual or not setting.virtual)

    walk = Walk(
        data,
        {
            "mpu": Names(
                {
                    "is_pipeline_last_stage": is_last,
                    "get_virtual_pipeline_model_parallel_world_size": lambda: 2 if setting.virtual else None,
                    "get_tensor_model_parallel_rank": lambda: tensor,
                    "get_context_parallel_rank": lambda: context,
                },
                setting.truth,
            ),
            "get_megatron_mtp_loss": mtp_loss,
            "get_forward_backward_func": lambda: lambda **_: losses,
            "prepare_micro_batches": lambda **_: (["micro-batch"] * setting.micro_batches, None),
            "partial": lambda *_, **__: Unknown("partial", setting.truth),
        },
        setting.truth,
    )
    config = {"mtp": Names({"enable": setting.mtp})}
    made_by = walk.global_value(function.split(".")[0])
    own = {
        "is_mp_src_rank_with_outputs": lambda: last and (tensor, context) == (0, 0),
        "engine_config": Names({"dynamic_context_parallel": False}, setting.truth),
        "tf_config": Names({"microbatch_group_size_per_vp_stage": 2}, setting.truth),
        "model_config": Names(config, setting.truth),
    }
    given = Unknown("data", setting.truth)
    error = ""
    try:
        walk.function(function)(Instance(made_by, own, setting.truth), given, given)
    except BeyondError:
        raise
    except Exception as problem:
        error = repr(problem)
    return Rank(len(calls), [it.get("metrics", {}) for it in losses], error)
