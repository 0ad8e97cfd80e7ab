"""The releases that the proof of expert-dp-warmup runs on, and the half patches that it must fail on."""

from __future__ import annotations

from proofs.others import AS_WRITTEN, Other, Proofs, Release, as_written, without

_LINES = ("0.10.0", "0.11.0", "0.12.3", "0.13.1", "0.14.0", "0.15.3", "0.16.1", "0.17.1", "0.18.2", "0.19.2")
_ORDER = "the order of odd ranks reversed"
_ONE_GROUP = {_ORDER: "it warms up a single group, so there is no order"}
_OTHERS = {
    "without the gate on expert parallelism": Other(
        without(r"if (args\.)?expert_model_parallel_size > 1:", "if True:"), ("ep1-8",)
    ),
    "composite backends unknown": Other(without(r"backend\.split\(':'\)\[-1\] in", "backend in"), ("ep2-8-composite",)),
    "any backend": Other(without(r"in \('nccl', 'hccl', 'mccl'\)", "!= ''"), ("ep2-8-gloo",)),
    _ORDER: Other(
        without(r"(?s)in (\(\s+'_EXPERT.*?\)):", r"in \1[::1 - 2 * (torch.distributed.get_rank() % 2)]:"),
        ("ep2-8-instances",),
    ),
}
PROOFS = [
    Proofs(
        "megatron-core",
        [Release(line, core=line == "0.16.1", lacking=_ONE_GROUP if line in _LINES[:3] else {}) for line in _LINES],
        _OTHERS,
        timed=True,
    ),
    Proofs(
        "ms-swift",
        [
            Release("4.6.0", (("megatron-core", "0.16.1"),), core=True),
            Release("4.0.0", (("megatron-core", "0.13.1"),)),
            Release("4.0.0", (("megatron-core", "0.16.1"),)),
            Release("4.2.3", (("megatron-core", "0.15.3"),)),
        ],
        {name: other for name, other in _OTHERS.items() if name != _ORDER}
        | {AS_WRITTEN: Other(as_written("expert-dp-warmup"), ("ep2-8",))},
    ),
]
