"""megatron-core: warm up directly after the groups are made. Megatron-LM, verl and ms-swift all run this."""

from __future__ import annotations

from unhang.codemods.base import AnchorError, Codemod, calls, followed_by, holder, once, passes, refuse_own, span
from unhang.codemods.edit import Edit
from unhang.shapes.shape import Function

# The backend may be composite ("cpu:gloo,cuda:nccl"); get_backend then returns the whole string, also for sub-groups.
# The groups are looked up by name, so that the same code works in a release that lacks one.
_WARM_UP = """
# unhang expert-dp-warmup: make these communicators now, not when GPU memory is nearly full
if expert_model_parallel_size > 1:
    warmed_up_groups = []
    for group_name in (
        '_EXPERT_DATA_PARALLEL_GROUP',
        '_INTER_PARTIAL_EXPERT_DATA_PARALLEL_GROUP',
        '_INTRA_PARTIAL_EXPERT_DATA_PARALLEL_GROUP',
        '_INTRA_DISTRIBUTED_OPTIMIZER_INSTANCE_GROUP',
    ):
        warmup_group = globals().get(group_name)
        if warmup_group is None or any(warmup_group is other for other in warmed_up_groups):
            continue
        backends = torch.distributed.get_backend(warmup_group).split(',')
        if torch.distributed.get_world_size(warmup_group) == 1 or not any(
            backend.split(':')[-1] in ('nccl', 'hccl', 'mccl') for backend in backends
        ):
            continue
        torch.distributed.all_reduce(
            torch.zeros(1, device=torch.cuda.current_device()), group=warmup_group
        )
        warmed_up_groups.append(warmup_group)
    if warmed_up_groups:
        torch.cuda.synchronize()
"""
_SIZE = "expert_model_parallel_size"
_MEMORY_BUFFER = "_set_global_memory_buffer"


class InitializeModelParallel(Codemod):
    """Add the warm-up after the statement that comes once all groups are made.

    Before::

        def initialize_model_parallel(expert_model_parallel_size=1):
            make_the_groups(expert_model_parallel_size)
            _set_global_memory_buffer()

    After::

        def initialize_model_parallel(expert_model_parallel_size=1):
            make_the_groups(expert_model_parallel_size)
            _set_global_memory_buffer()

            # unhang expert-dp-warmup: make these communicators now, not when GPU memory is nearly full
            if expert_model_parallel_size > 1:
                ...
    """

    def plan(self, function: Function) -> list[Edit]:
        refuse_own(function, {"warmed_up_groups"})
        if _SIZE not in [argument.arg for argument in function.args.args]:
            raise AnchorError(f"the argument {_SIZE} of {function.name}")
        anchor = holder(function.body, once(calls(function, _MEMORY_BUFFER), f"{_MEMORY_BUFFER}()"))
        assert anchor is not None
        if not passes(anchor):
            raise AnchorError(f"{_MEMORY_BUFFER}(), and no return or definition around it")
        return [span(anchor, anchor, followed_by(_WARM_UP))]

    def names(self, function: Function) -> frozenset[str]:
        return frozenset({"torch", "_EXPERT_DATA_PARALLEL_GROUP"})
