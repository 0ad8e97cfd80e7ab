"""merged-lora-stale-sync: its anchors, and what the sessions need of it."""

from __future__ import annotations

from functools import partial

from fuzz.subject import Fuzz
from mutants.by_hand import ByHand, Mutants, Sub
from proofs.others import AS_WRITTEN, Other, Proofs, Release, as_written, without
from support import sources

FIX = "merged-lora-stale-sync"
RELEASES = ("0.7.1", "0.8.0")
CASES = sources.cases(FIX, {"verl": RELEASES})
REFUSED = sources.edits(
    CASES[0],
    [
        ("params = normalize_peft_param_name(params)", "params = dict(params)", "normalize_peft_param_name"),
        ("params = convert_weight_keys(params, ", "params = convert_weight_keys(params, 1, ", "convert_weight_keys"),
        ("param in params.items()", "param in sorted(params.items())", r"for ... in params.items\(\)"),
        ("if self._is_offload_param:", "with self._is_offload_param:", "if ...: offload_fsdp_model_to_cpu"),
        ("merged_lora_context(self.module, backup_adapters=True)", "nullcontext()", "merged_lora_context"),
    ],
    "not found: .*{}",
)

# -- for the sessions -------------------------------------------------------------------------------------------------

_when = partial(Sub, "fsdp_version(self.module) == 2")
_read = partial(Sub, "merged_weights() if")
_yielded = partial(Sub, "weight.detach().clone()")
_FSDP2 = "fsdp_version(self.module) == 2"
BY_HAND: ByHand = {
    "FSDP1 too": _when("True"),
    "on rank 0 alone": _when(f"{_FSDP2} and torch.distributed.get_rank() == 0"),
    "without offloading alone": _when(f"{_FSDP2} and not self._is_offload_param"),
    "without QAT alone": _when(f"{_FSDP2} and not self._qat_enabled"),
    "after the first sync alone": _when(f"{_FSDP2} and base_sync_done"),
    "without layered_summon alone": _when(f"{_FSDP2} and not layered_summon"),
    "while it trains alone": _when(f"{_FSDP2} and self.module.training"),
    "in every job": Sub("is_read_late = False", "is_read_late = fsdp_version(self.module) == 2"),
    "all at once": _read("list(merged_weights()) if"),
    "upstream's early return": Sub("params = {}", "return merged_weights(), None"),
    "weights that share storage": _yielded("weight.detach()"),
    "copies without detaching": _yielded("weight.clone()"),
    "copies of shards alone": _yielded("weight.detach().clone() if isinstance(weight, DTensor) else weight"),
    "copies of whole tensors alone": _yielded("weight if isinstance(weight, DTensor) else weight.detach().clone()"),
    "copies in bfloat16": _yielded("weight.detach().clone().to(torch.bfloat16)"),
    "without buffers": Sub("self.module.state_dict()", "dict(self.module.named_parameters())"),
    "without integers": Sub("yield key, weight", "if weight.is_floating_point(): yield key, weight"),
    "what the first sync read": Sub(
        "merged = normalize_peft_param_name(self.module.state_dict())",
        "self.kept = merged = getattr(self, 'kept', None) or normalize_peft_param_name(self.module.state_dict())",
    ),
    "without its errors": Sub("finally:", "except Exception:\n                pass\n            finally:"),
    "on the CPU": _yielded("weight.detach().clone().cpu()"),
    "converted already": _yielded("weight.full_tensor() if isinstance(weight, DTensor) else weight.clone()"),
    "subtracted": Sub(", backup_adapters=True", ""),
    "under names of LoRA": Sub("normalize_peft_param_name(self.module.state_dict())", "self.module.state_dict()"),
    "moved when it is read to the end alone": Sub(
        "finally:", "except ZeroDivisionError:\n                pass\n            else:"
    ),
}
MUTANTS = [Mutants("verl", RELEASES, BY_HAND)]
_NO_COPIES = without(r"\.detach\(\)\.clone\(\)", "")
_NO_CONTEXT = without(r"with merged_lora_context\(.*?\):", "with nullcontext():")
_NO_QAT = without("if self._qat_enabled:", "if self._qat_enabled and not is_read_late:")
_HALVES = {
    "half: without copies": Other(_NO_COPIES, ("one-bfloat16",)),
    "half: without the context": Other(_NO_CONTEXT, ("two", "one")),
    "half: without QAT": Other(_NO_QAT, ("two-quantized",)),
    AS_WRITTEN: Other(as_written(FIX), ("two-quantized", "one-bfloat16"), only=("0.8.0",)),
}
PROOFS = [Proofs("verl", [Release(version, core=version == "0.8.0") for version in RELEASES], _HALVES)]
FUZZ = Fuzz(CASES, 3, "params|merged_lora_context|offload|state_dict", examples=40)
