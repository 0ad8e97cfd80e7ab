"""trl: the real client sends weights to a vLLM server that takes them, refuses them, or dies meanwhile.

A CPU has neither vLLM nor NCCL. The stand-in for NCCL hands a tensor to the server, and waits for it as NCCL does:
without a limit. Once nobody comes any more, it tells so in the place of waiting. The server answers HTTP requests.
"""

from __future__ import annotations

import importlib
import sys
import threading
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from ..cases import DIFFERS, PASSED, Case, Topology
from ..ranks.around import Around, Filled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_HERE, _COPY = "trl.experimental.async_grpo.weight_transfer", "trl.experimental.async_distillation.weight_transfer"
_REAL = {_HERE, _COPY, *(it.replace("weight_transfer", "vllm_client") for it in (_HERE, _COPY))}
_WAITS, _FAILURE, _COUNT = "waits for ever", "CUDA out of memory", 3
_LONG, _LOADING, _LIMIT = 2.0, 0.05, 1800
"""Seconds: a wait that is taken to be for ever; what a server needs in the end; and what TRL gives it for an update."""
_PHASES = ("start_weight_update", "update_weights", "finish_weight_update")
Sync = tuple[str, list[float], list[str]]


def _case(name: str, takes: int = _COUNT, *, core: bool = False, **more: Any) -> Case:
    """Return a case: how many tensors the server takes before it fails."""
    untouched = (DIFFERS, _WAITS) if takes < _COUNT else (DIFFERS, "returns") if "late" in more else (PASSED, "")
    return Case(name, Topology(), *untouched, {"takes": takes, "group": True, **more}, core)


CASES = (
    _case("refused", 0, core=True),
    _case("out-of-memory", 1, core=True),
    _case("died", 1, dies=True, core=True),
    _case("copy-refused", 0, place=_COPY, core=True),
    _case("not-loaded", late=True, core=True),
    _case("taken", core=True),
)
GRID = [
    *(it for it in CASES if "place" not in it.options),
    _case("dead from the start", 0, dies=True),
    _case("refused at the last", _COUNT - 1),
    _case("without a group", group=False),
    _case("a gather that fails", breaks=True, beyond=True),
]
HELD = {"error|exc|_HAS_STATEFUL_TRAINER_ENGINE": "of 1.13 and newer, in its thread, where no condition is followed"}
YOURS = CASES[0]._replace(name="yours", core=False)


def settings(case: Case) -> dict[str, Any] | None:
    """Return what the user of such a job sets; None for jobs in which nothing is sent."""
    is_sent = case.options["group"] and "breaks" not in case.options
    return {"the vLLM server fails while it takes the weights": not case.is_control} if is_sent else None


def prepare() -> None:
    """Let the real modules import stand-ins: for vLLM and its NCCL, for HTTP, and for what only logs."""
    names = "trl", "accelerate", "vllm", "requests", "huggingface_hub"
    sys.meta_path[:0] = [Around(it, _REAL, Filled) for it in names]


class _Forever(BaseException):
    """NCCL waits, and nobody comes."""


class _Job:
    """A server and its NCCL group with the trainer."""

    is_sent = is_gone = is_loading = is_over = is_stuck = False

    def __init__(self, case: Case) -> None:
        self.given, self.caller, self.changed = case.options, threading.current_thread(), threading.Condition()
        self.offered, self.taken, self.asked = list[Any](), list[float](), list[str]()

    def _waits(self, until: Callable[[], bool]) -> bool:
        """Wait, and return whether it was not in vain."""
        with self.changed:
            self.changed.wait_for(lambda: until() or self.is_over, _LONG)
            return until()

    def tell(self, **news: bool) -> None:
        """Change what the others wait for."""
        with self.changed:
            vars(self).update(news)
            self.changed.notify_all()

    def send(self, iterator: Iterator[tuple[str, Any]], **given: Any) -> None:
        """Hand over each tensor, and wait until it is taken. What ends with the process may be left waiting."""
        here, group = threading.current_thread(), given["group"] if "group" in given else given["trainer_args"].group
        for _name, tensor in iterator if group is self else ():
            self.offered.append(tensor)
            self.tell()
            if not self._waits(lambda: self.is_gone or len(self.taken) == len(self.offered)) or self.is_gone:
                self.is_stuck |= here is self.caller or not here.daemon or not self._waits(lambda: self.is_over)
                raise _Forever
        self.tell(is_sent=True)

    def post(self, url: str, **given: Any) -> Any:
        """Answer a request."""
        self.asked.append(f"{url.rpartition('/')[2]}{', too early' * self.is_loading}")
        error = self._update(given["json"]["update_info"]["names"], given["timeout"]) if "update_w" in url else ""
        return SimpleNamespace(status_code=500 if error else 200, ok=not error, text=error)

    def _update(self, names: Sequence[str], limit: float) -> str:
        """Take the tensors, and load them. Return what goes wrong."""
        self.is_loading, takes = True, self.given["takes"]
        for at, _name in enumerate(names[:takes]):
            if limit != _LIMIT or not self._waits(lambda at=at: len(self.offered) > at):  # type: ignore[misc]
                raise TimeoutError
            self.taken.append(float(self.offered[at].sum()))
            self.tell()
        if takes < _COUNT:
            self.tell(is_gone=True)
            if "dies" in self.given:
                raise ConnectionError(_FAILURE)
            return _FAILURE
        self._waits(lambda: self.is_sent)
        time.sleep(_LOADING)
        self.is_loading = False
        return _FAILURE if "late" in self.given else ""


def on_rank(case: Case, rank: int) -> Sync:
    """Send the weights. Return how that ends, what has arrived, and what the server was asked for."""
    import torch

    given, job = case.options, _Job(case)
    module: Any = importlib.import_module(given.get("module", given.get("place", _HERE)))
    vars(sys.modules["requests"]).update(post=job.post)
    module.NCCLWeightTransferEngine = SimpleNamespace(trainer_send_weights=job.send)
    module.NCCLTrainerSendWeightsArgs = SimpleNamespace
    module.packed_nccl_broadcast_producer = job.send  # in the engine's place from 1.13 on
    client: Any = object.__new__(module.WeightTransferClient)
    client.vllm = vars(module).get("VLLMClient", str)("http://127.0.0.1:8000")
    client.vllm_server_url, client.weight_sync_timeout = "http://127.0.0.1:8000", _LIMIT
    client.model_update_group, client._weight_update_info = job if given["group"] else None, {"names": [*"abc"]}

    def gathered() -> Iterator[tuple[str, torch.Tensor]]:
        for at, name in enumerate("abc"):
            if at and "breaks" in given:
                raise ValueError(_FAILURE)
            yield name, torch.tensor([float(at)])

    try:
        client.send_weights(gathered())
        end = "it returns"
    except _Forever:
        end = _WAITS
    except Exception as error:
        end = f"it raises {error!r}, from {error.__cause__!r}"
    job.tell(is_over=True)
    return _WAITS if job.is_stuck else end, job.taken, job.asked


def wrong(case: Case, ranks: Sequence[Sync]) -> str:
    """Return what is wrong with how the sync ends; empty where nothing is."""
    (end, taken, asked), given = ranks[0], case.options
    phases = [it for it in _PHASES if it in asked]  # 1.6 has one, and without a group there is none
    if given["takes"] < _COUNT or not given.keys().isdisjoint(("breaks", "late")):
        is_right = end.startswith("it raises") and _FAILURE in end
    else:
        due = ([0, 1, 2], (1, 3)) if given["group"] else ([], (0,))
        is_right = end == "it returns" and taken == due[0] and asked == phases and len(phases) in due[1]
    return "" if is_right else right(case, ranks)


def right(case: Case, ranks: Sequence[Sync]) -> str:
    """Return what was seen."""
    end, taken, asked = ranks[0]
    ended = f"{int(end != _WAITS)} of 1 sync ends: {end}"
    return f"{ended}; the server has taken {len(taken)} of {_COUNT} tensors, and was asked for {', '.join(asked)}"
