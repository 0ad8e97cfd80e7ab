"""async-grpo-server-hang: its anchors, and what the sessions need of it."""

from __future__ import annotations

from fuzz.subject import Fuzz
from mutants.by_hand import ByHand, Mutants, each
from proofs.others import Other, Proofs, Release, in_file, untouched
from support import hung_jobs, sources
from support.hung_jobs import WORLD, HungJob, issued, job, rank

FIX = "async-grpo-server-hang"
SEND, UPDATE = "WeightTransferClient.send_weights", "VLLMClient.update_weights"
RELEASES = ("1.6.0", "1.8.0", "1.10.0", "1.12.0")
SENDS = sources.cases(FIX, {"trl": RELEASES}, function=SEND)
CASES = [*SENDS, *sources.cases(FIX, {"trl": RELEASES[2:]}, function=UPDATE)]
_OTHERS = {
    "target=self.vllm.update_weights": "Thread",  # a thread whose target is not named
    "trainer_send_weights": "trainer",
}
_NOT = "not found: .*{}"
_USES = ("t_update.join()", "print(t_update.is_alive())\n    t_update.join()", "t_update in no other row")
_TAKEN = ("t0 =", "errors = t0 =", "without errors")
REFUSED = [
    *sources.edits(SENDS[2], [(old, "other(9)", name) for old, name in _OTHERS.items()], _NOT),
    *sources.edits(SENDS[2], [_USES, _TAKEN], _NOT),
    *sources.edits(
        CASES[-1], [("requests.post", "self.post", "post"), ("requests.post", "return requests.post", "post")], _NOT
    ),
]
FIXED = sources.cases(FIX, {"trl": ["1.13.0", "1.16.0"]}, function=SEND, state="fixed")
RAISES = sources.cases(FIX, {"trl": ["1.13.0"]}, function=UPDATE, state="fixed")
UNLIKE_UPSTREAM = [
    *sources.edits(FIXED[0], [("daemon=True", "daemon=False"), ("self.vllm.update_weights", "print")]),
    *sources.edits(RAISES[0], [("raise Exception", "print"), ("!= 200", "== 404")]),
]

# -- for the sessions -------------------------------------------------------------------------------------------------

_IS_OK = 'getattr(answer, "ok", True) is False'
BY_HAND: ByHand = each(
    {
        "torch.cuda.current_device()": ["0"],
        "else -1": ["else 0"],
        "side(*args, **kwargs)": ["side(*args)", "(side(*args, **kwargs), side(*args, **kwargs))[0]"],
        _IS_OK: ["not answer", "getattr(answer, 'ok', False) is False", f"{_IS_OK} and answer.text"],
        "getattr(answer, 'text', None)": ["getattr(answer, 'ok', None)"],
        "sent.wait(10)": ["sent.wait(0)"],
        "BaseException": ["RuntimeError"],
        "errors.append(error)": ["raise"],
        "thread.is_alive()": ["errors"],
        "raise errors[0]": ["print(errors)"],
        ".daemon = True": [".daemon = False"],
        "daemon=True": ["daemon=False"],
        "sending.start()": ["sending.run()"],
        "waits_for(sending)": ["sending.join()"],
        "waits_for(t_update)": ["t_update.join()"],
        "watched(sends, sent)": ["sends", "watched(sends)"],
    }
)
_AGAIN = "requests.post(f'{self.server_url}/update_weights', json={'update_info': update_info}, timeout=timeout)"
_ANSWERED: ByHand = each(
    {
        "not answer.ok": ["answer is None", "not answer", "not answer.text"],
        "raise RuntimeError": ["print", "return RuntimeError", "raise SystemExit"],
        "getattr(answer, 'text', None)": ["getattr(answer, 'ok', None)"],
        "/update_weights": ["/start_weight_update"],
        "requests.post": ["requests.get"],
        "json=": ["data="],
        "update_info}": ["[]}"],
        "timeout=timeout": ["timeout=300"],
        "if not answer.ok": [
            *("if answer.status_code >= 500", "if not answer.ok and answer.text"),
            f"if not answer.ok and not {_AGAIN}.ok",
        ],
    }
)
MUTANTS = [
    Mutants("trl", ("1.6.0", "1.8.0", "1.12.0"), BY_HAND, function=SEND),
    Mutants("trl", ("1.12.0",), _ANSWERED, function=UPDATE),
]
_NO_CLIENT = "it has no client of its own for vLLM"
_LACKING = {it: {"copy-refused": "it has no AsyncDistillationTrainer"} for it in RELEASES[:-1]}
for _older in RELEASES[:2]:
    _LACKING[_older] |= dict.fromkeys(("own-client", "own-client-refused", "own-client-returns"), _NO_CLIENT)
_CLIENT, _TRANSFER = (in_file(f"{it}.py", untouched) for it in ("vllm_client", "weight_transfer"))
_HALVES = {
    "half: no client reads": Other(_CLIENT, ("refused",), only=RELEASES[2:]),
    "half: only the client reads": Other(_TRANSFER, ("refused",)),
}
_RUN = [Release(it, core=it == "1.12.0", lacking=_LACKING.get(it, {})) for it in RELEASES]
PROOFS = [Proofs("trl", _RUN, _HALVES)]
FUZZ = Fuzz(CASES, 2, "Thread|update_weights|trainer_send_weights|join|start|post", examples=40)

_SENDS = "trl/experimental/async_grpo/weight_transfer.py::WeightTransferClient.send_weights"
_GATHERS = "trl/experimental/async_grpo/async_grpo_trainer.py::AsyncGRPOTrainer._streaming_iter"
_STUCK = rank(at=("vllm/distributed/weight_transfer/packed_tensor.py::packed_broadcast_producer", _SENDS))
_OTHER = rank(issued(WORLD, 7, "all_gather", 64, at=(_GATHERS,)), at=(hung_jobs.C10D, _GATHERS))
HANGS = [HungJob("stacks", job([_STUCK, *[_OTHER] * 3]))]
