"""mfsdp-wrong-reduce: its anchors, and what the sessions need of it."""

from __future__ import annotations

from fuzz.subject import Fuzz
from mutants.by_hand import Mutants, Sub
from proofs.others import Other, Proofs, Release, without
from support import sources

FIX = "mfsdp-wrong-reduce"
CASES = sources.cases(FIX, {"megatron-core": ["0.14.0", "0.15.3", "0.16.0", "0.16.1"]})
_SUM, _WHOLE = "local_grad += reduced_grad", "ddp_config.data_parallel_sharding_strategy == 'no_shard'"
_SCALES, _MISSED = "scaling_factor = gbuf.gradient_scaling_factor", "not found: gradient_reduce_preprocessing"
_EDITED = [(_SUM, "local_grad -= reduced_grad"), (_WHOLE, f"async_op and {_WHOLE}")]
_SCALED_BY_HAND = [("bucket = gbuf.fetch_bucket()", "pass"), (_SCALES, f"{_SCALES}; bucket.data.mul_(scaling_factor)")]
REFUSED = sources.edits(CASES[3], _EDITED, _MISSED) + sources.edits(CASES[1], _SCALED_BY_HAND, _MISSED)
_UNLIKE = [("local_grad.copy_(reduced_grad)", "pass"), ("preprocessing(unreduced_grad, ", "preprocessing(gbuf.data, ")]
UNLIKE_UPSTREAM = sources.edits(sources.case(FIX, "0.17.1"), _UNLIKE)

_COPIED, _ZERO1, _SCALED = "local_grad.copy_(reduced_grad)", '== "optim"', "bucket.data, "
_OVERLAP = " and (\n                    ddp_config.overlap_grad_reduce"
_ZERO1_BY_HAND = {
    **{new: Sub(_COPIED, new) for new in (_SUM, "pass", "local_grad.copy_(reduced_grad + local_grad)")},
    **{new: Sub(_ZERO1, new) for new in ('== "optim_grads"', '!= "no_shard"')},
    "without a mean": Sub(_OVERLAP, _OVERLAP.replace("(", "(not ddp_config.average_in_collective and ")),
    "the sum is copied, too": Sub(_SUM, _COPIED),
}
_OTHERS = (
    *(f"gbuf.data{it}" for it in ("", " + 0", ".clone()", "[1:]", "[:1]")),
    *(f"bucket.data{it}" for it in (".clone()", " + 0", ".float()", "[1:]", "[:-1]", "[:1]", "[::2]", "[1::2]")),
    *("-bucket.data", "bucket.data.abs()", "bucket.data[:0]", "torch.zeros_like(bucket.data)", "None"),
    "gbuf.data if ddp_config.fsdp_double_buffer else bucket.data",
    "bucket.data if bucket.data.dtype == torch.bfloat16 else gbuf.data",
)
_BY_HAND = {"0.16.1": _ZERO1_BY_HAND, "0.15.3": {new: Sub(_SCALED, f"{new}, ") for new in _OTHERS}}
MUTANTS = [Mutants("megatron-core", (version,), by_hand) for version, by_hand in _BY_HAND.items()]
_OLD, _NEW = ("0.15.3", "0.14.0"), ("0.16.1", "0.16.0")
_HALVES = {
    "half: of both": Other(without(r"(local_grad)\.copy_\((\w+)\)", r"\1.add_(\2).mul_(0.5)"), ("zero1-2",), only=_NEW),
    "half: of a copy": Other(without(r"bucket\.data,", "bucket.data.clone(),"), ("bf16-2", "zero2-bf16-2"), only=_OLD),
}
PROOFS = [Proofs("megatron-core", [Release(it, core=it == _NEW[0]) for it in (*_NEW, *_OLD)], _HALVES)]
FUZZ = Fuzz(CASES, 2, "local_grad|reduced_grad|gradient_reduce_preprocessing|sharding_strategy", examples=40)
