"""reduce-noncontiguous: its rewrite and its anchor, and what the sessions need of it."""

from __future__ import annotations

from fuzz.subject import Fuzz
from mutants.by_hand import ByHand, Mutants, Sub
from proofs.others import Other, Proofs, Release, without
from support import sources

FIX = "reduce-noncontiguous"
CASES = sources.cases(FIX, {"megatron-core": ["0.12.3", "0.18.2"]})
REFUSED = sources.edits(
    CASES[0],
    [
        ("all_reduce(input_.contiguous()", "all_reduce(input_", "all_reduce"),
        ("all_reduce(input_.contiguous()", "all_reduce(tensor=input_.contiguous()", "all_reduce"),
        ("all_reduce(input_.contiguous()", "broadcast(input_.contiguous()", "all_reduce"),
        ("\n    return input_", "\n    return input_.clone()", "all_reduce"),
        ("    torch.distributed.all", "    input_ = input_ * 2\n    torch.distributed.all", "input_ as it is given"),
    ],
    "not found: .*{}",
)

# -- for the sessions -------------------------------------------------------------------------------------------------

_OURS, _SUM = "input_ = input_.contiguous()", "all_reduce(input_.contiguous()"
BY_HAND: ByHand = {
    "always a copy": Sub(_OURS, "input_ = input_.clone()"),
    "a copy besides": Sub(_OURS, "input_ = input_.contiguous().clone()"),
    "a copy that nobody has": Sub(_OURS, "input_.contiguous()"),
    "by another name": Sub(_OURS, "output = input_.contiguous()"),
    "of a contiguous one alone": Sub(_OURS, "input_ = input_.contiguous() if input_.is_contiguous() else input_"),
    "of rank 0 alone": Sub(_OURS, "input_ = input_ if torch.distributed.get_rank() else input_.contiguous()"),
    "of the others alone": Sub(_OURS, "input_ = input_.contiguous() if torch.distributed.get_rank() else input_"),
    "a copy is summed": Sub(_SUM, "all_reduce(input_.clone()"),
    "as upstream": Sub(_SUM, "all_reduce(input_"),
    "as it was": Sub(_OURS, "pass"),
    "without a name for it": (Sub(_OURS, "pass"), Sub(_SUM, "all_reduce(input_")),
    "summed twice": Sub(_OURS, f"{_OURS}\n    torch.distributed.{_SUM}, group=group)"),
    "in the default group": Sub(", group=", ", group=None and "),
    "the largest": Sub(_SUM, f"{_SUM}, op='max'"),
    "not waited for": Sub(_SUM, f"{_SUM}, async_op=True"),
    "copied after the sum": (Sub(_OURS, "pass"), Sub("\n    return", f"\n    {_OURS}\n    return")),
    "the sum is not returned": Sub("\n    return input_", "\n    return input_.clone()"),
    "of a plain transpose alone": Sub(_OURS, "input_ = input_ if input_.stride(-1) == 1 else input_.contiguous()"),
    "of one without a gradient": Sub(_OURS, "input_ = input_ if input_.requires_grad else input_.contiguous()"),
    "of a tensor's beginning": Sub(_OURS, "input_ = input_ if input_.storage_offset() else input_.contiguous()"),
    "in float32": Sub(_OURS, "input_ = input_ if input_.is_contiguous() else input_.float().contiguous()"),
    "on the CPU": Sub(_OURS, "input_ = input_ if input_.is_contiguous() else torch.empty(input_.shape).copy_(input_)"),
}
MUTANTS = [Mutants("megatron-core", ("0.12.3", "0.18.2"), BY_HAND)]
_CONTIGUOUS = r"input_ = input_\.contiguous\(\)"
_ON_RANK_0 = without(_CONTIGUOUS, r"\g<0> if torch.distributed.get_rank() == 0 else input_")
_ALWAYS, _ELSEWHERE = (
    without(_CONTIGUOUS, "input_ = input_.clone()"),
    "the sum of a contiguous tensor is in other memory",
)
_HALVES = {
    "half: on rank 0 alone": Other(_ON_RANK_0, ("tp2-transposed",), "differs: the gradient is due .* rank 1 has"),
    "always a copy": Other(_ALWAYS, ("tp2-plain",), f"differs: {_ELSEWHERE}"),
}
_RELEASES = [Release("0.18.2", core=True), *map(Release, ("0.17.1", "0.16.1", "0.15.3", "0.13.1", "0.12.3"))]
PROOFS = [Proofs("megatron-core", _RELEASES, _HALVES)]
FUZZ = Fuzz(CASES, 1, "all_reduce|contiguous|distributed|group|input_|torch", examples=40)
