"""sleep-stale-weights: its anchors, and what the sessions need of it."""

from __future__ import annotations

from fuzz.subject import Fuzz
from mutants.by_hand import ByHand, Mutants, Sub
from proofs.others import Other, Proofs, Release, in_file, without
from support import sources

FIX = "sleep-stale-weights"
GENERATE, SYNC = "VLLMGeneration.generate", "VLLMGeneration.sync_weights"
OPENENV, TURN = "_generate_rollout_completions_colocate", "GRPOTrainer._generate_single_turn"
OURS = [
    *sources.cases(FIX, {"trl": ["0.28.0", "1.0.0", "1.9.2"]}, function=GENERATE),
    *sources.cases(FIX, {"trl": ["0.28.0", "1.5.1", "1.9.2"]}, function=SYNC),
]
CASES = [
    *OURS,
    *sources.cases(FIX, {"trl": ["1.8.0"]}, function=OPENENV),
    *sources.cases(FIX, {"trl": ["0.25.1", "0.27.2"]}, function=TURN),
]
_OTHERS = {  # another call, or a cure of the user's
    "reload_weights": "update_weights",
    "llm.sleep": "llm.pause",
    "reload_weights')": "reload_weights'); self.push()",
    "pass": "self.push()",
    "profiler = profiler or": "self.sync_weights(); profiler = profiler or",
}
REFUSED = sources.edits(OURS[1], [*_OTHERS.items()], "^not found: ")

# -- for the sessions -------------------------------------------------------------------------------------------------

_ASLEEP, _AWAKE = "_llm_weights_sleeping = True", "_llm_weights_sleeping = False"
_RELOAD, _SYNCED = '.llm.collective_rpc("reload_weights")', ".sync_weights()"
_CACHE, _ASKED = 'self.llm.wake_up(tags=["kv_cache"])', 'getattr(self, "_llm_weights_sleeping", True)'


def by_hand(of: str) -> ByHand:
    """Return mutants of a function that generates with this engine."""
    asked, again = f'getattr({of}, "_llm_weights_sleeping", True)', f"{_SYNCED}, {of}{_RELOAD}"
    return {
        "always synced": Sub(asked, "True"),
        "the other way round": Sub(asked, f"not {asked}"),
        "awake at first": Sub(asked, asked.replace("True", "False")),
        "reloaded after it": Sub(_SYNCED, again),
        "reloaded instead": Sub(_SYNCED, _RELOAD),
        "whatever it raises": Sub(
            f"{of}{_SYNCED}", f'with __import__("contextlib").suppress(Exception): {of}{_SYNCED}'
        ),
    }


_GENERATE: ByHand = {
    **by_hand("self"),
    "no cache": Sub(_CACHE, "pass"),
    "weights for a cache": Sub(_CACHE, _CACHE.replace("kv_cache", "weights")),
    "a cache for weights that sleep": Sub(_CACHE, f"{_ASKED} and {_CACHE}"),
}
_SYNC: ByHand = {
    "not reloaded": Sub(f"self{_RELOAD}", "pass"),
    "only woken": Sub(f"self{_RELOAD}", "self.llm.wake_up()"),
    "no more after a reload": Sub(f"self{_RELOAD}", f"self{_RELOAD}; return"),
    "asleep again": Sub(f"self{_RELOAD}", f"self{_RELOAD}, self.llm.sleep(2)"),
    "another error": Sub("NotImplementedError", "KeyError"),
    "any error": Sub("NotImplementedError", "Exception"),
    "raised again": Sub("pass", "raise"),
    "no more without a reload": Sub("pass", "return"),
    "no more where it is awake": Sub(f"self{_RELOAD}", f"if not {_ASKED}: return\n                self{_RELOAD}"),
    "of a server too": Sub(_AWAKE, f"{_AWAKE}\n        if self.enable_sleep_mode: self.llm.wake_up(['weights'])"),
    "awake too": Sub(_AWAKE, f"{_AWAKE}\n        if not self.enable_sleep_mode: self{_RELOAD}"),
    "no more": Sub(_AWAKE, f"{_AWAKE}; return"),
    "as before": Sub(_AWAKE, f"_llm_weights_sleeping = {_ASKED}"),
}
MUTANTS = [
    Mutants("trl", ("0.28.0", "1.9.2"), _GENERATE, function=GENERATE),
    Mutants("trl", ("0.28.0", "1.9.2"), _SYNC, function=SYNC),
    Mutants("trl", ("1.8.0",), by_hand("trainer.vllm_generation"), function=OPENENV),
]
_LATER = ("1.9.2", "1.8.0", "1.0.0", "0.28.0")
_NONE = {"1.9.2": "it has no such rollouts", **dict.fromkeys(("0.27.2", "0.25.1"), "its rollouts are not cured")}
_HALVES = {
    "half: waking is not noted": without(_AWAKE, _ASLEEP),
    "half: reloaded, not synced": without(r"self\.sync_weights\(\)", 'self.llm.collective_rpc("reload_weights")'),
}
_RELEASES = [Release("1.8.0", core=True), *map(Release, ("1.0.0", "0.28.0"))]
_RELEASES += [Release(version, lacking={"openenv": why}) for version, why in _NONE.items()]
_FAIL = ("evaluation", "zero3-2")
_OTHER = {name: Other(in_file("vllm_generation.py", it), _FAIL, only=_LATER) for name, it in _HALVES.items()}
PROOFS = [Proofs("trl", _RELEASES, _OTHER)]
FUZZ = Fuzz(CASES, 4, "reload_weights|wake_up|sleep|_last_loaded_step", examples=40)
