"""Megatron-LM: what the real ``get_batch_on_this_tp_rank`` gives to each rank of a tensor-parallel group.

The metadata of packed sequences is compared by value with what the data loader gave to the group's first rank, on every
pipeline stage: that it is there proves nothing, for its buffer may be memory that nobody has written.
"""

from __future__ import annotations

import hashlib
import importlib
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from . import megatron, ranks, schedules, shims
from .cases import CRASHED, DIFFERS, HUNG, PASSED, Case, Outcome, Topology
from .schedule import Operation
from .schedule import ranges as told_ranks

if TYPE_CHECKING:
    from collections.abc import Mapping

WARM = ("torch", "numpy", "transformers")
_LOST = "cu_seqlens"
_PLAIN = {"sft": False, "same": True}
_SIXTEEN = Topology(tp=2, pp=4, cp=2, dp=2)
CASES = (
    Case("tp2-pp4", Topology(tp=2, pp=4), "ranks", DIFFERS, _LOST, core=True),
    Case("tp2-pp1", Topology(tp=2), "ranks", PASSED, core=True),
    Case("tp1-pp4", Topology(pp=4), "ranks", PASSED),
    Case("tp2-pp4-chunks", Topology(tp=2, pp=4), "ranks", DIFFERS, _LOST, {"chunks": 2}),
    Case("tp2-pp4-mtp", Topology(tp=2, pp=4), "ranks", DIFFERS, _LOST, {"mtp": True}),
    Case("schedule-32", _SIXTEEN, "schedule", DIFFERS, _LOST, core=True),
    Case("schedule-32-without-sft", _SIXTEEN, "schedule", PASSED, options=_PLAIN, core=True),
    Case("schedule-32-without-sft-mtp", _SIXTEEN, "schedule", PASSED, options={**_PLAIN, "mtp": True}),
)
_LENGTH = 16
_SEQUENCES, _LONGEST = [[0, 5, _LENGTH]], [11]
Batch = dict[str, Any]


def prepare() -> None:
    """Import Megatron-LM, for CPU."""
    importlib.import_module("megatron.training.utils")
    shims.cuda_on_cpu()


def run(case: Case, deadline_s: float) -> Outcome:
    """Run one case: every rank takes one batch for each of its virtual chunks."""
    if case.harness == "schedule":
        return _scheduled(case)

    def body(rank: int) -> list[Batch]:
        _initialize(case)
        return _batches(case)

    world = ranks.run(case.topology.world, body, deadline_s=deadline_s)
    if world.status != PASSED:
        return Outcome(world.status, world.text())
    wrong = _wrong(case, {number: rank.value for number, rank in enumerate(world.ranks)})
    return Outcome(DIFFERS, wrong) if wrong else Outcome(PASSED, "the metadata on every rank of every stage")


def _scheduled(case: Case) -> Outcome:
    from megatron.core import parallel_state

    megatron.remember_rank_lists()
    kept = megatron.Globals(parallel_state)

    def fresh(_: int) -> None:
        kept.restore()
        _initialize(case)

    found = schedules.check(case.topology.world, fresh, lambda _: _batches(case))
    if any(finding.kind == "raised" for finding in found.findings):
        return Outcome(CRASHED, found.text())
    if found.findings:
        return Outcome(HUNG, found.text())
    wrong = _wrong(case, found.values)
    if wrong:
        return Outcome(DIFFERS, wrong)
    issued = {
        rank: [step[:5] for step in steps if isinstance(step, Operation)] for rank, steps in found.programs.items()
    }
    digest = hashlib.sha256(repr((issued, found.values)).encode()).hexdigest()[:12]
    count = sum(map(len, issued.values()))
    return Outcome(PASSED, f"{count} broadcasts, these and all batches together have digest {digest}")


def _initialize(case: Case) -> None:
    megatron.initialize(case.topology, chunks=case.options.get("chunks"))


def _batches(case: Case) -> list[Batch]:
    """What the real function returns for each virtual chunk of this rank, as plain values."""
    import torch
    from megatron.core import parallel_state
    from megatron.training import utils

    arguments = SimpleNamespace(
        tensor_model_parallel_size=case.topology.tp,
        pipeline_model_parallel_size=case.topology.pp,
        context_parallel_size=1,
        seq_length=_LENGTH,
        micro_batch_size=1,
        sft=case.options.get("sft", True),
        hybrid_context_parallel=False,
        create_attention_mask_in_dataloader=False,
    )
    utils.get_args = lambda: arguments
    torch.use_deterministic_algorithms(True)  # what nobody has written holds the same values in every run, and odd ones
    row = torch.arange(_LENGTH)[None]
    data = {"tokens": row, "labels": row + 1, "loss_mask": torch.ones(1, _LENGTH), "position_ids": row + 2}
    if arguments.sft:
        data["cu_seqlens"] = torch.tensor(_SEQUENCES, dtype=torch.int32)
        data["max_seqlen"] = torch.tensor(_LONGEST, dtype=torch.int32)
    is_first = parallel_state.get_tensor_model_parallel_rank() == 0
    with_mtp = bool(case.options.get("mtp")) and _stage(case) == case.topology.pp - 1
    batches = []
    for chunk in range(case.options.get("chunks") or 1):
        if case.options.get("chunks"):
            parallel_state.set_virtual_pipeline_model_parallel_rank(chunk)
        batch = utils.get_batch_on_this_tp_rank(iter([data]) if is_first else None, mtp_on_this_rank=with_mtp)
        batches.append({name: None if value is None else value.tolist() for name, value in batch.items()})
    return batches


def _stage(case: Case) -> int:
    from megatron.core import parallel_state

    rank: int = parallel_state.get_pipeline_model_parallel_rank()
    return rank


def _wrong(case: Case, batches: Mapping[int, list[Batch]]) -> str:
    """Which ranks have not got what their stage works on; empty where all have."""
    topology = case.topology
    wanted: Batch = {"cu_seqlens": _SEQUENCES, "max_seqlen": _LONGEST} if case.options.get("sft", True) else {}
    row = list(range(_LENGTH))
    inputs = {"tokens": [row], "position_ids": [[place + 2 for place in row]]}
    outputs = {"labels": [[place + 1 for place in row]], "loss_mask": [[1.0] * _LENGTH]}
    missed: dict[str, list[int]] = {}
    for rank, found in batches.items():
        stage = rank // (topology.world // topology.pp)
        both = bool(case.options.get("mtp")) and stage == topology.pp - 1
        need = {**wanted, **(inputs if stage == 0 or both else {}), **(outputs if stage == topology.pp - 1 else {})}
        for chunk, batch in enumerate(found):
            for name, value in need.items():
                if batch[name] != value:
                    lost = "none" if batch[name] is None else "other values"
                    where = f", chunk {chunk}" if len(found) > 1 else ""
                    missed.setdefault(f"{name} is {lost} on stage {stage}{where}", []).append(rank)
    return "; ".join(f"{what} (rank {told_ranks(where)})" for what, where in missed.items())
