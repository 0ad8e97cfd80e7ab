"""Variants that a proof must fail on: halves of our own patches, and upstream's pull requests as written."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import pytest

from support import sources, wheels
from unhang.compat.sweep import as_written as pull_request
from unhang.errors import UnhangError


class Other(NamedTuple):
    """A third variant of the source: half of the patch, or a pull request as written."""

    change: Callable[[bytes, bytes], bytes]
    """Makes the file of this variant from the untouched file and the patched one."""
    fails: tuple[str, ...]
    """The cases that must fail on it."""
    ends: str = ""
    """What each outcome must match: its status, a colon and its detail."""
    only: tuple[str, ...] = ()
    """The versions that can have this variant; all of them if empty."""


def without(old: str, new: str, count: int = 1) -> Callable[[bytes, bytes], bytes]:
    """Replace the first ``count`` matches of ``old`` in our patch, from its comment on; with 0 all of them."""

    def change(before: bytes, after: bytes) -> bytes:
        head, marker, patch = after.decode().partition("# unhang ")
        mutated, found = re.subn(old, new, patch, count=count)
        assert found == (count or max(found, 1)), f"{old} is {found} times in {patch[:200]}"
        return f"{head}{marker}{mutated}".encode()

    return change


def grafted(kept: str) -> Callable[[bytes, bytes], bytes]:
    """Keep one half of our patch, ``body`` (the sender) or ``orelse`` (the receiver), and upstream's other half."""

    def change(before: bytes, after: bytes) -> bytes:
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


def as_written(fix: str) -> Callable[[bytes, bytes], bytes]:
    """Apply the fix's pull request, from a clone of its upstream, to the untouched file."""

    def change(before: bytes, after: bytes) -> bytes:
        data = pull_request.applied(sources.pull_request_diff(fix), before)
        assert data is not None, "the pull request does not apply"
        return data

    return change


def need_pull_request(fix: str) -> None:
    """Skip the test where no clone is named; fail it, in one line, where the clone cannot be read."""
    wheels.clone(sources.pull_request(fix)["upstream"])
    if why := unreadable(fix):
        pytest.fail(why, pytrace=False)


@cache
def unreadable(fix: str) -> str:
    """Return why the pull request of a fix cannot be read from a clone; empty where it can."""
    item = sources.pull_request(fix)
    variable = wheels.CLONES[item["upstream"]]
    path = os.environ.get(variable)
    if not path:
        return f"{variable} names no clone"
    try:
        sources.pull_request_diff(fix)
    except UnhangError as error:
        return f"{variable}: {error.message}"
    return ""


AS_WRITTEN = "pull request as written"
"""The name of every variant that needs a clone."""
_EXPERT = {
    "without the gate on expert parallelism": Other(
        without(r"if (args\.)?expert_model_parallel_size > 1:", "if True:"), ("ep1-8",)
    ),
    "composite backends unknown": Other(without(r"backend\.split\(':'\)\[-1\] in", "backend in"), ("ep2-8-composite",)),
    "any backend": Other(without(r"in \('nccl', 'hccl', 'mccl'\)", "!= ''"), ("ep2-8-gloo",)),
    "the order of odd ranks reversed": Other(
        without(r"(?s)in (\(\s+'_EXPERT.*?\)):", r"in \1[::1 - 2 * (torch.distributed.get_rank() % 2)]:"),
        ("ep2-8-instances",),
    ),
}
_SFT = "sft-packed-seq-broadcast"
_ALIGNS = ("0.18.2", "0.19.2")  # here the router can pad for fp8
_EMPTY = {
    "half: rows appended, and never sliced off": Other(without(r"output = output\[:0\]", "pass"), ("alltoall-cuts",)),
    "half: rows without probabilities": Other(
        without(r"permuted_probs = torch\.cat\(.*\)", "pass"), ("alltoall-cuts", "alltoall-keeps")
    ),
    "half: rows that no expert counts": Other(
        without(r"tokens_per_expert = \[\w+\] \* self\.num_local_experts", "pass"), ("calls",)
    ),
    "rows appended with tokens present": Other(
        without(r"(has_no_tokens = ).*", r"\1True"), ("alltoall-same", "fp8-aligned-same")
    ),
    "an output other by a bit or so": Other(
        without(r"return output, output_bias", "return output * (1 + 2**-22), output_bias"), ("alltoall-same",)
    ),
    "half: one row for each expert, not aligned": Other(
        without(r"rows_per_expert = get_align_size_for_quantization\(self\.config\)", "pass"),
        ("fp8-aligned-cuts", "calls-fp8-aligned"),
        "not aligned to 16",
        _ALIGNS,
    ),
    AS_WRITTEN: Other(
        as_written("empty-expert-hang"), ("fp8-aligned-cuts", "calls-fp8-aligned"), "not aligned to 16", _ALIGNS
    ),
}
_UNNULLED_TREES = ("core_v0.17.1", "cde56a469", "c0c4fdc45", "0af570878")
OTHERS = {
    ("empty-expert-hang", "megatron-core"): _EMPTY,
    (_SFT, "megatron-lm"): {
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
    },
    (_SFT, "tree"): {
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
    },
    ("mtp-cp-deadlock", "verl"): {
        "half: reports on one rank, called by one rank": Other(
            without(r"mpu\.is_pipeline_last_stage\(ignore_virtual=True\)", "self.is_mp_src_rank_with_outputs()"),
            ("cp2", "schedule-32"),
        ),
        "half: called by all ranks, reports on all": Other(
            without(r"if self\.is_mp_src_rank_with_outputs\(\):", "if True:"), ("cp2",)
        ),
        "without the guard for no micro-batch": Other(without(r"n_micro_batch > 0 and ", ""), ("no-micro-batch",)),
    },
    ("expert-dp-warmup", "megatron-core"): _EXPERT,
    ("expert-dp-warmup", "ms-swift"): {
        name: other for name, other in _EXPERT.items() if other.fails != ("ep2-8-instances",)
    }
    | {AS_WRITTEN: Other(as_written("expert-dp-warmup"), ("ep2-8",))},
}
