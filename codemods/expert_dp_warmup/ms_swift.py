"""ms-swift 4: warm up here too, for environments where megatron-core itself cannot be rewritten."""

from __future__ import annotations

import ast

from unhang.codemods.base import Codemod, expression, followed_by, mentioned, once, only_first, refuse_own, span
from unhang.codemods.edit import Edit
from unhang.shapes.shape import Function

_WARM_UP = """
# unhang expert-dp-warmup: make these communicators now, not when GPU memory is nearly full
if args.expert_model_parallel_size > 1:
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
                    mpu.initialize_model_parallel(args.sizes)
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
                    mpu.initialize_model_parallel(args.sizes)

                # unhang expert-dp-warmup: make these communicators now, not when GPU memory is nearly full
                if args.expert_model_parallel_size > 1:
                    ...
                log('done')
    """

    def plan(self, function: Function) -> list[Edit]:
        refuse_own(function, {"warmed_up_groups"})
        blocks = [node.orelse for node in function.body if isinstance(node, ast.If)]
        anchor = once(
            [node for block in blocks for node in block if _initializes(node)], f"else: with ...: {_INITIALIZE}(...)"
        )
        edits = [span(anchor, anchor, followed_by(_WARM_UP))]
        for block in blocks:
            pairs = zip(block, block[1:])
            edits += [span(before, node, only_first) for before, node in pairs if _AS_WRITTEN in mentioned(node)]
        return edits

    def names(self, function: Function) -> frozenset[str]:
        return frozenset({"torch", "mpu"})


def _initializes(node: ast.stmt) -> bool:
    """Return whether this is a ``with`` whose body is only the call."""
    return (
        isinstance(node, ast.With)
        and len(node.body) == 1
        and isinstance(call := getattr(node.body[0], "value", None), ast.Call)
        and expression(call.func) == _INITIALIZE
    )
