"""The releases that the proof of sft-packed-seq-broadcast runs on, and the half patches that it must fail on."""

from __future__ import annotations

import ast

from proofs.others import AS_WRITTEN, Change, Other, Proofs, Release, as_written, without
from unhang.prove.cases import CRASHED, DIFFERS, MISMATCH, PASSED, Case, Topology
from unhang.prove.fixes import sft_packed_seq_broadcast as sft

_SFT = "sft-packed-seq-broadcast"
_SMALL = Topology(tp=2, pp=4)
_VIRTUAL, _MTP = {"chunks": 2}, {"mtp": True}
_GET_BATCH = {"through": "get_batch"}
_OF_TREES = (
    Case("get-batch-tp2-pp4", _SMALL, "ranks", DIFFERS, sft.LAST, _GET_BATCH, core=True),
    Case("get-batch-tp2-pp4-mtp", _SMALL, "ranks", DIFFERS, sft.MIDDLE, {**_GET_BATCH, **_MTP}),
    Case("get-batch-tp2-pp4-virtual", _SMALL, "ranks", CRASHED, "TypeError", {**_GET_BATCH, **_VIRTUAL}),
    Case("get-batch-tp2-pp1", Topology(tp=2), "ranks", PASSED, options=_GET_BATCH),
)
"""0.17 and newer dev, through ``pretrain_gpt``, which asks for the metadata on middle stages too."""
_UNPACKED = {**_GET_BATCH, "middle": "nothing"}
_OF_OLDER_TREES = (
    Case("get-batch-tp2-pp4", _SMALL, "ranks", DIFFERS, sft.LAST, _UNPACKED, core=True),
    Case("get-batch-tp2-pp4-virtual", _SMALL, "ranks", DIFFERS, sft.LAST, {**_UNPACKED, **_VIRTUAL}),
    Case("get-batch-tp2-pp1", Topology(tp=2), "ranks", PASSED, options=_UNPACKED),
)
"""Older dev, through ``pretrain_gpt``: middle stages ask for nothing and stay unpacked."""
_OF_0_16_TREES = (
    Case("get-batch-tp2-pp4", _SMALL, "ranks", CRASHED, "attribute 'dim'", _UNPACKED, core=True),
    Case("get-batch-tp2-pp4-virtual", _SMALL, "ranks", CRASHED, "attribute 'dim'", {**_UNPACKED, **_VIRTUAL}),
    Case("get-batch-tp2-pp1", Topology(tp=2), "schedule", MISMATCH, sft.BROADCAST, _UNPACKED),
    Case("get-batch-tp1-pp4", Topology(pp=4), "schedule", PASSED, options=_UNPACKED),
)
"""0.16, through ``pretrain_gpt``: a last stage without ``cu_seqlens`` raises."""
_OF_NEWEST_TREES = tuple(
    case._replace(untouched=CRASHED, at="TypeError")
    if case.name in ("get-batch-tp2-pp4", "get-batch-tp2-pp4-mtp")
    else case
    for case in _OF_TREES
)
"""Newest dev, likewise: middle stages lose the metadata on the sender too."""
_ARMS = tuple(case for case in sft.CASES if case.topology.world <= 8)
_DEV = (*_ARMS, *_OF_TREES)
TREES = {
    "core_v0.16.1": (*sft.CASES_0_16, *_OF_0_16_TREES),
    "core_v0.17.1": _DEV,
    "cde56a469": (*_ARMS, *_OF_OLDER_TREES),
    "c0c4fdc45": _DEV,
    "0af570878": _DEV,
    "280d2440d": (*(case for case in sft.CASES_NULLED if case.topology.world <= 8), *_OF_NEWEST_TREES),
}
"""The releases that only trees have in full, and the first commit of each shape that only dev has had."""
_UNNULLED_TREES = ("core_v0.17.1", "cde56a469", "c0c4fdc45", "0af570878")


def grafted(kept: str) -> Change:
    """Keep one half of our patch, ``body`` (the sender) or ``orelse`` (the receiver), and upstream's other half."""

    def change(path: str, before: bytes, after: bytes) -> bytes:
        other = {"body": "orelse", "orelse": "body"}[kept]
        (old, first, last), (new, begin, end) = _half(before, other), _half(after, other)
        mixed = b"".join([*new[:begin], *old[first:last], *new[end:]])
        assert mixed not in (before, after)
        return mixed

    return change


def _half(data: bytes, part: str) -> tuple[list[bytes], int, int]:
    """Return a file's lines, and the first and last line of its sending or receiving half."""
    (function,) = (node for node in ast.parse(data).body if getattr(node, "name", "") == "get_batch_on_this_tp_rank")
    assert isinstance(function, ast.FunctionDef)
    (split,) = (node for node in function.body if isinstance(node, ast.If))
    nodes = getattr(split, part)
    return data.splitlines(keepends=True), nodes[0].lineno - 1, nodes[-1].end_lineno


# a sender whose receivers never join may be done, where the backend buffers what it sends
_APART = r"^(differs|hung|mismatch|unknown: it depends on the backend whether it completes): "
_OTHERS = {
    "half: the middle stages' sender alone": Other(
        without(r"elif args\.sft:(?=\n[^\n]*\n\s+tokens = None)", "elif False:"),
        ("tp2-pp4", "tp2-pp4-schedule"),
        _APART,
    ),
    "half: the last stage's sender alone": Other(
        without(r"(?s)(.*)(?<!el)if args\.sft:", r"\1if False:"), ("tp2-pp4-schedule",), _APART
    ),
    "half: the last stage left as it was": Other(
        without(r"(?<!el)if args\.sft:", "if False:", count=2), ("tp2-pp4", "tp2-pp4-schedule")
    ),
    AS_WRITTEN: Other(as_written(_SFT), ("tp2-pp4",)),
}
_OTHERS_OF_TREES = {
    "half: the sender alone": Other(grafted("body"), ("tp2-pp4-schedule",), _APART),
    "half: the receiver alone": Other(grafted("orelse"), ("tp2-pp4", "tp2-pp1-schedule"), _APART),
    "without the gate on --sft": Other(
        without(r"if args\.sft:", "if True:", count=0),
        ("tp2-pp4-no-sft",),
        only=(*_UNNULLED_TREES, "280d2440d"),  # in 0.16 --sft gates no broadcast: all stages have the same
    ),
    AS_WRITTEN: Other(
        as_written(_SFT),
        ("tp2-pp2", "tp2-pp4"),
        r"^(?!.*on the middle stage cu_seqlens).*on the last stage cu_seqlens is None",
        _UNNULLED_TREES[:-1],  # the others have no such case, or the pull request changes another file
    ),
}
PROOFS = [
    Proofs("megatron-lm", [Release("0.17.1", core=True), Release("0.17.0")], _OTHERS),
    Proofs("megatron-lm", [Release(name, cases=cases) for name, cases in TREES.items()], _OTHERS_OF_TREES),
]
