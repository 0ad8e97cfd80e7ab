"""offload-late-weights: its rewrite and its anchors, and what the sessions need of it."""

from __future__ import annotations

import pytest

from fuzz.subject import Fuzz
from mutants.by_hand import ByHand, Mutants, Sub
from proofs.others import Other, Proofs, Release, without
from support import sources
from support.rewrites import EveryRewrite

FIX = "offload-late-weights"
CASES = sources.cases(FIX, {"megatron-core": ["0.12.0", "0.13.1", "0.16.1", "0.19.2"]})
_OFFLOADS = "isinstance(self.optimizer, HybridDeviceOptimizer)"


@pytest.mark.parametrize("case", CASES)
class TestRewrite(EveryRewrite):
    """What the function does is the scene's to show."""


@pytest.mark.parametrize("case", CASES + sources.as_written(FIX))
def test_upstreams_own_fix_is_told_from_the_defect_and_from_ours(case: sources.Case) -> None:
    sources.assert_told_apart(case.load(), "")


@pytest.mark.parametrize(
    ("old", "new", "missing"),
    [
        (_OFFLOADS, "isinstance(self.optimizer, torch.optim.Adam)", "if isinstance"),
        (f"if {_OFFLOADS}", f"if not {_OFFLOADS}", "if isinstance"),
        ("use_precision_aware_optimizer", "use_main_params", r"use_precision_aware_optimizer"),
    ],
)
def test_another_order_is_no_anchor(old: str, new: str, missing: str) -> None:
    sources.assert_no_anchor(sources.first(CASES), old, new, match=f"not found: .*{missing}")


# -- for the sessions -------------------------------------------------------------------------------------------------

_COPY = "copy.data.copy_(param)"
_FIRST = f"{_OFFLOADS} and ("
BY_HAND: ByHand = {
    "as before, no main parameters": Sub(_FIRST, f"{_OFFLOADS} or ("),
    "no copies of the model's own": Sub(_FIRST, f"False and {_OFFLOADS} and ("),
    "the model's own stay": Sub(_COPY, "pass"),
    "those of main ones stay": Sub(_COPY, "pass", 1),
    "the wrong way": Sub(_COPY, "param.data.copy_(copy)"),
    "the wrong way, main ones": Sub(_COPY, "param.data.copy_(copy)", 1),
    "only those on a GPU": Sub(_COPY, "copy.data.copy_(param) if copy.is_cuda else None", 1),
    "only those on the host": Sub(_COPY, "copy.data.copy_(param) if not copy.is_cuda else None"),
    "twice as much": Sub(_COPY, "copy.data.copy_(2 * param)"),
    "rounded": Sub(_COPY, "copy.data.copy_(param.bfloat16())", 1),
    "only the copies of 16 bits": Sub("param_to_inner_param", "param_to_fp32_param", 1),
    "only the pinned ones": Sub("param_to_inner_param", "gpu_params_map_cpu_copy"),
    "made anew": Sub("copy.data.copy_(param)", "pass\n            self.optimizer._init_sub_optimizers()", 1),
    "for every optimizer": Sub(f"if {_OFFLOADS}:", "if True:"),
    "for no optimizer": Sub(f"if {_OFFLOADS}:", "if False:"),
    "nothing comes first": Sub("            return\n", "            pass\n"),
}
MUTANTS = [Mutants("megatron-core", ("0.12.0", "0.19.2"), BY_HAND)]
_RIGHT = dict.fromkeys(("aware-2", "aware-stepped"), ("passed", ""))
_LATE = ("all", "half-2", "main-params-2")
PROOFS = [
    Proofs(
        "megatron-core",
        [
            Release("0.19.2", core=True, otherwise=_RIGHT),
            Release("0.16.1", otherwise=_RIGHT),
            Release("0.12.0"),
        ],
        {
            "half: main parameters alone": Other(without(r"(?s)(.*)copy\.data\.copy_\(param\)", r"\1pass"), _LATE),
            "half: copies alone": Other(
                without(r"HybridDeviceOptimizer\) and \(", "HybridDeviceOptimizer) or ("), _LATE
            ),
        },
    )
]
FUZZ = Fuzz(CASES, 2, "HybridDeviceOptimizer|fsdp|precision_aware|copy_group_params|param_to_inner_param", examples=40)
