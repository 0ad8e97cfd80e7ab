"""merged-lora-stale-sync: its rewrite and anchors, what upstream's own fix still gets wrong, and what sessions need."""

from __future__ import annotations

from functools import partial

import pytest

from fuzz.subject import Fuzz
from mutants.by_hand import ByHand, Mutants, Sub
from proofs.others import AS_WRITTEN, Other, Proofs, Release, as_written, without
from support import sources
from unhang.codemods.base import AnchorError
from unhang.judge import matrix
from unhang.judge.decide import codemod
from unhang.shapes import catalog

FIX = "merged-lora-stale-sync"
RELEASES = ("0.7.1", "0.8.0")
CASES = sources.cases(FIX, {"verl": RELEASES})


def test_each_release_that_can_merge_and_reads_too_late_needs_the_fix() -> None:
    releases = {"verl": catalog.releases()["verl"]}
    now = {row.version: row.verdict for row in matrix.rows([catalog.fix(FIX)], releases, catalog.shape_table())}
    assert {now[version] for version in ("0.4.0", "0.5.0", "0.6.1", "0.7.0")} == {"not-affected"}
    assert {now[version] for version in ("0.7.1", "0.8.0.dev0", "0.8.0")} == {"needed"}
    assert {now[version] for version in ("0.9.0", "0.9.1")} == {"fixed-upstream"}


def test_each_copy_with_the_pull_request_says_what_is_wrong_with_it() -> None:
    shapes = catalog.shape_table().shapes.items()
    notes = [shape.note for (fix, _, _), shape in shapes if fix == FIX and shape.note]
    assert len(notes) == len(sources.as_written(FIX)) == 3
    assert all("it skips the quantizer of QAT, and one rank" in note for note in notes)


@pytest.mark.parametrize(
    ("old", "new", "missing"),
    [
        ("params = normalize_peft_param_name(params)", "params = dict(params)", "normalize_peft_param_name"),
        ("params = normalize_peft_param_name(params)", "params = normalize_peft_param_name(other)", "(params)"),
        ("params = convert_weight_keys(params, ", "params = convert_weight_keys(other, ", "convert_weight_keys"),
        ("params = convert_weight_keys(params, ", "params = convert_weight_keys(params, 1, ", "convert_weight_keys"),
        ("param in params.items()", "param in sorted(params.items())", "for ... in params.items()"),
        ("if self._is_offload_param:", "with self._is_offload_param:", "if ...: offload_fsdp_model_to_cpu"),
        ("offload_fsdp_model_to_cpu(self.module)", "move(self.module)", "offload_fsdp_model_to_cpu"),
        ("with merged_lora_context(self.module, backup_adapters=True):", "if True:", "merged_lora_context"),
        ("merged_lora_context(self.module, backup_adapters=True)", "nullcontext()", "merged_lora_context"),
    ],
)
def test_what_differs_is_no_anchor(old: str, new: str, missing: str) -> None:
    with pytest.raises(AnchorError) as error:
        codemod(sources.first(CASES).target).plan(sources.mutated(sources.first(CASES).function, old, new))
    assert missing in str(error.value)


# -- for the sessions -------------------------------------------------------------------------------------------------

_when = partial(Sub, "fsdp_version(self.module) == 2")
_read = partial(Sub, "merged_weights() if")
_yielded = partial(Sub, "weight.detach().clone()")
_moved = partial(Sub, "if self._is_offload_param:")
_FSDP2 = "fsdp_version(self.module) == 2"
BY_HAND: ByHand = {
    "never": _when("False"),
    "FSDP1 too": _when("True"),
    "FSDP1 alone": _when("fsdp_version(self.module) == 1"),
    "FSDP1 too, by its version": _when("fsdp_version(self.module) >= 1"),
    "on rank 0 alone": _when(f"{_FSDP2} and torch.distributed.get_rank() == 0"),
    "on the others alone": _when(f"{_FSDP2} and torch.distributed.get_rank() != 0"),
    "with offloading alone": _when(f"{_FSDP2} and self._is_offload_param"),
    "without offloading alone": _when(f"{_FSDP2} and not self._is_offload_param"),
    "with QAT alone": _when(f"{_FSDP2} and self._qat_enabled"),
    "without QAT alone": _when(f"{_FSDP2} and not self._qat_enabled"),
    "after the first sync alone": _when(f"{_FSDP2} and base_sync_done"),
    "without layered_summon alone": _when(f"{_FSDP2} and not layered_summon"),
    "while it trains alone": _when(f"{_FSDP2} and self.module.training"),
    "in every job": Sub("is_read_late = False", "is_read_late = fsdp_version(self.module) == 2"),
    "all at once": _read("list(merged_weights()) if"),
    "all at once, by name": _read("dict(merged_weights()).items() if"),
    "one weight less": _read("list(merged_weights())[1:] if"),
    "upstream's early return": Sub("params = {}", "return merged_weights(), None"),
    "weights themselves": _yielded("weight"),
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
    "under other names": Sub("merged = convert_weight_keys(merged, ", "convert_weight_keys(merged, "),
    "without the context": Sub("with merged_lora_context(self.module, backup_adapters=True):", "if True:"),
    "left on the device": _moved("if False:"),
    "always moved": _moved("if True:"),
    "moved early as well": Sub(" and not is_read_late", ""),
    "moved early alone": (_moved("if False:"), Sub(" and not is_read_late", "")),
    "moved when it is read to the end alone": Sub(
        "finally:", "except ZeroDivisionError:\n                pass\n            else:"
    ),
    "no params": Sub("params = {}", "params = None"),
}
MUTANTS = [Mutants("verl", RELEASES, BY_HAND)]
PROOFS = [
    Proofs(
        "verl",
        [Release(version, core=version == "0.8.0") for version in RELEASES],
        {
            "half: without copies": Other(without(r"\.detach\(\)\.clone\(\)", ""), ("one-bfloat16",)),
            "half: without the context": Other(
                without(r"with merged_lora_context\(.*?\):", "with nullcontext():"), ("two", "one")
            ),
            "half: without QAT": Other(
                without("if self._qat_enabled:", "if self._qat_enabled and not is_read_late:"), ("two-quantized",)
            ),
            AS_WRITTEN: Other(as_written(FIX), ("two-quantized", "one-bfloat16"), only=("0.8.0",)),
        },
    )
]
FUZZ = Fuzz(CASES, 3, "params|merged_lora_context|offload|state_dict", examples=40)
