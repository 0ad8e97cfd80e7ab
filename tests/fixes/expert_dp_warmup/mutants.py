"""The mutants of expert-dp-warmup."""

from __future__ import annotations

from functools import partial

from mutants.by_hand import ByHand, Mutants, Sub

_TWICE = r"count: {} -> \[\.\.\. for _ in range\(2\)\]"
_INDEPENDENT = "neither statement uses what the other one does"
_REPEATED = "a second one changes nothing"
_WARM_UP = {
    r"order: \( .*_(group|GROUP)', \) -> \(\.\.\.\)\[::-1\]": "all ranks have one order, whichever it is",
    _TWICE.format(r"warmed_up_groups\.append\(warmup_group\)"): _REPEATED,
    r"dtype: torch\.zeros\(.*": "a collective of any dtype makes the communicator",
    r"late: if warmup_group is None .* <-> backends = .*": "get_backend takes None, and any group",
    r"late: (torch\.distributed\.all_reduce|warmup_tensor\.item).* <-> warmed_up_groups\.append\(.*": _INDEPENDENT,
}
_REDUCED = """torch.distributed.all_reduce(
                torch.zeros(1, device=torch.cuda.current_device()), group=warmup_group
            )"""
_ZEROS = "torch.zeros(1, device=torch.cuda.current_device())"
_FIRST = "        warmed_up_groups = []\n"
_RANK = "torch.distributed.get_rank()"
_INTRA = "            '_INTRA_DISTRIBUTED_OPTIMIZER_INSTANCE_GROUP',\n"
_KNOWN = "('nccl', 'hccl', 'mccl')"


def _first(new: str) -> Sub:
    return Sub(_FIRST, f"{_FIRST}        {new}\n")


_reduced = partial(Sub, _REDUCED)
_gated = partial(Sub, "expert_model_parallel_size > 1")
_RANKS = "torch.distributed.get_process_group_ranks(warmup_group)"
_CORE: ByHand = {
    "tensor on the CPU": Sub(_ZEROS, "torch.zeros(1)"),
    "last part of a composite backend": Sub("for backend in backends\n", "for backend in backends[-1:]\n"),
    "first part of a composite backend": Sub("for backend in backends\n", "for backend in backends[:1]\n"),
    "composites by their end": Sub("backend.split(':')[-1] in", "backend in"),
    "mccl forgotten": Sub(_KNOWN, "('nccl', 'hccl')"),
    "hccl forgotten": Sub(_KNOWN, "('nccl', 'mccl')"),
    "every part of cuda": Sub(
        f"backend.split(':')[-1] in {_KNOWN}", f"backend.split(':')[-1] in {_KNOWN} or backend.startswith('cuda:')"
    ),
    "every part of a backend": Sub(" or not any(\n", " or not all(\n"),
    "device not waited for": Sub("            torch.cuda.synchronize()", "            pass"),
    "expert model-parallel group": Sub("'_EXPERT_DATA_PARALLEL_GROUP',", "'_EXPERT_MODEL_PARALLEL_GROUP',"),
    "without the intra-instance group": Sub(_INTRA, ""),
    "without the inter-instance group": Sub("            '_INTER_PARTIAL_EXPERT_DATA_PARALLEL_GROUP',\n", ""),
    "without the expert group": Sub("            '_EXPERT_DATA_PARALLEL_GROUP',\n", ""),
    "order turned around in half of the world": Sub(
        f"{_INTRA}        ):",
        f"{_INTRA}        )[::1 if {_RANK} * 2 < torch.distributed.get_world_size() else -1]:",
    ),
    "groups of one rank too": Sub("torch.distributed.get_world_size(warmup_group) == 1 or not any(", "not any("),
    "one group by each of its names": Sub(" or any(warmup_group is other for other in warmed_up_groups)", ""),
    "groups of the same ranks once": Sub(
        "any(warmup_group is other for", f"any({_RANKS} == torch.distributed.get_process_group_ranks(other) for"
    ),
    "barrier": _reduced("torch.distributed.barrier(group=warmup_group)"),
    "broadcast": _reduced(f"torch.distributed.broadcast({_ZEROS}, {_RANKS}[0], group=warmup_group)"),
    "EP above 2": _gated("expert_model_parallel_size > 2"),
    "EP of any size": _gated("expert_model_parallel_size > 0"),
    "not on rank 0": _gated(f"expert_model_parallel_size > 1 and {_RANK} != 0"),
    "not with pipeline stages": _gated("expert_model_parallel_size > 1 and pipeline_model_parallel_size == 1"),
    "not with several instances": _gated("expert_model_parallel_size > 1 and num_distributed_optimizer_instances == 1"),
    "world": Sub(", group=warmup_group\n", "\n"),
    "not waited for": Sub(", group=warmup_group\n", ", group=warmup_group, async_op=True\n"),
    "a fresh group of the same ranks": _reduced(
        f"torch.distributed.all_reduce({_ZEROS}, "
        f"group=torch.distributed.new_group({_RANKS}, use_local_synchronization=True))"
    ),
    "even ranks make one more group": _first(f"{_RANK} % 2 == 0 and torch.distributed.new_group([0, 1])"),
    "every rank makes one more group": _first("torch.distributed.new_group([0, 1])"),
    "ranks make their groups in an order of their own": _first(
        f"[torch.distributed.new_group([one]) for one in ((0, 1) if {_RANK} % 2 else (1, 0))]"
    ),
    "by the group's own method, but not on rank 0": _reduced(
        f"{_RANK} == 0 or warmup_group.allreduce([{_ZEROS}]).wait()"
    ),
    "functional, but not on rank 0": _reduced(
        f"{_RANK} == 0 or torch.distributed.distributed_c10d._resolve_process_group("
        f"warmup_group.group_name).allreduce([{_ZEROS}]).wait()"
    ),
    "rank 0 once more, by the group's own method": _reduced(
        f"{_REDUCED}\n            if {_RANK} == 0:\n                warmup_group.allreduce([{_ZEROS}])"
    ),
    "rank 0 once more, by a broadcast": _reduced(
        f"{_REDUCED}\n            if {_RANK} == 0:\n"
        f"                torch.distributed.broadcast({_ZEROS}, 0, group=warmup_group)"
    ),
    "rank 0 waits at a barrier": _first(f"{_RANK} == 0 and torch.distributed.barrier()"),
    "many elements": Sub("torch.zeros(1,", "torch.zeros(1 << 12,"),
}


_NAMES = [
    f"                    'get_{name}_group',\n"
    for name in (
        "expert_data_parallel",
        "inter_distributed_optimizer_instance",
        "intra_distributed_optimizer_instance",
    )
]
_CALLED = "getattr(mpu, accessor_name)()"
_SWIFT: ByHand = {
    "AssertionError not caught": Sub("except (AttributeError, AssertionError)", "except AttributeError"),
    "AttributeError not caught": Sub("except (AttributeError, AssertionError)", "except AssertionError"),
    "the first missing one ends it": Sub("                    continue\n", "                    break\n"),
    "tensor on the CPU": Sub("torch.zeros(1, device=get_current_device())", "torch.zeros(1)"),
    "tensor on a GPU": Sub("device=get_current_device()", "device=torch.cuda.current_device()"),
    "device not waited for": Sub("                warmup_tensor.item()  # waits for the device, whichever it is\n", ""),
    "a GPU waited for": Sub("warmup_tensor.item()", "torch.cuda.synchronize()"),
    "without the expert group": Sub(_NAMES[0], ""),
    "without the inter-instance group": Sub(_NAMES[1], ""),
    "without the intra-instance group": Sub(_NAMES[2], ""),
    "inter-instance group alone": (Sub(_NAMES[0], ""), Sub(_NAMES[2], "")),
    "dense data-parallel group": Sub("'get_expert_data_parallel_group'", "'get_data_parallel_group'"),
    "check_initialized given": Sub(_CALLED, "getattr(mpu, accessor_name)(check_initialized=False)"),
    "mccl forgotten": Sub(_KNOWN, "('nccl', 'hccl')"),
    "hccl forgotten": Sub(_KNOWN, "('nccl', 'mccl')"),
    "last part of a composite backend": Sub("for backend in backends)", "for backend in backends[-1:])"),
    "EP above 2": Sub("args.expert_model_parallel_size > 1", "args.expert_model_parallel_size > 2"),
    **{
        f"only with {of} 1": (
            Sub("args.expert_model_parallel_size > 1", f"args.expert_model_parallel_size > 1 and args.{of} == 1"),
        )
        for of in ("tensor_model_parallel_size", "context_parallel_size", "expert_tensor_parallel_size")
    },
    "only without virtual stages": Sub(
        "args.expert_model_parallel_size > 1",
        "args.expert_model_parallel_size > 1 and not args.virtual_pipeline_model_parallel_size",
    ),
    "EP of any size": Sub("args.expert_model_parallel_size > 1", "args.expert_model_parallel_size > 0"),
    "master rank alone": Sub(
        "args.expert_model_parallel_size > 1", "args.expert_model_parallel_size > 1 and is_master()"
    ),
    "once more, by the group's own method": Sub(
        "                warmup_tensor.item()",
        "                warmup_group.allreduce([warmup_tensor])\n                warmup_tensor.item()",
    ),
    "not waited for": Sub(
        "group=warmup_group)\n                warmup_tensor",
        "group=warmup_group, async_op=True)\n                warmup_tensor",
    ),
    "groups of one rank too": Sub("torch.distributed.get_world_size(warmup_group) == 1 or not any(", "not any("),
    "one group by each of its names": Sub(" or any(warmup_group is other for other in warmed_up_groups)", ""),
}


_CORE_EQUIVALENT = {
    **_WARM_UP,
    _TWICE.format(r"torch\.cuda\.synchronize\(\)"): _REPEATED,
    r"early: _set_global_memory_buffer\(\) <-> .*": "all groups are made before; the buffer allocates nothing yet",
}
_SWIFT_EQUIVALENT = {
    **_WARM_UP,
    _TWICE.format(r"warmup_tensor\.item\(\)"): _REPEATED,
    r"late: if args\.expert_model_parallel_size > 1: .* <-> if is_master\(\): .*": "the other one only logs",
    r"late: from swift\.utils import get_current_device <-> .*": _INDEPENDENT,
    r"late: if torch\.distributed\.get_world_size.* <-> warmup_tensor = .*": "it makes a tensor for nothing",
}
MUTANTS = [
    Mutants(
        "megatron-core",
        ("0.16.1",),
        _CORE,
        _CORE_EQUIVALENT,
        others=("_EXPERT_MODEL_PARALLEL_GROUP", "_DATA_PARALLEL_GROUP"),
    ),
    Mutants("ms-swift", ("4.6.0",), _SWIFT, _SWIFT_EQUIVALENT, others=("get_data_parallel_group",)),
]
