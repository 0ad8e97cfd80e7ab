"""verl: its real SFT trainers, cut off after a step and started again, with torchdata's real loader.

The samples of each step are compared with those of a run without a break: torch's own sampler, epoch by epoch. ``fit``
and what restores the loader are real. A stand-in for the model notes its samples, and files are kept in memory.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import io
import itertools
import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from unittest.mock import MagicMock, patch

from ..cases import DIFFERS, PASSED, Case, Topology
from ..ranks.around import Around, any_module

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

WARM = ("torch", "torchdata.stateful_dataloader", "hydra", "ray", "peft", "transformers", "tensordict")
_WHERE = "the steps are"
_EPOCHS, _BATCH = 3, 2
_HANDLER, _FSDP = "verl.utils.checkpoint.checkpoint_handler", "verl.trainer.fsdp_sft_trainer"
_TRAINERS = {"verl.trainer.sft_trainer": _HANDLER, "verl.trainer.sft_trainer_ray": _HANDLER, _FSDP: _FSDP}
"""The modules of the trainers, and of what restores the loader of each."""
CASES = (
    Case("end-of-epoch", Topology(), DIFFERS, _WHERE, {"steps": 4, "stop": 4}, core=True),
    Case("one-epoch-left", Topology(), DIFFERS, _WHERE, {"steps": 4, "stop": 8}, core=True),
    Case("inside-an-epoch", Topology(), PASSED, options={"steps": 4, "stop": 6}, core=True),
    Case("finished", Topology(), PASSED, options={"steps": 4, "stop": 8, "total": 8}, core=True, patched=DIFFERS),
    Case("half-the-batch", Topology(), DIFFERS, _WHERE, {"steps": 4, "stop": 4, "earlier": 4}, patched=DIFFERS),
)
GRID = [
    Case(
        f"{ranks} ranks, {steps} steps an epoch{' and a rest' * rest}, stopped after {stop}{', no state' * (not kept)}",
        Topology(dp=ranks),
        DIFFERS if kept and 0 < stop < _EPOCHS * steps and stop % steps == 0 else PASSED,
        options={"steps": steps, "stop": stop, "rest": rest, "has_state": kept},
    )
    for ranks, (steps, rest, stops) in itertools.product(
        (1, 2), ((4, 0, (0, 2, 4, 6, 8, 9, 12)), (3, 1, (2, 3, 4, 6, 9)), (1, 0, (1, 2, 3)))
    )
    for stop, kept in [*((stop, True) for stop in stops), (steps, False)]
]
_PULL = "of a file that only pull request 7402 saves, or of an epoch without a batch"
HELD = {"metadata|saved_step|expected_step|steps_per_epoch > 0": _PULL}
YOURS = CASES[0]._replace(name="yours", core=False)


class Stopped(Exception):
    """The job is cut off."""


def caveat(case: Case) -> str:
    """Return what the case leaves open."""
    return "only a job that goes on from the end of an epoch, which yours may not do"


def settings(case: Case) -> dict[str, Any]:
    """Return what the user of such a job sets."""
    stop, is_kept = case.options["stop"], case.options.get("has_state", True)
    is_end = is_kept and stop > 0 and stop % case.options["steps"] == 0
    return {
        **{"program": "verl.trainer.sft_trainer", "resume_mode": "auto" if stop else "disable"},
        "total_training_steps": case.options.get("total"),
        "it goes on from the end of an epoch, with steps left": is_end and stop < _total(case),
        "it is started again after its last step, at the end of an epoch": is_end and stop == _total(case),
        "it resumes with another number of batches in an epoch": "earlier" in case.options,
    }


def prepare() -> None:
    """Import the trainers among stand-ins, without a device."""
    sys.meta_path.insert(0, Around("verl", {*_TRAINERS, _HANDLER}, any_module))
    device: Any = importlib.import_module("verl.utils.device")
    device.is_cuda_available = device.is_npu_available = False
    tensors: Any = importlib.import_module("verl.utils.tensordict_utils")
    tensors.get_tensordict = lambda tensor_dict, non_tensor_dict: tensor_dict
    for name in _names():
        vars(importlib.import_module(name)).update(tqdm=lambda batches, **_: batches, OmegaConf=MagicMock())


def on_rank(case: Case, rank: int) -> dict[str, Any]:
    """Return, for each trainer, the samples of each step before and after the break, and the last step saved."""
    return {name: _trained(case, name, rank) for name in _names(case.options.get("module"))}


def _trained(case: Case, name: str, rank: int) -> tuple[list[list[int]], int]:
    steps: list[list[int]] = []
    saved = 0, b""
    for first, stop in sorted({(0, case.options["stop"]), (case.options["stop"], 0)}):  # one, without a break
        trainer = _trainer(case, name, rank, steps, _BATCH if first else _earlier(case))
        trainer.save_freq = trainer.config.trainer.save_freq = 1 if stop else -1

        def save(step: int) -> None:
            nonlocal saved
            saved = step, _packed(trainer.train_dataloader.state_dict())  # noqa: B023
            if step == stop:  # noqa: B023
                raise Stopped

        owner = _restored(case, name, trainer, first, saved[1]) if first else MagicMock()
        owner.save_checkpoint = trainer.save_checkpoint = save
        trainer.ckpt_handler, trainer.resume_global_step = owner, first
        with suppress(Stopped):
            trainer.fit()
    return steps, saved[0]


def _trainer(case: Case, name: str, rank: int, steps: list[list[int]], batch: int) -> Any:
    """Return a trainer whose model notes the samples of each step."""
    import torch

    def train(data: Any, *_: Any, **__: Any) -> Any:
        steps.append(data["input_ids"].flatten().tolist())
        return MagicMock()

    module: Any = importlib.import_module(name)
    kind = module.FSDPSFTTrainer if name == _FSDP else module.SFTTrainer
    trainer, engine, config = kind.__new__(kind), MagicMock(train_batch=train), MagicMock()
    engine.is_mp_src_rank_with_outputs.return_value = False
    engine.get_rank.return_value, engine.get_data_parallel_rank.return_value = 1, rank
    config.data.train_batch_size = batch
    given = {"total_epochs": _EPOCHS, "total_training_steps": case.options.get("total")}
    config.trainer.configure_mock(**given, test_freq=-1, balance_batch=False)
    samples, rank, ranks = _share(case, name, rank)
    rows = [{"input_ids": torch.tensor([row]), "length": torch.ones(1)} for row in range(samples)]
    sampler = module.DistributedSampler(rows, shuffle=True, num_replicas=ranks, rank=rank, drop_last=True)
    loader = module.StatefulDataLoader(rows, batch_size=batch, sampler=sampler, drop_last=True)
    vars(trainer).update(train_sampler=sampler, train_dataloader=loader, val_dataloader=(), loss_fn=None, rank=1)
    vars(trainer).update(engine=engine, training_client=engine, device_mesh=engine, config=config, test_freq=-1)
    vars(trainer).update(steps_per_epoch=len(loader), total_training_steps=_total(case), global_batch_size=batch)
    vars(trainer).update(device_name="cpu", start_profile_step=-1, end_profile_step=-1, model_config=MagicMock())
    vars(trainer).update(training_step=train, _get_batch_seqlens=lambda data: data["length"])
    return trainer


def _restored(case: Case, name: str, trainer: Any, step: int, state: bytes) -> Any:
    """Restore the loader, as ``load_checkpoint`` does after the model; return what has done so."""
    import torch

    owner, module = trainer, importlib.import_module(_TRAINERS[name])
    if name != _FSDP:
        given = {"mode": module.OrchestrationMode.RAY} if name.endswith("ray") else {}
        owner = module.CheckpointHandler(trainer.engine, trainer.train_dataloader, default_local_dir="", **given)
    owner.resume_global_step, load, folder = step, torch.load, f"/checkpoints/global_step_{step}"
    names = ("data.pt", f"data_{trainer.train_sampler.rank}.pt") if case.options.get("has_state", True) else ()
    files = {f"{folder}/{name}": state for name in names}
    takes_step = len(inspect.signature(owner._load_dataloader_state).parameters) > 1  # as in pull request 7402
    with (
        patch.object(os.path, "exists", files.__contains__),
        patch.object(torch, "load", lambda path, **options: load(io.BytesIO(files[path]), **options)),
    ):
        owner._load_dataloader_state(folder, *[step] * takes_step)
    return owner


def _share(case: Case, name: str, rank: int) -> tuple[int, int, int]:
    """Return the number of samples, and the rank that a loader is for, of how many: of one, if ray's trainer has it."""
    rank, ranks = (0, 1) if name.endswith("ray") else (rank, case.topology.world)
    return (int(case.options["steps"]) * _BATCH + int(case.options.get("rest", 0))) * ranks, rank, ranks


def _total(case: Case) -> int:
    return int(case.options.get("total", _EPOCHS * case.options["steps"]))


def _earlier(case: Case) -> int:
    """Return the batch size before the break."""
    return int(case.options.get("earlier", _BATCH))


def _packed(state: Any) -> bytes:
    import torch

    packed = io.BytesIO()
    torch.save(state, packed)
    return packed.getvalue()


def _due(case: Case, name: str, rank: int) -> tuple[list[list[int]], int]:
    """Return what a run without a break does, by torch's sampler alone."""
    from torch.utils.data import DistributedSampler

    samples, rank, ranks = _share(case, name, rank)
    sampler: Any = DistributedSampler(range(samples), ranks, rank, drop_last=True)
    steps: list[list[int]] = []
    for epoch in range(_EPOCHS):
        sampler.set_epoch(epoch)
        order = [*sampler]
        batch = _earlier(case) if len(steps) < case.options["stop"] else _BATCH
        steps += [order[at : at + batch] for at in range(0, case.options["steps"] * _BATCH, batch)]
    steps = steps[: _total(case)]
    return steps, len(steps)


def wrong(case: Case, ranks: Sequence[dict[str, Any]]) -> str:
    """Return what is wrong with the steps of a run; empty where nothing is."""
    return "; ".join(text for text, is_right in _compared(case, ranks) if not is_right)


def right(case: Case, ranks: Sequence[dict[str, Any]]) -> str:
    """Return what was seen."""
    return "; ".join(text for text, _ in _compared(case, ranks))


def _compared(case: Case, ranks: Sequence[dict[str, Any]]) -> Iterator[tuple[str, bool]]:
    for rank, found in enumerate(ranks):
        for name, (steps, saved) in found.items():
            due, last = _due(case, name, rank)
            other = "" if steps == due[: len(steps)] else " of other samples"
            text = f"{name}, rank {rank}: {_WHERE} {len(steps)}{other}, the last saved one is {saved}"
            yield f"{text}; due {len(due)} and {last}", (steps, saved) == (due, last)


def _names(module: str | None = None) -> list[str]:
    """Return the trainers of this release that use a module; all of them if none is given."""
    there = [name for name in _TRAINERS if importlib.util.find_spec(name)]
    return [name for name in there if module in (None, _TRAINERS[name])]
