"""tp-logps-gradient: its anchors, and what the sessions need of it."""

from __future__ import annotations

from fuzz.subject import Fuzz
from mutants.by_hand import ByHand, Mutants, Sub
from proofs.others import Other, Proofs, Release, without
from support import sources

FIX = "tp-logps-gradient"
CASES = sources.cases(FIX, {"ms-swift": ["3.12.6", "4.5.2"]})
UNLIKE_UPSTREAM = sources.edits(
    sources.case(FIX, "4.5.3"),
    [
        ("torch.no_grad()", "torch.enable_grad()"),
        ("_AllReduceAcrossVocabShards.apply(", "torch.distributed.all_reduce("),
    ],
)
REFUSED = sources.edits(
    CASES[0],
    [
        ("ReduceOp.MAX", "ReduceOp.AVG", "MAX"),
        ("all_reduce(logits_max,", "all_reduce(logits_max.clone(),", "the maximum"),
    ],
    "not found: .*{}",
)

# -- for the sessions -------------------------------------------------------------------------------------------------

_COPY = "tensor_parallel.copy_to_tensor_model_parallel_region"
_SUM, _GRADIENT = (f"sum_exp = {name}(sum_exp)" for name in (_COPY.replace("copy_to", "reduce_from"), _COPY))
_MAXIMUM, _ROW = "logits.detach()", "\n" + 4 * " "
BY_HAND: ByHand = {
    "with a gradient on rank 0": Sub(_MAXIMUM, "(logits.detach() if torch.distributed.get_rank() else logits)"),
    "the maximum of each shard": Sub("ReduceOp.MAX, group=tp_group", "ReduceOp.MAX, group=None"),
    "a maximum of zero or more": Sub("keepdim=True)[0]", "keepdim=True)[0].clamp(min=0)"),
    "without the gradient of the sum": Sub(_GRADIENT, f"{_GRADIENT}{_ROW}sum_exp = sum_exp.detach()"),
    "without the gradient of all shards": Sub(_SUM, f"sum_exp = sum_exp.detach(){_ROW}{_SUM}"),
    "the gradient summed on rank 0": Sub(_GRADIENT, f"if torch.distributed.get_rank() == 0:{_ROW}    {_GRADIENT}"),
    "the result's gradient": (Sub(_GRADIENT, "pass"), Sub("return log_softmax", f"return {_COPY}(log_softmax)")),
    "only with a batch": Sub(_GRADIENT, f"if logits.dim() == 3:{_ROW}    {_GRADIENT}"),
    "only with several tokens": Sub(_GRADIENT, f"if sum_exp.numel() > 1:{_ROW}    {_GRADIENT}"),
    "only with two shards": Sub(_GRADIENT, f"if tp_size == 2:{_ROW}    {_GRADIENT}"),
}
MUTANTS = [Mutants("ms-swift", ("3.12.6", "4.5.2"), BY_HAND)]
_WEIGHT, _CASES = "differs: the gradient of the weight", ("grpo-tp2", "gkd-tp2")
_HALVES = {
    "half: the maximum alone": Other(without(r"sum_exp = tensor_parallel\.copy_to.*", ""), _CASES, _WEIGHT),
    "half: the sum alone": Other(without(r"logits\.detach\(\)", "logits"), _CASES, _WEIGHT),
    "the gradient alone": Other(without(r"sum_exp = tensor_parallel\.reduce_from.*", ""), _CASES, "differs: "),
}
_BESIDE = (("4.5.2", "0.18.2"), ("4.5.2", "0.19.2"), ("4.3.0", "0.16.1"), ("3.12.6", "0.15.3"))
_RELEASES = [Release(own, (("megatron-core", core),), core == "0.18.2") for own, core in _BESIDE]
PROOFS = [Proofs("ms-swift", _RELEASES, _HALVES)]
FUZZ = Fuzz(CASES, 1, "logits_max|sum_exp|all_reduce|no_grad|tensor_parallel", examples=40)
