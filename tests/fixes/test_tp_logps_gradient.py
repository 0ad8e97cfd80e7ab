"""tp-logps-gradient: its anchors, and what the sessions need of it."""

from __future__ import annotations

from fuzz.subject import Fuzz
from mutants.by_hand import ByHand, Mutants, Sub
from proofs.others import Other, Proofs, Release, without
from support import sources

FIX = "tp-logps-gradient"
CASES = sources.cases(FIX, {"ms-swift": ["3.12.6", "4.5.2"]})
FIXED = sources.cases(FIX, {"ms-swift": ["4.5.3"]}, state="fixed")


UNLIKE_UPSTREAM = sources.edits(
    FIXED[0],
    [
        ("torch.no_grad()", "torch.enable_grad()"),
        ("_AllReduceAcrossVocabShards.apply(", "_OtherAllReduce.apply("),
        ("_AllReduceAcrossVocabShards.apply(", "torch.distributed.all_reduce("),
    ],
)


REFUSED = sources.edits(
    CASES[0],
    [
        ("ReduceOp.MAX", "ReduceOp.AVG", "MAX"),
        ("ReduceOp.SUM", "ReduceOp.AVG", "SUM"),
        ("all_reduce(logits_max,", "all_reduce(logits_max.clone(),", "the maximum"),
        ("all_reduce(sum_exp,", "all_reduce(sum_exp, op,", "SUM"),
        ("ReduceOp.SUM, group=tp_group", "ReduceOp.SUM, group=tp_group, async_op=True", "SUM"),
        ("logits.max(", "(logits / 2).max(", "the maximum"),
        ("logits.max(", "torch.amax(logits, ", "the maximum"),
    ],
    "not found: .*{}",
)


# -- for the sessions -------------------------------------------------------------------------------------------------

_SUM, _GRADIENT = (
    f"sum_exp = tensor_parallel.{name}_tensor_model_parallel_region(sum_exp)" for name in ("reduce_from", "copy_to")
)
_PLAIN = "torch.distributed.all_reduce(sum_exp, group=tp_group)"
_MAXIMUM, _EXPONENTIALS = "logits.detach()", "torch.exp(logits - logits_max)"
_ROW = "\n" + 4 * " "
BY_HAND: ByHand = {
    "the maximum with a gradient": Sub(_MAXIMUM, "logits"),
    "the maximum with a gradient on rank 0": Sub(
        _MAXIMUM, "(logits.detach() if torch.distributed.get_rank() else logits)"
    ),
    "the maximum detached later": (
        Sub(_MAXIMUM, "logits"),
        Sub("    exp_logits =", "    logits_max = logits_max.detach()\n    exp_logits ="),
    ),
    "the maximum under no_grad": Sub(
        "logits_max = logits.detach()", f"with torch.no_grad():{_ROW}    logits_max = logits"
    ),
    "the maximum of each shard": Sub("ReduceOp.MAX, group=tp_group", "ReduceOp.MAX, group=None"),
    "the minimum of the maxima": Sub("ReduceOp.MAX", "ReduceOp.MIN"),
    "the sum of the maxima": Sub("ReduceOp.MAX", "ReduceOp.SUM"),
    "the maxima of other ranks": Sub("group=tp_group", "group=mpu.get_data_parallel_group()"),
    "the logits without a gradient": Sub(_EXPONENTIALS, "torch.exp(logits.detach() - logits_max)"),
    "the shift alone without a gradient": (
        Sub(_MAXIMUM, "logits"),
        Sub(_EXPONENTIALS, "torch.exp(logits - logits_max.detach())"),
    ),
    "a shift before the exponentials alone": Sub("log_softmax = logits - logits_max", "log_softmax = logits"),
    "a plain sum": (Sub(_SUM, _PLAIN), Sub(_GRADIENT, "pass")),
    "a plain sum, and then that of the gradient": Sub(_SUM, _PLAIN),
    "a plain sum besides": Sub(_SUM, f"{_SUM}{_ROW}{_PLAIN}"),
    "summed forward twice": Sub(_GRADIENT, _SUM),
    "summed backward twice": Sub(_SUM, _GRADIENT),
    "summed backward once more": Sub(_GRADIENT, f"{_GRADIENT}{_ROW}{_GRADIENT}"),
    "without the gradient of the sum": Sub(_GRADIENT, f"{_GRADIENT}{_ROW}sum_exp = sum_exp.detach()"),
    "without the gradient of all shards": Sub(_SUM, f"sum_exp = sum_exp.detach(){_ROW}{_SUM}"),
    "the gradient summed on rank 0": Sub(_GRADIENT, f"if torch.distributed.get_rank() == 0:{_ROW}    {_GRADIENT}"),
    "the gradient summed in another group": Sub(
        "copy_to_tensor_model_parallel_region(sum_exp)",
        "copy_to_tensor_model_parallel_region(sum_exp, mpu.get_data_parallel_group())",
    ),
    "the exponentials summed": Sub(
        _GRADIENT, "sum_exp = tensor_parallel.copy_to_tensor_model_parallel_region(exp_logits)"
    ),
    "the gradient of the logits summed": Sub(
        _EXPONENTIALS,
        "torch.exp(tensor_parallel.copy_to_tensor_model_parallel_region(logits) - logits_max)",
    ),
    "the result's gradient summed": (
        Sub(_GRADIENT, "pass"),
        Sub("return log_softmax", "return tensor_parallel.copy_to_tensor_model_parallel_region(log_softmax)"),
    ),
    "only with two shards": Sub(_GRADIENT, f"if tp_size == 2:{_ROW}    {_GRADIENT}"),
    "only with more than two shards": Sub(_GRADIENT, f"if tp_size > 2:{_ROW}    {_GRADIENT}"),
    "imported from another module": Sub("from megatron.core import", "from megatron.core.parallel_state import"),
}
MUTANTS = [Mutants("ms-swift", ("3.12.6", "4.5.2"), BY_HAND)]
_WEIGHT = "differs: the gradient of the weight"
_CASES = ("grpo-tp2", "gkd-tp2")
PROOFS = [
    Proofs(
        "ms-swift",
        [
            Release("4.5.2", (("megatron-core", "0.18.2"),), core=True),
            Release("4.5.2", (("megatron-core", "0.19.2"),)),
            Release("4.3.0", (("megatron-core", "0.16.1"),)),
            Release("3.12.6", (("megatron-core", "0.15.3"),)),
        ],
        {
            "half: the maximum alone": Other(without(r"sum_exp = tensor_parallel\.copy_to.*", ""), _CASES, _WEIGHT),
            "half: the sum alone": Other(without(r"logits\.detach\(\)", "logits"), _CASES, _WEIGHT),
            "the gradient alone": Other(without(r"sum_exp = tensor_parallel\.reduce_from.*", ""), _CASES, "differs: "),
        },
    )
]
FUZZ = Fuzz(CASES, 1, "logits_max|sum_exp|all_reduce|no_grad|tensor_parallel", examples=40)
