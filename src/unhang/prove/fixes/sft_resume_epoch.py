"""verl: its real SFT trainers, cut off after a step and started again, with torchdata's real loader.

The samples of each step are compared with those of a run without a break: torch's own sampler, epoch by epoch. ``fit``
and what restores the loader are real. A stand-in for the model notes its samples, and files are kept in memory.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from unittest.mock import MagicMock

from ..cases import DIFFERS, PASSED, Case, Topology
from ..ranks import files
from ..ranks.around import Around, any_module

if TYPE_CHECKING:
    from collections.abc import Sequence

WARM = ("torch", "torchdata.stateful_dataloader", "hydra", "ray", "peft", "transformers", "tensordict")
_WHERE, _EPOCHS, _BATCH = "the steps are", 3, 2
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
        options={"steps": steps, "stop": stop, "rest": rest, "has_state": kept, "other": ranks > 1},
    )
    for ranks in (1, 2)
    for steps, rest, stops in ((4, 0, (0, 2, 4, 6, 8, 9, 12)), (3, 1, (2, 3, 4, 6, 9)), (1, 0, (1, 2, 3)))
    for stop, kept in [*((stop, True) for stop in stops), (steps, False)]
]
_PULL = "of a file that only pull request 7402 saves, or of an epoch without a batch"
HELD = {"metadata|saved_step|expected_step|steps_per_epoch > 0": _PULL}
YOURS = CASES[0]._replace(name="yours", core=False)


def caveat(case: Case) -> str:
    """Return what the case leaves open."""
    return "only a job that goes on from the end of an epoch, which yours may not do"


def settings(case: Case) -> dict[str, Any]:
    """Return what the user of such a job sets."""
    stop, steps = case.options["stop"], case.options["steps"]
    is_end = case.options.get("has_state", True) and stop > 0 and stop % steps == 0
    total = case.options.get("total", _EPOCHS * steps)
    return {
        **{"program": "verl.trainer.sft_trainer", "resume_mode": "auto" if stop else "disable"},
        "total_training_steps": case.options.get("total"),
        "it goes on from the end of an epoch, with steps left": is_end and stop < total,
        "it is started again after its last step, at the end of an epoch": is_end and stop == total,
        "it resumes with another number of batches in an epoch": "earlier" in case.options,
    }


def prepare() -> None:
    """Import the trainers among stand-ins, without a device."""
    sys.meta_path.insert(0, Around("verl", {*_TRAINERS, _HANDLER}, any_module))
    device: Any = importlib.import_module("verl.utils.device")
    device.is_cuda_available = device.is_npu_available = False
    tensors: Any = importlib.import_module("verl.utils.tensordict_utils")
    tensors.get_tensordict = lambda tensor_dict, non_tensor_dict: tensor_dict
    for name in filter(importlib.util.find_spec, _TRAINERS):
        vars(importlib.import_module(name)).update(tqdm=lambda batches, **_: batches, OmegaConf=MagicMock())


def on_rank(case: Case, rank: int) -> list[tuple[str, Any, Any]]:
    """Return, for each trainer, what it did in words; the samples of its steps, and the last one saved; what is due."""
    found = []
    for name, module in _TRAINERS.items():
        if importlib.util.find_spec(name) and case.options.get("module", module) == module:
            share = (0, 1) if name.endswith("ray") else (rank, case.topology.world)  # ray's has one loader for all
            due, (steps, saved) = _due(case, _sampler(case, *share)), _trained(case, name, *share)
            other = "" if steps == due[: len(steps)] else " of other samples"
            text = f"{name}, rank {rank}: {_WHERE} {len(steps)}{other}, the last saved one is {saved}; due {len(due)}"
            found.append((f"{text} and {len(due)}", (steps, saved), (due, len(due))))
    return found


def _sampler(case: Case, rank: int, ranks: int) -> Any:
    """Return torch's own sampler for a rank, of so many."""
    from torch.utils.data import DistributedSampler

    samples = case.options["steps"] * _BATCH + case.options.get("rest", 0)
    return DistributedSampler(range(samples * ranks), ranks, rank, drop_last=True)


def _due(case: Case, sampler: Any) -> list[list[int]]:
    """Return the samples of each step in a run without a break, by the sampler alone."""
    steps: list[list[int]] = []
    for epoch in range(_EPOCHS):
        sampler.set_epoch(epoch)
        order, batch = [*sampler], _BATCH if len(steps) >= case.options["stop"] else case.options.get("earlier", _BATCH)
        steps += [order[at : at + batch] for at in range(0, case.options["steps"] * _BATCH, batch)]
    return steps[: case.options.get("total")]


def _trained(case: Case, name: str, rank: int, ranks: int) -> tuple[list[list[int]], int]:
    """Return the samples of each step before and after the break, and the last step that was saved."""
    steps: list[list[int]] = []
    saved = [(0, b"")]
    for first, stop in sorted({(0, case.options["stop"]), (case.options["stop"], 0)}):  # one, without a break
        batch = _BATCH if first else case.options.get("earlier", _BATCH)
        trainer = _trainer(case, name, _sampler(case, rank, ranks), batch, steps)
        trainer.save_freq = trainer.config.trainer.save_freq = 1 if stop else -1
        owner = trainer.ckpt_handler

        def save(step: int) -> None:
            saved.append((step, files.saved(trainer.train_dataloader.state_dict())))  # noqa: B023
            if step == stop:  # noqa: B023
                raise KeyboardInterrupt  # the job is cut off

        owner.save_checkpoint, owner.resume_global_step, trainer.resume_global_step = save, first, first
        if first:  # what ``load_checkpoint`` does after the model; pull request 7402 gives it the step
            folder, is_kept = f"/checkpoints/global_step_{first}", case.options.get("has_state", True)
            given = [folder + "/" * case.options.get("other", False), first]  # a shell completes it so
            given = given[: len(inspect.signature(owner._load_dataloader_state).parameters)]
            with files.there({f"{folder}/{file}": saved[-1][1] for file in ("data.pt", f"data_{rank}.pt") if is_kept}):
                owner._load_dataloader_state(*given)
        with suppress(KeyboardInterrupt):
            trainer.fit()
    return steps, saved[-1][0]


def _trainer(case: Case, name: str, sampler: Any, batch: int, steps: list[list[int]]) -> Any:
    """Return a trainer whose model notes the samples of each step."""
    import torch

    def train(data: Any, *_: Any, **__: Any) -> Any:
        steps.append(data["input_ids"].flatten().tolist())
        return MagicMock()

    module: Any = importlib.import_module(name)
    kind = module.FSDPSFTTrainer if name == _FSDP else module.SFTTrainer
    trainer, engine, config = kind.__new__(kind), MagicMock(train_batch=train), MagicMock()
    engine.is_mp_src_rank_with_outputs.return_value = False
    engine.get_rank.return_value, engine.get_data_parallel_rank.return_value = 1, sampler.rank
    config.data.train_batch_size, total = batch, case.options.get("total")
    config.trainer.configure_mock(total_epochs=_EPOCHS, total_training_steps=total, test_freq=-1, balance_batch=False)
    rows = [{"input_ids": torch.tensor([row]), "length": torch.ones(1)} for row in sampler.dataset]
    loader = module.StatefulDataLoader(rows, batch_size=batch, sampler=sampler, drop_last=True)
    if case.options.get("other"):  # with workers, which a scene cannot start, a state has all of it further inside
        state, load = loader.state_dict, loader.load_state_dict
        vars(loader).update(state_dict=lambda: {"_snapshot": state()}, load_state_dict=lambda it: load(it["_snapshot"]))
    vars(trainer).update(train_sampler=sampler, train_dataloader=loader, val_dataloader=(), loss_fn=None, rank=1)
    vars(trainer).update(engine=engine, training_client=engine, device_mesh=engine, config=config, test_freq=-1)
    vars(trainer).update(steps_per_epoch=len(loader), total_training_steps=total or _EPOCHS * case.options["steps"])
    vars(trainer).update(device_name="cpu", start_profile_step=-1, end_profile_step=-1, model_config=MagicMock())
    vars(trainer).update(training_step=train, _get_batch_seqlens=lambda data: data["length"], global_batch_size=batch)
    trainer.ckpt_handler = trainer
    if name != _FSDP:
        handlers: Any = importlib.import_module(_HANDLER)
        mode = {"mode": handlers.OrchestrationMode.RAY} if name.endswith("ray") else {}
        trainer.ckpt_handler = handlers.CheckpointHandler(engine, loader, default_local_dir="", **mode)
    return trainer


def wrong(case: Case, ranks: Sequence[list[tuple[str, Any, Any]]]) -> str:
    """Return what is wrong with the steps of a run; empty where nothing is."""
    return "; ".join(text for rank in ranks for text, found, due in rank if found != due)


def right(case: Case, ranks: Sequence[list[tuple[str, Any, Any]]]) -> str:
    """Return what was seen."""
    return "; ".join(text for rank in ranks for text, _, _ in rank)
