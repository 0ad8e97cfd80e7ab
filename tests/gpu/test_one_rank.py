"""The block of the warm-up and its mutants, on a device that is not there: torch's functions for it are stand-ins."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest

from gpu import blocks, one_rank
from gpu.one_rank import Device
from proofs import suite
from support.jobs import needs_torch
from unhang.prove.ranks import gloo, shims

BACKENDS = (blocks.NCCL, blocks.COMPOSITE, "gloo", "undefined")


@cache
def on_each_backend() -> Mapping[str, list[dict[str, Any]]]:
    """Return the answers on groups that pose as each of these backends."""
    root = str(suite.unpacked("megatron-core", blocks.RELEASES["megatron-core"]))
    question = {"blocks": {one.name: (one.upstream, one.code) for one in blocks.blocks()}}

    def body(_: int) -> Mapping[str, list[dict[str, Any]]]:
        warnings.simplefilter("ignore")  # upstream's own
        sys.path.insert(0, root)
        shims.cuda_on_cpu()
        return {backend: list(one_rank.answers(question, fake(backend))) for backend in BACKENDS}

    world = gloo.run(1, body, deadline_s=60)
    assert world.status == "passed", world.text()
    found: Mapping[str, list[dict[str, Any]]] = world.ranks[0].value
    return found


@needs_torch
@pytest.mark.parametrize("backend", BACKENDS)
def test_each_block_passes_and_each_mutant_fails(backend: str) -> None:
    every = blocks.blocks()
    first, *rest = on_each_backend()[backend]
    assert first == {"backend": backend, "of a group": backend, "taken": [1, 1, 1]}
    found: Mapping[str, Mapping[str, Any]] = {one["block"]: one for one in rest}
    assert len(found) == len(every) == 18
    for one in every:
        seen = found[one.name]
        if backend not in (blocks.NCCL, blocks.COMPOSITE):
            assert (seen["collectives"], seen["wrong"][:13]) == (0, "no collective"), one.name
        elif backend in one.fails_on:
            assert seen["wrong"], one.name
        elif not one.mutant:
            assert (seen["wrong"], seen["collectives"], seen["taken"]) == ("", 2, 1), one.name
    if backend == blocks.NCCL:
        faults = {seen["wrong"] for seen in found.values()}
        assert faults > {"a tensor on meta, not on cpu", "the device is still at work when it ends", ""}


def fake(backend: str) -> Device:
    """Return a device whose groups pose as this backend, and which loses a byte each time that it is asked."""
    import torch
    import torch.distributed as dist

    left, at_work = [1000], [False]

    def free() -> int:
        left[0] -= 1
        return left[0]

    def work(is_at_work: bool = True) -> None:
        at_work[0] = is_at_work

    item = torch.Tensor.item

    def waiting_item(tensor: Any) -> Any:
        work(False)
        return item(tensor)

    vars(torch.cuda)["synchronize"] = lambda: work(False)
    torch.Tensor.item = waiting_item
    dist.get_backend = lambda *_: backend
    dist.all_reduce = lambda *_, **__: None
    work(False)
    return Device("cpu", "meta", free, work, lambda: not at_work[0])
