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

_ADAPTERS, _MERGES = 'hasattr(model, "peft_config")', 'engine.model_config.lora.get("merge", False)'
_OFFLOADS, _BACKUP = "if engine._is_offload_param:", ", backup_adapters=True"
_ENTERS, _WAITS = "merged.enter_context(", "merged.callback(device.get_torch_device().synchronize)"
BY_HAND: ByHand = {
    "never": Sub(_ADAPTERS, "False"),
    "without LoRA too": Sub(_ADAPTERS, "True"),
    "the merged ones again": Sub(f" and not {_MERGES}", ""),
    "only the merged ones": Sub(f"not {_MERGES}", _MERGES),
    "on rank 0 alone": Sub("with merged:", "with merged if torch.distributed.get_rank() == 0 else nullcontext():"),
    "put back by subtraction": Sub(_BACKUP, ""),
    "not loaded": Sub(_OFFLOADS, "if False:"),
    "always loaded": Sub(_OFFLOADS, "if True:"),
    "no synchronize": Sub(_WAITS, "pass"),
    "synchronize before the send": Sub(_WAITS, "device.get_torch_device().synchronize()"),
}
MUTANTS = [Mutants("verl", ("0.7.1", "0.9.1"), BY_HAND)]
_HALVES = {
    "half: without the context": Other(without(re.escape(_ENTERS), "print("), ("fsdp2-two", "fsdp1-one")),
    "half: without the wait": Other(without(re.escape(_WAITS), "pass"), ("fsdp1-two-offload",), "differs: .*own w"),
}
PROOFS = [Proofs("verl", [Release(version, core=version == "0.9.1") for version in RELEASES], _HALVES)]
FUZZ = Fuzz(CASES, 2, "get_per_tensor_param|send_weights|backend|effective_mode", examples=40)
