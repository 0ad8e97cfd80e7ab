"""The judge of each fix."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from independent import empty_expert_hang, expert_dp_warmup, mtp_cp_deadlock, sft_packed_seq_broadcast
from independent.interpreter import BeyondError

_JUDGES = {
    "mtp-cp-deadlock": mtp_cp_deadlock,
    "sft-packed-seq-broadcast": sft_packed_seq_broadcast,
    "empty-expert-hang": empty_expert_hang,
    "expert-dp-warmup": expert_dp_warmup,
}


class Judgement(NamedTuple):
    """``state`` of the untouched function: affected, fixed, not-affected; or why the judge does not know."""

    state: str
    wrong: list[str]
    """What is wrong with the rewrite."""


def wrong(fix: str, function: str, before: bytes, after: bytes, as_written: bool = False) -> Iterator[str]:
    """Yield what is wrong with a rewrite. ``as_written``: the function has the pull request's edit before."""
    found = _JUDGES[fix]
    if found is sft_packed_seq_broadcast:
        yield from found.wrong(before, after, function, as_written)
    else:
        yield from found.wrong(before, after, function)


def judge(fix: str, function: str, before: bytes, after: bytes | None, as_written: bool = False) -> Judgement:
    """Judge a function in a file, and its rewrite if there is one."""
    try:
        state = _JUDGES[fix].state(before, function)
        return Judgement(state, [] if after is None else [*wrong(fix, function, before, after, as_written)])
    except BeyondError as problem:
        return Judgement(f"beyond the judge: {problem}", [])
