"""ms-swift: the real ``compute_acc`` and ``MeanMetric`` on real ranks, of which some have no update.

What their modules import of ms-swift besides is a stand-in. The ranks first tell each other what they would reduce, and
leave it at that where it differs. One case goes on: gloo aborts the rank that expects fewer bytes. NCCL hangs.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import itertools
import sys
from contextlib import suppress
from functools import cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from ..cases import CRASHED, DIFFERS, PASSED, Case, Topology
from ..ranks import shims
from ..ranks.around import Around, any_module

if TYPE_CHECKING:
    from collections.abc import Sequence

WARM = ("torch", "numpy", "transformers.trainer_utils")
_MEAN, _ACC = ("swift.metrics.utils", "swift.plugin.metric"), ("swift.metrics.acc", "swift.plugin.metric")
_FLOAT64 = "rank 0 ['torch.float64"
_TWO, _SEQ = Topology(dp=2), {"strategy": "seq"}
CASES = (
    Case("seq-2", _TWO, DIFFERS, _FLOAT64, _SEQ, core=True),
    Case("seq-4", Topology(dp=4), DIFFERS, _FLOAT64, _SEQ),
    Case("seq-2-gloo", _TWO, CRASHED, "died", {**_SEQ, "reduces": True}, core=True),
    Case("seq-2-all-update", _TWO, PASSED, options={**_SEQ, "updates": (0, 1)}, core=True),
    Case("token-2", _TWO, PASSED, options={"strategy": "token"}, core=True),
    Case("no-update-2", _TWO, PASSED, options={**_SEQ, "updates": ()}, core=True),
    Case("seq-1", Topology(), PASSED, options=_SEQ),
)
_USUAL = {"updates": (0,), "rows": "some right", "nan": None, "place": "", "pairs": False, "reduces": False}
_UPDATES = ((0,), (1,), (0, 1), ())  # the ranks that have an update; with pairs, of each
_PLACES = ("", "meta", "no float64", "no group")  # another device, one of Apple's or Huawei's, and a job of one process
_WANTED = [[1, 2, 3, 4], [1, 2, 3, 4]]
_ROWS = {"some right": [[1, 2, 3, 4], [1, 2, 3, 9]], "none right": [[9, 9, 9, 9], [9, 9, 9, 9]]}
_SUMS = {"some right": {"seq": (1, 2), "token": (7, 8)}, "none right": {"seq": (0, 2), "token": (0, 8)}}
"""How many sequences, or tokens, are right, and of how many."""
_LOSS, _MANY = 2.0**-17, 70_001
"""In a second window each rank logs a loss, and how many tokens have it: no sum of them rounds in float32."""
_EACH = itertools.product((1, 2), [False], ("seq", "token"), _UPDATES, _PLACES, _ROWS, (None, 0))
_IN_PAIRS = itertools.product((4,), [True], ("seq", "token"), _UPDATES, _PLACES[:2])
YOURS = Case("yours", Topology(), DIFFERS, _FLOAT64, _SEQ)
RULED_OUT = ("world", "one process has no other to disagree with")
Seen = tuple[list[str], "list[tuple[float | None, float, float]]", float]
"""What a rank reduced (dtype and device), each window's value and the metric's sums, and a sum of ones afterwards."""


def _setting(ranks: int, *given: Any) -> Case:
    """Return a case, which goes wrong if the untouched ranks do not all reduce float32."""
    options = dict(zip(("pairs", "strategy", "updates", "place", "rows", "nan"), given))
    place = options["place"]
    options["windows"] = 1 if place == "meta" else 2  # there, nothing is reduced, and the first ends the case
    case = Case(f"{ranks} ranks, {given}", Topology(dp=ranks), PASSED, options=options)
    kinds = {has_any and options["strategy"] == "seq" for has_any in _updating(case)}
    is_wrong = len(kinds) == 2 or (kinds == {True} and place == "no float64")
    return case._replace(untouched=DIFFERS if is_wrong and place != "no group" else PASSED)


def _updating(case: Case) -> set[bool]:
    """Return whether the ranks that reduce together have an update: True, False, or both."""
    return {rank in case.options.get("updates", (0,)) for rank in range(min(case.topology.world, 2))}


GRID = [_setting(*given) for given in (*_EACH, *_IN_PAIRS)]


def settings(case: Case) -> dict[str, Any]:
    """Return what the user of such a job sets; without a process group, each rank is a job by itself."""
    updating, place = _updating(case), case.options.get("place")
    return {
        **{"acc_strategy": case.options["strategy"], "ranks": case.topology.world},
        "some rank has nothing to log": len(updating) > 1 and place != "no group",
        "a device without float64, in a process group": place == "no float64" and True in updating,
    }


def has_feature(function: ast.FunctionDef) -> bool:
    """Return whether the ranks reduce anything."""
    return "all_reduce" in ast.unparse(function)


def prepare() -> None:
    """Import the real modules among stand-ins."""
    sys.meta_path.insert(0, Around("swift", {*_MEAN, *_ACC}, any_module))
    _first(_MEAN), _first(_ACC)


def _first(places: Sequence[str]) -> Any:
    """Return the first of these modules that the release has."""
    return importlib.import_module(next(it for it in places if importlib.util.find_spec(it)))


def on_rank(case: Case, rank: int) -> Seen:
    """Update the metric where this rank has something, and compute it, as the trainers do when they log."""
    import numpy as np
    import torch
    import torch.distributed as dist

    job, reduced, logged, reduce = _job(case), [], [], dist.all_reduce
    metric = _first(_MEAN).MeanMetric(nan_value=job.nan)
    metric.device, metric.group = job.device, _pairs()[rank // 2] if job.pairs else None
    if _is_updated(job, rank):
        tables = np.array(_ROWS[job.rows]), np.array(_WANTED)
        metric.update(*_first(_ACC).compute_acc(*tables, acc_strategy=job.strategy, is_encoder_decoder=True).values())

    def told(tensor: Any, *more: Any, **given: Any) -> None:
        reduced.append(f"{tensor.dtype} on {tensor.device.type}")
        every: list[Any] = [None] * dist.get_world_size(metric.group)
        dist.all_gather_object(every, reduced, group=metric.group)
        if job.place == "meta" or (not job.reduces and every.count(reduced) < len(every)):
            raise EOFError  # a real reduction would hang the ranks, or end one
        reduce(tensor, *more, **given)

    with (
        patch.object(dist, "all_reduce", told),
        patch.object(dist, "is_initialized", lambda: job.place != "no group"),
        suppress(EOFError),
    ):
        for window in range(job.windows):
            if window:
                metric.reset()
                metric.update(torch.full((_MANY,), _LOSS))
            logged.append((metric.compute()["value"], float(metric.state), float(metric.count)))
    one = torch.ones(1)
    dist.all_reduce(one)
    return reduced, logged, float(one)


def _job(case: Case) -> Any:
    """Return the options of a case, all given, and what follows from them."""
    given = {**_USUAL, "feature": True, "windows": 1, **case.options}
    given["size"] = 2 if given["pairs"] else case.topology.world
    given["joins"] = given["feature"] and given["place"] != "no group"
    return SimpleNamespace(**given, device="meta" if given["place"] == "meta" else shims.DEVICE)


def _is_updated(job: Any, rank: int) -> bool:
    return rank % job.size in job.updates


@cache
def _pairs() -> list[Any]:
    import torch.distributed as dist

    return [dist.new_group([first, first + 1]) for first in range(0, dist.get_world_size(), 2)]


def wrong(case: Case, ranks: Sequence[Seen]) -> str:
    """Return what is wrong with what the ranks did; empty where nothing is."""
    job, (first, *_) = _job(case), ranks[0]
    for rank, (reduced, *_) in enumerate(ranks):
        if len(reduced) != job.joins * job.windows or reduced != first:
            return f"rank {rank} reduces {reduced}, and rank 0 {first}"
        is_too_wide = job.place == "no float64" and "float64" in str(first)
        if is_too_wide or not all(it.endswith(f" on {job.device}") for it in first):
            return f"rank {rank} reduces {reduced}, which is not for its device"
    for rank, (_, logged, after) in enumerate(ranks if job.place != "meta" or not job.joins else ()):
        peers = range(job.size) if job.joins else [rank]
        updates = [_SUMS[job.rows][job.strategy] for it in peers if _is_updated(job, it)]
        state, count = (sum(of) for of in zip((0, 0), *updates))
        many = len(peers) * _MANY
        due = [(state / count if count else job.nan, state, count), (_LOSS, _LOSS * many, many)][: job.windows]
        if (logged, after) != (due, len(ranks)):
            return f"rank {rank} returns {logged}, then {after}; the means are {due}"
    return ""


def right(case: Case, ranks: Sequence[Seen]) -> str:
    """Return what was seen."""
    return f"every rank returns {ranks[0][1][0][0]}"
