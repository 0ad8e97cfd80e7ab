"""Which starts of torch.distributed leave the warm-up nothing to do: the backend is not one that it recognises."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from unhang.codemods.base import expression

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
