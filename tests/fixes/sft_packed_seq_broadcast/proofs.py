"""The releases that the proof of sft-packed-seq-broadcast runs on, and the half patches that it must fail on."""

from __future__ import annotations

import ast

from proofs.others import AS_WRITTEN, Change, Other, Proofs, Release, as_written, without
from unhang.prove.fixes.sft_packed_seq_broadcast import cases as sft

_SFT = "sft-packed-seq-broadcast"
_ARMS = tuple(case for case in sft.CASES if case.topology.world <= 8)
_DEV = (*_ARMS, *sft.CASES_OF_TREES)
TREES = {
    "core_v0.16.1": (*sft.CASES_0_16, *sft.CASES_OF_0_16_TREES),
    "core_v0.17.1": _DEV,
    "cde56a469": (*_ARMS, *sft.CASES_OF_OLDER_TREES),
    "c0c4fdc45": _DEV,
    "0af570878": _DEV,
    "280d2440d": tuple(case for case in sft.CASES_OF_NEWEST_TREES if case.topology.world <= 8),
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


_OTHERS = {
    "half: the middle stages' sender alone": Other(
        without(r"elif args\.sft:(?=\n[^\n]*\n\s+tokens = None)", "elif False:"), ("tp2-pp4", "tp2-pp4-schedule")
    ),
    "half: the last stage's sender alone": Other(
        without(r"(?s)(.*)(?<!el)if args\.sft:", r"\1if False:"), ("tp2-pp4-schedule",)
    ),
    "half: the last stage left as it was": Other(
        without(r"(?<!el)if args\.sft:", "if False:", count=2), ("tp2-pp4", "tp2-pp4-schedule")
    ),
    AS_WRITTEN: Other(as_written(_SFT), ("tp2-pp4",)),
}
_OTHERS_OF_TREES = {
    "half: the sender alone": Other(grafted("body"), ("tp2-pp4-schedule",), "hung: "),
    "half: the receiver alone": Other(grafted("orelse"), ("tp2-pp4-schedule",), "hung: "),
    "without the gate on --sft": Other(
        without(r"if args\.sft:", "if True:", count=0),
        ("tp2-pp4-no-sft",),
        only=(*_UNNULLED_TREES, "280d2440d"),  # in 0.16 --sft gates no broadcast: all stages have the same
    ),
    AS_WRITTEN: Other(
        as_written(_SFT),
        ("tp2-pp2", "tp2-pp4"),
        r"^(?!.*on the middle stage cu_seqlens).*on the last stage cu_seqlens is None",
        _UNNULLED_TREES,  # the others have no such case, or the pull request does not apply
    ),
}
PROOFS = [
    Proofs("megatron-lm", [Release("0.17.1", core=True), Release("0.17.0")], _OTHERS),
    Proofs("megatron-lm", [Release(name, cases=cases) for name, cases in TREES.items()], _OTHERS_OF_TREES),
]
