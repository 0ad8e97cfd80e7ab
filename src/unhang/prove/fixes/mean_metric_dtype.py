"""ms-swift: the real ``compute_acc`` and ``MeanMetric`` on real ranks, of which some have no update.

What their modules import of ms-swift besides, such as its logger, are stand-ins. Most cases compare the dtypes before
the ranks reduce, and leave it at that where they differ. One lets them: gloo aborts the rank that expects fewer bytes,
NCCL is reported to hang.
"""

from __future__ import annotations

import importlib
import sys
from importlib.machinery import PathFinder
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from ..cases import CRASHED, DIFFERS, PASSED, Case, Outcome, Topology
from ..ranks import gloo

if TYPE_CHECKING:
    from collections.abc import Sequence

WARM = ("torch", "numpy", "transformers.trainer_utils")
_FLOAT64 = "rank 0 torch.float64"
_TWO, _FOUR = Topology(dp=2), Topology(dp=4)
_SEQ, _TOKEN = {"strategy": "seq"}, {"strategy": "token"}
CASES = (
    Case("seq-2", _TWO, "ranks", DIFFERS, _FLOAT64, _SEQ, core=True),
    Case("seq-4", _FOUR, "ranks", DIFFERS, _FLOAT64, _SEQ),
    Case("seq-2-gloo", _TWO, "ranks", CRASHED, "died", {**_SEQ, "reduces": True}, core=True),
    Case("seq-2-all-update", _TWO, "ranks", PASSED, options={**_SEQ, "all": True}, core=True),
    Case("token-2", _TWO, "ranks", PASSED, options=_TOKEN, core=True),
    Case("no-update-2", _TWO, "ranks", PASSED, options={**_SEQ, "none": True}, core=True),
    Case("seq-1", Topology(), "ranks", PASSED, options=_SEQ),
)
_RIGHT = [[1, 2, 3, 4], [1, 2, 3, 9]]  # of two sequences one is right, and of the tokens 7 of 8 are
_WANTED = [[1, 2, 3, 4], [1, 2, 3, 4]]
YOURS = Case("yours", Topology(), "ranks", DIFFERS, _FLOAT64, _SEQ)
RULED_OUT = ("world", "one process has no other to disagree with")


class Seen(NamedTuple):
    """What one rank did."""

    dtypes: tuple[str, ...]
    """Of the tensors that it reduced."""
    value: float | None
    after: float
    """The sum of the ranks' ones, reduced afterwards."""


def prepare() -> None:
    """Import the real modules among stand-ins."""
    import torch

    (root,) = PathFinder.find_spec("swift").submodule_search_locations  # type: ignore[union-attr, misc]
    utils = _stand_in("swift.utils", "")
    utils.get_current_device = lambda: torch.device("cpu")
    utils.get_logger = utils.Serializer = lambda *_, **__: None
    _stand_in("swift", root)
    for name in ("plugin", "metrics"):
        _stand_in(f"swift.{name}", f"{root}/{name}")
    _stand_in("swift.metrics.base", "").EvalMetrics = object


def _stand_in(name: str, path: str) -> Any:
    """Return a new module, a package whose modules are in this folder, if it is one."""
    module: Any = ModuleType(name)
    module.__path__ = [path] if path else []
    sys.modules[name] = module
    return module


def run(case: Case, deadline_s: float) -> Outcome:
    """Run one case, and compare what the ranks reduce and return."""

    def body(rank: int) -> Seen:
        return _computed(case, rank)

    world = gloo.run(case.topology.world, body, deadline_s=deadline_s)
    return world.outcome(lambda ranks: _wrong(case, ranks), lambda ranks: f"every rank returns {ranks[0].value}")


def _computed(case: Case, rank: int) -> Seen:
    """Update the metric where this rank has something, and compute it, as the trainers do when they log."""
    import numpy as np
    import torch
    import torch.distributed as dist

    metrics, acc = _modules()
    strategy, dtypes, reduce = case.options["strategy"], [], dist.all_reduce

    def recorded(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        dtypes.append(str(tensor.dtype))
        every: list[Any] = [None] * case.topology.world
        dist.all_gather_object(every, dtypes[-1])
        return reduce(tensor, *args, **kwargs) if len({*every}) == 1 or case.options.get("reduces") else None

    metric = metrics.MeanMetric(nan_value=None, device=torch.device("cpu"))
    if _updates(case, rank):
        (values,) = acc.compute_acc(
            np.array(_RIGHT), np.array(_WANTED), acc_strategy=strategy, is_encoder_decoder=True
        ).values()
        metric.update(values)
    dist.all_reduce = recorded
    value = metric.compute()["value"]
    dist.all_reduce = reduce
    one = torch.ones(1)
    dist.all_reduce(one)
    return Seen(tuple(dtypes), value, float(one))


def _modules() -> tuple[Any, Any]:
    """Return the module of ``MeanMetric``, and that of ``compute_acc``."""
    try:
        return importlib.import_module("swift.metrics.utils"), importlib.import_module("swift.metrics.acc")
    except ModuleNotFoundError:
        module = importlib.import_module("swift.plugin.metric")
        return module, module


def _updates(case: Case, rank: int) -> bool:
    return not case.options.get("none") and (rank == 0 or bool(case.options.get("all")))


def _wrong(case: Case, ranks: Sequence[Seen]) -> str:
    """Return what is wrong with what the ranks did; empty where nothing is."""
    mean = None if case.options.get("none") else {"seq": 0.5, "token": 0.875}[case.options["strategy"]]
    for number, rank in enumerate(ranks):
        if len(rank.dtypes) != 1 or rank.dtypes != ranks[0].dtypes:
            return (
                f"rank {number} reduces {', '.join(rank.dtypes) or 'nothing'}, and rank 0 {', '.join(ranks[0].dtypes)}"
            )
        if (rank.value, rank.after) != (mean, len(ranks)):
            return f"rank {number} returns {rank.value}, then {rank.after}; the mean is {mean}"
    return ""
