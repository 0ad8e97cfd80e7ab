"""ms-swift: the samples of a run that resumes inside an epoch, beside those of one without a break.

The loaders, their samplers, and what ``transformers.trainer`` is given to skip batches, are ms-swift's real ones. A
stand-in loops over the epochs: transformers 4 tells a loader its epoch before it skips batches, and 5 after that.
"""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from ..cases import DIFFERS, PASSED, Case, Topology
from ..ranks.around import Around, any_module

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

WARM = ("torch", "accelerate.data_loader", "datasets", "peft", "transformers.trainer")
_WHERE = "after the break"
_EPOCHS, _BATCH = 3, 2
_MIXIN = "swift.trainers.mixin"
_SEQUENCE = ("swift.sequence_parallel.utils", "swift.trainers.sequence_parallel.utils")
_LOADERS = ("swift.dataloader", "swift.llm.data_loader", *_SEQUENCE)
_REAL = {_MIXIN, *_LOADERS, "swift.dataloader.shard", "swift.dataloader.dispatcher"}
_TAKEN = ("Shard", "Dispatcher", "Sampler")
"""How the names end of what other modules take from a package of these."""
_ONE, _TWO = Topology(), Topology(dp=2)
_groups = SimpleNamespace()
"""What sequence parallelism knows of its groups: a sampler asks for that of the data."""


def _case(name: str, topology: Topology = _ONE, core: bool = False, **options: Any) -> Case:
    """Return a case: unless told, it stops in the second of three epochs after two batches, with transformers 4."""
    options = {"epoch": 1, "done": 2, "transformers": 4, "kind": "map", **options}
    hit = options["epoch"] and options["done"] and options.get("shuffle", True) and options["kind"] in ("map", "sp")
    may = {"may_pass": True} if options["transformers"] > 4 or options["kind"] == "sp" else {}
    return Case(name, topology, DIFFERS if hit else PASSED, _WHERE * bool(hit), {**options, **may}, core)


CASES = (
    _case("second-epoch", core=True),
    _case("second-epoch-2", _TWO),
    _case("last-epoch", epoch=2, core=True),
    _case("transformers-5", transformers=5, core=True),
    _case("sequence-parallel", _TWO, kind="sp", core=True),
    _case("first-epoch", epoch=0, core=True),
    _case("end-of-epoch", done=0),
    _case("without-shuffle", shuffle=False),
    _case("streaming", kind="stream", core=True),
)
_KINDS = {"map": (_ONE, _TWO), "sp": (_TWO,), "stream": (_ONE, _TWO), "other": (_ONE,)}
GRID = [
    *(
        _case(
            f"{kind} on {topology.world}, transformers {version}, epoch {epoch} after {done}",
            topology,
            False,
            **{"kind": kind, "transformers": version, "epoch": epoch, "done": done, "rest": epoch % 2},
        )
        for kind, version in itertools.product(_KINDS, (4, 5))
        for topology in _KINDS[kind]
        for epoch, done in ((0, 2), (1, 0), (1, 3), (2, 1))
    ),
    *(_case(f"without shuffle, transformers {each}", shuffle=False, transformers=each) for each in (4, 5)),
    _case("last batch dropped", drop=True, rest=1),
    _case("a seed of its own", seed=7),
]
YOURS = _case("yours")


def caveat(case: Case) -> str:
    """Return what the case leaves open."""
    return "only a job that resumes inside an epoch after the first, which yours may not do"


def settings(case: Case) -> dict[str, Any]:
    """Return what the user of such a job sets."""
    kind, is_old = case.options["kind"], case.options["transformers"] < 5
    return {
        **{"resume_from_checkpoint": "output/checkpoint-6", "tensor_model_parallel_size": None},
        **{"each epoch is shuffled anew": case.options.get("shuffle", True), "streaming": kind == "stream"},
        **{"rlhf_type": "grpo" if kind == "other" else None, "sequence_parallel_size": 1 + (kind == "sp")},
        "version ms-swift": "4.6.0" if kind == "sp" else "4.5.2" if is_old else "4.4.0",
        "transformers 4": is_old,
        "it is inside a later epoch": case.options["epoch"] > 0 and case.options["done"] > 0,
    }


def prepare() -> None:
    """Import the trainer's mixins, the loaders and samplers among stand-ins: of the other modules, none takes part."""
    sys.meta_path[:0] = [Around(name, _REAL, any_module) for name in ("swift", "modelscope", "trl")]
    for name in filter(importlib.util.find_spec, _LOADERS):
        found = {key: it for key, it in vars(importlib.import_module(name)).items() if key.endswith(_TAKEN)}
        vars(importlib.import_module(name.rpartition(".")[0])).update(found, sequence_parallel=_groups)
    importlib.import_module(_MIXIN)


def on_rank(case: Case, rank: int) -> tuple[list[list[int]], list[list[int]]]:
    """Return the batches that a rank gets after the break, and those of a run without one."""
    options, epochs = case.options, range(case.options["epoch"], _EPOCHS)
    whole, resumed = _job(case, rank), _job(case, rank)
    due = [*_batches(case, whole.get_train_dataloader(), range(_EPOCHS))]
    with resumed._patch_skip_first_batches():
        found = [*_batches(case, resumed.get_train_dataloader(), epochs, options["done"])]
    return found, due[len(due) // _EPOCHS * epochs[0] + options["done"] :]


def _batches(case: Case, loader: Any, epochs: Sequence[int], done: int = 0) -> Iterator[list[int]]:
    """Yield the batches of epochs without the first ones, as the loop of the Trainer gets them."""
    from transformers import trainer

    for epoch in epochs:
        used, is_old = loader, case.options["transformers"] < 5
        if is_old:
            _tell(used, epoch)
        if done and epoch == epochs[0]:
            used = trainer.skip_first_batches(used, done)
        if not is_old:
            _tell(used, epoch)
        yield from map(list, used)


def _tell(loader: Any, epoch: int) -> None:
    if hasattr(loader, "set_epoch"):
        loader.set_epoch(epoch)


class _Stream:
    """A data set without a length, whose order is that of its epoch."""

    epoch, rows = 0, range(0)

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        yield from (*self.rows[self.epoch :], *self.rows[: self.epoch])


def _job(case: Case, rank: int) -> Any:
    """Return a trainer of the mixins, with the settings of the case."""
    from torch import distributed
    from torch.utils.data import DataLoader, IterableDataset

    module: Any = importlib.import_module(_MIXIN)
    options, size = case.options, case.topology.world
    names = ("num_workers", "pin_memory", "persistent_workers")
    args = SimpleNamespace(**{f"dataloader_{name}": 0 for name in names}, dataloader_prefetch_factor=None)
    vars(args).update(dataloader_drop_last=options.get("drop", False), data_seed=options.get("seed"), seed=1)
    vars(args).update(train_dataloader_shuffle=options.get("shuffle", True), group_by_length=False)
    vars(args).update(process_index=rank, deepspeed=None)
    job: Any = object.__new__(type("Job", (module.SwiftMixin, module.DataLoaderMixin), {}))
    rows = range(size * 10 + options.get("rest", 0))
    job.args, job._train_batch_size, job.data_collator, job.train_dataset = args, _BATCH, list, rows
    job.template, job.accelerator = SimpleNamespace(sequence_parallel_size=1), SimpleNamespace(device=None)
    if options["kind"] == "stream":
        job.train_dataset = type("Stream", (_Stream, IterableDataset), {"rows": rows})()
    if options["kind"] == "other":
        job.get_train_dataloader = lambda: DataLoader(rows, _BATCH, collate_fn=list)
    if options["kind"] == "sp":
        job.template.sequence_parallel_size = 2
        job._get_collator_with_removed_columns = lambda collator, **_: collator
        mesh = SimpleNamespace(get_group=lambda: distributed.group.WORLD, size=lambda: size)
        vars(_groups).update(device_mesh={"data": mesh}, dp_rank=rank)
    return job


def wrong(case: Case, ranks: Sequence[tuple[list[list[int]], list[list[int]]]]) -> str:
    """Return what is wrong with the samples after the break; empty where nothing is."""
    return "" if all(found == due for found, due in ranks) else right(case, ranks)


def right(case: Case, ranks: Sequence[tuple[list[list[int]], list[list[int]]]]) -> str:
    """Return what was seen."""
    same = sum(one == other for found, due in ranks for one, other in zip(found, due))
    return f"{_WHERE}, batches as without one are {same}, due {sum(len(due) for _, due in ranks)}"
