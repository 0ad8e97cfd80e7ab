"""verl: its real mesh and strategy, given to torch's real FSDP, and one step on other rows in each rank.

The weights after the step and the gradient norm that FSDP clips by are compared with those of one process that has all
rows; the part of the weights that a rank keeps, and how often it gathers them, with what the mesh and ``zero3_enable``
ask for. What the modules import of verl besides are stand-ins. A release may have the function twice: each is run.
"""

from __future__ import annotations

import importlib.util
import inspect
import math
import sys
import warnings
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from ..cases import CRASHED, DIFFERS, HUNG, PASSED, Case, Topology
from ..ranks import shims
from ..ranks.around import Around, any_module

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

WARM = ("torch", "torch.distributed.fsdp")
_TWO, _FOUR = Topology(dp=2), Topology(dp=4)
_APART = "the weights of the ranks are"
_ONE: dict[str, Any] = {"fsdp_size": 1}
_UNEVEN = {"micro_batches": (2, 1), "without": "fsdp-dynamic-bsz"}
CASES = (
    Case("size-1-of-2", _TWO, DIFFERS, _APART, _ONE, core=True),
    Case("size-1-of-4", _FOUR, DIFFERS, _APART, _ONE),
    Case("size-1-of-2-zero2", _TWO, DIFFERS, _APART, {**_ONE, "zero3": False}),
    Case("size-1-of-2-original-weights", _TWO, DIFFERS, _APART, {**_ONE, "original": True}),
    Case("size-1-of-2-micro-batches", _TWO, DIFFERS, _APART, {**_ONE, "micro_batches": (3, 3)}),
    Case("size-2-of-4", _FOUR, PASSED, options={"fsdp_size": 2}, core=True),
    Case("all-of-2", _TWO, PASSED, options={"fsdp_size": -1}, core=True),
    Case("one", Topology(), PASSED, options=_ONE),
    Case("skipped-layer", _TWO, DIFFERS, _APART, {**_ONE, "skips": True}, core=True, patched=CRASHED),
    Case("more-micro-batches", _TWO, DIFFERS, _APART, {**_ONE, **_UNEVEN}, core=True, patched=HUNG),
)
GRID = [
    Case(
        f"{' x '.join(map(str, mesh))}, {'zero3' if zero3 else 'zero2'}",
        Topology(dp=math.prod(mesh)),
        DIFFERS if len(mesh) == 2 and mesh[1] == 1 else PASSED,
        options={"mesh": mesh, "zero3": zero3},
    )
    for mesh in ((1,), (2,), (4,), (2, 1), (3, 1), (4, 1), (1, 2), (2, 2), (2, 1, 1), (2, 2, 1))
    for zero3 in (True, False)
]
YOURS = Case("yours", Topology(), DIFFERS, _APART, _ONE)
RULED_OUT = ("world", "one rank has no other to average gradients with")
_MODULES = ("verl.workers.engine.fsdp.utils", "verl.workers.fsdp_workers")
_NAMES = {1: ("fsdp",), 2: ("ddp", "fsdp"), 3: ("ddp", "fsdp", "tp")}
_RATE, _ROWS, _WIDTH = 0.1, 5, 6


def caveat(case: Case) -> str:
    """Return what the case leaves open."""
    return "a job with fsdp_size=1 and the strategy fsdp, which may not be yours"


def settings(case: Case) -> dict[str, Any] | None:
    """Return what the user of such a job sets; None for a mesh that verl makes of no setting."""
    mesh = case.options.get("mesh", ())
    size = mesh[1] if len(mesh) == 2 else case.options.get("fsdp_size", -1)
    job = {"strategy": "fsdp", "fsdp_config.strategy": "fsdp", "use_legacy_worker_impl": None, "fsdp_size": size}
    skips = "a rank skips a layer that FSDP wraps (no image, no token for an expert)"
    return None if len(mesh) > 2 else {**job, "ranks": case.topology.world, skips: "skips" in case.options}


def prepare() -> None:
    """Import the modules that have the function, for a CPU."""
    shims.cuda_on_cpu()
    sys.meta_path.insert(0, Around("verl", _MODULES, any_module))
    for module in _modules():
        module.get_device_name, module.device_name = lambda: shims.DEVICE, shims.DEVICE


def wrong(case: Case, ranks: Sequence[Sequence[Any]]) -> str:
    """Return what is wrong with a step of each rank, or with its strategy."""
    return "; ".join(text for text, is_right in _compared(case, ranks) if not is_right)


def right(case: Case, ranks: Sequence[Sequence[Any]]) -> str:
    """Return what was seen."""
    return "; ".join(text for text, _ in _compared(case, ranks))


def _compared(case: Case, ranks: Sequence[Sequence[Any]]) -> Iterator[tuple[str, bool]]:
    """Yield how far apart the weights are after a step, with the gradient norms, and whether that is only rounding."""
    model = _model()
    norm, weights = _step(case, model, range(case.topology.world)), _flat(model)
    shape: Any = case.options.get("mesh")
    for module, answers in zip(_modules(case), zip(*ranks)):
        name = module.__name__.rpartition(".")[2]
        steps = [answer for answer in answers if answer]
        if len(steps) < len(answers):
            yield f"{name}: a mesh of {shape} is refused", shape is not None and len(shape) > 2 and not steps
            continue
        apart = max(float((step[0] - steps[0][0]).abs().max()) for step in steps)
        off = max(float((step[0] - weights).abs().max()) for step in steps)
        norms = ", ".join(sorted({f"{step[1]:.2f}" for step in steps}))
        text = f"{name}: {_APART} {apart:.4f} apart and {off:.4f} from those of one process, gradient norm {norms}"
        is_close = off < 1e-6 and all(abs(step[1] - norm) < 1e-5 for step in steps)
        yield f"{text}, due {norm:.2f}", apart == 0 and is_close
        for *_, seen, due in steps if shape else ():
            yield f"{name}: weights in {seen}; due {due}", seen == due


def on_rank(case: Case, rank: int) -> list[Any]:
    """Return for each module a step's weights, gradient norm, parts and those due; None where it refuses the mesh."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

    warnings.simplefilter("ignore")
    steps: list[Any] = []
    on_a_gpu = "all_gather_single" if hasattr(dist, "all_gather_single") else "all_gather_into_tensor"
    gathers = "all_gather" if shims.DEVICE == "cpu" else on_a_gpu  # what FSDP calls
    for module in _modules(case):
        if shape := case.options.get("mesh"):
            mesh = init_device_mesh(shims.DEVICE, shape, mesh_dim_names=_NAMES[len(shape)])
        else:
            mesh = module.create_device_mesh(world_size=case.topology.world, fsdp_size=case.options["fsdp_size"])
        known = inspect.signature(module.get_sharding_strategy).parameters
        asked = {"zero3_enable": case.options.get("zero3", True)} if "zero3_enable" in known else {}
        try:
            strategy = module.get_sharding_strategy(mesh, **asked)
        except NotImplementedError:
            steps.append(None)
            continue
        options = {"sharding_strategy": strategy, "device_mesh": mesh, "device_id": torch.device(shims.DEVICE)}
        options["use_orig_params"] = case.options.get("original", False)
        model = _model()
        model[0] = FSDP(model[0], **options)
        model = FSDP(model, **options)
        parts, kept = mesh.shape[-1], sum(weight.numel() for weight in model.parameters())
        with patch.object(dist, gathers, wraps=getattr(dist, gathers)) as gather:
            norm = _step(case, model, [rank])
        often = 0 if parts == 1 else 2 + asked.get("zero3_enable", True)  # once around the inner layer
        seen = f"{round((_WIDTH + 1) ** 2 / kept)} parts, gathered {gather.call_count} times"
        with FSDP.summon_full_params(model):
            steps.append((_flat(model), norm, seen, f"{parts} parts, gathered {often} times"))
    return steps


def _step(case: Case, model: Any, ranks: Sequence[int]) -> float:
    """Make a step on the rows of these ranks. Return the norm of the gradients."""
    import torch

    optimizer = torch.optim.SGD(model.parameters(), _RATE)
    for rank in ranks:
        count = case.options.get("micro_batches", (1,) * case.topology.world)[rank]
        for number in range(count):
            torch.manual_seed(1 + rank + 100 * number)
            answers = model(torch.randn(_ROWS, _WIDTH), rank == 1 and "skips" in case.options)
            (answers.pow(2).mean() / count / len(ranks)).backward()
    clip = getattr(model, "clip_grad_norm_", partial(torch.nn.utils.clip_grad_norm_, [*model.parameters()]))
    norm = float(clip(1e9))
    optimizer.step()
    return norm


def _model() -> Any:
    """Return a model of an inner layer, which may be skipped, and an outer one."""
    import torch

    class Model(torch.nn.Sequential):  # type: ignore[misc]
        def forward(self, rows: Any, skips: bool) -> Any:
            return self[1](rows if skips else self[0](rows))

    torch.manual_seed(0)
    return Model(torch.nn.Linear(_WIDTH, _WIDTH), torch.nn.Linear(_WIDTH, 1))


def _flat(model: Any) -> Any:
    """Return all weights in a row, without the zeros that FSDP pads those of a module with."""
    import torch

    return (whole := torch.cat([weight.detach().flatten().clone() for weight in model.parameters()]))[whole != 0]


def _modules(case: Case | None = None) -> list[Any]:
    """Return those of the modules that the release has with the function, or that one which has the case's text."""
    names = (case.options.get("module") if case else None) or _MODULES
    found = [importlib.import_module(name) for name in _MODULES if name in names and importlib.util.find_spec(name)]
    return [module for module in found if hasattr(module, "get_sharding_strategy")]
