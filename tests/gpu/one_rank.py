"""One rank on a GPU: what ``get_backend`` returns, what a communicator takes, and what the warm-up's block does.

``python -m gpu.one_rank`` reads a question from stdin, as JSON: ``backend`` (null for none), ``with_device_id``,
``path`` (where megatron-core is), and ``blocks``, which maps a name to an upstream and its code. Each answer is a line
of JSON on stdout.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

from unhang.prove.cases import Topology
from unhang.prove.ranks import megatron

_SLEEP = 1_000_000_000  # cycles: half a second
_ACCESSORS = tuple(
    f"get_{name}_group"
    for name in ("expert_data_parallel", "inter_distributed_optimizer_instance", "intra_distributed_optimizer_instance")
)


class Device(NamedTuple):
    """What is needed of a device."""

    name: str
    other: str
    """A device that is not this one."""
    free: Callable[[], int]
    """Returns the bytes that are free on it."""
    work: Callable[[], None]
    """Gives it some work, and does not wait."""
    is_idle: Callable[[], bool]


class Collective(NamedTuple):
    """An all-reduce that a block issued."""

    group: Any
    device: str


def cuda() -> Device:
    import torch

    torch.zeros(1, device="cuda")  # its context and torch's own buffer take no memory later
    return Device(
        f"cuda:{torch.cuda.current_device()}",
        "cpu",
        lambda: int(torch.cuda.mem_get_info()[0]),
        lambda: torch.cuda._sleep(_SLEEP),
        lambda: bool(torch.cuda.current_stream().query()),
    )


def communicator(device: Device) -> dict[str, Any]:
    """Return the backends that torch tells, and the bytes that a new group and its first two collectives take."""
    import torch
    import torch.distributed as dist

    tensor, free = torch.zeros(1, device=device.name), [device.free()]
    group = dist.new_group([0])
    free.append(device.free())
    for _ in range(2):
        dist.all_reduce(tensor, group=group)
        if device.name != "cpu":
            torch.cuda.synchronize()
        free.append(device.free())
    taken = [before - after for before, after in zip(free, free[1:])]
    return {"backend": dist.get_backend(), "of a group": dist.get_backend(group), "taken": taken}


def answers(question: Mapping[str, Any], device: Device) -> Iterator[dict[str, Any]]:
    """Yield what a communicator takes, and for each block what is wrong with it, how many collectives it issued, and
    how many bytes the first ones of an upstream took. The process must have its default group."""
    from megatron.core import parallel_state

    yield communicator(device)
    last = ""
    for name, (upstream, code) in question["blocks"].items():
        if upstream != last:
            parallel_state.destroy_model_parallel()
            megatron.initialize(Topology())
        last = upstream
        yield {"block": name, **judged(upstream, code, device)}


def judged(upstream: str, code: str, device: Device) -> dict[str, Any]:
    """Run a block on Megatron's groups; return what ``answers`` says of it.

    The groups have one rank, but pose as larger ones while the block runs.
    """
    import torch.distributed as dist
    from megatron.core import parallel_state

    issued: list[Collective] = []
    free, error, all_reduce = device.free(), "", dist.all_reduce

    def noted(tensor: Any, *args: Any, group: Any = None, **options: Any) -> Any:
        done = all_reduce(tensor, *args, group=group, **options)
        issued.append(Collective(group, str(tensor.device)))
        device.work()  # so that a block that does not wait ends before it
        return done

    with patch.object(dist, "all_reduce", noted), patch.object(dist, "get_world_size", lambda *_: 2):
        try:
            exec(code, _names(upstream, device))
        except Exception as raised:
            error = f"{type(raised).__name__}: {str(raised).strip().splitlines()[0][:200]}"
    is_idle = device.is_idle()
    wrong = f"it raises {error}" if error else wrong_with(issued, _groups(parallel_state), is_idle, device.name)
    return {"wrong": wrong, "collectives": len(issued), "taken": free - device.free()}


def wrong_with(issued: Sequence[Collective], groups: Mapping[str, Any], is_idle: bool, device: str) -> str:
    """Return the first fault of a block that issued these collectives and should use these groups; empty if none."""
    for name, group in groups.items():
        if not any(one.group is group for one in issued):
            return f"no collective on the group of {name}"
    if not all(any(one.group is group for group in groups.values()) for one in issued):
        return "a collective on another group"
    elsewhere = [one.device for one in issued if one.device != device]
    if elsewhere:
        return f"a tensor on {elsewhere[0]}, not on {device}"
    return "" if is_idle else "the device is still at work when it ends"


def _groups(state: Any) -> dict[str, Any]:
    """Return the different groups that Megatron's accessors of these groups return."""
    found: dict[str, Any] = {}
    for name in _ACCESSORS:
        try:
            group = getattr(state, name)()
        except (AttributeError, AssertionError):  # as the release and its settings have it
            continue
        if not any(group is other for other in found.values()):
            found[name] = group
    return found


def _names(upstream: str, device: Device) -> dict[str, Any]:
    """Return the names that a block finds where it is in the upstream."""
    import torch
    from megatron.core import parallel_state

    names: dict[str, Any] = {"torch": torch, "other_device": device.other}
    if upstream == "megatron-core":
        return {**vars(parallel_state), **names, "expert_model_parallel_size": 2}
    swift, utils = ModuleType("swift"), ModuleType("swift.utils")
    vars(utils)["get_current_device"] = lambda: device.name
    sys.modules.update({"swift": swift, "swift.utils": utils})
    return {**names, "mpu": parallel_state, "args": SimpleNamespace(expert_model_parallel_size=2)}


def main() -> None:
    question = json.load(sys.stdin)
    sys.path.insert(0, question["path"])
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(0)
    device = cuda()
    with tempfile.TemporaryDirectory() as folder:
        options: dict[str, Any] = {"device_id": torch.device("cuda:0")} if question["with_device_id"] else {}
        store = dist.FileStore(os.path.join(folder, "store"), 1)
        dist.init_process_group(question["backend"], store=store, rank=0, world_size=1, **options)
        for answer in answers(question, device):
            torch.cuda.synchronize()
            print(json.dumps(answer), flush=True)
    os._exit(0)  # the end of a communicator may wait


if __name__ == "__main__":
    main()
