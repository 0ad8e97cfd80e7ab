"""expert-dp-warmup: which groups each rank makes, and which of them it warms up, in which order."""

from __future__ import annotations

import ast
import itertools
import logging
import math
import os
import re
import warnings
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import timedelta
from functools import cache, partial
from types import CodeType
from typing import Any, ClassVar, NamedTuple

from unhang.compat.endstates.endstate import EndState, Outcome, Source, called, importing, parameters, plain
from unhang.compat.endstates.standin import Globals, StandIn
from unhang.compat.endstates.tensors import Tensor, torch
from unhang.shapes.shape import Function

WORLD = 8
SERVED = ("nccl", "npu:hccl,cpu:gloo", "mccl", "cpu:gloo,cuda:nccl")
NOT_SERVED = ("gloo", "cpu:gloo,cuda:gloo", "undefined", "flagcx")
"""``undefined`` is what ``get_backend`` says of groups made without one; the last is a fork's own name."""
REDUCES = re.compile("EXPERT_DATA_PARALLEL_GROUP|DISTRIBUTED_OPTIMIZER_INSTANCE_GROUP")
"""In the names of the globals that hold the groups of an expert's gradients and of the optimizer step."""
REDUCES_NOT = ("_WITH_GTP_REMAT",)
"""How some of these names end: groups by which data is distributed, and through which no gradient goes."""
END = "the memory buffer"
"""What upstream makes last of all, after the groups."""
OPTIONS: dict[str, dict[str, Any]] = {
    "": {},
    "no gloo groups": {"create_gloo_process_groups": False},
    "virtual": {"virtual_pipeline_model_parallel_size": 2},
    "expert tensor parallel": {"expert_tensor_parallel_size": 1},
    "all-gather group": {"create_all_gather_group": True},
    "hybrid context parallel": {"hybrid_context_parallel": True},
    "dynamic context parallel": {"dynamic_context_parallel": True},
    "hierarchical context parallel": {"hierarchical_context_parallel_sizes": [1, 2], "context_parallel_size": 2},
    "high priority": {"high_priority_stream_groups": ["ep_dp"]},
    "remat": {"gtp_remat_size": 2, "expert_gtp_remat_size": 2},
}
"""Arguments of initialize_model_parallel, where a release has them."""


class Group(StandIn):
    """A process group: its ranks, and the backend string that it was made with."""

    def __init__(self, ranks: Any, backend: str, done: list[Any]) -> None:
        super().__init__("group", ranks=tuple(ranks), backend=backend, group_name=self, done=done)

    def allreduce(self, tensors: Any, options: object = None) -> StandIn:
        self.done.extend((self, tensor.numel(), tensor.device) for tensor in tensors)
        return StandIn("work", wait=lambda: None)

    def size(self) -> int:
        return len(self.ranks)

    def __repr__(self) -> str:
        return f"{self.backend}{list(self.ranks)}"


class Torch:
    """What happens to groups and to the device on one rank, and the stand-in for torch that records it."""

    def __init__(self, rank: int, backend: str) -> None:
        self.done: list[Any] = []
        self.world, self.backend = Group(range(WORLD), backend, self.done), backend
        self.made: list[Any] = []
        """The groups in whose making every rank takes part, in order."""
        self.module = torch(
            lambda event, of: self.done.append(f"waits for {of.device}"),
            cuda=StandIn(
                "torch.cuda",
                current_device=lambda: 3,
                device_count=lambda: WORLD,
                synchronize=lambda device=None: self.done.append("waits for 3"),
            ),
            distributed=StandIn(
                "torch.distributed",
                is_available=lambda: True,
                is_initialized=lambda: True,
                get_rank=lambda group=None: rank,
                get_world_size=lambda group=None: (group or self.world).size(),
                get_backend=lambda group=None: (group or self.world).backend,
                new_group=self.new_group,
                barrier=lambda group=None, async_op=False, device_ids=None: self.done.append("barrier"),
                get_process_group_ranks=lambda group: list(group.ranks),
                all_reduce=self.all_reduce,
                broadcast=lambda tensor, src, group=None: self.done.append(f"broadcast in {group or self.world}"),
                distributed_c10d=StandIn("distributed_c10d", _resolve_process_group=lambda name: name),
                ProcessGroup=Group,
                ProcessGroupNCCL=StandIn(
                    "ProcessGroupNCCL", Options=lambda is_high_priority_stream=False: StandIn("Options", config=None)
                ),
            ),
        )

    def new_group(
        self,
        ranks: Any = None,
        timeout: object = None,
        backend: str | None = None,
        pg_options: object = None,
        use_local_synchronization: bool = False,
        group_desc: str | None = None,
    ) -> Group:
        group = Group(self.world.ranks if ranks is None else ranks, backend or self.backend, self.done)
        if not use_local_synchronization:
            self.made.append(repr(group))
        return group

    def all_reduce(self, tensor: Tensor, op: object = None, group: Group | None = None, async_op: bool = False) -> None:
        self.done.append((group or self.world, tensor.numel(), tensor.device))
        if async_op:
            self.done.append("not waited for")


class Job(NamedTuple):
    """The sizes that a job on eight ranks initialises with."""

    tp: int = 1
    cp: int = 1
    pp: int = 1
    ep: int = 2
    instances: int = 1
    backend: str = "nccl"
    option: str = ""


def _rearrange(ranks: list[int], pattern: str, u: int, s: int, l: int) -> StandIn:  # noqa: E741
    """Do what einops.rearrange does for the partial groups."""
    if pattern != "(l s u) -> (l u) s":
        raise ValueError(pattern)
    rows = [[ranks[(outer * s + each) * u + inner] for each in range(s)] for outer in range(l) for inner in range(u)]
    return StandIn("array", tolist=lambda: rows)


@cache
def _definitions(source: Source) -> CodeType:
    """Compile what parallel_state.py defines, without its imports: its functions, its class, its globals."""
    kept: list[ast.stmt] = []
    for node in ast.parse(source.text).body:
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            kept.append(node)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            kept.append(plain(node))
    return compile(ast.Module(kept, []), "<upstream>", "exec", dont_inherit=True)


class InitializeModelParallel(EndState):
    """The end state of megatron-core's initialize_model_parallel."""

    varied: ClassVar[dict[str, str]] = {
        "num_distributed_optimizer_instances": "instances",
        "_INTER_PARTIAL_EXPERT_DATA_PARALLEL_GROUP": "instances",
        "intra_partial_expert_data_parallel_size": "instances",
        **dict.fromkeys(
            ("pipeline_model_parallel_size", "_PIPELINE_MODEL_PARALLEL_GROUP", "_PIPELINE_GLOBAL_RANKS"), "pp"
        ),
        **dict.fromkeys(("expert_tensor_parallel_size", "e_rep"), "option: expert tensor parallel"),
        **dict.fromkeys(("create_gloo_process_groups",), "option: no gloo groups"),
        **dict.fromkeys(("virtual_pipeline_model_parallel_size",), "option: virtual"),
        **dict.fromkeys(("create_all_gather_group",), "option: all-gather group"),
        **dict.fromkeys(("hybrid_context_parallel", "data_parallel_size_with_cp"), "option: hybrid context parallel"),
        **dict.fromkeys(("dynamic_context_parallel", "group_sizes", "i"), "option: dynamic context parallel"),
        **dict.fromkeys(("hierarchical_context_parallel_sizes",), "option: hierarchical context parallel"),
        **dict.fromkeys(("high_priority_stream_groups",), "option: high priority"),
        **dict.fromkeys(("gtp_remat_size", "expert_gtp_remat_size"), "option: remat"),
        **dict.fromkeys(
            (
                *("rank", "ranks", "ranks_with_cp", "embedding_ranks", "position_embedding_ranks", "all_ranks"),
                *("dp_ranks", "dp_cp_ranks", "egtp_ranks", "gtp_ranks", "intra_dist_opt_ranks"),
                *("intra_partial_dp_ranks_with_cp", "intra_partial_data_parallel_ranks_with_cp"),
                *("inter_partial_data_parallel_ranks_with_cp", "model_parallel_group_id"),
            ),
            "each of the ranks",
        ),
    }
    held: ClassVar[dict[str, str]] = {
        **dict.fromkeys(("isinstance", "list"), "names no setting"),
        **dict.fromkeys(("get_embedding_ranks", "get_position_embedding_ranks"), "which ranks have embeddings"),
        **dict.fromkeys(
            ("world_size", "model_size", "total_model_size", "expert_tensor_model_pipeline_parallel_size"),
            "a size that does not divide raises before any group is made",
        ),
        "nccl_communicator_config_path": "gives groups options from a file; the warm-up reads none",
        "pipeline_model_parallel_comm_backend": "the backend of pipeline groups, which the warm-up leaves alone",
        **dict.fromkeys(("use_sharp", "sharp_enabled_group", "os.environ"), "needs a network with SHARP"),
        "local_world_size": "the size of a host, for SHARP",
        "min_dynamic_context_parallel_size": "the smallest of several context parallel groups",
        **dict.fromkeys(
            (
                *("encoder_pipeline_model_parallel_size", "encoder_tensor_model_parallel_size", "encoder_world_size"),
                *("encoder_rank_generator", "decoder_world_size", "pipeline_model_parallel_split_rank"),
                *("group_type", "is_expert"),
            ),
            "encoders have no experts of their own",
        ),
    }
    without: ClassVar[dict[str, Any]] = {"ep": 1}

    def configurations(self, function: Function) -> Iterator[Job]:
        known = parameters(function)
        instances = (1, 2) if "num_distributed_optimizer_instances" in known else (1,)
        for tp, cp, pp, ep, several in itertools.product((1, 2), (1, 2), (1, 2), (1, 2, 4), instances):
            # expert tensor parallelism is tp by default
            dense, expert = (WORLD // math.prod(sizes) for sizes in ((tp, cp, pp), (tp, ep, pp)))
            if dense and expert and not (dense % several or expert % several):
                yield Job(tp, cp, pp, ep, several)
        for backend, ep in itertools.product((*SERVED[1:], *NOT_SERVED), (1, 2)):
            yield Job(ep=ep, backend=backend)
            yield Job(pp=2, ep=ep, instances=instances[-1], backend=backend)
        for option, arguments in OPTIONS.items():
            if option and known >= {*arguments}:
                yield from (Job(pp=2, ep=ep, option=option) for ep in (1, 2))
                yield from (Job(tp=2, ep=ep, option=option) for ep in (1, 2))

    def concerned(self, configuration: Job) -> bool:
        return configuration.ep > 1 and configuration.backend in SERVED

    def observe(self, source: Source, configuration: Job) -> Outcome:
        ranks = [_initialised(source, configuration, rank) for rank in range(WORLD)]
        wanted = [_reducing(namespace) if self.concerned(configuration) else [] for _, namespace in ranks]
        done = [record.done for record, _ in ranks]
        everything = [_globals(namespace) for _, namespace in ranks]
        faults = set(_faults(done, wanted, 3))
        if len({tuple(_names(record.done, namespace)) for record, namespace in ranks}) > 1:
            faults.add("not in one order on all ranks")
        if len({tuple(record.made) for record, _ in ranks}) > 1:
            faults.add("the ranks do not make the same groups, in one order")
        if any(record.made[-1] != END for record, _ in ranks if END in record.made):
            faults.add("a group is made for the warm-up")
        if _stuck([[item[0].ranks for item in own if isinstance(item, tuple)] for own in done]):
            faults.add("the ranks wait for each other forever")
        holds = any(isinstance(value, Group) for name, value in ranks[0][1].items() if REDUCES.search(name))
        if self.concerned(configuration) and not holds:
            faults.add("no global holds a group of the expert's gradients")  # nothing to warm up is no proof
        return Outcome(frozenset(faults), (repr(done), repr(everything)))


def _initialised(source: Source, job: Job, rank: int) -> tuple[Torch, dict[str, Any]]:
    """Run all of initialize_model_parallel as one rank; return what torch recorded, and the module's globals."""
    record = Torch(rank, job.backend)
    stand_ins: dict[str, Any] = {
        "__name__": "megatron.core.parallel_state",
        "torch": record.module,
        **{"logging": logging, "os": os, "warnings": warnings, "timedelta": timedelta, "partial": partial},
        **{"cycle": itertools.cycle, "log2": math.log2, "print": lambda *_: None},
        "np": StandIn("np", prod=math.prod, array=list),
        "einops": StandIn("einops", rearrange=_rearrange),
        "HAVE_EINOPS": True,
        "GlobalMemoryBuffer": lambda: record.made.append(END),
        "GlobalSymmetricMemoryBuffer": lambda *_, **__: object(),
        "is_torch_min_version": lambda *_: True,
    }
    namespace = Globals(stand_ins, source.bound)
    exec(_definitions(source), namespace)  # noqa: S102 - upstream's code, in the sandbox
    wanted = {
        "tensor_model_parallel_size": job.tp,
        "context_parallel_size": job.cp,
        "pipeline_model_parallel_size": job.pp,
        "expert_model_parallel_size": job.ep,
        "num_distributed_optimizer_instances": job.instances,
        **OPTIONS[job.option],
    }
    known = parameters(source.function)
    namespace["initialize_model_parallel"](**{name: value for name, value in wanted.items() if name in known})
    return record, namespace


def _names(done: list[Any], namespace: dict[str, Any]) -> Iterator[str]:
    """Yield the first of the names of each group that was warmed up, in order."""
    for group in (item[0] for item in done if isinstance(item, tuple)):
        yield next((name for name, value in namespace.items() if value is group), "a group without a name")


def _reducing(namespace: dict[str, Any]) -> list[Group]:
    """Return the groups that must be warm after the initialisation: all of the release's, whatever their names."""
    held = (value for name, value in namespace.items() if REDUCES.search(name) and not name.endswith(REDUCES_NOT))
    return _distinct([group for group in held if isinstance(group, Group) and group.backend in SERVED])


def _distinct(groups: list[Any]) -> list[Any]:
    """Return the groups without None, without a second mention of the same object, and without those of one rank."""
    found: list[Any] = []
    for group in groups:
        if group is not None and group.size() > 1 and not any(group is other for other in found):
            found.append(group)
    return found


def _faults(done: list[list[Any]], wanted: list[list[Any]], device: object) -> Iterator[str]:
    """Yield what is wrong with what the ranks did, given the groups that each must warm up."""
    for own, groups in zip(done, wanted):
        warmed = [item for item in own if isinstance(item, tuple)]
        if sorted(id(group) for group, _, _ in warmed) != sorted(map(id, groups)):
            yield "not each of the groups is warmed up, once"
        if any((size, where) != (1, device) for _, size, where in warmed):
            yield "not with one element on this rank's device"
        if any(str(item).startswith(("broadcast", "not waited")) for item in own):
            yield "another collective than an all-reduce that is waited for"
        if warmed and own[-1] != f"waits for {device}":  # some upstream shapes have a barrier of their own before
            yield "the rank does not wait for its device after the warm-up"


def _stuck(queues: list[list[tuple[int, ...]]]) -> bool:
    """Match the ranks' collectives, and return whether some of them never meet."""
    while any(queues):
        ready = [queue[0] for queue in queues if queue and all(queues[rank][:1] == queue[:1] for rank in queue[0])]
        if not ready:
            return True
        for rank in ready[0]:
            queues[rank].pop(0)
    return False


def _globals(namespace: dict[str, Any]) -> dict[str, str]:
    """Return what the initialisation set in the module: groups, ranks, sizes."""
    kinds = (Group, list, tuple, int, type(None))
    return {
        name: repr(value) if isinstance(value, kinds) else type(value).__name__
        for name, value in namespace.items()
        if name.lstrip("_").isupper()
    }


class Accessors(NamedTuple):
    """What megatron-core's accessors give in a job of ms-swift."""

    expert: str = "two"
    """``two`` ranks, ``one`` rank, ``same`` as the expert group, ``none``, ``asserts``, or ``absent``."""
    inter: str = "asserts"
    intra: str = "same"
    backend: str = "nccl"
    ep: int = 2
    ready: bool = False
    """Whether model parallelism is initialised already."""
    checked: bool = True
    """Whether the accessors take ``check_initialized``, as from megatron-core 0.15 on."""
    master: bool = True
    sizes: int = 1
    """Of the other parallel dimensions."""


class InitializeMpu(EndState):
    """The end state of ms-swift's _initialize_mpu, on two ranks that have the same groups."""

    NAMES = (
        "expert_data_parallel_group",
        "inter_distributed_optimizer_instance_group",
        "intra_distributed_optimizer_instance_group",
    )
    varied: ClassVar[dict[str, str]] = {
        "mpu.model_parallel_is_initialized": "ready",
        "is_master": "master",
        **dict.fromkeys(("hasattr", "mpu", "inter_ep_dp_group"), "inter"),
    }
    held: ClassVar[dict[str, str]] = {"torch.distributed.is_initialized": "an assertion in all but name"}
    without: ClassVar[dict[str, Any]] = {"ep": 1}

    def configurations(self, function: Function) -> Iterator[Accessors]:
        kinds = ("two", "same", "one", "none", "asserts", "absent")
        groups = itertools.product(("two", "one", "asserts", "absent"), kinds, kinds)
        for (expert, inter, intra), ep in itertools.product(groups, (1, 2)):
            yield Accessors(expert, inter, intra, ep=ep, sizes=1 if expert == inter else 2)
        for backend, ep, ready, checked, master in itertools.product(
            (*SERVED, *NOT_SERVED), (1, 2), (False, True), (False, True), (False, True)
        ):
            yield Accessors("two", "two", "two", backend, ep, ready, checked, master, 1 if checked else 2)

    def concerned(self, configuration: Accessors) -> bool:
        return configuration.ep > 1 and configuration.backend in SERVED and not configuration.ready

    def observe(self, source: Source, configuration: Accessors) -> Outcome:
        ranks = [self._observe(source, configuration, rank) for rank in (0, 1)]
        different = {"the ranks do not do the same"} if ranks[0].seen != ranks[1].seen else set()
        return Outcome(ranks[0].faults | ranks[1].faults | different, ranks[0].seen)

    def _observe(self, source: Source, configuration: Accessors, rank: int) -> Outcome:
        record = Torch(rank, configuration.backend)
        made: list[str] = []
        groups: dict[str, Group | None] = {}
        expert = Group([0, 2], configuration.backend, record.done)
        for number, (name, kind) in enumerate(zip(self.NAMES, configuration)):
            ranks = {"two": [0, 2 + 2 * number], "one": [0]}.get(str(kind))
            groups[name] = (
                Group(ranks, configuration.backend, record.done) if ranks else expert if kind == "same" else None
            )
        groups[self.NAMES[0]] = expert if configuration.expert == "two" else groups[self.NAMES[0]]

        def accessor(name: str, kind: str) -> Any:
            def unchecked() -> Group | None:
                if kind == "asserts" or not (made or configuration.ready):
                    raise AssertionError("the group is not initialized")
                return groups[name]

            def checked(check_initialized: bool = True) -> Group | None:
                return None if kind == "asserts" and not check_initialized else unchecked()

            return checked if configuration.checked else unchecked

        present = [(f"get_{name}", str(kind)) for name, kind in zip(self.NAMES, configuration)]
        size = configuration.sizes
        mpu = StandIn(
            "mpu",
            [name for name, kind in present if kind == "absent"],
            get_data_parallel_group=lambda: Group([0, 1, 2, 3], configuration.backend, record.done),
            initialize_model_parallel=lambda *sizes, **more: made.append(f"groups {sizes, sorted(more)}"),
            model_parallel_is_initialized=lambda: configuration.ready,
        )
        for name, kind in present:
            if kind != "absent":
                setattr(mpu, name, accessor(name.removeprefix("get_"), kind))
        arguments = StandIn(
            "args",
            tensor_model_parallel_size=size,
            pipeline_model_parallel_size=size,
            virtual_pipeline_model_parallel_size=None if size == 1 else size,
            expert_model_parallel_size=configuration.ep,
            context_parallel_size=size,
            expert_tensor_parallel_size=size,
            ddp_timeout=600 * size,
            ddp_backend="nccl",
        )
        stand_ins = {
            "torch": record.module,
            "mpu": mpu,
            "logger": StandIn("logger", info=lambda msg: None, warning=lambda msg: None),
            "is_master": lambda: configuration.master,
            "_patch_megatron_timeout": lambda minutes: nullcontext(),
            # the rewrite imports it where it runs
            "__builtins__": importing({"swift.utils": StandIn("swift.utils", get_current_device=lambda: "npu:3")}),
        }
        called(source, stand_ins)(arguments)
        wanted = [_distinct(list(groups.values()))] if self.concerned(configuration) else [[]]
        return Outcome(frozenset(_faults([record.done], wanted, "npu:3")), (tuple(made), repr(record.done)))


END_STATES: dict[str, EndState] = {
    "initialize_model_parallel": InitializeModelParallel(),
    "_initialize_mpu": InitializeMpu(),
}
