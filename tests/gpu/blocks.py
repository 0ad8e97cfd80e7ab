"""The warm-up's own block of code, cut out of the rewritten functions, and mutants of it that must fail."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import NamedTuple

from support import sources
from unhang.codemods.base import mentioned

FIX = "expert-dp-warmup"
NCCL, COMPOSITE = "nccl", "cpu:gloo,cuda:nccl"
RELEASES = {"megatron-core": "0.16.1", "ms-swift": "4.6.0"}
"""The releases whose rewrites are run. The groups are always those of this megatron-core."""
_BOTH = (NCCL, COMPOSITE)
Mutants = Mapping[str, tuple[tuple[str, ...], tuple[tuple[str, str], ...]]]
# Name: the backends on which the mutant must fail, and what it replaces. `other_device` is not the job's device.
_OF_BOTH: Mutants = {
    "composite backends unknown": ((COMPOSITE,), (("backend.split(':')[-1] in", "backend in"),)),
    "the first part of the backend alone": ((COMPOSITE,), ((".split(',')", ".split(',')[:1]"),)),
    "no collective": (_BOTH, (("torch.distributed.all_reduce(", "str("), (", group=warmup_group", ""))),
    "another group of the same rank": (_BOTH, (("group=warmup_group", "group=None"),)),
    "the first group alone": (_BOTH, (("append(warmup_group)", "append(warmup_group)\n        break"),)),
}
_ADD, _FOR = "torch.distributed.all_reduce", "for "
_MUTANTS: Mapping[str, Mutants] = {
    "megatron-core": {
        **_OF_BOTH,
        "another device": (_BOTH, (("torch.cuda.current_device()", "other_device"),)),
        "no synchronisation": (_BOTH, (("torch.cuda.synchronize()", "pass"),)),
        "synchronised too early": (
            _BOTH,
            (("torch.cuda.synchronize()", "pass"), (_ADD, f"torch.cuda.synchronize()\n        {_ADD}")),
        ),
    },
    "ms-swift": {
        **_OF_BOTH,
        "another device": (_BOTH, (("device=get_current_device()", "device=other_device"),)),
        "no synchronisation": (_BOTH, (("warmup_tensor.item()", "pass"),)),
        "synchronised too early": (
            _BOTH,
            (("warmup_tensor.item()", "pass"), (_ADD, f"warmup_tensor.item()\n        {_ADD}")),
        ),
    },
}


class Block(NamedTuple):
    """The block of one upstream's rewrite, or a mutant of it."""

    upstream: str
    mutant: str
    """Its name; empty for the block itself."""
    code: str
    fails_on: tuple[str, ...]
    """The backends on which it must fail. On the others it may do either."""

    @property
    def name(self) -> str:
        return f"{self.upstream} {RELEASES[self.upstream]}{self.mutant and ', mutant: '}{self.mutant}"


def blocks() -> list[Block]:
    """Return the block of each upstream, followed by its mutants. Raises WheelError where a wheel is missing."""
    found = []
    for upstream in RELEASES:
        code = block(upstream)
        found.append(Block(upstream, "", code, ()))
        for name, (fails_on, subs) in _MUTANTS[upstream].items():
            found.append(Block(upstream, name, _replaced(code, subs), fails_on))
    return found


def block(upstream: str) -> str:
    """Return the statement that the rewrite adds."""
    function = sources.wheel(FIX, RELEASES[upstream], upstream).rewritten.function
    (found,) = (
        node
        for node in ast.walk(function)
        if isinstance(node, ast.If)
        and "expert_model_parallel_size" in mentioned(node.test)
        and "warmed_up_groups" in mentioned(node)
    )
    return ast.unparse(found)


def _replaced(code: str, subs: tuple[tuple[str, str], ...]) -> str:
    for old, new in subs:
        assert code.count(old) == 1, f"{old!r} is {code.count(old)} times in:\n{code}"
        code = code.replace(old, new)
    return code
