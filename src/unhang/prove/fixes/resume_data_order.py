"""ms-swift: the samples of a run that resumes inside an epoch, beside those of one without a break.

The loaders, their samplers and the function that ``transformers.trainer`` is given are ms-swift's real ones. The loop over
the epochs is a stand-in: that of transformers 4 tells a loader its epoch before it skips batches, that of 5 after it.
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
_SEQUENCE = ("swift.sequence_parallel", "swift.trainers.sequence_parallel")
_LOADERS = ("swift.dataloader", "swift.llm.data_loader")
_REAL = {*_LOADERS, "swift.dataloader.shard", "swift.dataloader.dispatcher", _MIXIN, *(f"{it}.utils" for it in _SEQUENCE)}
_ONE, _TWO = Topology(), Topology(dp=2)
_groups = SimpleNamespace()
"""What sequence parallelism knows of its groups, of which the samplers ask for those of the data."""


def _case(name: str, topology: Topology = _ONE, core: bool = False, **options: Any) -> Case:
    """Return a case: stopped in the second of three epochs after two batches, with transformers 4, unless told."""
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
GRID = [
    *(
        _case(
            f"{kind} on {topology.world}, transformers {version}, epoch {epoch} after {done}, rest {rest}",
            **{"topology": topology, "kind": kind, "transformers": version, "epoch": epoch, "done": done, "rest": rest},
        )
        for kind, topologies in (("map", (_ONE, _TWO)), ("sp", (_TWO,)), ("stream", (_ONE, _TWO)), ("other", (_ONE,)))
        for topology, version in itertools.product(topologies, (4, 5))
        for epoch, done, rest in ((0, 2, 0), (1, 0, 1), (1, 1, 0), (1, 3, 1), (2, 2, 1))
    ),
    *(_case(f"shuffle {it}, transformers {each}", shuffle=it, transformers=each) for it in (True, False) for each in (4, 5)),
    *(_case(f"by length, transformers {each}", by_length=True, transformers=each) for each in (4, 5)),
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
    """Import the trainer's mixins and the loaders among stand-ins: of ms-swift, modelscope and trl, none takes part."""
    sys.meta_path[:0] = [Around("swift", _REAL, any_module), *(Around(it, (), any_module) for it in ("modelscope", "trl"))]
    loaders: Any = importlib.import_module(next(filter(importlib.util.find_spec, _LOADERS)))
    given: Any = importlib.import_module("swift.llm")  # where the mixins of 3.x take the loaders from
    for name in ("BatchSamplerShard", "DataLoaderShard", "DataLoaderDispatcher"):
        setattr(given, name, getattr(loaders, name))
    for name in _SEQUENCE:
        if importlib.util.find_spec(f"{name}.utils"):
            package, real = importlib.import_module(name), importlib.import_module(f"{name}.utils")
            vars(package).update(SequenceParallelSampler=real.SequenceParallelSampler, sequence_parallel=_groups)
    importlib.import_module(_MIXIN)


class _Rows(list):  # type: ignore[type-arg]
    """A data set, which also has the length of each of its rows."""

    def __getitem__(self, key: Any) -> Any:
        return [row % 5 + 1 for row in self] if isinstance(key, str) else super().__getitem__(key)


def on_rank(case: Case, rank: int) -> dict[str, list[list[int]]]:
    """Return the batches that a rank gets after the break, and those of a run without one."""
    from transformers import trainer as used

    epoch, done = case.options["epoch"], case.options["done"]
    whole, resumed = _job(case, rank), _job(case, rank)
    due = [_batches(case, whole, whole.get_train_dataloader(), each, 0, used) for each in range(_EPOCHS)]
    with resumed._patch_skip_first_batches():
        loader = resumed.get_train_dataloader()
        found = [
            _batches(case, resumed, loader, each, done * (each == epoch), used) for each in range(epoch, _EPOCHS)
        ]
    return {"found": sum(found, []), "due": sum(due[epoch:], [])[done:]}


def _batches(case: Case, job: Any, loader: Any, epoch: int, done: int, used: Any) -> list[list[int]]:
    """Return the batches of an epoch without the first ones, as the loop of the Trainer gets them."""
    told = loader
    if case.options["transformers"] < 5 and hasattr(told, "set_epoch"):
        told.set_epoch(epoch)
    if done:
        told = used.skip_first_batches(loader, done)
    if case.options["transformers"] > 4 and hasattr(told, "set_epoch"):
        told.set_epoch(epoch)
    return [*map(list, told)]


def _job(case: Case, rank: int) -> Any:
    """Return a trainer of the mixins, with the settings of the case."""
    from torch import distributed
    from torch.utils.data import DataLoader

    module: Any = importlib.import_module(_MIXIN)
    options, size = case.options, case.topology.world
    names = ("dataloader_num_workers", "dataloader_pin_memory", "dataloader_persistent_workers", "process_index")
    args = SimpleNamespace(**dict.fromkeys(names, 0), dataloader_prefetch_factor=None, deepspeed=None, seed=1)
    vars(args).update(dataloader_drop_last=options.get("drop", False), data_seed=options.get("seed"))
    vars(args).update(train_dataloader_shuffle=options.get("shuffle", True), group_by_length=options.get("by_length"))
    job = object.__new__(type("Job", (module.SwiftMixin, module.DataLoaderMixin), {}))
    rows: Any = _Rows(range(size * 10 + options.get("rest", 0)))
    job.args, job._train_batch_size, job.data_collator = args, _BATCH, list
    job.train_dataset = _stream(rows) if options["kind"] == "stream" else rows
    job.template, job.accelerator = SimpleNamespace(sequence_parallel_size=1), SimpleNamespace(device=None)
    if options["kind"] == "other":
        job.get_train_dataloader = lambda: DataLoader(rows, _BATCH, collate_fn=list)
    if options["kind"] == "sp":
        job.template.sequence_parallel_size = 2
        job._get_collator_with_removed_columns = lambda collator, **_: collator
        mesh = SimpleNamespace(get_group=lambda: distributed.group.WORLD, size=lambda: size)
        vars(_groups).update(device_mesh={"data": mesh}, dp_rank=rank)
    return job


def _stream(rows: Sequence[int]) -> Any:
    """Return a data set without a length, whose order is that of its epoch, as one of ``datasets``."""
    import random

    from torch.utils.data import IterableDataset

    class Stream(IterableDataset):  # type: ignore[type-arg]
        epoch = 0

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

        def __iter__(self) -> Iterator[int]:
            return iter(random.Random(self.epoch).sample(rows, len(rows)))

    return Stream()


def wrong(case: Case, ranks: Sequence[dict[str, list[list[int]]]]) -> str:
    """Return what is wrong with the samples after the break; empty where nothing is."""
    return "" if all(it["found"] == it["due"] for it in ranks) else right(case, ranks)


def right(case: Case, ranks: Sequence[dict[str, list[list[int]]]]) -> str:
    """Return what was seen."""
    same = [sum(one == other for one, other in zip(it["found"], it["due"])) for it in ranks]
    due = [len(it["due"]) for it in ranks]
    return f"{_WHERE}, batches as without one are {sum(same)}, due {sum(due)}"
