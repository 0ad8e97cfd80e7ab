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
    from collections.abc import Callable, Iterator, Mapping, Sequence

_HERE, _COPY = "trl.experimental.async_grpo.weight_transfer", "trl.experimental.async_distillation.weight_transfer"
_REAL = {_HERE, _COPY, *(it.replace("weight_transfer", "vllm_client") for it in (_HERE, _COPY))}
_SEND, _UPDATE = "WeightTransferClient.send_weights", "VLLMClient.update_weights"
_WAITS, _FAILURE, _COUNT = "waits for ever", "CUDA out of memory", 3
_LONG, _LOADING, _LIMIT = 100, 5, 1800
"""Looks: a wait that is taken to be for ever, and what a server needs in the end. The seconds that TRL gives it."""
_KEY = {"Authorization": "a key"}
_PHASES = ("start_weight_update", "update_weights", "finish_weight_update")
Sync = tuple[str, list[float], list[str]]


def _case(name: str, takes: int = _COUNT, *, core: bool = False, **more: Any) -> Case:
    """Return a case: how many tensors the server takes before it fails."""
    late = {"late": "returns", "early": "returns", "breaks": "is left"}
    ends = _WAITS if takes < _COUNT else "".join(late.get(it, "") for it in more)
    options = {"takes": takes, "group": True, "of": [_SEND, _UPDATE], **more}
    return Case(name, Topology(), DIFFERS if ends else PASSED, ends, options, core)


CASES = (
    _case("refused", 0, core=True),
    _case("out-of-memory", 1, core=True),
    _case("died", 1, dies=True, core=True),
    _case("copy-refused", 0, place=_COPY, core=True),
    _case("not-loaded", late=True, core=True),
    _case("answered-early", early=True, gathers=12, beyond=True, of=[_SEND], core=True),
    _case("own-client", own=True, of=[_SEND], core=True),
    _case("own-client-refused", 0, own=True, of=[_SEND], core=True),
    _case("own-client-returns", 0, own=True, returns=True, beyond=True, of=[_SEND], core=True),
    _case("other-device", device=True, beyond=True, of=[_SEND], core=True),
    _case("taken", core=True),
)
GRID = [
    *(it for it in CASES if "place" not in it.options),
    _case("refused without a word", 0, status=401, says="", returns=True, beyond=True),
    _case("slow", gathers=30, of=[_SEND]),
    _case("without a group", group=False, of=[_SEND]),
    _case("a gather that fails", breaks=True, beyond=True, of=[_SEND]),
]
HELD = {
    r"error|exc|_HAS_STATEFUL_TRAINER_ENGINE|answer, .ok.": "in a thread, where no condition is followed, or of 1.13",
    "is_alive": "a thread is alive when it is first looked at",
}
YOURS = CASES[0]._replace(name="yours", core=False)


def settings(case: Case) -> dict[str, Any] | None:
    """Return what the user of such a job sets; None for jobs in which nothing is sent."""
    is_sent = case.options["group"] and "breaks" not in case.options
    return {"the vLLM server fails while it takes the weights": not case.is_control} if is_sent else None


def prepare() -> None:
    """Let the real modules import stand-ins: for vLLM and its NCCL, for HTTP, and for what only logs.

    A wait for an event with a limit, of six looks a second, runs out at once where the server is gone.
    """
    names = "trl", "accelerate", "vllm", "requests", "huggingface_hub"
    sys.meta_path[:0] = [Around(it, _REAL, Filled) for it in names]
    wait: Any = threading.Event.wait

    def waits(event: threading.Event, limit: float | None = None) -> bool:
        if limit is None or not _NOW:
            return bool(wait(event, limit))
        job = _NOW[-1]
        _look(round(6 * limit), lambda: event.is_set() or job.is_gone)
        job.is_in_vain |= not event.is_set()
        return event.is_set()

    setattr(threading.Event, "wait", waits)  # noqa: B010


def _look(times: int, until: Callable[[], bool] = lambda: False) -> None:
    """Wait for something, by looks and not by the clock: on a slow machine all waits are as much longer."""
    while times and not until():
        time.sleep(0.005)
        times -= 1


_NOW: list[_Job] = []


class _Forever(BaseException):
    """NCCL waits, and nobody comes."""


class _Response:
    """What a server answers."""

    def __init__(self, error: str, given: Mapping[str, Any]) -> None:
        self.status_code, self.ok = given.get("status", 500) if error else 200, not error
        self.text = given.get("says", error)

    def __repr__(self) -> str:
        return f"<Response [{self.status_code}]>"


class _Job:
    """A server and its NCCL group with the trainer."""

    key: Any = None
    is_sent = is_gone = is_loading = is_over = is_stuck = is_in_vain = False

    def __init__(self, case: Case) -> None:
        self.given, self.caller = case.options, threading.current_thread()
        self.offered, self.taken, self.asked = list[Any](), list[float](), list[str]()
        self.asker, self.device = self.caller, threading.local()
        self.device.at = 1

    def use(self, device: int) -> None:
        """Let a thread use a device: the caller has the second one, if there are any."""
        self.device.at = device
        if (device == -1) == ("device" in self.given):
            raise RuntimeError("no such device")

    def waits(self, until: Callable[[], bool]) -> bool:
        """Wait, and return whether it was not in vain."""
        _look(_LONG, lambda: until() or self.is_over)
        return until()

    def debug(self, text: str) -> None:
        """Log how long something took: once it is over."""
        is_early = ("NCCL" in text and not self.is_sent) or ("join" in text and self.is_loading)
        self.asked += ["what is logged, too early"] * is_early

    def send(self, iterator: Iterator[tuple[str, Any]], **given: Any) -> None:
        """Hand over each tensor, and wait until it is taken. What ends with the process may be left waiting."""
        here, group = threading.current_thread(), given["group"] if "group" in given else given["trainer_args"].group
        if "device" in self.given and vars(self.device) != {"at": 1}:
            raise RuntimeError("NCCL has another device")
        for _name, tensor in iterator if group is self else ():
            self.offered.append(tensor)
            if not self.waits(lambda: self.is_gone or len(self.taken) == len(self.offered)) or self.is_gone:
                self.is_stuck |= here is self.caller or not here.daemon or not self.waits(lambda: self.is_over)
                raise _Forever
        self.is_sent = True

    def post(self, url: str, **given: Any) -> Any:
        """Answer a request."""
        asked, error = url.rpartition("/")[2], ""
        self.asked.append(f"{asked}{', too early' * self.is_loading}")
        if asked == "update_weights":
            self.is_loading, self.asker = True, threading.current_thread()
            is_known = given.get("headers") == self.key and given["timeout"] == _LIMIT
            names = given["json"]["update_info"]["names"]
            if "early" in self.given:  # a proxy has lost the server, which goes on
                threading.Thread(target=self._update, args=(names,), daemon=True).start()
                error = _FAILURE
            else:
                error = self._update(names) if is_known else "nobody knows this key"
        return _Response(error, self.given)

    def _update(self, names: Sequence[str]) -> str:
        """Take the tensors, and load them. Return what goes wrong."""
        takes = self.given["takes"]
        for at, _name in enumerate(names[:takes]):
            if not self.waits(lambda at=at: len(self.offered) > at):  # type: ignore[misc]
                raise TimeoutError
            self.taken.append(float(self.offered[at].sum()))
        if takes < _COUNT:
            self.is_gone = True
            if "dies" in self.given:
                raise ConnectionError(_FAILURE)
            return _FAILURE
        self.waits(lambda: self.is_sent)
        _look(_LOADING)
        self.is_loading = False
        return _FAILURE if "late" in self.given else ""


def _own(known: Any, job: _Job) -> Any:
    """Return a user's own client, which asks with a key: it raises an error, or returns it."""

    def update_weights(client: Any, update_info: Any, timeout: int = _LIMIT) -> Any:
        asked = {"json": {"update_info": update_info}, "headers": _KEY, "timeout": timeout}
        answer = job.post(f"{client.server_url}/update_weights", **asked)
        if not ("returns" in job.given or answer.ok):
            raise RuntimeError(answer.text)
        return answer

    return type("Own", (known,), {"update_weights": update_weights})


def _sends(client: Any, job: _Job, tensors: Iterator[Any]) -> None:
    """Send as the client does with the fix."""
    threading.Thread(target=job.send, args=(tensors,), kwargs={"group": job}, daemon=True).start()
    client.vllm.update_weights(client._weight_update_info)
    if not job.waits(lambda: job.is_sent):
        raise _Forever


def on_rank(case: Case, rank: int) -> Sync:
    """Send the weights. Return how that ends, what has arrived, and what the server was asked for."""
    import torch

    given, job, url = case.options, _Job(case), "http://127.0.0.1:8000"
    place = given.get("module", given.get("place", _HERE)).replace("vllm_client", "weight_transfer")
    module: Any = importlib.import_module(place)
    vars(sys.modules["requests"]).update(post=job.post)
    vars(torch.cuda).update(is_initialized=lambda: "device" in given, set_device=job.use, current_device=lambda: 1)
    module.NCCLWeightTransferEngine, module.logger = SimpleNamespace(trainer_send_weights=job.send), job
    module.NCCLTrainerSendWeightsArgs = SimpleNamespace
    module.packed_nccl_broadcast_producer = job.send  # in the engine's place from 1.13 on
    client: Any = object.__new__(module.WeightTransferClient)
    if known := vars(module).get("VLLMClient"):
        is_own = "own" in given or given.get("function") == _SEND  # with the fix, TRL's reads the answer, too
        client.vllm, job.key = (_own(known, job) if is_own else known)(url), _KEY if is_own else None
    client.vllm_server_url, client.weight_sync_timeout = url, _LIMIT
    client.model_update_group, client._weight_update_info = job if given["group"] else None, {"names": [*"abc"]}

    def gathered() -> Iterator[tuple[str, torch.Tensor]]:
        for at, name in enumerate("abc"):
            if at and "breaks" in given:
                raise ValueError(_FAILURE)
            _look(given.get("gathers", 0))
            yield name, torch.tensor([float(at)])

    _NOW[:] = [job]
    try:
        if given.get("function") == _UPDATE:
            _sends(client, job, gathered())
        else:
            client.send_weights(gathered())
        end = "it returns"
    except _Forever:
        end = _WAITS
    except Exception as error:
        end = f"it raises {error!r}, from {error.__cause__!r}"
    is_left = (
        not job.is_sent if "early" in given else job.is_loading and job.asker is not job.caller and not job.asker.daemon
    )
    job.is_over = True
    end += ", and has waited in vain" * (job.is_sent and job.is_in_vain)
    end += ", and a thread is left, which sends or for which the process waits" * is_left
    return _WAITS if job.is_stuck else end, job.taken, job.asked


def wrong(case: Case, ranks: Sequence[Sync]) -> str:
    """Return what is wrong with how the sync ends; empty where nothing is."""
    (end, taken, asked), given = ranks[0], case.options
    phases = [it for it in _PHASES if it in asked]  # 1.6 and a client alone have one, and without a group there is none
    if given["takes"] < _COUNT or not given.keys().isdisjoint(("breaks", "early", "late")):
        is_right = end.startswith("it raises") and given.get("says", _FAILURE) in end and "is left" not in end
        is_right &= len(asked) == len(set(asked))  # nothing is asked twice; TRL 1.13 asks to finish
    else:
        due = ([0, 1, 2], (1, 3)) if given["group"] else ([], (0,))
        is_right = end == "it returns" and taken == due[0] and asked == phases and len(phases) in due[1]
    return "" if is_right else right(case, ranks)


def right(case: Case, ranks: Sequence[Sync]) -> str:
    """Return what was seen."""
    end, taken, asked = ranks[0]
    ended = f"{int(not end.startswith(_WAITS))} of 1 sync ends: {end}"
    return f"{ended}; the server has taken {len(taken)} of {_COUNT} tensors, and was asked for {', '.join(asked)}"
