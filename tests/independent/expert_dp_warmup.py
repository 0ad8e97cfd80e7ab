"""Which groups every rank of a small world makes, and on which of them it runs a collective before training."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from functools import lru_cache, partial
from hashlib import sha256
from typing import Any, NamedTuple

from independent.interpreter import BeyondError, Function, Model, Names, Walk
from independent.tensors import GPU, Tensor, torch

GROUPS = (
    "_EXPERT_DATA_PARALLEL_GROUP",
    "_INTER_PARTIAL_EXPERT_DATA_PARALLEL_GROUP",
    "_INTRA_PARTIAL_EXPERT_DATA_PARALLEL_GROUP",
    "_INTRA_DISTRIBUTED_OPTIMIZER_INSTANCE_GROUP",
)
ACCESSORS = {
    "get_expert_data_parallel_group": GROUPS[0],
    "get_inter_distributed_optimizer_instance_group": GROUPS[1],
    "get_intra_distributed_optimizer_instance_group": GROUPS[3],
}
SERVED = ("nccl", "hccl", "mccl")


class Group(Model):
    """A process group. ``number`` counts those that a rank has made."""

    def __init__(self, number: int, ranks: tuple[int, ...], backend: str) -> None:
        self.number, self.ranks, self.backend = number, ranks, backend

    def size(self) -> int:
        return len(self.ranks)


class Setting(NamedTuple):
    """A job: how many ranks, which sizes, which backend."""

    world: int
    expert: int
    instances: int = 1
    """Of the distributed optimizer."""
    backend: str = "nccl"
    asserts: bool = False
    """Whether the accessor of a group that does not exist asserts."""
    ready: bool = False
    """Whether somebody has made the groups already."""

    @property
    def served(self) -> bool:
        """Whether the groups of this job are to be warm."""
        parts = [part.split(":")[-1] for part in self.backend.split(",")]
        return self.expert > 1 and any(part in SERVED for part in parts) and not self.ready


class Rank(NamedTuple):
    """``events``: what the rank did, in order: ("new", ...), ("all_reduce", ...), ("synchronize",)."""

    events: list[tuple[Any, ...]]
    groups: list[Group]
    """The groups that are to be warm, if the backend is served."""
    error: str


JOBS = [
    Setting(4, 2),
    Setting(8, 2, instances=2),
    Setting(4, 4),
    Setting(4, 2, backend="cpu:gloo,cuda:nccl"),
    Setting(4, 2, backend="cpu:gloo,npu:hccl"),
    Setting(4, 2, backend="gloo"),
    Setting(4, 2, backend="undefined"),
    Setting(4, 1),
]
SETTINGS = {
    "initialize_model_parallel": JOBS,
    "_initialize_mpu": [
        *(job._replace(asserts=asserts) for job in JOBS for asserts in (False, True)),
        Setting(4, 2, ready=True),
    ],
}


def state(data: bytes, function: str) -> str:
    """Say whether an expert group of more than one rank has met no collective when training starts."""
    cold, groups = False, 0
    for setting in _settings(data, function):
        if setting.served and setting.backend == "nccl":
            for rank in _ranks(data, function, setting):
                if rank.error and "TypeError" not in rank.error:
                    return f"unclear: {setting}: {rank.error}"
                groups += len(rank.groups)
                warm = {event[1] for event in rank.events if event[0] not in ("new", "synchronize")}
                cold |= any(group.number not in warm for group in rank.groups)
    return "affected" if cold else "fixed" if groups else "not-affected"


def wrong(before: bytes, after: bytes, function: str) -> Iterator[str]:
    """Yield what is wrong with a rewrite."""
    for setting in _settings(before, function):
        ranks = _ranks(after, function, setting)
        for number, rank in enumerate(ranks):
            yield from (f"{setting}, rank {number}: {line}" for line in _wrong(setting, rank))
        if setting.served and setting.backend == "nccl":
            untouched = _ranks(before, function, setting)
            if list(map(_made, ranks)) != list(map(_made, untouched)):
                yield f"{setting}: it makes other groups than before"
        waiting = _waiting([[event for event in rank.events if event[0] != "synchronize"] for rank in ranks])
        if waiting:
            yield f"{setting}: {waiting}"


def _made(rank: Rank) -> list[tuple[Any, ...]]:
    return [event for event in rank.events if event[0] == "new"]


def _wrong(setting: Setting, now: Rank) -> Iterator[str]:
    if now.error:
        yield now.error
    made = _made(now)
    done = now.events[len(made) :]
    if now.events[: len(made)] != made:
        yield "it warms a group up before all groups are made"
    expected = sorted(group.number for group in now.groups) if setting.served else []
    if sorted(event[1] for event in done if event[0] != "synchronize") != expected:
        yield f"it warms up {done}, not {expected}"
    if any(event[0] != "synchronize" and event[0::2] != ("all_reduce", (1, GPU)) for event in done):
        yield f"{done} are not all-reduces of one element on the device"
    if expected and done and done[-1] != ("synchronize",):
        yield "it does not synchronize the device"


def _waiting(events: list[list[tuple[Any, ...]]]) -> str:
    """Let all ranks run until they are done; say who waits for ever."""
    while any(events):
        for rank, mine in enumerate(events):
            if not mine:
                continue
            members = range(len(events)) if mine[0][0] == "new" else mine[0][-1]
            if all(events[other][:1] == mine[:1] for other in members) and rank in members:
                for other in members:
                    events[other].pop(0)
                break
        else:
            return f"the ranks wait in {[mine[0] if mine else 'the end' for mine in events]}"
    return ""


def _settings(data: bytes, function: str) -> list[Setting]:
    """Return the settings that exist where this function does."""
    several = "num_distributed_optimizer_instances" in Walk(data, {}).function(function).parameters
    jobs = SETTINGS[function]
    return [job for job in jobs if several or function == "_initialize_mpu" or job.instances == 1]


@lru_cache(maxsize=16)
def _ranks(data: bytes, function: str, setting: Setting) -> list[Rank]:
    run = _core if function == "initialize_model_parallel" else _swift
    return [run(data, function, setting, rank) for rank in range(setting.world)]


class _Collectives(Names):
    """torch.distributed. A collective that is not in it would go unseen."""

    def attribute(self, name: str) -> Any:
        if name not in self.attributes and not name[0].isupper():
            raise BeyondError(f"torch.distributed.{name}")
        return super().attribute(name)


def _torch(setting: Setting, rank: int, events: list[tuple[Any, ...]], made: list[Group]) -> Names:
    def new_group(ranks: Any = None, timeout: Any = None, backend: str | None = None, **_: object) -> Any:
        group = Group(len(made), tuple(ranks), backend or setting.backend)
        made.append(group)
        events.append(("new", group.ranks, group.backend))
        return group if rank in ranks else "not a member"

    def collective(name: str) -> Callable[..., Any]:
        def run(tensor: Any = None, *, group: Any, **_: object) -> None:
            if rank not in group.ranks:
                raise RuntimeError(f"{name} of rank {rank} in {group.ranks}")
            what = (tensor.numel(), tensor.device) if isinstance(tensor, Tensor) else ()
            events.append((name, group.number, what, group.ranks))
            if isinstance(tensor, Tensor):
                tensor.item = lambda: events.append(("synchronize",))  # type: ignore[method-assign]

        return run

    def world_size(group: Any = None) -> int:
        return setting.world if group is None else group.size()

    distributed = _Collectives(
        {
            "is_initialized": lambda: True,
            "is_available": lambda: True,
            "get_rank": lambda: rank,
            "get_world_size": world_size,
            "get_backend": lambda group=None: setting.backend if group is None else group.backend,
            "new_group": new_group,
            **{name: collective(name) for name in ("all_reduce", "barrier")},
        }
    )
    return torch(distributed, lambda: events.append(("synchronize",)))


_PURE = {"generate_masked_orthogonal_rank_groups", "get_nccl_options"}
"""Functions of the file that give every rank the same; they take half of the time."""
_ANSWERS: dict[tuple[str, ...], Any] = {}


def _remembered(data: bytes, walk: Walk, name: str, *args: Any, **kwargs: Any) -> Any:
    key = (sha256(data).hexdigest(), name, repr((args, kwargs)))
    if key not in _ANSWERS:
        node = walk.definitions[name]
        _ANSWERS[key] = Function(node, walk.module)(*args, **kwargs)
    return deepcopy(_ANSWERS[key])


class _Array(Model):
    def __init__(self, rows: list[list[int]]) -> None:
        self._rows = rows

    def tolist(self) -> list[list[int]]:
        return self._rows


def _rearrange(ranks: list[int], pattern: str, u: int, s: int, l: int) -> _Array:  # noqa: E741  einops' own names
    if pattern != "(l s u) -> (l u) s":
        raise BeyondError(pattern)
    return _Array(
        [[ranks[(outer * s + it) * u + inner] for it in range(s)] for outer in range(l) for inner in range(u)]
    )


def _core(data: bytes, function: str, setting: Setting, rank: int) -> Rank:
    events: list[tuple[Any, ...]] = []
    walk = Walk(
        data,
        {
            "torch": _torch(setting, rank, events, []),
            "partial": partial,
            "cycle": itertools.cycle,
            "np": Names({"array": list, "prod": math.prod}),
            "einops": Names({"rearrange": _rearrange}),
            "is_torch_min_version": lambda _: True,
        },
    )
    names = {
        "expert_model_parallel_size": setting.expert,
        "num_distributed_optimizer_instances": setting.instances,
    }
    for name in _PURE & walk.definitions.keys():
        walk.module.values[name] = partial(_remembered, data, walk, name)
    made = walk.function(function)
    error = _error(made, {name: size for name, size in names.items() if name in made.parameters})
    values = (walk.module.values.get(name) for name in GROUPS)
    return Rank(events, _distinct(group for group in values if isinstance(group, Group)), error)


def _swift(data: bytes, function: str, setting: Setting, rank: int) -> Rank:
    """Give the accessors of megatron-core groups like those that it makes for these sizes."""
    events: list[tuple[Any, ...]] = []
    expert, instances = setting.expert, setting.instances
    everyone = range(setting.world)
    data_parallel = tuple(it for it in everyone if it % expert == rank % expert)
    part = len(data_parallel) // instances
    place = data_parallel.index(rank)
    ranks = {
        GROUPS[0]: data_parallel,
        GROUPS[1]: data_parallel[place % part :: part] if instances > 1 else None,
        GROUPS[3]: tuple(everyone[place // part * part * expert :][: part * expert]),
    }
    groups = {name: Group(number, it, setting.backend) for number, (name, it) in enumerate(ranks.items()) if it}

    def accessor(name: str) -> Callable[..., Any]:
        def run(check_initialized: bool = True) -> Any:
            if name not in groups and setting.asserts and check_initialized:
                raise AssertionError(name)
            return groups.get(name)

        return run

    accessors = {name: accessor(it) for name, it in ACCESSORS.items() if it in groups or setting.asserts}
    mpu = {
        "model_parallel_is_initialized": lambda: setting.ready,
        "initialize_model_parallel": lambda *_, **__: None,
        **accessors,
    }
    walk = Walk(
        data,
        {
            "torch": _torch(setting, rank, events, []),
            "mpu": Names(mpu, closed=True),
            "get_current_device": lambda: GPU,
            "init_process_group": lambda *_: None,
        },
    )
    arguments = Names({"ddp_timeout": 600, "expert_model_parallel_size": expert})
    return Rank(events, _distinct(groups.values()), _error(walk.function(function), {"args": arguments}))


def _distinct(groups: Any) -> list[Group]:
    return [*{group.number: group for group in groups if group.size() > 1}.values()]


def _error(function: Function, given: Mapping[str, Any]) -> str:
    try:
        function(**given)
    except BeyondError:
        raise
    except Exception as problem:
        return repr(problem)
    return ""
