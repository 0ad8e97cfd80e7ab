"""async-grpo-server-hang: its anchors, and what the sessions need of it."""

from __future__ import annotations

from fuzz.subject import Fuzz
from mutants.by_hand import ByHand, Mutants, Sub
from proofs.others import Other, Proofs, Release, without
from support import hung_jobs, sources
from support.hung_jobs import WORLD, HungJob, issued, job, rank

FIX = "async-grpo-server-hang"
RELEASES = ("1.6.0", "1.8.0", "1.10.0", "1.12.0")
CASES = sources.cases(FIX, {"trl": RELEASES})
_OTHERS = {"self.vllm.update_weights": "Thread", "t_update.start": "start", "trainer_send_weights": "trainer"}
REFUSED = sources.edits(CASES[2], [(old, "other(9)", name) for old, name in _OTHERS.items()], "not found: .*{}")
FIXED = sources.cases(FIX, {"trl": ["1.13.0", "1.16.0"]}, state="fixed")
UNLIKE_UPSTREAM = sources.edits(FIXED[0], [("daemon=True", "daemon=False"), ("self.vllm.update_weights", "print")])

# -- for the sessions -------------------------------------------------------------------------------------------------

_SIDES, _FAILS = "[asks, sends]", "answer is not None and not answer.ok"
BY_HAND: ByHand = {
    "only asked": Sub(_SIDES, "[asks]"),
    "one after the other": Sub("ThreadPool(2)", "ThreadPool(1)"),
    "sent first, in this order": (Sub("imap_unordered", "imap"), Sub(_SIDES, "[sends, asks]")),
    "all at once": (Sub("imap_unordered", "map"), Sub(_SIDES, "[sends, asks]")),
    "not waited for": Sub("for answer in pool.imap_unordered", "for answer in () and pool.imap_unordered"),
    "only the first": Sub("if answer is not None", "break\n            if answer is not None"),
    "nothing raised": Sub("raise RuntimeError", "print"),
    "without the text": Sub("{answer.text}", ""),
    "another request": Sub("/update_weights", "/start_weight_update"),
}
MUTANTS = [Mutants("trl", ("1.8.0", "1.12.0"), BY_HAND)]
_LACKING = {it: {"copy-refused": "it has no AsyncDistillationTrainer"} for it in RELEASES[:-1]}
PROOFS = [
    Proofs(
        "trl",
        [Release(it, core=it == "1.12.0", lacking=_LACKING.get(it, {})) for it in RELEASES],
        {"half: no answer read": Other(without(_FAILS, "False"), ("refused", "not-loaded"))},
    )
]
FUZZ = Fuzz(CASES, 2, "Thread|update_weights|trainer_send_weights|join|start", examples=40)

_SENDS = "trl/experimental/async_grpo/weight_transfer.py::WeightTransferClient.send_weights"
_GATHERS = "trl/experimental/async_grpo/async_grpo_trainer.py::AsyncGRPOTrainer._streaming_iter"
_STUCK = rank(at=("vllm/distributed/weight_transfer/packed_tensor.py::packed_broadcast_producer", _SENDS))
_OTHER = rank(issued(WORLD, 7, "all_gather", 64, at=(_GATHERS,)), at=(hung_jobs.C10D, _GATHERS))
HANGS = [HungJob("stacks", job([_STUCK, *[_OTHER] * 3]))]
