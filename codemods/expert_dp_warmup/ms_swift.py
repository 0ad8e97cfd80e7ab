"""ms-swift 4: warm up here too, for environments where megatron-core itself cannot be rewritten."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from unhang.codemods.base import (
    AnchorError,
    Codemod,
    argument,
    calls,
    followed_by,
    holder,
    mentioned,
    once,
    only_first,
    operand,
    passes,
    refuse_own,
    span,
)
from unhang.codemods.edit import Edit
from unhang.shapes.shape import Function

_WARM_UP = """
# unhang expert-dp-warmup: make these communicators now, not when GPU memory is nearly full
if {size} > 1:
    from swift.utils import get_current_device
    warmed_up_groups = []
    for accessor_name in (
            'get_expert_data_parallel_group',
            'get_inter_distributed_optimizer_instance_group',
            'get_intra_distributed_optimizer_instance_group',
    ):
        try:
            warmup_group = getattr(mpu, accessor_name)()
        except (AttributeError, AssertionError):
            continue
        if warmup_group is None or any(warmup_group is other for other in warmed_up_groups):
            continue
        backends = torch.distributed.get_backend(warmup_group).split(',')
        if torch.distributed.get_world_size(warmup_group) == 1 or not any(
                backend.split(':')[-1] in ('nccl', 'hccl', 'mccl') for backend in backends):
            continue
        warmup_tensor = torch.zeros(1, device=get_current_device())
        torch.distributed.all_reduce(warmup_tensor, group=warmup_group)
        warmup_tensor.item()  # waits for the device, whichever it is
        warmed_up_groups.append(warmup_group)
"""
_SIZE = "expert_model_parallel_size"
_INITIALIZE = "mpu.initialize_model_parallel"
# Pull request 9486 as written: the one group that it warms up is the value of this name, and ms-swift never makes it.
_AS_WRITTEN = "inter_ep_dp_group"


class InitializeMpu(Codemod):
    """Add the warm-up after megatron-core has made its groups, and drop the one of pull request 9486.

    Before::

        def _initialize_mpu(args):
            if mpu.model_parallel_is_initialized():
                log('nothing to do')
            else:
                with timeout(args):
                    mpu.initialize_model_parallel(expert_model_parallel_size=args.expert_model_parallel_size)
                log('done')
                # pull request 9486
                if inter_ep_dp_group := mpu.get_group():
                    warm_up(inter_ep_dp_group)

    After::

        def _initialize_mpu(args):
            if mpu.model_parallel_is_initialized():
                log('nothing to do')
            else:
                with timeout(args):
                    mpu.initialize_model_parallel(expert_model_parallel_size=args.expert_model_parallel_size)

                # unhang expert-dp-warmup: make these communicators now, not when GPU memory is nearly full
                if args.expert_model_parallel_size > 1:
                    ...
                log('done')
    """

    def plan(self, function: Function) -> list[Edit]:
        refuse_own(function, {"warmed_up_groups"})
        call = once(calls(function, _INITIALIZE), f"{_INITIALIZE}(...)")
        size = operand(argument(call, _SIZE), f"{_INITIALIZE}({_SIZE}=...)")
        block, anchor = _place(function.body, call)
        if not passes(anchor):
            raise AnchorError(f"{_INITIALIZE}(...), and no return or definition around it")
        edits = [span(anchor, anchor, followed_by(_WARM_UP.format(size=size)))]
        pairs = zip(block, block[1:])
        return edits + [span(before, node, only_first) for before, node in pairs if _AS_WRITTEN in mentioned(node)]

    def names(self, function: Function) -> frozenset[str]:
        return frozenset({"torch", "mpu"})


def _place(block: Sequence[ast.stmt], call: ast.Call) -> tuple[Sequence[ast.stmt], ast.stmt]:
    """Return the arm of the ``if`` that has the call, and its statement after which megatron-core has its groups."""
    anchor = holder(block, call)
    assert anchor is not None
    arms = (anchor.body, anchor.orelse) if isinstance(anchor, ast.If) else ()
    inside = next((arm for arm in arms if holder(arm, call)), None)
    return (block, anchor) if inside is None else _place(inside, call)
