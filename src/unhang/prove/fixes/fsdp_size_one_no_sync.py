"""verl: its real mesh and strategy, given to torch's real FSDP, and one step on other rows in each rank.

The weights after the step and the gradient norm that FSDP clips by are compared with those of one process that has all
rows. What the modules import of verl besides are stand-ins. A release may have the function twice: each is run.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import warnings
from typing import TYPE_CHECKING, Any

from ..cases import DIFFERS, PASSED, Case, Outcome, Topology
from ..ranks import gloo, shims
from ..ranks.around import Around, any_module

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

WARM = ("torch", "torch.distributed.fsdp")
_TWO, _FOUR = Topology(dp=2), Topology(dp=4)
_APART = "the weights of the ranks are"
_ONE: dict[str, Any] = {"fsdp_size": 1}
CASES = (
    Case("size-1-of-2", _TWO, "ranks", DIFFERS, _APART, _ONE, core=True),
    Case("size-1-of-4", _FOUR, "ranks", DIFFERS, _APART, _ONE),
    Case("size-1-of-2-zero2", _TWO, "ranks", DIFFERS, _APART, {**_ONE, "zero3": False}),
    Case("size-1-of-2-original-weights", _TWO, "ranks", DIFFERS, _APART, {**_ONE, "original": True}),
    Case("size-1-of-2-micro-batches", _TWO, "ranks", DIFFERS, _APART, {**_ONE, "micro_batches": 3}),
    Case("size-2-of-4", _FOUR, "ranks", PASSED, options={"fsdp_size": 2}, core=True),
    Case("all-of-2", _TWO, "ranks", PASSED, options={"fsdp_size": -1}, core=True),
    Case("one", Topology(), "ranks", PASSED, options=_ONE),
)
YOURS = Case("yours", Topology(), "ranks", DIFFERS, _APART, _ONE)
RULED_OUT = ("world", "one rank has no other to average gradients with")
_MODULES = ("verl.workers.engine.fsdp.utils", "verl.workers.fsdp_workers")
_RATE, _ROWS, _WIDTH = 0.1, 5, 6


def caveat(case: Case) -> str:
    """Return what the case leaves open."""
    return "a job with fsdp_size=1 and the strategy fsdp, which may not be yours"


def prepare() -> None:
    """Import the modules that have the function, for a CPU."""
    shims.cuda_on_cpu()
    sys.meta_path.insert(0, Around("verl", _MODULES, any_module))
    for module in _modules():
        module.get_device_name, module.device_name = lambda: "cpu", "cpu"


def run(case: Case, deadline_s: float) -> Outcome:
    """Make one step on every rank, and compare it with that of one process."""
    world = gloo.run(case.topology.world, lambda rank: _stepped(case, rank), deadline_s=deadline_s)
    return world.outcome(
        lambda ranks: "; ".join(text for text, is_right in _compared(case, ranks) if not is_right),
        lambda ranks: "; ".join(text for text, _ in _compared(case, ranks)),
    )


def _compared(case: Case, ranks: Sequence[Sequence[tuple[Any, float]]]) -> Iterator[tuple[str, bool]]:
    """Yield how far apart the weights are after a step, with the gradient norms, and whether that is only rounding."""
    weights, norm = _whole(case)
    for module, steps in zip(_modules(), zip(*ranks)):
        apart = max(float((step[0] - steps[0][0]).abs().max()) for step in steps)
        off = max(float((step[0] - weights).abs().max()) for step in steps)
        norms = ", ".join(sorted({f"{step[1]:.2f}" for step in steps}))
        text = (
            f"{_APART} {apart:.4f} apart and {off:.4f} from those of one process, gradient norm {norms}, due {norm:.2f}"
        )
        is_right = apart == 0 and off < 1e-6 and all(abs(step[1] - norm) < 1e-5 for step in steps)
        yield f"{module.__name__.rpartition('.')[2]}: {text}", is_right


def _stepped(case: Case, rank: int) -> list[tuple[Any, float]]:
    """Return the weights after one step of this rank, and the norm of its gradients, with each of the modules."""
    import torch
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

    steps = []
    for module in _modules():
        mesh = module.create_device_mesh(world_size=case.topology.world, fsdp_size=case.options["fsdp_size"])
        zero3 = {"zero3_enable": case.options.get("zero3", True)}
        known = zero3.keys() & inspect.signature(module.get_sharding_strategy).parameters.keys()
        strategy = module.get_sharding_strategy(mesh, **{name: zero3[name] for name in known})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = FSDP(
                _model(),
                sharding_strategy=strategy,
                device_mesh=mesh,
                device_id=torch.device("cpu"),
                use_orig_params=case.options.get("original", False),
            )
            optimizer = torch.optim.SGD(model.parameters(), _RATE)
            for loss in _losses(case, model, rank):
                loss.backward()
            norm = float(model.clip_grad_norm_(1e9))
            optimizer.step()
            with FSDP.summon_full_params(model):
                steps.append((_flat(model), norm))
    return steps


def _whole(case: Case) -> tuple[Any, float]:
    """Return the weights after one step of one process, and the norm of its gradients."""
    import torch

    model = _model()
    optimizer = torch.optim.SGD(model.parameters(), _RATE)
    ranks = range(case.topology.world)
    sum(loss / len(ranks) for rank in ranks for loss in _losses(case, model, rank)).backward()
    norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9))
    optimizer.step()
    return _flat(model), norm


def _model() -> Any:
    import torch

    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(_WIDTH, _WIDTH), torch.nn.Linear(_WIDTH, 1))


def _losses(case: Case, model: Any, rank: int) -> Iterator[Any]:
    """Yield the loss of each micro-batch of a rank."""
    import torch

    count = case.options.get("micro_batches", 1)
    for number in range(count):
        torch.manual_seed(1 + rank + 100 * number)
        yield model(torch.randn(_ROWS, _WIDTH)).pow(2).mean() / count


def _flat(model: Any) -> Any:
    """Return all weights in a row; FSDP may pad its own at the end."""
    import torch

    size = (_WIDTH + 1) * (_WIDTH + 1)
    return torch.cat([weight.detach().flatten().clone() for weight in model.parameters()])[:size]


def _modules() -> list[Any]:
    """Return those of the modules that the release has with the function."""
    found = [importlib.import_module(name) for name in _MODULES if importlib.util.find_spec(name)]
    return [module for module in found if hasattr(module, "get_sharding_strategy")]
