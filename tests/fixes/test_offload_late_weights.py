"""offload-late-weights: its anchors, and what the sessions need of it."""

from __future__ import annotations

from fuzz.subject import Fuzz
from mutants.by_hand import ByHand, Mutants, Sub
from proofs.others import Other, Proofs, Release, without
from support import sources

FIX = "offload-late-weights"
CASES = sources.cases(FIX, {"megatron-core": ["0.12.0", "0.13.1", "0.16.1", "0.19.2"]})
_OFFLOADS, _AWARE = "isinstance(self.optimizer, HybridDeviceOptimizer)", "use_precision_aware_optimizer"
REFUSED = sources.edits(
    CASES[0],
    [(f"if {_OFFLOADS}", f"if not {_OFFLOADS}", "isinst"), (_AWARE, "use_main_params", "_preci")],
    "not found: .*{}",
)

# -- for the sessions -------------------------------------------------------------------------------------------------

_COPY, _FIRST = "copy.data.copy_(param)", f"{_OFFLOADS} and ("
_INNER, _FIRST_GROUP = "self.optimizer.param_to_inner_param", 'self.optimizer.param_groups[0]["params"]'
_ITEMS, _IS_FIRST = f"{_INNER}.items()", 'is_first, self.was_loaded = not hasattr(self, "was_loaded"), True'
BY_HAND: ByHand = {
    "as before, no main parameters": Sub(_FIRST, f"{_OFFLOADS} or ("),
    "no copies of the model's own": Sub(_FIRST, f"False and {_OFFLOADS} and ("),
    "the model's own stay": Sub(_COPY, "pass"),
    "those of main ones stay": Sub(_COPY, "pass", 1),
    "the wrong way": Sub(_COPY, "param.data.copy_(copy)"),
    "only those on a GPU": Sub(_COPY, f"{_COPY} if copy.is_cuda else None", 1),
    "only the pinned ones": Sub("param_to_inner_param", "gpu_params_map_cpu_copy"),
    "made anew": Sub(_COPY, "pass\n            self.optimizer._init_sub_optimizers()", 1),
    "for every optimizer": Sub(f"if {_OFFLOADS}:", "if True:"),
    "nothing comes first": Sub("            return\n", "            pass\n"),
    "from the start of each weight": Sub("param_range.start : param_range.end", ": param_range.size"),
    "the first group's copies alone": Sub(_ITEMS, f"[(it, {_INNER}[it]) for it in {_FIRST_GROUP}]", 1),
    "the model's first group alone": Sub("(self.model_float16_groups,", "(self.model_float16_groups[:1],"),
    "at the first load alone": Sub(f"if {_OFFLOADS}:", f"{_IS_FIRST}\n        if is_first and {_OFFLOADS}:"),
}
MUTANTS = [Mutants("megatron-core", ("0.12.0", "0.19.2"), BY_HAND)]
_HALVES = {
    "half: main parameters alone": without(r"(?s)(.*)copy\.data\.copy_\(param\)", r"\1pass"),
    "half: copies alone": without(r"HybridDeviceOptimizer\) and \(", "HybridDeviceOptimizer) or ("),
}
_RELEASES = Release("0.19.2", core=True), *map(Release, ("0.16.1", "0.13.1", "0.12.0"))
_LATE = "all", "half-2", "main-params-2"
PROOFS = [Proofs("megatron-core", _RELEASES, {name: Other(change, _LATE) for name, change in _HALVES.items()})]
FUZZ = Fuzz(CASES, 2, "HybridDeviceOptimizer|fsdp|precision_aware|copy_group_params|param_to_inner_param", examples=40)
