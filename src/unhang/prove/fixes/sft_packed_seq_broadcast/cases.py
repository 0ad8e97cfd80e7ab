"""The cases of ``sft-packed-seq-broadcast``: a set for each shape of the target, and the case of a user's job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...cases import CRASHED, DIFFERS, MISMATCH, PASSED, Case, Topology
from ...ranks import schedule

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

_LAST, _MIDDLE = "on the last stage cu_seqlens is None", "on the middle stage cu_seqlens is None"
_BROADCAST = "in _broadcast"
_VIRTUAL, _MTP = {"chunks": 2}, {"mtp": True}
_GET_BATCH = {"through": "get_batch"}
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
    Case("tp2-pp2", Topology(tp=2, pp=2), "ranks", DIFFERS, _LAST, core=True),
    Case("tp2-pp4", _SMALL, "ranks", DIFFERS, _MIDDLE, core=True),
    Case("tp2-pp4-virtual", _SMALL, "ranks", DIFFERS, _LAST, _VIRTUAL),
    Case("tp2-pp4-mtp", _SMALL, "ranks", DIFFERS, _MIDDLE, _MTP),
    Case("tp2-pp4-virtual-mtp", _SMALL, "ranks", DIFFERS, _LAST, {**_VIRTUAL, **_MTP}),
    Case("tp2-pp4-schedule", _SMALL, "schedule", DIFFERS, _LAST, core=True),
    Case("tp2-pp4-mask", _SMALL, "schedule", DIFFERS, _MIDDLE, {"mask": True}, core=True),
    Case("tp2-pp4-cp2", Topology(tp=2, pp=4, cp=2), "schedule", DIFFERS, _LAST, core=True),
    Case("tp4-pp8-dp8-schedule-256", _LARGE, "schedule", DIFFERS, _LAST),
    Case("tp2-pp1", Topology(tp=2), "ranks", PASSED, core=True),
    *_controls(_BROADCASTS),
    Case("tp2-pp4-no-sft-hybrid", _SMALL, "schedule", PASSED, options=_HYBRID, core=True),
)
"""0.17 and dev, through ``get_batch_on_this_tp_rank`` only."""
CASES_0_16 = (
    *(
        Case(name, topology, "schedule", MISMATCH, _BROADCAST, {**options, "buffers": True}, core=True)
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
CASES_OF_TREES = (
    Case("get-batch-tp2-pp4", _SMALL, "ranks", DIFFERS, _LAST, _GET_BATCH, core=True),
    Case("get-batch-tp2-pp4-mtp", _SMALL, "ranks", DIFFERS, _MIDDLE, {**_GET_BATCH, **_MTP}),
    Case("get-batch-tp2-pp4-virtual", _SMALL, "ranks", CRASHED, "TypeError", {**_GET_BATCH, **_VIRTUAL}),
    Case("get-batch-tp2-pp1", Topology(tp=2), "ranks", PASSED, options=_GET_BATCH),
)
"""0.17 and newer dev, through ``pretrain_gpt``, which asks for the metadata on middle stages too."""
_NULLED = {
    "tp1-pp4": (DIFFERS, _MIDDLE),
    "get-batch-tp2-pp4": (CRASHED, "TypeError"),
    "get-batch-tp2-pp4-mtp": (CRASHED, "TypeError"),
}


def _nulled(cases: Iterable[Case]) -> tuple[Case, ...]:
    return tuple(
        case._replace(untouched=_NULLED[case.name][0], at=_NULLED[case.name][1]) if case.name in _NULLED else case
        for case in cases
    )


CASES_NULLED = _nulled(CASES)
"""Newest dev: middle stages lose the metadata on the sender too, so TP 1 is no control."""
CASES_OF_NEWEST_TREES = (*CASES_NULLED, *_nulled(CASES_OF_TREES))
"""Newest dev, through the function and through ``pretrain_gpt``."""
# The shapes of these cases: untouched and patched.
_SHAPES_0_16 = frozenset({"5e80042fa2c81f1e", "3e6887506a0fb6f4"})
_NULLING = frozenset({"2991e1d44541f615", "b9840013aa631b0a"})
_UNPACKED = {**_GET_BATCH, "middle": "nothing"}
CASES_OF_OLDER_TREES = (
    Case("get-batch-tp2-pp4", _SMALL, "ranks", DIFFERS, _LAST, _UNPACKED, core=True),
    Case("get-batch-tp2-pp4-virtual", _SMALL, "ranks", DIFFERS, _LAST, {**_UNPACKED, **_VIRTUAL}),
    Case("get-batch-tp2-pp1", Topology(tp=2), "ranks", PASSED, options=_UNPACKED),
)
"""Older dev, through ``pretrain_gpt``: middle stages ask for nothing and stay unpacked."""
_NO_DIM = "'NoneType' object has no attribute 'dim'"
CASES_OF_0_16_TREES = (
    Case("get-batch-tp2-pp4", _SMALL, "schedule", CRASHED, _NO_DIM, _UNPACKED, core=True),
    Case("get-batch-tp2-pp4-virtual", _SMALL, "schedule", CRASHED, _NO_DIM, {**_UNPACKED, **_VIRTUAL}),
    Case("get-batch-tp2-pp1", Topology(tp=2), "schedule", MISMATCH, _BROADCAST, _UNPACKED),
    Case("get-batch-tp1-pp4", Topology(pp=4), "schedule", PASSED, options=_UNPACKED),
)
"""0.16, through ``pretrain_gpt``: the last stage's receiver fails on what its peer sends differently."""
_FEW = 8


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
    harness = "ranks" if world <= _FEW else "schedule"
    if topology.tp > 1 and not _SHAPES_0_16.isdisjoint(shapes):
        return Case("yours", topology, "schedule", MISMATCH, _BROADCAST, {"buffers": True})
    has_nulled = topology.pp > 2 and not _NULLING.isdisjoint(shapes)
    if (topology.tp > 1 and topology.pp > 1) or has_nulled:
        return Case("yours", topology, harness, DIFFERS, "stage cu_seqlens is None")
    return Case("yours", topology, harness, PASSED)
