"""megatron-core and ms-swift: bootstrap the expert data-parallel communicators while GPU memory is still free.

https://github.com/modelscope/ms-swift/pull/9486 (it warms up a group that ms-swift never creates)
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator

from unhang.codemods.base import (
    AnchorError,
    Codemod,
    check_plain,
    digests,
    expression,
    followed_by,
    leaving,
    matches,
    mentioned,
    once,
    only_first,
    refuse_own,
    span,
    wanted,
)
from unhang.codemods.edit import Edit
from unhang.shapes.shape import Function, digest

# The backend may be composite ("cpu:gloo,cuda:nccl"); get_backend then returns the whole string, also for sub-groups.
# The groups are looked up by name, so that the same code works in a release that lacks one.
_MEGATRON_CORE = """
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

_MS_SWIFT = """
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

_SIZE = "expert_model_parallel_size"
_MEMORY_BUFFER = "_set_global_memory_buffer()"
_INITIALIZE = "mpu.initialize_model_parallel"
_INITIALIZED = "mpu.model_parallel_is_initialized()"
_OURS = frozenset({"warmed_up_groups", "warmup_group"})
_GROUPS = frozenset(re.findall(r"'(_\w+_GROUP)'", _MEGATRON_CORE))
# The names that another warm-up would use.
_WARMING = frozenset(
    {
        *("get_expert_data_parallel_group", "get_inter_distributed_optimizer_instance_group"),
        *("get_intra_distributed_optimizer_instance_group", "all_reduce", "barrier"),
    }
)
# The block of pull request 9486, at its head and at its first commit: it warms up nothing, and on megatron-core 0.13
# and 0.14 its argument raises TypeError.
_AS_WRITTEN = frozenset({"033b459bdc27b746"})


class MegatronCore(Codemod):
    """Warm up in megatron-core, directly after the groups are made: Megatron-LM, verl and ms-swift all run it."""

    def plan(self, function: Function) -> list[Edit]:
        refuse_own(function, _OURS)
        anchor = _memory_buffer(function)
        if _SIZE not in _arguments(function):
            raise AnchorError(f"the argument {_SIZE} of {function.name}")
        return [span(anchor, anchor, followed_by(_MEGATRON_CORE))]

    def check(self, function: Function) -> None:
        found = [node for node in ast.walk(function) if _is_call(node, "_set_global_memory_buffer")]
        if len(found) != 1:
            raise AnchorError(_MEMORY_BUFFER, len(found))
        if _occurrences(function):
            raise AnchorError("a function without a warm-up")
        _check_core(function, function.body[function.body.index(_memory_buffer(function)) + 1 :])

    def holds(self, function: Function) -> bool:
        body = function.body
        if _SIZE not in _arguments(function) or not _comes_after(body, _is_memory_buffer, _MEGATRON_CORE):
            return False
        place = next(index for index, node in enumerate(body) if _is_memory_buffer(node))
        try:
            _check_core(function, body[place + 2 :])
        except AnchorError:
            return False
        return _occurrences(function) == _occurrences(ast.parse(_MEGATRON_CORE))

    def names(self, function: Function) -> frozenset[str]:
        return frozenset({"torch", "_EXPERT_DATA_PARALLEL_GROUP"})


class MsSwift(Codemod):
    """Warm up in ms-swift 4, for environments where megatron-core itself cannot be rewritten."""

    def plan(self, function: Function) -> list[Edit]:
        refuse_own(function, _OURS)
        body = _initializing(function.body)
        anchor = once([node for node in body if _is_initializing_with(node)], f"with ...: {_INITIALIZE}(...)")
        edits = [span(anchor, anchor, followed_by(_MS_SWIFT))]
        for before, node in zip(body, body[1:]):
            if digest(node) in _AS_WRITTEN:
                edits.append(span(before, node, only_first))
        return edits

    def check(self, function: Function) -> None:
        if _occurrences(function):
            raise AnchorError("a function without a warm-up")
        _check_swift(function, _initializing(function.body))

    def holds(self, function: Function) -> bool:
        try:
            body = _initializing(function.body)
            _check_swift(function, body)
        except AnchorError:
            return False
        return (
            _comes_after(body, _is_initializing_with, _MS_SWIFT)
            and not _AS_WRITTEN & set(digests(body))
            and _occurrences(function) == _occurrences(ast.parse(_MS_SWIFT))
        )

    def names(self, function: Function) -> frozenset[str]:
        return frozenset({"torch", "mpu"})


def _check_core(function: Function, after: list[ast.stmt]) -> None:
    """Raise AnchorError unless every rank reaches the warm-up, after all groups are made, with the sizes unchanged."""
    check_plain(function, ("torch", "any", "globals", _SIZE, "_set_global_memory_buffer"))
    if leaving(*function.body):
        raise AnchorError(f"{function.name} without a return")
    for node in after:
        if not re.fullmatch(r"_set_\w+\(\)", expression(node)):
            raise AnchorError(f"only _set_...() calls after {_MEMORY_BUFFER}")
    assigned = _assigned(function)
    for name in sorted(_GROUPS & set(assigned)):
        sources = {value.id for value in assigned[name] if isinstance(value, ast.Name)} - _GROUPS
        made = [value for source in sources for value in assigned.get(source, [])]
        made += [value for value in assigned[name] if not isinstance(value, (ast.Name, ast.Subscript))]
        for value in made:
            if not (isinstance(value, ast.Call) and re.search("groups?$", expression(value.func))):
                raise AnchorError(f"{name} from a call, in place of line {value.lineno}")


def _assigned(function: Function) -> dict[str, list[ast.expr]]:
    """Return the values that a function assigns to each name, from assignments to a single name."""
    found: dict[str, list[ast.expr]] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            found.setdefault(node.targets[0].id, []).append(node.value)
    return found


def _check_swift(function: Function, body: list[ast.stmt]) -> None:
    """Raise AnchorError unless every rank that initialises megatron-core reaches the warm-up, with its names bound."""
    check_plain(function, ("args", "torch", "mpu", "any", "getattr"))
    if leaving(*function.body):
        raise AnchorError(f"{function.name} without a return")
    outer = [node for node in function.body if isinstance(node, ast.If) and expression(node.test) == _INITIALIZED]
    if body is not function.body and not any(body is node.orelse for node in outer):
        raise AnchorError(f"{_INITIALIZE}(...) on every rank")
    calls = [node for node in ast.walk(function) if isinstance(node, ast.Attribute) and expression(node) == _INITIALIZE]
    if len(calls) != 1:
        raise AnchorError(f"{_INITIALIZE}(...)", len(calls))
    others = [node for node in {*function.body, *body} if body is not getattr(node, "orelse", None)]
    others = [node for node in others if digest(node) not in {*_AS_WRITTEN, *wanted(_MS_SWIFT)}]
    for name in sorted(mentioned(*others) & _WARMING):
        raise AnchorError(f"{function.name} without {name}")
    for node in ast.walk(function):
        if isinstance(node, ast.Attribute) and node.attr == _SIZE and not isinstance(node.ctx, ast.Load):
            raise AnchorError(f"{function.name} that does not rebind {_SIZE}")


def _occurrences(tree: ast.AST) -> int:
    """Return how often the names that we add occur."""
    return sum(isinstance(node, ast.Name) and node.id in _OURS for node in ast.walk(tree))


def _comes_after(body: list[ast.stmt], is_anchor: Callable[[ast.stmt], bool], template: str) -> bool:
    """Return whether the template occurs once in this block, directly after its only anchor."""
    places = [index for index, node in enumerate(body) if is_anchor(node)]
    ours = wanted(template)
    return (
        len(places) == 1
        and digests(body[places[0] + 1 : places[0] + 1 + len(ours)]) == ours
        and digests(body).count(ours[0]) == 1
    )


def _initializing(body: list[ast.stmt]) -> list[ast.stmt]:
    """Return the block with the ``with`` that initialises megatron-core; raise AnchorError unless there is one."""
    found = [block for block in _blocks(body) if any(_is_initializing_with(node) for node in block)]
    if len(found) != 1:
        raise AnchorError(f"with ...: {_INITIALIZE}(...)", len(found))
    return found[0]


def _blocks(body: list[ast.stmt]) -> list[list[ast.stmt]]:
    nested = [getattr(node, field, []) for node in body for field in ("body", "orelse")]
    return [body, *(block for inner in nested if inner for block in _blocks(inner))]


def _is_initializing_with(node: ast.stmt) -> bool:
    """Return whether this is a ``with`` whose body is only the call."""
    return (
        isinstance(node, ast.With)
        and len(node.body) == 1
        and isinstance(call := getattr(node.body[0], "value", None), ast.Call)
        and expression(call.func) == _INITIALIZE
    )


def _memory_buffer(function: Function) -> ast.stmt:
    """Return the only statement that comes after all groups are made."""
    return once([node for node in function.body if _is_memory_buffer(node)], _MEMORY_BUFFER)


def _is_memory_buffer(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and matches([node], _MEMORY_BUFFER)


def _is_call(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name


def _arguments(function: Function) -> set[str]:
    arguments = function.args
    return {argument.arg for argument in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]}


# What the rewrites recognise, and what serves no accelerator.
_RECOGNISED = frozenset({"nccl", "hccl", "mccl"})
_WITHOUT_DEVICE = frozenset({"gloo", "mpi", "fake"})
_START = "init_process_group"


def notes(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the line of each start of torch.distributed after which the rewrite does nothing, and why."""
    starts = _names_of_start(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and expression(node.func) in starts and (why := _why_nothing(node)):
            yield node.lineno, why


def _names_of_start(tree: ast.Module) -> set[str]:
    """Return what a file calls torch's ``init_process_group``: ms-swift has its own, which chooses a backend."""
    found = {f"torch.distributed.{_START}"}
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            module = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            for alias in node.names:
                if module + alias.name == f"torch.distributed.{_START}":
                    found.add(alias.asname or alias.name)
                elif module + alias.name == "torch.distributed":
                    found.add(f"{alias.asname or alias.name}.{_START}")
    return found


def _why_nothing(call: ast.Call) -> str:
    """Return why the rewrite does nothing after this call; an empty string if it may do something."""
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    if None in given or any(isinstance(argument, ast.Starred) for argument in call.args):
        return ""
    backend = call.args[0] if call.args else given.get("backend", ast.Constant(None))
    if not isinstance(backend, ast.Constant):
        return ""
    if isinstance(backend.value, str):
        parts = {part.split(":")[-1] for part in backend.value.lower().split(",")}
        if parts & _RECOGNISED or parts <= _WITHOUT_DEVICE:
            return ""
        return f"starts torch.distributed with backend {backend.value!r}, with which this fix does nothing"
    if "device_id" in given:  # torch chooses the backend from it
        return ""
    return "starts torch.distributed without a backend, and then this fix does nothing"


CODEMODS = {"initialize_model_parallel": MegatronCore(), "_initialize_mpu": MsSwift()}
