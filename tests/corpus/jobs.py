"""The hangs of the corpus that are played: what each rank does, what is wrong, and who is to be named."""
# ruff: noqa: E501 - a hang is a row of a table

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from corpus.leave import Style
from corpus.ranks import DIE, END, FAIL, ISSUE, STAY, STICK, SYNC, Groups, Stack, Step

DP, TP, PP = "DATA_PARALLEL_GROUP", "TENSOR_MODEL_PARALLEL_GROUP", "PIPELINE_MODEL_PARALLEL_GROUP"
DPCP, EP, ETP = "DATA_PARALLEL_GROUP_WITH_CP", "EXPERT_MODEL_PARALLEL_GROUP", "EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP"
EDP, ALL, MESH, CP = "EXPERT_DATA_PARALLEL_GROUP", "default_pg", "mesh_fsdp", "CONTEXT_PARALLEL_GROUP"
TRAIN: Stack = ("train.py::train_step", "train.py::train", "train.py::main", "train.py::<module>")
MOE, MAPPINGS = "megatron/core/transformer/moe/", "megatron/core/tensor_parallel/mappings.py::"
BACKWARD = "torch/autograd/graph.py::_engine_run_backward"
SCHEDULE: Stack = (
    "megatron/core/pipeline_parallel/schedules.py::forward_step",
    "megatron/training/training.py::train_step", "megatron/training/training.py::train", "pretrain_gpt.py::<module>",
)  # fmt: skip
DISPATCH: Stack = (MOE + "token_dispatcher.py::MoEAlltoAllTokenDispatcher.token_combine", *SCHEDULE)
GATHER: Stack = (MOE + "token_dispatcher.py::MoEAllGatherTokenDispatcher.token_combine", *SCHEDULE)
TRACK: Stack = (
    MOE + "moe_utils.py::reduce_aux_losses_tracker_across_ranks", MOE + "moe_utils.py::track_moe_metrics",
    "megatron/training/training.py::training_log", *SCHEDULE[2:],
)  # fmt: skip
BATCH: Stack = ("megatron/training/utils.py::get_batch_on_this_tp_rank", "pretrain_gpt.py::get_batch", *SCHEDULE)
UPDATE: Stack = (
    "verl/workers/actor/dp_actor.py::DataParallelPPOActor._forward_micro_batch",
    "verl/workers/actor/dp_actor.py::DataParallelPPOActor.update_policy",
    "verl/workers/fsdp_workers.py::ActorRolloutRefWorker.update_actor",
)
METRIC: Stack = (
    "swift/metrics/utils.py::MeanMetric.compute", "swift/trainers/mixin.py::SwiftMixin._log",
    "transformers/trainer.py::Trainer.train", "train.py::<module>",
)  # fmt: skip
MTP: Stack = (
    "megatron/core/transformer/multi_token_prediction.py::MTPLossLoggingHelper.reduce_loss_in_tracker",
    "verl/utils/megatron_utils.py::get_megatron_mtp_loss",
    "verl/workers/engine/megatron/transformer_impl.py::MegatronEngine.forward_backward_batch",
)
LOAD: Stack = (
    "verl/utils/fsdp_utils.py::fsdp2_load_full_state_dict",
    "verl/workers/fsdp_workers.py::ActorRolloutRefWorker._build_model_optimizer",
)
_INFER = "swift/pipelines/infer/infer.py::"
CALC: Stack = (METRIC[0], *(_INFER + name for name in ("SwiftInfer._calc_metric", "SwiftInfer.run", "infer_main")))
SAVE: Stack = (
    "swift/megatron/init.py::_patch_mcore_bridge.save_weights", "swift/megatron/trainers/base.py::save_checkpoint",
    "train.py::<module>",
)  # fmt: skip
SAFE: Stack = ("swift/utils/torch_utils.py::safe_ddp_context", "contextlib.py::__exit__", *SAVE)
SYNC_GRADS: Stack = (
    "megatron/core/distributed/param_and_grad_buffer.py::_ParamAndGradBucketGroup.start_grad_sync", *SCHEDULE,
)  # fmt: skip


class Layout(NamedTuple):
    """How many ranks a job has, and what each does in a step, by phase."""

    world: int
    groups: Groups
    phases: Mapping[str, Step]
    hops: Mapping[str, int] = {}
    """Of the phases that send or receive: how far the other rank is. Who has none there leaves the phase out."""


def issue(group: str, kind: str, *sizes: int, at: Stack = TRAIN, dtype: str = "BFloat16", waits: bool = False) -> Step:
    return Step(ISSUE, at, group, kind, sizes, dtype, waits)


def norm(*at: str, waits: bool = True) -> Step:
    return issue(ALL, "all_reduce", 1, dtype="Float", at=at, waits=waits)


def parts(world: int, size: int, stride: int = 1) -> list[list[int]]:
    """Return groups of that many ranks, each so far from the next."""
    first = [rank for rank in range(world) if rank // stride % size == 0]
    return [[rank + stride * at for at in range(size)] for rank in first]


def _ddp(world: int) -> Layout:
    """Data-parallel training whose loss is read at the end of each step."""
    return Layout(world, {ALL: [range(world)]}, {
        "forward": Step(SYNC, ("model.py::forward", *TRAIN)),
        "grads": issue(ALL, "all_reduce", 25_000, dtype="Float", at=(BACKWARD, *TRAIN)),
        "norm": norm("optim.py::clip", *TRAIN),
    })  # fmt: skip


def _fsdp(world: int) -> Layout:
    """A sharded model: each layer is gathered, its gradients are scattered."""
    return Layout(world, {ALL: [range(world)], MESH: [range(world)]}, {
        "gather": issue(MESH, "_all_gather_base", 4096, at=("torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py::foreach_all_gather", "model.py::forward", *TRAIN)),
        "forward": Step(SYNC, ("model.py::forward", *TRAIN)),
        "scatter": issue(MESH, "_reduce_scatter_base", 8192, at=("torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py::foreach_reduce", *TRAIN)),
        "norm": norm("optim.py::clip", *TRAIN),
    })  # fmt: skip


def _moe(world: int, tp: int, pp: int, ep: int) -> Layout:
    """Megatron's parallelisms: the tensor-parallel ranks are neighbours, the pipeline's are far apart."""
    dp = world // tp // pp
    groups: Groups = {
        ALL: [range(world)], TP: parts(world, tp), DP: parts(world, dp, tp), DPCP: parts(world, dp, tp),
        EP: parts(world, ep, tp), ETP: parts(world, tp * ep), PP: parts(world, pp, world // pp), EDP: parts(world, dp // ep, tp * ep),
    }  # fmt: skip
    return Layout(world, groups, {
        "batch": issue(TP, "broadcast", 4097, dtype="Long", at=BATCH),
        "attention": issue(TP, "_all_gather_base", 4096, 512, at=(MAPPINGS + "_gather_along_first_dim", *SCHEDULE)),
        "dispatch": issue(EP, "all_to_all", 4096, 512, at=(MAPPINGS + "_AllToAll.forward", MOE + "token_dispatcher.py::MoEAlltoAllTokenDispatcher.token_dispatch", *SCHEDULE)),
        "experts": Step(SYNC, (MOE + "experts.py::TEGroupedMLP.forward", *SCHEDULE)),
        "combine": issue(EP, "all_to_all", 4096, 512, at=(MAPPINGS + "_AllToAll.forward", *DISPATCH)),
        "grads": issue(DPCP, "_reduce_scatter_base", 1 << 20, dtype="Float", at=SYNC_GRADS),
        "norm": norm("megatron/core/optimizer/clip_grads.py::get_grad_norm_fp32", *SCHEDULE[1:]),
    })  # fmt: skip


def _pipe(world: int, stages: int) -> Layout:
    """A pipeline: all micro-batches forward, then all backward; a stage's ranks reduce with each other."""
    hop = world // stages
    schedule = (
        "megatron/core/pipeline_parallel/schedules.py::forward_backward_pipelining_without_interleaving",
        *SCHEDULE[1:],
    )
    phases: dict[str, Step] = {}
    for number in range(6):
        way = "forward" if number < 3 else "backward"
        sends, receives = (
            Step(ISSUE, (f"megatron/core/pipeline_parallel/p2p_communication.py::{kind}_{way}", *schedule), PP, kind, (512, 64), "BFloat16", kind == "recv")
            for kind in ("send", "recv")
        )  # fmt: skip
        phases |= {
            f"recv-{number}": receives,
            f"step-{number}": Step(SYNC, (f"model.py::{way}", *schedule)),
            f"reduce-{number}": issue(TP, "all_reduce", 4096, at=(MAPPINGS + "_reduce", *schedule)),
            f"send-{number}": sends,
        }
    phases["norm"] = norm("megatron/core/optimizer/clip_grads.py::get_grad_norm_fp32", *SCHEDULE[1:])
    hops = {
        name: hop * (-1 if (name < "s") == (name[-1] < "3") else 1) for name in phases if name[:4] in ("recv", "send")
    }
    return Layout(world, {ALL: [range(world)], TP: parts(world, hop), PP: parts(world, stages, hop)}, phases, hops)


def _ring(world: int, size: int) -> Layout:
    """Context parallelism: each rank sends its keys to the next one and receives those of the one before, in batches."""
    phases: dict[str, Step] = {}
    for number in range(2 * (size - 1)):
        way = "forward" if number < size - 1 else "backward"
        phases[f"round-{number}"] = exchange(
            way, ("send", 1), ("recv", -1), size=(512, 64 if way == "forward" else 128)
        )
        phases[f"step-{number}"] = Step(SYNC, (f"ring.py::{way}", *TRAIN))
    phases["grads"] = issue(DP, "_reduce_scatter_base", 4096, dtype="Float", at=("optim.py::reduce", *TRAIN))
    phases["norm"] = norm("optim.py::clip", *TRAIN)
    groups: Groups = {ALL: [range(world)], CP: parts(world, size), DP: parts(world, world // size, size)}
    return Layout(world, groups, phases)


def exchange(way: str, *ends: tuple[str, int], size: tuple[int, ...] = (512, 64), dtype: str = "BFloat16") -> Step:
    """Return a batch of sends and receives; how far off the other rank is stands in place of its number."""
    at = (f"ring.py::exchange_{way}", *TRAIN)
    batch = tuple(Step(ISSUE, at, CP, kind, size, dtype, peer=peer) for kind, peer in ends)
    return Step(ISSUE, at, CP, "coalesced", (0,), "", waits=True, batch=batch)


LAYOUTS: Mapping[str, Layout] = {
    "ddp-8": _ddp(8), "ddp-32": _ddp(32), "fsdp-8": _fsdp(8), "fsdp-64": _fsdp(64), "moe-8": _moe(8, 1, 2, 4),
    "moe-16": _moe(16, 2, 2, 4), "moe-128": _moe(128, 4, 4, 8), "moe-1024": _moe(1024, 8, 8, 8), "ddp-256": _ddp(256),
    "pipe-8": _pipe(8, 4), "pipe-4": _pipe(4, 2), "pipe-16": _pipe(16, 4),
    "ring-8": _ring(8, 4), "ring-16": _ring(16, 8), "ring-6": _ring(6, 3),
}  # fmt: skip
BEFORE, INSTEAD, AFTER = "before", "instead", "after"


class Hang(NamedTuple):
    """A job that hangs: in its third step, some ranks do something else before, instead of or after a phase."""

    what: str
    layout: str
    ranks: tuple[int, ...]
    phase: str
    how: str
    steps: tuple[Step, ...]
    style: Style = Style()
    culprits: tuple[int, ...] | None = None  # None if they are ``ranks``
    more: Mapping[str, Step] = {}  # phases in place of the layout's, for all ranks
    step: int = 2  # the step in which it goes wrong; the first is 0
    beside: Mapping[int, tuple[Step, ...]] = {}  # what other ranks do instead of the phase, as they should
    fix: str = ""  # the fix whose defect it is; mostly none

    def world(self) -> int:
        return LAYOUTS[self.layout].world

    def body(self, rank: int) -> Iterator[Step]:
        """Yield what a rank does."""
        layout = LAYOUTS[self.layout]
        for number in range(self.step + 2):
            for name, step in {**layout.phases, **self.more}.items():
                if hop := layout.hops.get(name):
                    if not 0 <= rank + hop < layout.world:
                        continue
                    step = step._replace(peer=rank + hop)
                steps: Iterable[Step] = self.beside.get(rank, (step,)) if name == self.phase else (step,)
                if name == self.phase and number == self.step and rank in self.ranks:
                    steps = {BEFORE: (*self.steps, step), INSTEAD: self.steps, AFTER: (step, *self.steps)}[self.how]
                yield from (one._replace(batch=tuple(_to(rank, it, layout) for it in one.batch)) for one in steps)


def _to(rank: int, step: Step, layout: Layout) -> Step:
    """Return a member of a batch with the number of the other rank, which is so far off in the group."""
    own = next(part for part in layout.groups[step.group] if rank in part)
    return step._replace(peer=own[(own.index(rank) + step.peer) % len(own)])


def stay(*at: str, idle: bool = True, below: Stack = TRAIN) -> tuple[Step, ...]:
    return (Step(STAY, (*at, *below), idle=idle),)


def fail(text: str, *at: str, below: Stack = TRAIN) -> tuple[Step, ...]:
    return (Step(FAIL, (*at, *below), text=text),)


def die(code: str) -> tuple[Step, ...]:
    return (Step(DIE, text=code),)


_OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 79.10 GiB of which 1.02 GiB is free."
_QUEUE = ("threading.py::wait", "queue.py::get")
_LOADER = tuple(f"torch/utils/data/dataloader.py::{name}" for name in ("_try_get_data", "_get_data", "__next__"))
_LOCK = ("filelock/_api.py::acquire", "datasets/builder.py::download_and_prepare", "data.py::load")
_SAVE = ("torch/serialization.py::_save", "torch/serialization.py::save", "checkpoint.py::save")
_DCP = (
    "torch/distributed/checkpoint/filesystem.py::_write_files_from_queue",
    "torch/distributed/checkpoint/state_dict_saver.py::save", "checkpoint.py::save",
)  # fmt: skip
_INDUCTOR = ("subprocess.py::wait", "torch/_inductor/codecache.py::compile", "torch/_dynamo/eval_frame.py::_fn")
_BATON = (
    "torch/utils/file_baton.py::wait", "torch/utils/cpp_extension.py::_jit_compile",
    "torch/utils/cpp_extension.py::load",
)  # fmt: skip
_HTTP = ("ssl.py::read", "urllib3/connection.py::getresponse", "wandb/sdk/lib/retry.py::__call__", "log.py::send")

_PLAIN = Style()
_2_4, _2_5, _2_9 = Style("2.4", frames=False), Style("2.5", status=False), Style("2.9", frames=False, active=True)
_JSON, _RAY, _SRUN = Style("2.10", as_json=True), Style(prefix="ray"), Style(prefix="srun")
_TORCHRUN, _POD, _STERN = Style("2.6", prefix="torchrun"), Style("2.7", prefix="kubectl"), Style("2.8", prefix="stern")

STRAGGLERS: Mapping[str, Hang] = {
    "loader-waits": Hang("a data loader that brings nothing more", "ddp-8", (5,), "forward", BEFORE, stay(*_LOADER)),
    "loader-waits-fsdp": Hang("a data loader that brings nothing more", "fsdp-64", (63,), "gather", BEFORE, stay(*_QUEUE, *_LOADER), _TORCHRUN),
    "loader-two-hosts": Hang("the data loaders of a node", "fsdp-64", tuple(range(16, 24)), "gather", BEFORE, stay(*_LOADER), _SRUN),
    "tokenizes": Hang("a long text is tokenized", "ddp-32", (11,), "forward", BEFORE, stay("data.py::tokenize", idle=False), _2_4),
    "lock-of-a-cache": Hang("a lock file on a shared disk", "ddp-8", (3,), "grads", BEFORE, stay(*_LOCK), _JSON),
    "lock-of-its-own": Hang("a lock that it holds", "moe-16", (9,), "attention", BEFORE, stay("threading.py::acquire", "metrics.py::add", below=SCHEDULE), _2_9),
    "gil": Hang("another thread keeps the interpreter", "moe-16", (14,), "dispatch", BEFORE, stay("metrics.py::spin", idle=False, below=SCHEDULE), _2_9),
    "gil-two": Hang("another thread keeps the interpreter", "moe-128", (70, 101), "combine", BEFORE, stay("metrics.py::spin", idle=False, below=SCHEDULE), _2_9),
    "checkpoint-disk": Hang("a disk that is stuck", "ddp-8", (0,), "norm", BEFORE, stay(*_SAVE), _POD),
    "checkpoint-dcp": Hang("torch's distributed checkpoint writes", "fsdp-8", (2,), "norm", BEFORE, stay(*_DCP)),
    "checkpoint-upload": Hang("an upload of a checkpoint", "moe-8", (0,), "batch", BEFORE, stay(*_HTTP, below=SCHEDULE[1:]), _STERN),
    "compiles": Hang("torch.compile", "ddp-32", (30,), "forward", BEFORE, stay(*_INDUCTOR), _RAY),
    "compiles-extension": Hang("a lock of a build that died", "ddp-8", (1, 2, 3), "forward", BEFORE, stay(*_BATON), _2_5),
    "collects-garbage": Hang("Python collects garbage", "moe-128", (127,), "dispatch", BEFORE, stay("megatron/training/training.py::gc_collect", idle=False, below=SCHEDULE[1:]), Style("2.8")),
    "logs-to-the-net": Hang("a log server does not answer", "ddp-256", (0,), "grads", BEFORE, stay(*_HTTP), _2_9),
    "debugger": Hang("a breakpoint", "ddp-8", (6,), "forward", BEFORE, stay("pdb.py::set_trace", "model.py::forward")),
    "cuda-call": Hang("a call of CUDA's", "ddp-8", (4,), "forward", BEFORE, stay("torch/cuda/__init__.py::synchronize", "model.py::forward"), _TORCHRUN),
    "evaluates": Hang("one rank evaluates, the others train", "fsdp-8", (0,), "gather", BEFORE, stay("eval.py::generate", "train.py::evaluate", idle=False), _RAY),
    "swaps": Hang("memory of the host is swapped", "moe-1024", (700,), "attention", BEFORE, stay("megatron/core/optimizer/cpu_offloading.py::step", idle=False, below=SCHEDULE[1:]), _2_9),
    "slow-in-1024": Hang("a data loader that brings nothing more", "moe-1024", (513,), "batch", BEFORE, stay(*_LOADER, below=SCHEDULE), Style("2.9", frames=False)),
    "first-step": Hang("the first batch never comes", "moe-16", (6,), "batch", BEFORE, stay(*_LOADER, below=SCHEDULE), _2_4, step=0),
}  # fmt: skip
GONE: Mapping[str, Hang] = {
    "oom": Hang("no memory on the GPU", "fsdp-8", (3,), "forward", BEFORE, fail(_OOM, "model.py::forward"), _TORCHRUN),
    "oom-ray": Hang("no memory on the GPU", "fsdp-64", (17,), "forward", BEFORE, fail(_OOM, "model.py::forward"), _RAY),
    "oom-two": Hang("no memory on two GPUs", "moe-16", (4, 5), "experts", BEFORE, fail(_OOM, MOE + "experts.py::TEGroupedMLP.forward", below=SCHEDULE), _SRUN),
    "loss-is-nan": Hang("an assertion of the user's", "ddp-8", (7,), "norm", BEFORE, fail("AssertionError: loss is NaN at step 3", "train.py::check"), _POD),
    "file-not-found": Hang("a file that only one node lacks", "ddp-32", (24, 25, 26, 27, 28, 29, 30, 31), "forward", BEFORE, fail("FileNotFoundError: [Errno 2] No such file or directory: '/data/shard-7.bin'", "data.py::__getitem__"), _STERN),
    "illegal-access": Hang("an illegal access of memory", "moe-16", (10,), "dispatch", BEFORE, fail("torch.AcceleratorError: CUDA error: an illegal memory access was encountered", "model.py::route", below=SCHEDULE), _TORCHRUN),
    "ecc": Hang("an uncorrectable error of the memory", "ddp-256", (201,), "forward", BEFORE, fail("RuntimeError: CUDA error: uncorrectable ECC error encountered", "model.py::forward"), _SRUN),
    "device-assert": Hang("an index out of range on the device", "fsdp-8", (6,), "forward", BEFORE, fail("RuntimeError: CUDA error: device-side assert triggered", "model.py::embed"), Style("2.9")),
    "key-error": Hang("a sample without a key", "moe-128", (33,), "batch", BEFORE, fail("KeyError: 'labels'", "data.py::collate", below=SCHEDULE), _POD),
    "killed": Hang("the kernel kills a rank", "ddp-8", (2,), "forward", BEFORE, die("-9"), _TORCHRUN),
    "killed-moe": Hang("the kernel kills a rank", "moe-16", (13,), "combine", BEFORE, die("-9"), Style("2.8")),
    "segfault": Hang("a segmentation fault", "fsdp-64", (40,), "scatter", BEFORE, die("-11"), Style("2.7")),
    "node-lost": Hang("a node without power", "ddp-32", tuple(range(8, 16)), "grads", BEFORE, die("-9"), Style("2.10")),
    "ends-early": Hang("a rank whose data ends before that of the others", "ddp-8", (7,), "forward", BEFORE, (Step(END),)),
    "exits": Hang("a rank leaves its loop, and waits in the end for its peers' last barrier", "fsdp-8", (1,), "gather", BEFORE, stay("shutdown.py::join", idle=True)),
}  # fmt: skip
DEVICES: Mapping[str, Hang] = {
    "device-stuck": Hang("a kernel that never ends", "moe-16", (12,), "attention", BEFORE, (Step(STICK),), _2_9._replace(timed=True)),
    "device-stuck-128": Hang("a network card that lost its link", "moe-128", (64,), "dispatch", BEFORE, (Step(STICK),), Style("2.8", frames=False, timed=True)),
    "device-stuck-ddp": Hang("a kernel that never ends", "ddp-32", (20,), "grads", BEFORE, (Step(STICK),), Style("2.10", timed=True)),
    "device-lost": Hang("a GPU that fell off the bus", "moe-16", (13,), "attention", BEFORE, (Step(STICK, after=5),), Style("2.9", frames=False, active=True)),
    "device-lost-two": Hang("two GPUs that fell off the bus", "moe-128", (65, 90), "combine", BEFORE, (Step(STICK, after=3),), Style("2.9", active=True)),
    "device-lost-fsdp": Hang("a GPU that fell off the bus", "fsdp-64", (31,), "scatter", BEFORE, (Step(STICK, after=2),), Style("2.10")),
    "device-lost-log": Hang("a GPU that fell off the bus", "ddp-256", (99,), "grads", BEFORE, (Step(STICK, after=2),), _SRUN),
    "device-unseen": Hang("a kernel that never ends, where the recorder does not time devices", "fsdp-64", (31,), "gather", BEFORE, (Step(STICK),), Style("2.9"), culprits=()),
    "fabric": Hang("all links are slow", "ddp-8", tuple(range(8)), "grads", BEFORE, (Step(STICK),), Style("2.10"), culprits=()),
}  # fmt: skip
APART: Mapping[str, Hang] = {
    "skips-grads": Hang("a rank without unused parameters skips a bucket", "ddp-8", (2,), "grads", INSTEAD, ()),
    "skips-combine": Hang("a rank skips a call", "moe-16", (3,), "combine", INSTEAD, (), Style("2.8")),
    "skips-norm": Hang("a rank does not clip", "fsdp-8", (4,), "norm", INSTEAD, (Step(SYNC, TRAIN),), _JSON),
    "one-more": Hang("a rank reduces once more", "ddp-32", (9,), "grads", AFTER, (issue(ALL, "all_reduce", 777, dtype="Float", at=("log.py::mean", *TRAIN)),), _TORCHRUN),
    "another-call": Hang("a rank broadcasts what the others reduce", "ddp-8", (0,), "grads", INSTEAD, (issue(ALL, "broadcast", 25_000, dtype="Float", at=("sync.py::share", *TRAIN)),)),
    "another-size": Hang("a rank has one parameter more", "ddp-32", (8,), "grads", INSTEAD, (issue(ALL, "all_reduce", 25_064, dtype="Float"),), _RAY),
    "another-type": Hang("a rank reduces doubles", "fsdp-8", (5,), "norm", INSTEAD, (issue(ALL, "all_reduce", 1, dtype="Double", at=("optim.py::clip", *TRAIN), waits=True),)),
    "another-type-64": Hang("a rank gathers another type", "fsdp-64", (2,), "gather", INSTEAD, (issue(MESH, "_all_gather_base", 4096, dtype="Float"),), _2_5),
    "another-group": Hang("a rank reduces in the group of all", "moe-16", (7,), "combine", INSTEAD, (issue(ALL, "all_reduce", 8, dtype="Float", at=("log.py::mean", *SCHEDULE), waits=True),), Style("2.8")),
    "order": Hang("a rank takes two groups in another order", "moe-16", (1,), "attention", BEFORE, (issue(EP, "all_to_all", 4096, 512, at=DISPATCH),), Style("2.9")),
    "uneven-loader": Hang("a rank has one batch more", "ddp-8", (0,), "norm", AFTER, (*_ddp(8).phases.values(),), more={"end": issue(ALL, "barrier", 1, dtype="Float", at=("train.py::end", "train.py::<module>"), waits=True)}, step=2),
    "half-and-half": Hang("as many ranks reduce another size", "ddp-8", (4, 5, 6, 7), "grads", INSTEAD, (issue(ALL, "all_reduce", 9, dtype="Float"),), culprits=tuple(range(8))),
    "half-calls": Hang("as many ranks are in another call", "fsdp-8", (0, 1, 2, 3), "norm", INSTEAD, (issue(ALL, "broadcast", 1, dtype="Float", waits=True),), culprits=tuple(range(8))),
}  # fmt: skip


def _like(
    what: str,
    layout: str,
    ranks: tuple[int, ...],
    phases: Mapping[str, Step],
    steps: tuple[Step, ...],
    style: Style = _PLAIN,
    how: str = BEFORE,
) -> Hang:
    """Return a job that looks like a known hang: all ranks come to such a phase, and one is held up before it."""
    return Hang(what, layout, ranks, next(iter(phases)), how, steps, style, more=phases)


LOOKALIKES: Mapping[str, Hang] = {
    "like-mtp-loader": _like("asleep in a data loader before an all-reduce over DP x CP", "moe-16", (2,), {"like": issue(DPCP, "all_reduce", 1, dtype="Float", at=MTP, waits=True)}, stay(*_LOADER, below=SCHEDULE)),
    "like-mtp-user": _like("a loss is averaged over DP x CP", "moe-8", (5,), {"like": issue(DPCP, "all_reduce", 1, dtype="Float", at=("loss.py::average", *SCHEDULE), waits=True)}, stay("loss.py::wait", below=SCHEDULE), _2_9),
    "like-moe-aux-stages": _like("statistics of a stage's own number of layers", "moe-8", (4, 5, 6, 7), {"like": issue(PP, "all_reduce", 8, dtype="Float", at=("stats.py::reduce", *SCHEDULE), waits=True)}, (issue(PP, "all_reduce", 9, dtype="Float", at=("stats.py::reduce", *SCHEDULE), waits=True),), Style("2.8"), INSTEAD)._replace(culprits=tuple(range(8))),
    "like-moe-aux-late": _like("a rank is late to the aux losses", "moe-8", (6,), {"like": issue(PP, "all_reduce", 8, dtype="Float", at=TRACK, waits=True)}, stay(*_HTTP, below=TRACK[2:]), Style("2.10")),
    "like-hybrid-late": _like("a rank is late to the aux losses of a hybrid model", "moe-16", (15,), {"like": issue(PP, "all_reduce", 12, dtype="Float", at=TRACK, waits=True)}, stay("log.py::print", below=TRACK[2:]), _2_4),
    "like-sft-flag": _like("a flag is broadcast over TP", "moe-16", (3,), {"like": issue(TP, "broadcast", 1, dtype="Long", at=("flags.py::share", *SCHEDULE), waits=True)}, stay(*_LOADER, below=SCHEDULE)),
    "like-sft-oom": _like("no memory in get_batch_on_this_tp_rank", "moe-16", (8,), {"like": issue(TP, "broadcast", 1, dtype="Long", at=BATCH, waits=True)}, fail(_OOM, *BATCH[:1], below=BATCH[1:]), _TORCHRUN),
    "like-sft-type": _like("a flag of another type over TP", "moe-16", (4,), {"like": issue(TP, "broadcast", 1, dtype="Long", at=("flags.py::share", *SCHEDULE), waits=True)}, (issue(TP, "broadcast", 1, dtype="Int", at=("flags.py::share", *SCHEDULE), waits=True),), how=INSTEAD)._replace(culprits=(4, 5)),
    "like-empty-expert-straggler": _like("no tokens, then a straggler", "moe-16", (6,), {"like": issue(EP, "all_to_all", 0, 512, at=DISPATCH), "like-2": issue(EP, "all_to_all", 4096, 512, at=DISPATCH, waits=True)}, stay(MOE + "router.py::routing", below=SCHEDULE)),
    "like-empty-expert-late": _like("a rank is late to combine its tokens", "moe-8", (3,), {"like": issue(EP, "all_to_all", 4096, 512, at=DISPATCH, waits=True)}, stay(MOE + "experts.py::TEGroupedMLP.forward", below=SCHEDULE, idle=False), Style("2.9")),
    "like-empty-expert-permute": _like("TE refuses to permute", "moe-16", (11,), {"like": issue(EP, "all_to_all", 4096, 512, at=DISPATCH, waits=True)}, fail("RuntimeError: Permute not possible", "transformer_engine/pytorch/permutation.py::moe_permute", MOE + "moe_utils.py::permute", below=SCHEDULE), _SRUN),
    "like-allgather-oom": _like("no memory for the tokens", "moe-8", (2,), {"like": issue(ETP, "_reduce_scatter_base", 4096, 512, at=GATHER, waits=True)}, fail(_OOM, MOE + "token_dispatcher.py::MoEAllGatherTokenDispatcher.combine_preprocess", below=SCHEDULE), _RAY),
    "like-allgather-view": _like("a user's view of nothing", "moe-8", (1,), {"like": issue(ETP, "_reduce_scatter_base", 4096, 512, at=GATHER, waits=True)}, fail("RuntimeError: shape '[-1, 512]' is invalid for input of size 0", "pool.py::reshape", below=SCHEDULE), _POD),
    "like-warmup-late": _like("a rank is late to the first use of the experts' group", "moe-16", (12,), {"like": issue(EDP, "_reduce_scatter_base", 4096, dtype="Float", at=SYNC_GRADS, waits=True)}, stay(*_INDUCTOR, below=SCHEDULE), Style("2.9"))._replace(step=0),
    "like-fsdp-bsz-late": _like("a rank of verl's waits for data", "fsdp-8", (4,), {"gather": issue(MESH, "_all_gather_base", 4096, at=UPDATE, waits=True)}, stay("verl/utils/dataset/rl_dataset.py::__getitem__", below=UPDATE[1:])),
    "like-fsdp-bsz-oom": _like("a rank of a patched verl has no memory", "fsdp-8", (6,), {"gather": issue(MESH, "_all_gather_base", 4096, at=UPDATE, waits=True)}, fail(_OOM, *UPDATE[:1], below=UPDATE[1:]), _RAY),
    "like-fsdp2-buffers": _like("a table of another size is broadcast", "fsdp-8", (0,), {"gather": issue(ALL, "broadcast", 64, dtype="Float", at=("load.py::share", *TRAIN), waits=True)}, (issue(ALL, "broadcast", 32, dtype="Float", at=("load.py::share", *TRAIN), waits=True),), how=INSTEAD),
    "like-fsdp2-late": _like("a rank loads its weights late", "fsdp-8", (7,), {"gather": issue(ALL, "broadcast", 64, dtype="Float", at=LOAD, waits=True)}, stay("safetensors/torch.py::load_file", below=LOAD[1:])),
    "like-metric-user": _like("a user's metric.py::compute in two types", "ddp-8", (0,), {"norm": issue(ALL, "all_reduce", 2, dtype="Float", at=("metric.py::compute", *TRAIN), waits=True)}, (issue(ALL, "all_reduce", 2, dtype="Double", at=("metric.py::compute", *TRAIN), waits=True),), how=INSTEAD),
    "like-metric-late": _like("a rank is late to MeanMetric.compute", "ddp-8", (3,), {"norm": issue(ALL, "all_reduce", 2, dtype="Float", at=METRIC, waits=True)}, stay("swift/trainers/mixin.py::_evalscope_eval", below=METRIC[1:])),
    "like-fsdp2-model": _like("a rank loads another model, with other tables", "fsdp-8", (7,), {"gather": issue(ALL, "broadcast", 256, dtype="Float", at=LOAD), "like-2": issue(ALL, "broadcast", 128, dtype="Float", at=LOAD, waits=True)}, (issue(ALL, "broadcast", 64, dtype="Float", at=LOAD), issue(ALL, "broadcast", 32, dtype="Float", at=LOAD)), how=INSTEAD),
    "like-fsdp-bsz-saves": _like("a rank saves below an update", "fsdp-8", (7,), {"gather": issue(MESH, "_all_gather_base", 4096, at=UPDATE, waits=True)}, (issue(ALL, "barrier", 1, dtype="Float", at=("checkpoint.py::save", *UPDATE[1:]), waits=True),), how=INSTEAD),
    "like-save-killed": _like("a rank of a save is killed", "fsdp-8", (5,), {"norm": issue(ALL, "barrier", 1, dtype="Float", at=SAVE, waits=True)}, die("-9"), _TORCHRUN)._replace(beside={0: (issue(ALL, "barrier", 1, dtype="Float", at=SAFE, waits=True),)}),
    "like-save-late": _like("a rank of a save writes to a disk that is stuck", "fsdp-8", (2,), {"norm": issue(ALL, "barrier", 1, dtype="Float", at=SAVE, waits=True)}, stay("safetensors/torch.py::save_file", below=SAVE))._replace(beside={0: (issue(ALL, "barrier", 1, dtype="Float", at=SAFE, waits=True),)}),
    "like-mtp-call": _like("a rank is in a user's call beside the loss", "moe-16", (2,), {"like": issue(DPCP, "all_reduce", 1, dtype="Float", at=MTP, waits=True)}, (issue(ALL, "barrier", 1, dtype="Float", at=("loss.py::share", *MTP[2:]), waits=True),)),
    "like-infer-generates": _like("rank 0 alone computes a metric, the others generate", "ddp-8", tuple(range(1, 8)), {"norm": issue(ALL, "all_reduce", 2, dtype="Float", at=CALC, waits=True)}, stay("swift/infer_engine/transformers_engine.py::infer", below=CALC[2:])),
    "like-infer-killed": _like("rank 0 alone computes a metric, the others were killed", "ddp-8", tuple(range(1, 8)), {"norm": issue(ALL, "all_reduce", 2, dtype="Float", at=CALC, waits=True)}, die("-9"), Style("2.9")),
    "like-infer-write": _like("rank 0 alone sums a metric, the others write", "ddp-8", tuple(range(1, 8)), {"norm": issue(ALL, "all_reduce", 2, dtype="Float", at=("infer.py::sum_metric", *TRAIN), waits=True)}, stay("infer.py::write"), Style("2.6")),
}  # fmt: skip
PIPES: Mapping[str, Hang] = {
    "pipe-late": Hang("a stage waits for a lock", "pipe-8", (5,), "send-1", BEFORE, stay(*_LOCK)),
    "pipe-late-first": Hang("the first stage waits for data", "pipe-16", (2,), "step-1", BEFORE, stay(*_LOADER), _2_9),
    "pipe-late-timed": Hang("a stage waits for a lock in its backward, and the recorder times devices", "pipe-8", (2,), "send-4", BEFORE, stay(*_LOCK), Style("2.9", timed=True)),
    "pipe-out-of-memory": Hang("no memory in a stage", "pipe-8", (4,), "step-1", BEFORE, fail(_OOM, "model.py::forward"), _TORCHRUN),
    "pipe-killed": Hang("the kernel killed a rank of a stage", "pipe-8", (3,), "recv-4", BEFORE, die("-9")),
    "pipe-killed-pair": Hang("the kernel killed a rank of two stages", "pipe-4", (1,), "reduce-1", BEFORE, die("-9"), _2_5),
    "pipe-device": Hang("a kernel that never ends, in one of a pair", "pipe-8", (4,), "reduce-1", BEFORE, (Step(STICK),), culprits=(4, 5)),
    "pipe-device-sends": Hang("a kernel that never ends, between a send and its receive", "pipe-16", (5,), "recv-4", BEFORE, (Step(STICK),), Style("2.8", frames=False), culprits=(5, 9)),
    "pipe-device-timed": Hang("a kernel that never ends, where the recorder times devices", "pipe-8", (3,), "reduce-4", BEFORE, (Step(STICK),), Style("2.10", timed=True)),
}  # fmt: skip
_WIDE = Style("2.8", kept=60)
RINGS: Mapping[str, Hang] = {
    "ring-left-out": Hang("a rank leaves out a round of a ring", "ring-8", (2,), "round-1", INSTEAD, (), _WIDE),
    "ring-left-out-16": Hang("a rank leaves out the last round of a ring", "ring-16", (13,), "round-13", INSTEAD, (), Style("2.9", frames=False, kept=40)),
    "ring-left-out-send": Hang("a rank leaves a send out of its batch", "ring-8", (5,), "round-4", INSTEAD, (exchange("backward", ("recv", -1), size=(512, 128)),), _WIDE),
    "ring-wrong-peer": Hang("a rank sends to the wrong one", "ring-16", (3,), "round-2", INSTEAD, (exchange("forward", ("send", 2), ("recv", -1)),), Style("2.10", kept=80)),
    "ring-another-size": Hang("a rank sends more than the next one receives", "ring-8", (1,), "round-0", INSTEAD, (exchange("forward", ("send", 1), ("recv", -1), size=(512, 65)),), _WIDE),
    "ring-another-type": Hang("a rank receives another type than is sent", "ring-16", (8,), "round-9", INSTEAD, (exchange("backward", ("send", 1), ("recv", -1), size=(512, 128), dtype="Float"),), Style("2.5", status=False, kept=60)),
    "ring-late": Hang("a rank of a ring waits for a lock", "ring-6", (4,), "step-1", BEFORE, stay(*_LOCK), _WIDE),
    "ring-killed": Hang("the kernel killed a rank of a ring", "ring-8", (6,), "round-2", BEFORE, die("-9"), _SRUN),
    "ring-device": Hang("a kernel that never ends, in a ring", "ring-8", (2,), "round-2", BEFORE, (Step(STICK),), _WIDE),
    "ring-device-timed": Hang("a kernel that never ends, in a ring whose devices are timed", "ring-6", (1,), "round-1", BEFORE, (Step(STICK),), Style("2.10", timed=True, kept=60)),
    "pipe-left-out": Hang("a stage leaves out a receive", "pipe-16", (6,), "recv-1", INSTEAD, (), Style("2.7", kept=60)),
}  # fmt: skip


def _known(
    fix: str,
    what: str,
    layout: str,
    ranks: Iterable[int],
    phases: Mapping[str, Step],
    steps: tuple[Step, ...],
    style: Style = _WIDE,
) -> Hang:
    """Return a job with the defect of a fix, in its first step: some ranks do something else than the last phase."""
    return Hang(what, layout, (*ranks,), [*phases][-1], INSTEAD, steps, style, (), phases, 0, fix=fix)


def _tracks(size: int, script: str = "pretrain_gpt.py") -> Step:
    return issue(PP, "all_reduce", size, dtype="Float", at=(*TRACK[:-1], f"{script}::<module>"), waits=True)


def _loads(size: int) -> Step:
    return issue(ALL, "broadcast", size, dtype="Float", at=LOAD)


def _metric(dtype: str, *, below: Stack = METRIC[1:]) -> Step:
    return issue(ALL, "all_reduce", 2, dtype=dtype, at=(*METRIC[:1], *below), waits=True)


def _flag(dtype: str, *, waits: bool = True) -> Step:
    return issue(TP, "broadcast", 1, dtype=dtype, at=BATCH, waits=waits)


_MTP = {"like": issue(DPCP, "all_reduce", 1, dtype="Float", at=MTP, waits=True)}
_CLIPS: Stack = (
    "torch/nn/utils/clip_grad.py::_get_total_norm",
    "verl/workers/critic/dp_critic.py::DataParallelPPOCritic._optimizer_step",
    "verl/workers/critic/dp_critic.py::DataParallelPPOCritic.update_critic",
)
_BACK, _COMBINES = (
    issue(EP, "all_to_all", 4096, 512, at=(MAPPINGS + "_AllToAll.forward", *at))
    for at in ((MAPPINGS + "_AllToAll.backward", BACKWARD, *SCHEDULE[1:]), DISPATCH)
)
_NO_TOKEN = _COMBINES._replace(sizes=(0, 512))
_LINEAR = "megatron/core/tensor_parallel/layers.py::LinearWithGradAccumulationAndAsyncCommunication.backward"
_OF_TP = issue(TP, "all_reduce", 4096, 512, at=(_LINEAR, BACKWARD, *SCHEDULE[1:]), waits=True)
_AVERAGE: Stack = (
    "megatron/training/utils.py::average_losses_across_data_parallel_group", "pretrain_gpt.py::loss_func", *SCHEDULE,
)  # fmt: skip
_SAFE = issue(ALL, "barrier", 1, dtype="Float", at=SAFE, waits=True)
_REDUCES = issue(ETP, "_reduce_scatter_base", 4096, 512, at=GATHER, waits=True)
_OF_ACTOR: Stack = (
    "torch/nn/utils/clip_grad.py::_get_total_norm",
    "verl/workers/actor/dp_actor.py::DataParallelPPOActor._optimizer_step", *UPDATE[1:],
)  # fmt: skip
_STAGE = tuple(range(8, 16))
_SECOND = {f"{name}-2": LAYOUTS["moe-16"].phases[name] for name in ("attention", "dispatch")} | {
    "combine-2": _COMBINES._replace(waits=True),
    "stages-2": issue(PP, "all_reduce", 4096, at=("stats.py::share", *SCHEDULE[1:]), waits=True),
}
NEARER: Mapping[str, Hang] = {
    "like-fsdp-bsz-critic": _like("two ranks update the critic, the others the actor", "fsdp-8", (2, 3), {"gather": issue(MESH, "_all_gather_base", 4096, at=UPDATE, waits=True)}, (issue(MESH, "all_reduce", 1, dtype="Float", at=_CLIPS, waits=True),), how=INSTEAD),
    "like-fsdp2-fewer": _like("a rank lacks a buffer", "fsdp-8", (2,), {"gather": _loads(256), "like-2": _loads(128), "like-3": _loads(64)}, (), _WIDE, INSTEAD)._replace(step=0),
    "like-fsdp2-more": _like("a rank has one buffer more", "fsdp-8", (5,), {"gather": _loads(128), "like-2": _loads(64)}, (_loads(64),), _WIDE)._replace(step=0),
    "like-mtp-one": _like("a rank leaves out a loss", "moe-8", (2,), _MTP, (), Style("2.8", active=True), INSTEAD)._replace(step=0),
    "like-moe-aux-later": _like("stages disagree in a later step", "moe-8", (4, 5, 6, 7), {"like": _tracks(8)}, (_tracks(9),), Style("2.9", active=True), INSTEAD)._replace(culprits=tuple(range(8))),
    "like-moe-aux-later-json": _like("stages disagree in a later step", "moe-8", (4, 5, 6, 7), {"like": _tracks(8)}, (_tracks(9),), _JSON, INSTEAD)._replace(culprits=tuple(range(8))),
    "like-moe-aux-one": _like("a rank of a stage differs from the others of it", "moe-16", (9,), {"like": _tracks(8)}, (_tracks(9),), Style("2.9", active=True), INSTEAD)._replace(step=0, culprits=(1, 9)),
    "like-hybrid-small": _like("a small hybrid model, by its script alone", "moe-8", (4, 5, 6, 7), {"like": _tracks(3, "pretrain_mamba.py")}, (_tracks(5, "pretrain_mamba.py"),), _WIDE, INSTEAD)._replace(step=0, culprits=tuple(range(8))),
    "like-aux-between": _like("sizes of a small model, or of one with more layers of multi-token prediction", "moe-8", (4, 5, 6, 7), {"like": _tracks(3, "train.py")}, (_tracks(5, "train.py"),), _WIDE, INSTEAD)._replace(step=0, culprits=tuple(range(8))),
    "like-empty-expert-lock": _like("a rank without a token waits in its backward for one in a user's lock", "moe-16", (3,), {"combine": _COMBINES, "like": _BACK._replace(waits=True)}, stay("threading.py::Lock.acquire", "hooks.py::reduce", below=SCHEDULE), _WIDE, AFTER)._replace(step=0, beside={2: (_NO_TOKEN, _OF_TP)}),
    "like-empty-expert-loss": _like("a rank without a token waits in its loss, before its backward", "moe-16", (6,), {"combine": _COMBINES}, (_NO_TOKEN, norm(*_AVERAGE)), _WIDE, INSTEAD)._replace(step=0, beside=dict.fromkeys(range(16), (_COMBINES, _BACK))),
    "like-fsdp-bsz-backward": _like("a rank gathers once more in its backward", "fsdp-8", (5,), {"norm": issue(MESH, "all_reduce", 1, dtype="Float", at=_OF_ACTOR, waits=True)}, (issue(MESH, "_all_gather_base", 4096, at=("torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py::unshard", BACKWARD, *UPDATE[1:]), waits=True),), _WIDE),
    "like-save-alone": _like("a user's callback saves on rank 0 alone", "fsdp-8", (0,), {"norm": _fsdp(8).phases["norm"]}, (_SAFE._replace(at=(*SAFE[:-1], "callback.py::on_step_end", "swift/megatron/trainers/base.py::train", *SAFE[-1:])),), _WIDE),
    "like-sft-fewer": _like("the sources send fewer than the others receive", "moe-16", tuple(range(1, 16, 2)), {"batch": _flag("Long")}, (_flag("Int", waits=False),), _WIDE)._replace(step=0, culprits=tuple(range(16))),
    "like-sft-one-pair": _like("the source of one pair of eight sends more", "moe-16", (4,), {"batch": _flag("Long")}, (_flag("Int"),), _WIDE)._replace(step=0),
    "like-metric-evaluates": _like("a rank evaluates, the others train", "ddp-8", (3,), {"norm": _metric("Float")}, (_metric("Double", below=("swift/trainers/mixin.py::SwiftMixin.evaluation_loop", "transformers/trainer.py::Trainer.evaluate", *METRIC[1:])),), how=INSTEAD),
    "like-metric-three": _like("a metric of three types", "ddp-8", (3, 4), {"norm": _metric("Float")}, (_metric("Half"),), how=INSTEAD)._replace(step=0, beside={4: (_metric("Double"),)}),
    "broadcast-behind": _like("a kernel that never ends, before a broadcast", "ddp-8", (2,), {"grads": issue(ALL, "broadcast", 64, dtype="Float", at=("sync.py::share", *TRAIN)), "norm": issue(ALL, "broadcast", 32, dtype="Float", at=("sync.py::share", *TRAIN), waits=True)}, (Step(STICK, after=1),), Style("2.8")),
    "hook-barrier": Hang("a rank is in a barrier of a user's hook, between two layers", "moe-16", (2,), "attention-2", BEFORE, (issue(ALL, "barrier", 1, dtype="Float", at=("user.py::debug_hook", MOE + "moe_layer.py::MoELayer.forward", *SCHEDULE), waits=True),), _WIDE, None, _SECOND),
    "hook-barrier-8": Hang("a rank is in a barrier of a user's hook, between two layers", "moe-8", (3,), "attention-2", BEFORE, (issue(ALL, "barrier", 1, dtype="Float", at=("user.py::debug_hook", MOE + "moe_layer.py::MoELayer.forward", *SCHEDULE), waits=True),), Style("2.9", frames=False, prefix="srun"), None, _SECOND),
    "killed-between": Hang("the kernel kills a rank between two layers", "moe-16", (6,), "attention-2", BEFORE, die("-9"), _WIDE, None, _SECOND),
    "oom-first": Hang("no memory on the GPU, in the first layer", "moe-16", (4,), "attention", BEFORE, fail(_OOM, "megatron/core/transformer/attention.py::SelfAttention.forward", below=SCHEDULE), Style("2.8"), None, {}, 0),
    "like-empty-expert-leaves": _known("", "a rank without a token leaves its backward by a user's code", "moe-16", (6,), {"combine": _COMBINES}, (_NO_TOKEN, issue(DPCP, "_reduce_scatter_base", 1 << 20, dtype="Float", at=("user.py::early_sync", *SCHEDULE[1:]), waits=True)))._replace(beside=dict.fromkeys(range(16), (_COMBINES, _BACK)), culprits=None),
    "moe-aux-16": _known("moe-aux-tracker-hang", "the hang of moe-aux-tracker-hang", "moe-16", _STAGE, {"like": _tracks(8)}, (_tracks(10),), Style("2.9", prefix="srun")),
    "hybrid-16": _known("hybrid-aux-tracker-hang", "the hang of hybrid-aux-tracker-hang", "moe-16", _STAGE, {"like": _tracks(12, "train.py")}, (_tracks(26, "train.py"),)),
    "sft-16": _known("sft-packed-seq-broadcast", "the hang of sft-packed-seq-broadcast", "moe-16", range(0, 16, 2), {"batch": _flag("Long")}, (_flag("Int"), _flag("Long"))),
    "metric-8": _known("mean-metric-dtype", "the hang of mean-metric-dtype", "ddp-8", (1, 4), {"norm": _metric("Float")}, (_metric("Double"),), Style(prefix="torchrun")),
    "save-8": _known("mcore-save-barrier", "the hang of mcore-save-barrier", "fsdp-8", (0,), {"norm": _SAFE._replace(at=SAVE)}, (_SAFE, _SAFE)),
    "infer-8": _known("infer-metric-rank0", "the hang of infer-metric-rank0, whose other ranks are at their end", "ddp-8", range(1, 8), {"norm": issue(ALL, "all_reduce", 2, dtype="Float", at=CALC, waits=True)}, stay("threading.py::_shutdown", below=())),
    "allgather-8": _known("allgather-empty-expert", "the hang of allgather-empty-expert, with the dump of the rank that failed", "moe-8", (1,), {"like": _REDUCES}, (_REDUCES._replace(sizes=(0, 512), waits=False), *fail("RuntimeError: shape '[4096, 1, 512]' is invalid for input of size 0", MOE + "token_dispatcher.py::MoEAllGatherTokenDispatcher.combine_postprocess", below=SCHEDULE)), _WIDE._replace(at_exit=True)),
    "empty-expert-16": _known("empty-expert-hang", "the hang of empty-expert-hang", "moe-16", (6,), {"combine": _COMBINES}, (_NO_TOKEN,))._replace(beside=dict.fromkeys(range(16), (_COMBINES, _BACK))),
}  # fmt: skip
"""What is nearer to a known hang than LOOKALIKES: a sceptic's, each of which was `known` once, or named an innocent; and
known ones beside them.
"""
_AFTER_NORM = {
    "norm": norm("optim.py::clip", *TRAIN, waits=False),
    "wait": Step(SYNC, ("torch/cuda/__init__.py::synchronize", *TRAIN[1:]), idle=False),
}
_NODE = Style(logged=4)
NODES: Mapping[str, Hang] = {
    "node-loader": Hang("a data loader of another node, where hosts wait for their devices", "ddp-8", (5,), "norm", BEFORE, stay(*_LOADER), _NODE, more=_AFTER_NORM),
    "node-tokenizes": Hang("a long text is tokenized on another node", "ddp-32", (21,), "norm", BEFORE, stay("data.py::tokenize", idle=False), Style("2.9", logged=8), more=_AFTER_NORM),
    "node-size": Hang("a rank reduces more, and another node waits for its devices", "ddp-8", (2,), "norm", INSTEAD, (issue(ALL, "all_reduce", 2, dtype="Float", at=("optim.py::clip", *TRAIN)),), _NODE, more=_AFTER_NORM),
}  # fmt: skip
"""Of which the logs of one node alone are at hand."""
_ALL = (STRAGGLERS, GONE, DEVICES, APART, LOOKALIKES, PIPES, RINGS, NEARER, NODES)
HANGS: Mapping[str, Hang] = {name: hang for hangs in _ALL for name, hang in hangs.items()}
