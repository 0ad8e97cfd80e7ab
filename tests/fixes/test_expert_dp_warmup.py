"""expert-dp-warmup: run the real initialisation for every rank of a job, and record which groups it warms up."""

from __future__ import annotations

import ast
import functools
import logging
import math
import os
import re
import sys
import warnings
from collections.abc import Mapping
from contextlib import nullcontext
from datetime import timedelta
from functools import partial
from itertools import cycle
from types import CodeType, SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest

from fixes.expert_dp_warmup.mutants import MUTANTS as MUTANTS
from fixes.expert_dp_warmup.proofs import PROOFS as PROOFS
from fuzz.subject import Fuzz
from support import sources, wheels
from support.rewrites import EveryRewrite, is_no_rewrite
from support.sources import Source
from unhang.codemods import expert_dp_warmup
from unhang.codemods.base import AnchorError
from unhang.judge.decide import codemod
from unhang.shapes import catalog

FIX = "expert-dp-warmup"
RELEASES = (
    *("0.10.0", "0.12.0", "0.12.3", "0.13.1", "0.14.0", "0.15.3", "0.16.1", "0.17.0", "0.17.1", "0.18.2", "0.19.2"),
    *("0.16.0rc0.dev100093", "0.16.0rc0.dev132550"),
)
CASES = sources.cases(FIX, {"megatron-core": RELEASES, "ms-swift": ["4.0.0", "4.2.3", "4.6.0"]})
CORE = [case for case in CASES if case.values[0].target.upstream == "megatron-core"]
SWIFT = [case for case in CASES if case.values[0].target.upstream == "ms-swift"]
CORE_WHEELS = [case for case in CORE if case.values[0].kind == "wheel"]
SERVED = ("nccl", "hccl", "mccl", "cpu:gloo,cuda:nccl", "cpu:gloo,npu:hccl", "cpu:gloo,musa:mccl")
NOT_SERVED = ("gloo", "fake", "cpu:gloo", "mpi")
# The warm-up takes them in this order.
GROUPS = (
    "_EXPERT_DATA_PARALLEL_GROUP",
    "_INTER_PARTIAL_EXPERT_DATA_PARALLEL_GROUP",
    "_INTRA_PARTIAL_EXPERT_DATA_PARALLEL_GROUP",
    "_INTRA_DISTRIBUTED_OPTIMIZER_INSTANCE_GROUP",
)
ACCESSORS = (
    "get_expert_data_parallel_group",
    "get_inter_distributed_optimizer_instance_group",
    "get_intra_distributed_optimizer_instance_group",
)
FOCUS = r"_set_global_memory|expert|EXPERT|warm|initialize_model_parallel|mpu\b|_OPTIMIZER_INSTANCE"
FUZZ = Fuzz(CASES, 4, FOCUS, examples=30, every=7)


class Group:
    """A process group: its ranks, and the backend string it was made with."""

    def __init__(self, ranks: list[int], backend: str) -> None:
        self.ranks, self.backend = tuple(ranks), backend

    def size(self) -> int:
        return len(self.ranks)

    def __repr__(self) -> str:
        return f"{self.backend}{list(self.ranks)}"


class Torch:
    """The part of torch that the initialisation uses; it records what happens to groups and to the device."""

    def __init__(self, world: int = 8, rank: int = 0, backend: str = "nccl") -> None:
        self.world = Group(list(range(world)), backend)
        self.rank, self.backend = rank, backend
        self.done: list[Any] = []
        self.cuda = SimpleNamespace(
            current_device=lambda: 3, synchronize=lambda: self.done.append("synchronize"), device_count=lambda: 8
        )
        self.distributed = SimpleNamespace(
            is_initialized=lambda: True,
            get_rank=lambda group=None: rank,
            get_world_size=lambda group=None: (group or self.world).size(),
            get_backend=lambda group=None: (group or self.world).backend,
            new_group=self.new_group,
            barrier=lambda *_, **__: self.done.append("barrier"),
            all_reduce=self.all_reduce,
            ProcessGroup=Group,
        )

    def new_group(self, ranks: Any = None, backend: str | None = None, **_: object) -> Group:
        return Group(list(self.world.ranks if ranks is None else ranks), backend or self.backend)

    def zeros(self, size: int, device: object) -> SimpleNamespace:
        return SimpleNamespace(size=size, device=device, item=lambda: self.done.append("item"))

    def all_reduce(self, tensor: SimpleNamespace, group: Group) -> None:
        assert tensor.size == 1
        self.done.append((group, tensor.device))

    def warmed(self) -> list[Group]:
        return [item[0] for item in self.done if isinstance(item, tuple)]


class Job(NamedTuple):
    """The sizes that a job on eight ranks initialises with."""

    tp: int = 1
    pp: int = 1
    ep: int = 2
    instances: int = 1
    backend: str = "nccl"


JOBS = [Job(), Job(tp=2), Job(pp=2), Job(ep=4), Job(tp=2, pp=2, ep=2), Job(instances=2), Job(pp=2, ep=2, instances=2)]


@functools.cache
def definitions(data: bytes) -> CodeType:
    """Compile what parallel_state.py defines, without its imports: its functions, its class, its globals."""
    kept: list[ast.stmt] = []
    for node in ast.parse(data).body:
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            kept.append(node)
        elif isinstance(node, ast.FunctionDef):
            kept.append(sources.bare(node))
        elif isinstance(node, ast.ClassDef):
            node.body = [sources.bare(item) if isinstance(item, ast.FunctionDef) else item for item in node.body]
            kept.append(node)
    return sources.compiled(kept)


def rearrange(ranks: list[int], pattern: str, u: int, s: int, l: int) -> SimpleNamespace:  # noqa: E741
    """The part of einops.rearrange that the partial groups need."""
    assert pattern == "(l s u) -> (l u) s"
    rows = [[ranks[(outer * s + each) * u + inner] for each in range(s)] for outer in range(l) for inner in range(u)]
    return SimpleNamespace(tolist=lambda: rows)


def initialised(source: Source, job: Job, rank: int) -> tuple[Torch, dict[str, Any]]:
    """Run all of initialize_model_parallel as one rank. Returns what torch recorded, and the module's globals."""
    torch = Torch(8, rank, job.backend)
    namespace: dict[str, Any] = {
        "__name__": "megatron.core.parallel_state",
        "torch": torch,
        **{"logging": logging, "os": os, "warnings": warnings, "timedelta": timedelta},
        **{"partial": partial, "cycle": cycle, "log2": math.log2},
        "np": SimpleNamespace(prod=math.prod, array=list),
        "einops": SimpleNamespace(rearrange=rearrange),
        "HAVE_EINOPS": True,
        "print": lambda *_: None,
        "GlobalMemoryBuffer": lambda *_, **__: object(),
        "GlobalSymmetricMemoryBuffer": lambda *_, **__: object(),
        "is_torch_min_version": lambda *_: True,
    }
    before, _, after = sources.around(source)
    exec(definitions(b"".join([*before, *after])), namespace)
    exec(sources.code_of(source.function), namespace)
    wanted = {
        "tensor_model_parallel_size": job.tp,
        "pipeline_model_parallel_size": job.pp,
        "expert_model_parallel_size": job.ep,
        "expert_tensor_parallel_size": 1,
        "num_distributed_optimizer_instances": job.instances,
    }
    known = {argument.arg for argument in source.function.args.args}
    namespace["initialize_model_parallel"](**{name: value for name, value in wanted.items() if name in known})
    return torch, namespace


def jobs(source: Source) -> list[Job]:
    """Return the jobs that this release can run."""
    several = "num_distributed_optimizer_instances" in {argument.arg for argument in source.function.args.args}
    return [job for job in JOBS if job.instances == 1 or several]


def distinct(groups: list[Any]) -> list[Any]:
    """Return the groups without None, without a second mention of the same object, and without those of one rank."""
    found: list[Any] = []
    for group in groups:
        if group is not None and group.size() > 1 and not any(group is other for other in found):
            found.append(group)
    return found


def faults(source: Source, job: Job) -> set[str]:
    """Return what is wrong with the warm-up of a job; nothing if every rank keeps the fix's promise."""
    found = set()
    queues = []
    for rank in range(8):
        torch, namespace = initialised(source, job, rank)
        wanted = distinct([namespace.get(name) for name in GROUPS])
        assert wanted
        warmed = torch.warmed()
        if not any(group is wanted[0] for group in warmed):
            found.add("the expert data-parallel group is not warmed up")
        if not all(any(group is other for other in warmed) for group in wanted):
            found.add("a group is not warmed up")
        if len(warmed) != len({id(group) for group in warmed}):
            found.add("a group is warmed up twice")
        if any(group.size() == 1 for group in warmed):
            found.add("a group of one rank is warmed up")
        if warmed and sorted(map(id, warmed)) == sorted(map(id, wanted)) and warmed != wanted:
            found.add("the order is different")
        if any(item[1] != 3 for item in torch.done if isinstance(item, tuple)):
            found.add("not on this rank's device")
        if torch.done[len(warmed) :] != ["synchronize"]:
            found.add("the device is not synchronised once, at the end")
        queues.append([group.ranks for group in warmed])
    return found | ({"the ranks wait for each other forever"} if stuck(queues) else set())


def stuck(queues: list[list[tuple[int, ...]]]) -> bool:
    """Match the ranks' collectives, and return whether some of them never meet."""
    queues = [list(queue) for queue in queues]
    while any(queues):
        ready = [queue[0] for queue in queues if queue and all(queues[rank][:1] == queue[:1] for rank in queue[0])]
        if not ready:
            return True
        for rank in ready[0]:
            queues[rank].pop(0)
    return False


def run_tail(source: Source, names: Mapping[str, object], size: int = 2) -> list[Any]:
    """Run what follows `_set_global_memory_buffer()`, with these globals and no others, and return what it did."""
    torch, body = Torch(), source.function.body
    (start,) = (index for index, node in enumerate(body) if ast.unparse(node) == "_set_global_memory_buffer()")
    exec(sources.compiled(body[start + 1 :]), {"torch": torch, "expert_model_parallel_size": size, **names})
    return torch.done


def mutated(source: Source, old: str, new: str) -> Source:
    """Return the source with a part of its text replaced."""
    text = source.data.decode()
    assert text.count(old) == 1, f"{old!r} occurs {text.count(old)} times"
    return source._replace(data=text.replace(old, new).encode())


# -- ms-swift ---------------------------------------------------------------------------------------------------------


class Mpu(SimpleNamespace):
    """The accessors of megatron-core that a release has."""

    def __init__(self, groups: Mapping[str, Any], ready: bool = False) -> None:
        super().__init__(
            initialize_model_parallel=lambda *_, **__: self.made.append("groups"),
            model_parallel_is_initialized=lambda: ready,
            made=[],
            **{
                name: group if callable(group) else partial(lambda group: group, group)
                for name, group in groups.items()
            },
        )


def asserting() -> None:
    raise AssertionError("is not initialized")


def initialise_mpu(source: Source, torch: Torch, mpu: Mpu, ep: int = 2) -> list[Any]:
    """Run ms-swift's _initialize_mpu, with only what the rewrite imports in `swift.utils`, and return what it did."""
    sizes = ("tensor", "pipeline", "virtual_pipeline")
    arguments = SimpleNamespace(
        **{f"{name}_model_parallel_size": 1 for name in sizes},
        expert_model_parallel_size=ep,
        context_parallel_size=1,
        expert_tensor_parallel_size=1,
        ddp_timeout=600,
        ddp_backend="nccl",
    )
    namespace = {
        "torch": torch,
        "mpu": mpu,
        "logger": SimpleNamespace(info=lambda message: None),
        "is_master": lambda: True,
        "_patch_megatron_timeout": lambda minutes: nullcontext(),
    }
    utils = SimpleNamespace(get_current_device=lambda: "npu:3")
    with patch.dict(sys.modules, {"swift": SimpleNamespace(), "swift.utils": utils}):
        sources.callable_of(source.function, namespace)(arguments)
    assert arguments.world_size == 8
    return torch.done


# -- no-op cases ------------------------------------------------------------------------------------------------------


def test_what_is_no_target() -> None:
    """verl has a function of the same name, and ms-swift 3 no such file."""
    (target,) = (item for item in catalog.fix(FIX).targets if item.upstream == "ms-swift")
    assert [wheels.read("ms-swift", version, target.file) for version in ("3.12.6", "3.0.0")] == [None, None]
    assert {target.upstream for target in catalog.fix(FIX).targets} == {"megatron-core", "ms-swift"}


@pytest.mark.parametrize("case", CORE_WHEELS)
def test_without_expert_parallelism_or_an_accelerator_backend_nothing_is_done(case: sources.Case) -> None:
    source = case.load().rewritten
    for job in (Job(ep=1), Job(tp=2, ep=1, pp=2)):
        assert [initialised(source, job, rank)[0].done for rank in range(8)] == [[]] * 8
    for backend in NOT_SERVED:
        assert initialised(source, Job(backend=backend), 5)[0].done == []


@pytest.mark.parametrize("case", SWIFT)
def test_ms_swift_does_nothing_where_there_is_nothing_to_do(case: sources.Case) -> None:
    source = case.load().rewritten
    groups = dict.fromkeys(ACCESSORS, Group([0, 2], "nccl"))
    assert initialise_mpu(source, Torch(), Mpu(groups), ep=1) == []
    assert initialise_mpu(source, Torch(), Mpu(groups, ready=True)) == []
    assert initialise_mpu(source, Torch(), Mpu({})) == []
    for group in (asserting, None, Group([0], "nccl"), *(Group([0, 2], backend) for backend in NOT_SERVED)):
        assert initialise_mpu(source, Torch(), Mpu(dict.fromkeys(ACCESSORS, group))) == []


# -- the rewrite ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
class TestRewrite(EveryRewrite):
    """The rewrite itself; the tests below run what it gives."""


@pytest.mark.parametrize("case", CORE)
def test_every_rank_warms_up_its_groups_in_one_order(case: sources.Case) -> None:
    source = case.load()
    for job in jobs(source):
        assert (job, faults(source.rewritten, job)) == (job, set())
        # the defect, by the same measure
        assert {"the expert data-parallel group is not warmed up", "a group is not warmed up"} <= faults(source, job)


@pytest.mark.parametrize("case", CORE_WHEELS)
def test_the_groups_are_those_of_the_release(case: sources.Case) -> None:
    """With one instance there is no inter-instance group, and the intra-instance group is the first group itself."""
    source = case.load().rewritten
    torch, namespace = initialised(source, Job(), 0)
    assert torch.warmed()[0] is namespace["_EXPERT_DATA_PARALLEL_GROUP"]
    assert namespace["_EXPERT_DATA_PARALLEL_GROUP"].ranks == (0, 2, 4, 6)
    assert namespace.get("_INTER_PARTIAL_EXPERT_DATA_PARALLEL_GROUP") is None
    if Job(instances=2) in jobs(source):
        torch, namespace = initialised(source, Job(instances=2), 0)
        ranks = [group.ranks for group in torch.warmed()]
        assert ranks[:1] == [(0, 2, 4, 6)]
        assert ({(0, 4), (0, 2)} <= set(ranks)) is ("_INTER_PARTIAL_EXPERT_DATA_PARALLEL_GROUP" in namespace)
    last = namespace.get("_INTRA_DISTRIBUTED_OPTIMIZER_INSTANCE_GROUP")
    assert (torch.warmed()[-1] is last) is ("_INTRA_DISTRIBUTED_OPTIMIZER_INSTANCE_GROUP" in namespace)


@pytest.mark.parametrize("backend", SERVED)
@pytest.mark.parametrize("case", CORE_WHEELS)
def test_every_accelerator_backend_is_served_also_in_a_composite(case: sources.Case, backend: str) -> None:
    assert faults(case.load().rewritten, Job(backend=backend)) == set()


@pytest.mark.parametrize("case", CORE_WHEELS[:1] + CORE_WHEELS[-3:])
def test_the_tail_takes_whatever_groups_there_are(case: sources.Case) -> None:
    source = case.load().rewritten
    one, two, alone, cpu = Group([0, 2], "nccl"), Group([0, 4], "nccl"), Group([0], "nccl"), Group([0, 2], "gloo")
    assert run_tail(source, {}) == []
    assert run_tail(source, dict.fromkeys(GROUPS)) == []
    assert run_tail(source, dict.fromkeys(GROUPS, alone)) == []
    assert run_tail(source, dict.fromkeys(GROUPS, one), size=1) == []
    assert run_tail(source, dict.fromkeys(GROUPS, one)) == [(one, 3), "synchronize"]
    for name in GROUPS:
        assert run_tail(source, {name: one}) == [(one, 3), "synchronize"]
    mixed = dict(zip(GROUPS, (one, cpu, alone, two)))
    assert run_tail(source, mixed) == [(one, 3), (two, 3), "synchronize"]
    equal = Group([0, 2], "nccl")  # a different object has its own communicator, even with the same ranks
    assert run_tail(source, dict(zip(GROUPS, (one, equal)))) == [(one, 3), (equal, 3), "synchronize"]
    assert run_tail(source, dict(zip(reversed(GROUPS), (one, two)))) == [(two, 3), (one, 3), "synchronize"]


@pytest.mark.parametrize("backend", SERVED)
@pytest.mark.parametrize("case", SWIFT)
def test_ms_swift_warms_up_what_the_accessors_give(case: sources.Case, backend: str) -> None:
    source = case.load().rewritten
    one, two, alone = Group([0, 2], backend), Group([0, 4], backend), Group([0], backend)
    done_one, done_two = [(one, "npu:3"), "item"], [(two, "npu:3"), "item"]
    for groups, wanted in (
        (dict(zip(ACCESSORS, (one, asserting, two))), done_one + done_two),
        (dict(zip(ACCESSORS, (two, asserting, one))), done_two + done_one),
        (dict(zip(ACCESSORS, (one, None, one))), done_one),
        (dict(zip(ACCESSORS, (one, alone, two))), done_one + done_two),
        ({ACCESSORS[0]: one}, done_one),
        ({ACCESSORS[2]: two}, done_two),
        (dict(zip(ACCESSORS, (asserting, one, asserting))), done_one),
    ):
        mpu = Mpu(groups)
        assert initialise_mpu(source, Torch(backend=backend), mpu) == wanted
        assert mpu.made == ["groups"]


@pytest.mark.parametrize("case", SWIFT)
def test_ms_swift_untouched_warms_up_nothing(case: sources.Case) -> None:
    groups: dict[str, object] = dict.fromkeys(ACCESSORS, Group([0, 2], "nccl"))
    source = case.load()
    if source.known.note:
        assert "9486" in source.known.note
        # megatron-core 0.13 and 0.14 have the accessor without this argument
        with pytest.raises(TypeError, match="check_initialized"):
            initialise_mpu(source, Torch(), Mpu(groups))
        groups["get_inter_distributed_optimizer_instance_group"] = lambda check_initialized: None
    assert initialise_mpu(source, Torch(), Mpu(groups)) == []
    assert initialise_mpu(source.rewritten, Torch(), Mpu(dict.fromkeys(ACCESSORS, Group([0, 2], "nccl")))) != []


def test_ms_swift_imports_the_device_from_where_it_is() -> None:
    """Every release that is rewritten has the name in `swift.utils`."""
    for case in SWIFT:
        if case.values[0].kind == "wheel":
            data = wheels.read("ms-swift", case.values[0].key, "swift/utils/__init__.py")
            assert data is not None
            assert b"get_current_device" in data


# -- half of the rewrite ----------------------------------------------------------------------------------------------


NEWEST = [case for case in CORE_WHEELS if case.id == "megatron-core-0.19.2"]
_GATE = "    if expert_model_parallel_size > 1:\n        warmed_up_groups"
_DEDUPLICATION = "warmup_group is None or any(warmup_group is other for other in warmed_up_groups)"
_NAMES = "".join(f"            '{name}',\n" for name in GROUPS)
_EACH = _NAMES.splitlines(keepends=True)
MUTATIONS = {
    "only one group": (_NAMES, _EACH[0], Job(instances=2), "a group is not warmed up"),
    "only the group of the pull request": (
        *(_NAMES, _EACH[1], Job()),
        "the expert data-parallel group is not warmed up",
    ),
    "no deduplication": (_DEDUPLICATION, "warmup_group is None", Job(), "a group is warmed up twice"),
    "groups of one": (
        *("torch.distributed.get_world_size(warmup_group) == 1 or not", "not", Job(ep=8)),
        "a group of one rank is warmed up",
    ),
    "no composite backends": (
        *("backend.split(':')[-1] in (", "backend in (", Job(backend="cpu:gloo,cuda:nccl")),
        "a group is not warmed up",
    ),
    "no wait": (
        *("        if warmed_up_groups:\n            torch.cuda.synchronize()\n", "", Job()),
        "the device is not synchronised once, at the end",
    ),
    "the wrong device": (
        *("device=torch.cuda.current_device()), group=w", "device='cpu'), group=w", Job()),
        "not on this rank's device",
    ),
    "on some ranks": (
        *(_GATE, _GATE.replace("expert_model_parallel_size > 1", "rank < 4"), Job()),
        "the ranks wait for each other forever",
    ),
    "in another order": (_NAMES, "".join(_EACH[3:] + _EACH), Job(), "the order is different"),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_half_of_the_rewrite_is_not_enough(name: str) -> None:
    old, new, job, fault = MUTATIONS[name]
    untouched = sources.first(NEWEST)
    source = mutated(untouched.rewritten, old, new)
    assert fault in faults(source, job)
    assert fault not in faults(untouched.rewritten, job) or job.ep == 8
    assert is_no_rewrite(untouched, source.function)


def test_without_the_gate_a_dense_model_makes_communicators() -> None:
    source = mutated(sources.first(NEWEST).rewritten, _GATE, _GATE.replace("expert_model_parallel_size > 1", "True"))
    assert initialised(source, Job(ep=1), 0)[0].done != []


@pytest.mark.parametrize(
    ("cases", "old", "new", "anchor"),
    [
        (CORE_WHEELS, r"_set_global_memory_buffer\(\)", "pass", "not found: _set_global_memory_buffer"),
        (CORE_WHEELS, r"_set_global_memory_buffer\(\)", r"\g<0>; \g<0>", "found 2 times"),
        (CORE_WHEELS, "expert_model_parallel_size", "size", "not found: the argument expert_model_parallel_size"),
        (SWIFT, "initialize_model_parallel", "start", "not found: else: with"),
        (SWIFT, r"else:\n", r"\g<0>        with x: mpu.initialize_model_parallel()\n", "found 2 times"),
    ],
)
def test_an_anchor_must_occur_once(cases: list[Any], old: str, new: str, anchor: str) -> None:
    source = sources.first(cases)
    text, count = re.subn(old, new, sources.unparsed(source.function))
    (function,) = ast.parse(text).body
    assert count
    assert isinstance(function, ast.FunctionDef)
    with pytest.raises(AnchorError, match=anchor):
        codemod(source.target).plan(function)


# -- backends that it does not recognise ------------------------------------------------------------------------------

LOOKS = catalog.fix(FIX).manifest["looks-at"]
STARTS = "import torch\nimport torch.distributed as dist\nfrom torch.distributed import init_process_group as start\n"


def notes(code: str) -> list[tuple[int, str]]:
    return list(expert_dp_warmup.notes(ast.parse(STARTS + code)))


@pytest.mark.parametrize("start", ["torch.distributed.init_process_group", "dist.init_process_group", "start"])
def test_a_start_with_a_backend_that_is_not_recognised_is_told(start: str) -> None:
    for arguments in ("", "None", "timeout=x", "rank=0, backend=None"):
        assert notes(f"{start}({arguments})\n") == [
            (4, "starts torch.distributed without a backend, and then this fix does nothing")
        ]
    for backend in ("flagcx", "xccl", "cpu:gloo,cuda:flagcx"):
        why = f"starts torch.distributed with backend {backend!r}, with which this fix does nothing"
        for argument in (f"'{backend}', x", f"backend='{backend}'"):
            assert notes(f"if x:\n    {start}({argument})\n") == [(5, why)]
    for argument in (*map(repr, SERVED), *map(repr, NOT_SERVED), "'NCCL'", "x", "device_id=x", "*x", "**x", "f'{x}'"):
        assert notes(f"{start}({argument})\n") == []
    assert notes(f"{start}\ndef init_process_group(x=None): pass\ninit_process_group()\nengine.{start}()\n") == []


@pytest.mark.parametrize(
    ("code", "matches"),
    [
        (f"init_process_group({arguments})", arguments != "x, backend='nccl'")
        for arguments in (
            *("", "\n", "None", "'flagcx'", "\n    timeout=x", "backend='flagcx'", "backend = None"),
            "x, backend='nccl'",
        )
    ],
)
def test_the_search_finds_what_is_told(code: str, matches: bool) -> None:
    assert (re.search(LOOKS["pattern"], code) is not None) is matches


@pytest.mark.parametrize(
    ("project", "version"),
    [
        (project, version)
        for project, versions in (
            ("megatron-core", "0.17.1 0.19.2"),
            ("ms-swift", "3.12.6 4.0.0 4.6.0"),
            ("verl", "0.6.0 0.7.1 0.8.0 0.9.1"),
        )
        for version in versions.split()
    ],
)
def test_no_release_is_even_parsed_for_it(project: str, version: str) -> None:
    contents = {item["file"]: wheels.read(project, version, item["file"]) for item in LOOKS["files"]}
    found = [file for file, data in contents.items() if data is not None]
    assert found
    assert [file for file in found if re.search(LOOKS["pattern"].encode(), contents[file] or b"")] == []


# -- the pull request -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pull", sources.as_written(FIX))
def test_the_pull_request_as_written_is_known_and_gives_the_result_of_the_untouched_shape(
    pull: sources.Case,
) -> None:
    source = pull.load()
    assert source.known.state == "affected"
    assert source.known.note.startswith("pull request 9486 applied as written: warms nothing")
    assert "get_inter_distributed_optimizer_instance_group" in sources.unparsed(source.function)
    assert source.known.result == sources.first(SWIFT).known.result
