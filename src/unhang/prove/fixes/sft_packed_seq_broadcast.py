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
from typing import TYPE_CHECKING, Any, NamedTuple

from ..cases import DIFFERS, FEW, MISMATCH, PASSED, Case, Outcome, Topology
from ..ranks import gloo, megatron, megatron_lm, schedule, shims
from ..ranks.operations import Operation, ranges

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

WARM = ("transformers",)
CHUNKS = True
BESIDE = {"megatron-lm": ("megatron-core",), "megatron-core": ("megatron-lm",)}
LAST, MIDDLE = "on the last stage cu_seqlens is None", "on the middle stage cu_seqlens is None"
BROADCAST = "in _broadcast"
_VIRTUAL, _MTP = {"chunks": 2}, {"mtp": True}
_SMALL, _LARGE = Topology(tp=2, pp=4), Topology(tp=4, pp=8, dp=8)
# The most broadcasts without --sft: of a whole batch, on the first stage, on a middle one, on the last one.
_BROADCASTS = {"whole": 6, "first": 4, "middle": 0, "last": 2}
# With hybrid context parallelism, also the length and the longest sequence, and of a whole batch the local size.
_BROADCASTS_HYBRID = {"whole": 9, "first": 6, "middle": 1, "last": 3}
_BROADCASTS_0_16 = {"whole": 8, "first": 6, "middle": 2, "last": 4}


def _controls(most: Mapping[str, int]) -> tuple[Case, ...]:
    plain = {"sft": False, "most": most}
    return (
        Case("tp1-pp4", Topology(pp=4), "ranks", PASSED, core=True),
        Case("tp2-pp4-no-sft", _SMALL, "schedule", PASSED, options=plain, core=True),
        Case("tp2-pp4-no-sft-virtual-mtp", _SMALL, "schedule", PASSED, options={**plain, **_VIRTUAL, **_MTP}),
        Case("tp2-pp1-no-sft", Topology(tp=2), "schedule", PASSED, options=plain),
        # the data alone must decide nothing: only the arms that always send cu_seqlens do so
        Case("tp2-pp4-no-sft-packed", _SMALL, "schedule", PASSED, options={**plain, "packed": True}, core=True),
    )


_HYBRID = {"sft": False, "hybrid": True, "most": _BROADCASTS_HYBRID}
CASES = (
    Case("tp2-pp2", Topology(tp=2, pp=2), "ranks", DIFFERS, LAST, core=True),
    Case("tp2-pp4", _SMALL, "ranks", DIFFERS, MIDDLE, core=True),
    Case("tp2-pp4-virtual", _SMALL, "ranks", DIFFERS, LAST, _VIRTUAL),
    Case("tp2-pp4-mtp", _SMALL, "ranks", DIFFERS, MIDDLE, _MTP),
    Case("tp2-pp4-virtual-mtp", _SMALL, "ranks", DIFFERS, LAST, {**_VIRTUAL, **_MTP}),
    Case("tp2-pp4-schedule", _SMALL, "schedule", DIFFERS, LAST, core=True),
    Case("tp2-pp4-mask", _SMALL, "schedule", DIFFERS, MIDDLE, {"mask": True}, core=True),
    Case("tp2-pp4-cp2", Topology(tp=2, pp=4, cp=2), "schedule", DIFFERS, LAST, core=True),
    Case("tp4-pp8-dp8-schedule-256", _LARGE, "schedule", DIFFERS, LAST),
    Case("tp2-pp1", Topology(tp=2), "ranks", PASSED, core=True),
    *_controls(_BROADCASTS),
    Case("tp2-pp4-no-sft-hybrid", _SMALL, "schedule", PASSED, options=_HYBRID, core=True),
)
"""0.17 and dev, through ``get_batch_on_this_tp_rank`` only."""
CASES_0_16 = (
    *(
        Case(name, topology, "schedule", MISMATCH, BROADCAST, {**options, "buffers": True}, core=True)
        for name, topology, options in (
            ("tp2-pp1-schedule", Topology(tp=2), {}),
            ("tp2-pp4-schedule", _SMALL, {}),
            ("tp2-pp4-virtual-schedule", _SMALL, _VIRTUAL),
            ("tp2-pp4-virtual-mtp-schedule", _SMALL, {**_VIRTUAL, **_MTP}),
            ("tp4-pp8-dp8-schedule-256", _LARGE, {}),
        )
    ),
    *_controls(_BROADCASTS_0_16),
)
"""0.16: sender and receiver issue different broadcasts on every stage."""
CASES_NULLED = tuple(case._replace(untouched=DIFFERS, at=MIDDLE) if case.name == "tp1-pp4" else case for case in CASES)
"""Newest dev: middle stages lose the metadata on the sender too, so TP 1 is no control."""
# The shapes of these cases: untouched and patched.
_SHAPES_0_16 = frozenset({"5e80042fa2c81f1e", "3e6887506a0fb6f4"})
_NULLING = frozenset({"2991e1d44541f615", "b9840013aa631b0a"})
_FIELDS = {
    "whole": ("tokens", "labels", "loss_mask", "position_ids"),
    "first": ("tokens", "position_ids"),
    "last": ("labels", "loss_mask"),
    "middle": (),
}


def caveat(case: Case) -> str:
    """Return what a case leaves open; empty where that is nothing."""
    if case.topology.cp == 1 or not case.options.get("sft", True):
        return ""
    return (
        "not shown: context parallelism itself; each rank gets the metadata, but GPT with packed SFT and CP > 1 stays "
        "broken in 0.16.x and 0.17.x, because no code makes the cu_seqlens_padded that the CP split needs"
    )


def cases_for(upstream: str, shapes: Collection[str]) -> tuple[Case, ...]:
    """Return the cases for these shapes of ``get_batch_on_this_tp_rank``."""
    if not _SHAPES_0_16.isdisjoint(shapes):
        return CASES_0_16
    return CASES if _NULLING.isdisjoint(shapes) else CASES_NULLED


def case_for(topology: Topology, upstream: str, shapes: Collection[str]) -> Case | None:
    """Return the case of a user's job; None where the recording processes would split a tensor-parallel group."""
    world = topology.world
    workers = schedule.workers(world)
    if any(world * worker // workers % topology.tp for worker in range(workers)):
        return None
    harness = "ranks" if world <= FEW else "schedule"
    chunks = {"chunks": topology.vpp} if topology.vpp > 1 else {}
    if topology.tp > 1 and not _SHAPES_0_16.isdisjoint(shapes):
        return Case("yours", topology, "schedule", MISMATCH, BROADCAST, {"buffers": True, **chunks})
    has_nulled = topology.pp > 2 and not _NULLING.isdisjoint(shapes)
    if (topology.tp > 1 and topology.pp > 1) or has_nulled:
        return Case("yours", topology, harness, DIFFERS, "stage cu_seqlens is None", chunks)
    return Case("yours", topology, harness, PASSED, options=chunks)


class Seen(NamedTuple):
    """What one rank received, chunk by chunk."""

    faults: tuple[str, ...]
    places: tuple[str, ...]
    """The part of the pipeline that each chunk was served as."""
    received: str
    """Everything that it received, as text."""


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
            return _batches(case)

        world = gloo.run(case.topology.world, body, deadline_s=deadline_s)
        if world.status != PASSED:
            return Outcome(world.status, world.text())
        return _compared(case, {number: rank.value for number, rank in enumerate(world.ranks)})
    restore = megatron.restorer()

    def fresh(_: int) -> None:
        restore()
        megatron.initialize(case.topology, chunks=case.options.get("chunks"))

    found = schedule.check(case.topology.world, fresh, lambda _: _batches(case))
    if found.status != PASSED:
        return Outcome(found.status, found.text())
    outcome = _compared(case, found.values)
    if outcome.status == PASSED and "most" in case.options:
        issued = {
            rank: sum(isinstance(step, Operation) and step.kind == "broadcast" for step in steps)
            for rank, steps in found.programs.items()
        }
        return _counted(case, found.values, issued)
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


def _batches(case: Case) -> Seen:
    """Return what this rank receives for each of its chunks, in order. Call it once the groups are made."""
    from megatron.core import parallel_state
    from megatron.core.transformer.multi_token_prediction import mtp_on_this_rank
    from megatron.training import global_vars

    chunks = int(case.options.get("chunks", 1))
    if global_vars._GLOBAL_ARGS is None:
        global_vars.set_args(megatron_lm.arguments(case))
    config = megatron_lm.config(case)
    through = megatron_lm.through_get_batch if case.options.get("through") else megatron_lm.directly
    faults, places, received = [], [], []
    for chunk in range(chunks):
        stage = chunk if chunks > 1 else None
        with_mtp = mtp_on_this_rank(config, ignore_virtual=False, vp_stage=stage)
        # the function only looks at the rank, pretrain_gpt at the chunk
        seen_as = {"ignore_virtual": False, "vp_stage": stage} if case.options.get("through") else {}
        place = _place(case.topology.pp == 1 or with_mtp, seen_as)
        data = megatron_lm.sample(parallel_state.get_data_parallel_rank() * chunks + chunk, case)
        has_loader = parallel_state.get_tensor_model_parallel_rank() == 0
        given = through(iter([data]) if has_loader else None, config, with_mtp, stage)
        if wrong := ", ".join(_faults(case, place, given, data, has_loader)):
            faults.append(wrong if place == "whole" else f"on the {place} stage {wrong}")
        places.append(place)
        received.append(repr(given))
    return Seen(tuple(faults), tuple(places), repr(received))


def _place(is_whole: bool, seen_as: Mapping[str, Any]) -> str:
    from megatron.core import parallel_state

    if is_whole:
        return "whole"
    if parallel_state.is_pipeline_first_stage(**seen_as):
        return "first"
    return "last" if parallel_state.is_pipeline_last_stage(**seen_as) else "middle"


def _faults(
    case: Case, place: str, given: Mapping[str, Any], data: Mapping[str, Any], has_loader: bool
) -> Iterable[str]:
    """Yield what is wrong with the fields that this rank received."""
    sft = case.options.get("sft", True)
    if case.options.get("packed") or (case.options.get("hybrid") and (has_loader or place not in ("first", "last"))):
        metadata: dict[str, Any] = {}  # unlike on its peers, or never sent: the untouched source is the model
    elif case.options.get("hybrid"):
        metadata = {
            name: megatron_lm.plain(data[name]) if place == "first" else None for name in ("cu_seqlens", "max_seqlen")
        }
    elif place == "middle" and case.options.get("middle") == "nothing":
        metadata = dict.fromkeys(("cu_seqlens", "max_seqlen"))
    else:
        metadata = {name: megatron_lm.plain(data[name]) if sft else None for name in ("cu_seqlens", "max_seqlen")}
    fields = {name: megatron_lm.plain(data[name]) for name in _FIELDS[place]}
    if place != "middle" and "attention_mask" in data:
        fields["attention_mask"] = megatron_lm.plain(data["attention_mask"])
    if sft and place == "middle" and not has_loader and "buffers" not in case.options:
        fields = {name: None for name in given if name not in metadata}  # only the metadata is sent there
    for name, value in {**metadata, **fields}.items():
        if given[name] != value:
            yield f"{name} is " + ("None" if given[name] is None else "not None" if value is None else "not the data's")
