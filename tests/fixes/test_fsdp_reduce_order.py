"""fsdp-reduce-order: its rewrite, upstream's own fix, and what the sessions need of it."""

from __future__ import annotations

from fuzz.subject import Fuzz
from mutants.by_hand import Mutants, Sub
from proofs.others import Other, Proofs, Release, without
from support import sources
from support.hung_jobs import HungJob, group, sizes

FIX = "fsdp-reduce-order"
RELEASES = ["0.15.3", "0.15.0rc0", "0.13.1", "0.12.3"]
CASES = sources.cases(FIX, {"megatron-core": RELEASES})


UNLIKE_UPSTREAM = sources.edits(
    sources.case(FIX, "0.16.1"),
    [
        ("param_to_param_group[x])", "param_to_name[x])"),
        ("sorted(list", "max(list"),
        ("sorted(list(params)", "sorted(list(given)"),
        ("params = ", "ours = "),
    ],
)


# -- for the sessions -------------------------------------------------------------------------------------------------

_BUCKET = "self.buffer.param_to_param_group[p]"
_SORTED = f"sorted(params, key=lambda p: {_BUCKET})"


def _by_hand() -> dict[str, tuple[Sub, ...]]:
    orders = {
        "as given": "list(params)",
        "turned around": "list(params)[::-1]",
        "a set": "set(params)",
        "the parameters": "sorted(params)",
        **{f"by {key}": f"sorted(params, key={key})" for key in ("id", "hash", "lambda p: p.requires_grad")},
        "by parity": _SORTED.replace(_BUCKET, f"{_BUCKET} % 2"),
        "by the bucket's size": _SORTED.replace(_BUCKET, f"len(self.buffer.parameter_groups[{_BUCKET}].params)"),
        "by what is ready": _SORTED.replace(_BUCKET, f"len(self.bucket_grad_ready_params[{_BUCKET}])"),
        "by name": _SORTED.replace("param_to_param_group", "param_to_name"),
        "from the last": _SORTED.replace(_BUCKET, f"-{_BUCKET}"),
        "on rank 0 alone": f"{_SORTED} if torch.distributed.get_rank() == 0 else params",
        "on the others alone": f"{_SORTED} if torch.distributed.get_rank() else params",
        "with a limit alone": f"{_SORTED} if suggested_queue_capacity else params",
        "without a limit alone": f"params if suggested_queue_capacity else {_SORTED}",
        "without the last": f"{_SORTED}[:-1]",
        "twice": f"{_SORTED} * 2",
        "one of each bucket": f"{{{_BUCKET}: p for p in {_SORTED}}}.values()",
    }
    found = {name: (Sub(_SORTED, order),) for name, order in orders.items()}
    return {**found, "none after one without a gradient": (Sub("continue", "break"),)}


MUTANTS = [Mutants("megatron-core", ("0.12.3", "0.15.0rc0", "0.15.3"), _by_hand())]


def _half(order: str, *fails: str, ends: str = "") -> Other:
    return Other(without(r"sorted\(params, key=lambda p: ([\w.]+\[p\])\)", order), fails, ends)


PROOFS = [
    Proofs(
        "megatron-core",
        [Release("0.15.3", core=True), *map(Release, ("0.15.0rc0", "0.14.0", "0.13.1", "0.12.3"))],
        {
            "half: sorted on rank 0 alone": _half(
                r"\g<0> if torch.distributed.get_rank() == 0 else params", "same-size-2", "other-size-2"
            ),
            "sorted by size": _half(
                "sorted(params, key=lambda p: p.numel())", "same-size-2", ends="differs: the gradient of towers.1"
            ),
        },
    )
]
FUZZ = Fuzz(CASES, 1, "buffer|param_to_param_group|params", examples=40)
_DP = group("4", "DATA_PARALLEL_GROUP_WITH_CP")
_AT = (
    "megatron/core/distributed/fsdp/src/megatron_fsdp/param_and_grad_buffer.py::GradReducePipeline.reduce_gradients",
    "megatron/core/distributed/fsdp/src/megatron_fsdp/megatron_fsdp.py::_root_post_backward",
)
HANGS = [
    HungJob("two buckets", sizes(_DP, "reduce_scatter", _AT, 4096, 512, 4096, 512, number=9)),
    HungJob("one bucket", sizes(_DP, "reduce_scatter", _AT, 4096, 4096, 4096, 4096, number=9), ""),
]
