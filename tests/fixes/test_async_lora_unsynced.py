"""async-lora-unsynced: its anchors, and what the sessions need of it."""

from __future__ import annotations

import re

from fuzz.subject import Fuzz
from mutants.by_hand import ByHand, Mutants, Sub
from proofs.others import Other, Proofs, Release, without
from support import sources

FIX = "async-lora-unsynced"
RELEASES = ("0.7.1", "0.8.0", "0.9.0", "0.9.1")
CASES = sources.cases(FIX, {"verl": RELEASES})
_EDITS = [("tensor_param()", "tensor_param(1)", "tensor_param"), ("send_weights(per", "sends(per", "send_weights")]
REFUSED = sources.edits(CASES[0], _EDITS, "not found: .*{}")

# -- for the sessions -------------------------------------------------------------------------------------------------

_ADAPTERS, _READS, _BACKUP = 'hasattr(model, "peft_config")', "get_per_tensor_param()", ", backup_adapters=True"
_ENTERS, _WAITS = "merged.enter_context(", "merged.callback(device.get_torch_device().synchronize)"
BY_HAND: ByHand = {
    "on rank 0 alone": Sub("with merged:", "with merged if torch.distributed.get_rank() == 0 else nullcontext():"),
    "put back by subtraction": Sub(_BACKUP, ""),
    "no synchronize": Sub(_WAITS, "pass"),
    "synchronize before the send": Sub(_WAITS, "device.get_torch_device().synchronize()"),
    "only in the first sync": Sub(_ADAPTERS, f"{_ADAPTERS} and vars(self).setdefault('unhang', merged) is merged"),
    "the adapters alone": Sub(_READS, "get_per_tensor_param(base_sync_done=True)"),
    "layer by layer": Sub(_READS, "get_per_tensor_param(layered_summon=self.layered_summon)"),
    "never trained again": Sub(_WAITS, f"{_WAITS}\n                engine.module.requires_grad_(False)"),
    "a failure is lost": Sub(_WAITS, f"{_WAITS}\n                merged.push(lambda *_: True)"),
}
MUTANTS = [Mutants("verl", ("0.7.1", "0.9.1"), BY_HAND)]
_HALVES = {
    "half: without the context": Other(without(re.escape(_ENTERS), "print("), ("fsdp2-two", "fsdp1-one")),
    "half: without the wait": Other(without(re.escape(_WAITS), "pass"), ("fsdp1-two-offload",), "differs: .*own w"),
}
PROOFS = [Proofs("verl", [Release(version, core=version == "0.9.1") for version in RELEASES], _HALVES)]
FUZZ = Fuzz(CASES, 2, "get_per_tensor_param|send_weights|backend|effective_mode", examples=40)
