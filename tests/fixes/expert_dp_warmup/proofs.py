"""The releases that the proof of expert-dp-warmup runs on, and the half patches that it must fail on."""

from __future__ import annotations

from proofs.others import AS_WRITTEN, Other, Proofs, Release, as_written, without

_LINES = ("0.10.0", "0.11.0", "0.12.3", "0.13.1", "0.14.0", "0.15.3", "0.16.1", "0.17.1", "0.18.2", "0.19.2")
_NAMES = r"(?s)in (\(\s+'_EXPERT.*?\)):"
_RANK_0 = "torch.distributed.get_rank() == 0"
_RANKS = "torch.distributed.get_process_group_ranks(warmup_group)"
_ZEROS = "torch.zeros(1, device=torch.cuda.current_device())"
_GATES = {
    "without the gate on expert parallelism": Other(
        without(r"if (args\.)?expert_model_parallel_size > 1:", "if True:"), ("ep1-4",)
    ),
    "composite backends unknown": Other(without(r"backend\.split\(':'\)\[-1\] in", "backend in"), ("ep2-4-composite",)),
    "any backend": Other(without(r"in \('nccl', 'hccl', 'mccl'\)", "!= ''"), ("ep2-4-gloo",)),
    "one rank skips": Other(
        without(r"expert_model_parallel_size > 1:", f"expert_model_parallel_size > 1 and not {_RANK_0}:"),
        ("ep2-4",),
        "^hung: rank (1-3|2) waits in all_reduce",  # rank 2 alone, where no group that is warmed up has all ranks
    ),
    "a new group of the same ranks": Other(
        without("group=warmup_group", f"group=torch.distributed.new_group({_RANKS}, use_local_synchronization=True)"),
        ("ep2-4",),
        "another communicator",
    ),
}
_SEVERAL = {
    "the order of odd ranks reversed": Other(
        without(_NAMES, r"in \1[::1 - 2 * (torch.distributed.get_rank() % 2)]:"), ("ep2-8-instances",)
    ),
    "another order on one rank": Other(
        without(_NAMES, rf"in \1[:: -1 if {_RANK_0} else 1]:"), ("ep2-8-instances",), "^hung: "
    ),
    "one group of several skipped": Other(
        without(r"\s+'_INTRA_DISTRIBUTED_OPTIMIZER_INSTANCE_GROUP',", ""), ("ep2-4", "ep2-8-instances"), "does not use"
    ),
}
_OTHERS = {
    **_GATES,
    **_SEVERAL,
    "another group": Other(without("'_EXPERT_DATA_PARALLEL_GROUP'", "'_EXPERT_MODEL_PARALLEL_GROUP'"), ("ep2-4",)),
    "the device of another rank": Other(
        without(r"torch\.cuda\.current_device\(\)", "0"), ("ep2-4",), "on_device=False"
    ),
    "the device not waited for": Other(without(r"torch\.cuda\.synchronize\(\)", "pass"), ("ep2-4",), "does not wait"),
    "one rank once more, by the group's own method": Other(
        without(
            r"(\n *)(torch\.distributed\.all_reduce\()",
            rf"\1{_RANK_0} and warmup_group.allreduce([{_ZEROS}])\1\2",
        ),
        ("ep2-4",),
    ),
}
_ONE_GROUP = {
    **dict.fromkeys(_SEVERAL, "it warms up a single group"),
    **dict.fromkeys(
        ("ep2-4-instances", "ep2-8-instances", "ep4-32-instances"),
        "its experts' gradients know no instances of the optimizer",
    ),
    "ep4-4": "without replicas of an expert it has no group to warm up",
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
        _GATES | {AS_WRITTEN: Other(as_written("expert-dp-warmup"), ("ep2-8",))},
    ),
]
