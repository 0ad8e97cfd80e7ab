"""fsdp-reduce-order: its anchors, upstream's own fix, and what the sessions need of it."""

from __future__ import annotations

from fuzz.subject import Fuzz
from mutants.by_hand import ByHand, Mutants, Sub
from proofs.others import Other, Proofs, Release, without
from support import sources
from support.hung_jobs import HungJob, group, sizes

FIX = "fsdp-reduce-order"
RELEASES = ("0.15.3", "0.15.0rc0", "0.13.1", "0.12.3")
CASES = sources.cases(FIX, {"megatron-core": RELEASES})
UNLIKE_UPSTREAM = sources.edits(
    sources.case(FIX, "0.16.1"),
    [
        ("sorted(list", "max(list"),
        ("sorted(list(params)", "sorted(list(given)"),
        ("params = ", "ours = "),
    ],
)

# -- for the sessions -------------------------------------------------------------------------------------------------

_BUCKET = "self.buffer.param_to_param_group[p]"
_SORTED = f"sorted(params, key=lambda p: {_BUCKET})"
_BY = {
    "id": "id(p)",
    "the bucket's size": f"len(self.buffer.parameter_groups[{_BUCKET}].params)",
    "what is ready": f"len(self.bucket_grad_ready_params[{_BUCKET}])",
    "name": "self.buffer.param_to_name[p]",
    "6 bits": f"{_BUCKET} & 63",
    "unit": f"self.buffer.parameter_groups[{_BUCKET}].fsdp_unit_id or 0",
}
BY_HAND: ByHand = {
    **{f"by {name}": Sub(_BUCKET, key) for name, key in _BY.items()},
    "a set": Sub(_SORTED, "set(params)"),
    "on rank 0 alone": Sub(_SORTED, f"{_SORTED} if torch.distributed.get_rank() == 0 else params"),
    "with a limit alone": Sub(_SORTED, f"{_SORTED} if suggested_queue_capacity else params"),
    "without a limit alone": Sub(_SORTED, f"params if suggested_queue_capacity else {_SORTED}"),
    "without the last": Sub(_SORTED, f"{_SORTED}[:-1]"),
    "twice": Sub(_SORTED, f"{_SORTED} * 2"),
    "one of each bucket": Sub(_SORTED, f"{{{_BUCKET}: p for p in {_SORTED}}}.values()"),
    "none after one without a gradient": Sub("continue", "break"),
}
MUTANTS = [Mutants("megatron-core", ("0.12.3", "0.15.0rc0", "0.15.3"), BY_HAND)]
_ONE_SIDE = without(r"sorted\(.*\]\)", r"\g<0> if torch.distributed.get_rank() == 0 else params")
_HALVES = {
    "half: sorted on rank 0 alone": Other(_ONE_SIDE, ("same-size-2", "other-size-2")),
    "sorted by size": Other(without(r"self\.[\w.]+\[p\]", "p.numel()"), ("same-size-2",), "differs: .* of towers.1"),
}
PROOFS = [Proofs("megatron-core", [Release(it, core=it == "0.15.3") for it in (*RELEASES, "0.14.0")], _HALVES)]
FUZZ = Fuzz(CASES, 1, "buffer|param_to_param_group|params", examples=40)
_DP = group("4", "DATA_PARALLEL_GROUP_WITH_CP")
_PLACES = "param_and_grad_buffer.py::GradReducePipeline.reduce_gradients", "megatron_fsdp.py::_root_post_backward"
_AT = [f"megatron/core/distributed/fsdp/src/megatron_fsdp/{it}" for it in _PLACES]
HANGS = [
    HungJob("two buckets", sizes(_DP, "reduce_scatter", _AT, 4096, 512, 4096, 512)),
    HungJob("one bucket", sizes(_DP, "reduce_scatter", _AT, 4096, 4096, 4096, 4096), ""),
]
