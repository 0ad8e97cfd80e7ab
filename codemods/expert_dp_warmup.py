"""megatron-core and ms-swift: bootstrap the expert data-parallel communicators while GPU memory is still free.

https://github.com/modelscope/ms-swift/pull/9486 (it warms up a group that ms-swift never creates)
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from unhang.codemods.base import (
    AnchorError,
    Codemod,
    argument,
    calls,
    expression,
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

# The configuration names what serves each device ("cpu:gloo,cuda:nccl"), also where no backend was given, and
# get_backend says "undefined". It names NCCL on a machine without a GPU too, if torch is built for GPUs.
# The groups are looked up by name, so that the same code works in a release that lacks one.
_IN_MEGATRON = """
# unhang expert-dp-warmup: make these communicators now, not when GPU memory is nearly full
if expert_model_parallel_size > 1 and torch.cuda.is_available():
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
        backends = torch.distributed.get_backend_config(warmup_group).split(',')
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
# For environments where megatron-core itself cannot be rewritten.
_IN_SWIFT = """
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
        backends = torch.distributed.get_backend_config(warmup_group).split(',')
        if torch.distributed.get_world_size(warmup_group) == 1 or not any(
                backend.split(':')[-1] in ('nccl', 'hccl', 'mccl') for backend in backends):
            continue
        warmup_tensor = torch.zeros(1, device=get_current_device())
        torch.distributed.all_reduce(warmup_tensor, group=warmup_group)
        warmup_tensor.item()  # waits for the device, whichever it is
        warmed_up_groups.append(warmup_group)
"""
_SIZE, _START = "expert_model_parallel_size", "init_process_group"
_LAST, _MAKES = "_set_global_memory_buffer", "mpu.initialize_model_parallel"
_RECOGNISED, _WITHOUT_DEVICE = frozenset({"nccl", "hccl", "mccl"}), frozenset({"gloo", "mpi", "fake"})


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
        if _SIZE not in [it.arg for it in function.args.args]:
            raise AnchorError(f"the argument {_SIZE} of {function.name}")
        anchor = holder(function.body, once(calls(function, _LAST), f"{_LAST}()"))
        assert anchor is not None
        return [_warm_up(anchor, _IN_MEGATRON, f"{_LAST}()")]

    def names(self, function: Function) -> frozenset[str]:
        return frozenset({"torch", "_EXPERT_DATA_PARALLEL_GROUP"})


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
        call = once(calls(function, _MAKES), f"{_MAKES}(...)")
        size = operand(argument(call, _SIZE), f"{_MAKES}({_SIZE}=...)")
        block, anchor = _place(function.body, call)
        edits = [_warm_up(anchor, _IN_SWIFT.format(size=size), f"{_MAKES}(...)")]
        # the one group that the pull request warms up is the value of this name, and ms-swift never makes it
        pairs = [two for two in zip(block, block[1:]) if "inter_ep_dp_group" in mentioned(two[1])]
        return edits + [span(before, node, only_first) for before, node in pairs]

    def names(self, function: Function) -> frozenset[str]:
        return frozenset({"torch", "mpu"})


CODEMODS = {"initialize_model_parallel": InitializeModelParallel(), "_initialize_mpu": InitializeMpu()}


def _warm_up(anchor: ast.stmt, text: str, call: str) -> Edit:
    if not passes(anchor):
        raise AnchorError(f"{call}, and no return or definition around it")
    return span(anchor, anchor, followed_by(text))


def _place(block: Sequence[ast.stmt], call: ast.Call) -> tuple[Sequence[ast.stmt], ast.stmt]:
    """Return the arm of the ``if`` that has the call, and its statement after which megatron-core has its groups."""
    anchor = holder(block, call)
    assert anchor is not None
    arms = (anchor.body, anchor.orelse) if isinstance(anchor, ast.If) else ()
    inside = next((arm for arm in arms if holder(arm, call)), None)
    return (block, anchor) if inside is None else _place(inside, call)


def notes(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the line of each start of torch.distributed after which the rewrite does nothing, and why."""
    starts = {f"torch.distributed.{_START}"}  # ms-swift has a function of this name of its own
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            module = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            names = {module + alias.name: alias.asname or alias.name for alias in node.names}
            starts |= {names[it] for it in names if it == f"torch.distributed.{_START}"}
            starts |= {f"{names[it]}.{_START}" for it in names if it == "torch.distributed"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and expression(node.func) in starts and (why := _why_nothing(node)):
            yield node.lineno, why


def _why_nothing(call: ast.Call) -> str:
    """Return why the rewrite does nothing after this call; an empty string if it may do something."""
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    backend = call.args[0] if call.args else given.get("backend")
    if not (isinstance(backend, ast.Constant) and isinstance(backend.value, str)):
        return ""
    parts = {part.split(":")[-1] for part in backend.value.lower().split(",")}
    if parts & _RECOGNISED or parts <= _WITHOUT_DEVICE:
        return ""
    return f"starts torch.distributed with backend {backend.value!r}, with which this fix does nothing"
