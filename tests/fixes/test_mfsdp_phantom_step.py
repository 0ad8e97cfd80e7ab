"""mfsdp-phantom-step: its rewrite and its anchors, and what the sessions need of it."""

from __future__ import annotations

from fuzz.subject import Fuzz
from mutants.by_hand import ByHand, Mutants, Sub
from proofs.others import Other, Proofs, Release, without
from support import sources

FIX = "mfsdp-phantom-step"
CASES = sources.cases(FIX, {"megatron-core": ["0.17.1", "0.19.2"]})


REFUSED = sources.edits(
    CASES[0],
    [
        ("    optimizer.step()\n", "    optimizer.step(None)\n", r"optimizer\.step\(\)$"),
        ("    optimizer.step()\n", "", r"optimizer\.step\(\)$"),
        ("torch.zeros_like(param)\n", "torch.ones_like(param)\n", r"param\.grad = torch\.zeros_like"),
        ("param.grad = torch", "param.main_grad = torch", r"param\.grad = torch\.zeros_like"),
    ],
    "not found: {}",
)


# -- for the sessions -------------------------------------------------------------------------------------------------

_KEPT, _BACK, _NONE = "None if optimizer.state.get(param) else ", "weight.copy_(copy)", 'one["weight_decay"] = 0.0'
_GROUP, _STATE = 'one["step"] * 0 + count', "new[name] * 0 + first"
BY_HAND: ByHand = {
    "no step at all": Sub("    optimizer.step()\n    for", "    for"),
    "two steps": Sub("    optimizer.step()\n    for", "    optimizer.step()\n    optimizer.step()\n    for"),
    "a state is stepped again": Sub(_KEPT, ""),
    "no state is made": Sub(f"{_KEPT}torch.zeros_like(param)", "None"),
    "gradients of ones": Sub("torch.zeros_like(param)", "torch.ones_like(param)"),
    "the weights stay as they moved": Sub(_BACK, "pass"),
    "no copy of the weights": Sub("weight.clone()", "weight"),
    "weights of zero": Sub(_BACK, "weight.zero_()"),
    "twice the weights": Sub(_BACK, "weight.copy_(2 * copy)"),
    "the decay stays on": Sub(_NONE, "pass"),
    "the decay stays off": Sub('one["weight_decay"] = decay', "pass"),
    "the decay of the defaults": Sub('one["weight_decay"] = decay', 'one["weight_decay"] = 0.1'),
    "as upstream, a rate of 0": Sub('if "weight_decay" in one:', 'one["lr"] = 0.0\n        if "weight_decay" in one:'),
    "the group counts": Sub(_GROUP, 'one["step"]'),
    "the group counts from 0": Sub(_GROUP, 'one["step"] * 0'),
    "the group counts from 1": Sub(_GROUP, f"{_GROUP} + 1"),
    "a tensor of the group counts along": Sub('one.get("step", 0) + 0', 'one.get("step", 0)'),
    "the states count": Sub(_STATE, "new[name]"),
    "the states count from 1": Sub('("step", 0)', '("step", 1)'),
    "all states count from 0": Sub("or {} for it in made", "or {} for it in optimizer.state"),
    "NAdam's count stays": Sub(' ("mu_product", 1)', ""),
    "NAdam's count is 0": Sub('("mu_product", 1)', '("mu_product", 0)'),
    "the states are dropped": Sub(
        "\n    optimizer.zero_grad()", "\n    optimizer.state.clear()\n    optimizer.zero_grad()"
    ),
    "the gradients stay": Sub("\n    optimizer.zero_grad()", "\n    pass"),
}
MUTANTS = [Mutants("megatron-core", ("0.17.1", "0.19.2"), BY_HAND)]
PROOFS = [
    Proofs(
        "megatron-core",
        [Release("0.19.2", core=True), Release("0.18.2"), Release("0.17.1")],
        {
            "half: the weights alone": Other(
                without(r"(one\[.step.\]|new\[name\]) \* 0 \+ \w+", r"\1", 0), ("adamw", "adam-2"), "differs: weight"
            ),
            "half: the decay stays on": Other(
                without(r'one\["weight_decay"\] = 0\.0', "pass"), ("adam-2", "momentum"), "differs: weight"
            ),
            "as upstream, a rate of 0": Other(
                without(r'if "weight_decay" in one:\s+one\["weight_decay"\] = 0', r'one["lr"] = 0.0\n        \g<0>'),
                ("rprop",),
                "differs: weight",
            ),
        },
    )
]
FUZZ = Fuzz(CASES, 2, "zeros_like|optimizer.step|zero_grad|param_groups|weight_decay", examples=40)
