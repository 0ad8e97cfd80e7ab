"""ms-swift: the real ``compute_acc`` and ``MeanMetric`` on real ranks, of which some have no update.

What their modules import of ms-swift besides, such as its logger, are stand-ins. Most cases compare the dtypes before
the ranks reduce, and leave it at that where they differ. One lets them: gloo aborts the rank that expects fewer bytes,
NCCL is reported to hang.
"""

from __future__ import annotations

import copy
import importlib
import itertools
import sys
from contextlib import nullcontext
from functools import cache
from importlib.machinery import PathFinder
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from ..cases import CRASHED, DIFFERS, PASSED, Case, Topology
from ..ranks import shims

if TYPE_CHECKING:
    import ast
    from collections.abc import Callable, Sequence

WARM = ("torch", "numpy", "transformers.trainer_utils", "torch._subclasses.fake_tensor")
_FLOAT64 = "rank 0 torch.float64"
_TWO, _FOUR = Topology(dp=2), Topology(dp=4)
_SEQ, _TOKEN = {"strategy": "seq"}, {"strategy": "token"}
CASES = (
    Case("seq-2", _TWO, DIFFERS, _FLOAT64, _SEQ, core=True),
    Case("seq-4", _FOUR, DIFFERS, _FLOAT64, _SEQ),
    Case("seq-2-gloo", _TWO, CRASHED, "died", {**_SEQ, "reduces": True}, core=True),
    Case("seq-2-all-update", _TWO, PASSED, options={**_SEQ, "updates": "all"}, core=True),
    Case("token-2", _TWO, PASSED, options=_TOKEN, core=True),
    Case("no-update-2", _TWO, PASSED, options={**_SEQ, "updates": "none"}, core=True),
    Case("seq-1", Topology(), PASSED, options=_SEQ),
)
_UPDATES: dict[str, Callable[[int], bool]] = {
    "first": lambda rank: rank == 0,
    "last": lambda rank: rank == 1,
    "all": lambda _: True,
    "none": lambda _: False,
}
"""Which ranks of a group have an update; without another group, the last one of two."""
_PLACES = ("cpu", "cuda:0", "no float64", "no group")
"""The device: a CPU; a GPU that torch's fake tensors pose as; one that has no float64, as those of Apple and Huawei.

Or a CPU in a job without a process group.
"""


def _is_unequal(ranks: int, strategy: str, updates: str, rows: str, place: str) -> bool:
    """Return whether the untouched ranks do not all reduce float32."""
    floats = {(bool(_UPDATES[updates](rank)) and strategy == "seq") for rank in range(ranks)}
    return place != "no group" and (len(floats) == 2 or (floats == {True} and place == "no float64"))


GRID = [
    Case(
        f"{ranks} ranks, {strategy}, {updates}, {rows}, nan {nan}, {group}, {place}",
        Topology(dp=ranks),
        DIFFERS if _is_unequal(min(ranks, 2), strategy, updates, rows, place) else PASSED,
        options={
            **{"strategy": strategy, "updates": updates, "rows": rows},
            **{"nan": nan, "group": group, "place": place},
        },
    )
    for ranks, group, rows_of, nans, places in (
        *((ranks, "world", ("some right", "none right"), (None, 0), _PLACES) for ranks in (1, 2)),
        (4, "pair", ("some right",), (None,), _PLACES[:2]),
    )
    for strategy, updates, rows, nan, place in itertools.product(("seq", "token"), _UPDATES, rows_of, nans, places)
]
_ROWS = {"some right": [[1, 2, 3, 4], [1, 2, 3, 9]], "none right": [[9, 9, 9, 9], [9, 9, 9, 9]]}
_WANTED = [[1, 2, 3, 4], [1, 2, 3, 4]]
_SUMS = {"some right": {"seq": (1, 2), "token": (7, 8)}, "none right": {"seq": (0, 2), "token": (0, 8)}}
"""How many sequences, or tokens, are right, and of how many."""
YOURS = Case("yours", Topology(), DIFFERS, _FLOAT64, _SEQ)
RULED_OUT = ("world", "one process has no other to disagree with")


def settings(case: Case) -> dict[str, Any]:
    """Return what the user of such a job sets; without a process group, each rank is a job by itself."""
    ranks = 1 if case.options.get("place") == "no group" else min(case.topology.world, 2)
    updates = {_UPDATES[case.options.get("updates", "first")](rank) for rank in range(ranks)}
    return {
        **{"acc_strategy": case.options["strategy"], "ranks": case.topology.world},
        "some rank has nothing to log": len(updates) > 1,
        "a device without float64, in a process group": case.options.get("place") == "no float64" and True in updates,
    }


class Seen(NamedTuple):
    """What one rank did."""

    reduced: tuple[tuple[str, str], ...]
    """The dtype and the device of each tensor that it reduced."""
    value: float | None
    state: tuple[float, float]
    """The sum and the count that the metric has then."""
    after: float
    """The sum of the ranks' ones, reduced afterwards."""


class Reduced(Exception):
    """Nothing more is seen on a fake device: its tensors have no values."""


def has_feature(function: ast.FunctionDef) -> bool:
    """Return whether the ranks reduce anything."""
    import ast

    return "all_reduce" in ast.unparse(function)


def prepare() -> None:
    """Import the real modules among stand-ins."""
    import torch
    from torch._subclasses import FakeTensorMode

    (root,) = PathFinder.find_spec("swift").submodule_search_locations  # type: ignore[union-attr, misc]
    utils = _stand_in("swift.utils", "")
    utils.get_current_device = lambda: torch.device(shims.DEVICE)
    utils.get_logger = utils.Serializer = lambda *_, **__: None
    _stand_in("swift", root)
    for name in ("plugin", "metrics"):
        _stand_in(f"swift.{name}", f"{root}/{name}")
    _stand_in("swift.metrics.base", "").EvalMetrics = object
    with FakeTensorMode():  # here and the modules once, and not in every rank
        torch.ones(1, device="cuda:0").sum()
    _modules()


def _stand_in(name: str, path: str) -> Any:
    """Return a new module, a package whose modules are in this folder, if it is one."""
    module: Any = ModuleType(name)
    module.__path__ = [path] if path else []
    sys.modules[name] = module
    return module


def on_rank(case: Case, rank: int) -> Seen:
    """Update the metric where this rank has something, and compute it, as the trainers do when they log.

    The ranks first say what they would reduce: where it differs, a real reduction would hang them or end one.
    """
    import torch
    import torch.distributed as dist

    place = case.options.get("place", shims.DEVICE)
    metric = _modules()[0].MeanMetric(nan_value=case.options.get("nan"))
    metric.device = "cuda:0" if place == "cuda:0" else shims.DEVICE  # up to 3.7.3 it takes neither
    metric.group = _group(case, rank)
    if _updates(case, rank):
        metric.update(_accuracies(case))
    value, is_initialized = None, dist.is_initialized
    every: list[Any] = [None] * dist.get_world_size(metric.group)
    try:
        if place == "no group":
            dist.is_initialized = lambda: False
        reduced, value = _reduced(copy.copy(metric), place)
        dist.all_gather_object(every, reduced, group=metric.group)
        if case.options.get("reduces") or (place != "cuda:0" and len({*every}) == 1):
            value = metric.compute()["value"]
    finally:
        dist.is_initialized = is_initialized
    one = torch.ones(1)
    dist.all_reduce(one)
    return Seen(reduced, value, (float(metric.state), float(metric.count)), float(one))


def _reduced(metric: Any, place: str) -> tuple[tuple[tuple[str, str], ...], Any]:
    """Return the dtype and the device of each tensor that a metric would reduce, and what it returns then."""
    import torch.distributed as dist
    from torch._subclasses import FakeTensorMode

    found, reduce, value = [], dist.all_reduce, None

    def recorded(tensor: Any, *_: Any, **__: Any) -> None:
        found.append((str(tensor.dtype), str(tensor.device)))
        if place == "cuda:0":
            raise Reduced

    dist.all_reduce = recorded
    try:
        with FakeTensorMode() if place == "cuda:0" else nullcontext():
            value = metric.compute()["value"]
    except Reduced:
        pass
    except Exception as error:  # its peers need not wait for this rank
        found.append((f"raises {type(error).__name__}: {error}", place))
    finally:
        dist.all_reduce = reduce
    return tuple(found), value


def _group(case: Case, rank: int) -> Any:
    """Return the group of the metric: None for all ranks, else the pair of this one."""
    return None if case.options.get("group", "world") == "world" else _pairs(case.topology.world)[rank // 2]


@cache
def _pairs(ranks: int) -> list[Any]:
    import torch.distributed as dist

    return [dist.new_group([first, first + 1]) for first in range(0, ranks, 2)]


def _accuracies(case: Case) -> Any:
    import numpy as np

    rows, strategy = _ROWS[case.options.get("rows", "some right")], case.options["strategy"]
    found = _modules()[1].compute_acc(np.array(rows), np.array(_WANTED), acc_strategy=strategy, is_encoder_decoder=True)
    (values,) = found.values()
    return values


def _modules() -> tuple[Any, Any]:
    """Return the module of ``MeanMetric``, and that of ``compute_acc``."""
    try:
        return importlib.import_module("swift.metrics.utils"), importlib.import_module("swift.metrics.acc")
    except ModuleNotFoundError:
        module = importlib.import_module("swift.plugin.metric")
        return module, module


def _updates(case: Case, rank: int) -> bool:
    alone = case.options.get("group", "world") == "world"
    return bool(_UPDATES[case.options.get("updates", "first")](rank if alone else rank % 2))


def wrong(case: Case, ranks: Sequence[Seen]) -> str:
    """Return what is wrong with what the ranks did; empty where nothing is."""
    place = case.options.get("place", shims.DEVICE)
    joins, is_fake = case.options.get("feature", True) and place != "no group", place == "cuda:0"
    for number, rank in enumerate(ranks):
        if len(rank.reduced) != joins or rank.reduced != ranks[0].reduced:
            return f"rank {number} reduces {_text(rank)}, and rank 0 {_text(ranks[0])}"
        if place == "no float64" and ("torch.float64", "cpu") in rank.reduced:
            return f"rank {number} reduces torch.float64, which its device does not have"
        if joins and (is_fake or shims.DEVICE == "cuda") != (rank.reduced[0][1] == "cuda:0"):
            return f"rank {number} reduces {_text(rank)}, and its device is {place}"
        state, count = _due(case, number) if joins and not is_fake else _own(case, number)
        mean = None if joins and is_fake else state / count if count else case.options.get("nan")
        if (rank.value, rank.state, rank.after) != (mean, (state, count), len(ranks)):
            return f"rank {number} returns {rank.value}, then {rank.after}; the mean is {mean}"
    return ""


def right(case: Case, ranks: Sequence[Seen]) -> str:
    """Return what was seen."""
    return f"every rank returns {ranks[0].value}"


def _text(rank: Seen) -> str:
    return ", ".join(f"{dtype} on {device}" for dtype, device in rank.reduced) or "nothing"


def _own(case: Case, rank: int) -> tuple[float, float]:
    """Return the sum and the count of one rank."""
    if not _updates(case, rank):
        return 0.0, 0.0
    state, count = _SUMS[case.options.get("rows", "some right")][case.options["strategy"]]
    return float(state), float(count)


def _due(case: Case, rank: int) -> tuple[float, float]:
    """Return the sum and the count of the metric's group."""
    alone = case.options.get("group", "world") == "world"
    members = range(case.topology.world) if alone else (rank - rank % 2, rank - rank % 2 + 1)
    own = [_own(case, member) for member in members]
    return sum(state for state, _ in own), sum(count for _, count in own)
