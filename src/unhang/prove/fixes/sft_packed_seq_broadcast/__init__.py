"""Megatron-LM: what each rank of a pipeline receives of a batch of packed sequences, compared with the data.

Real: ``get_batch_on_this_tp_rank``, the groups, the stages, ``mtp_on_this_rank`` and the global arguments. In a source
tree also ``get_batch`` of ``pretrain_gpt``, which no wheel has, and the parameters for attention that it makes.
Stand-ins: the data (one packed sample for each chunk and data-parallel rank, on the ranks that have a data loader), the
arguments (only those that these functions read) and the model's config, which does not follow from the arguments.

Torch fills uninitialized memory with a fixed value, so that it always differs from data. Not shown: the effect of wrong
metadata on attention (a crash on the middle stages, a wrong loss on the last one), because no model runs; context
parallelism with packed sequences, which needs Transformer Engine; Mamba's own ``get_batch``; devices, CUDA graphs,
padding masks and dynamic context parallelism. In a schedule of more than 64 ranks, values are those of the real job
only where one process records a whole tensor-parallel group, as in the cases here.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import typing
from typing import TYPE_CHECKING

from ...cases import DIFFERS, PASSED, Case, Outcome
from ...ranks import gloo, megatron, schedule, shims
from ...ranks.operations import Operation, ranges
from .batches import Seen, batches
from .cases import CASES as CASES
from .cases import case_for as case_for
from .cases import cases_for as cases_for
from .cases import caveat as caveat

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

WARM = ("torch", "numpy", "transformers")
BESIDE = {"megatron-lm": ("megatron-core",), "megatron-core": ("megatron-lm",)}


def prepare() -> None:
    """Import Megatron-LM for a CPU, and ``pretrain_gpt`` of a source tree."""
    import torch
    import typing_extensions

    if not hasattr(typing, "override"):  # before Python 3.12, which upstream requires
        typing.override = typing_extensions.override  # type: ignore[attr-defined]
    torch.use_deterministic_algorithms(True, warn_only=True)  # this also fills the result of torch.empty
    shims.cuda_on_cpu()
    importlib.import_module("megatron.training.utils")
    if importlib.util.find_spec("pretrain_gpt"):
        importlib.import_module("pretrain_gpt")


def run(case: Case, deadline_s: float) -> Outcome:
    """Run one case: every rank gets the batch of each of its chunks, and compares it with the data."""
    if case.harness == "ranks":

        def body(rank: int) -> Seen:
            megatron.initialize(case.topology, chunks=case.options.get("chunks"))
            return batches(case)

        world = gloo.run(case.topology.world, body, deadline_s=deadline_s)
        if world.status != PASSED:
            return Outcome(world.status, world.text())
        return _compared(case, {number: rank.value for number, rank in enumerate(world.ranks)})
    restore = megatron.restorer()

    def fresh(_: int) -> None:
        restore()
        megatron.initialize(case.topology, chunks=case.options.get("chunks"))

    found = schedule.check(case.topology.world, fresh, lambda _: batches(case))
    if found.status != PASSED:
        return Outcome(found.status, found.text())
    outcome = _compared(case, found.values)
    if outcome.status == PASSED and "most" in case.options:
        return _counted(case, found.values, {rank: _broadcasts(steps) for rank, steps in found.programs.items()})
    return outcome


def _compared(case: Case, seen: Mapping[int, Seen]) -> Outcome:
    faults: dict[str, list[int]] = {}
    for rank, one in seen.items():
        for fault in one.faults:
            faults.setdefault(fault, []).append(rank)
    if faults:
        found = [f"{fault} (rank {ranges(set(where))})" for fault, where in sorted(faults.items())]
        return Outcome(DIFFERS, "; ".join(found))
    chunks = sum(len(one.places) for one in seen.values())
    what = "packed-sequence metadata" if case.options.get("sft", True) else "batch"
    return Outcome(PASSED, f"the data's own {what} in each of {chunks} chunks on {len(seen)} ranks")


def _counted(case: Case, seen: Mapping[int, Seen], issued: Mapping[int, int]) -> Outcome:
    """Check that no rank issued more broadcasts than allowed. The digest of all batches is to compare sources by."""
    for rank, one in seen.items():
        most = sum(case.options["most"][place] for place in one.places)
        if issued[rank] > most:
            return Outcome(
                DIFFERS, f"rank {rank} issues {issued[rank]} broadcasts as {'+'.join(one.places)}, not {most}"
            )
    digest = hashlib.sha256("\n".join(one.received for one in seen.values()).encode()).hexdigest()[:12]
    loaders = [(rank, one) for rank, one in seen.items() if rank % case.topology.tp == 0]
    each = ", ".join(f"{'+'.join(one.places)} {issued[rank]}" for rank, one in loaders)
    return Outcome(PASSED, f"broadcasts: {each}; batches {digest}")


def _broadcasts(steps: Iterable[object]) -> int:
    return sum(isinstance(step, Operation) and step.kind == "broadcast" for step in steps)
