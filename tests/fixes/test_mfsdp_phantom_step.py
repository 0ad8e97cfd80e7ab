"""mfsdp-phantom-step: its rewrite and its anchors, and what the sessions need of it."""

from __future__ import annotations

from fuzz.subject import Fuzz
from mutants.by_hand import Mutants, each
from proofs.others import Other, Proofs, Release, without
from support import sources

FIX = "mfsdp-phantom-step"
CASES = sources.cases(FIX, {"megatron-core": ["0.17.1", "0.19.2"]})
_STEP, _ZEROS = "    optimizer.step()\n", r"param\.grad = torch\.zeros_like"
_EDITS = [
    *((_STEP, new, r"optimizer\.step\(\)$") for new in ("    optimizer.step(None)\n", "")),
    *(("torch.zeros_like(param)\n", "torch.ones_like(param)\n", _ZEROS), ("param.grad =", "param.main_grad =", _ZEROS)),
]
REFUSED = sources.edits(CASES[0], _EDITS, "not found: {}")

# -- for the sessions -------------------------------------------------------------------------------------------------

_KEPT, _BACK, _NONE = "None if optimizer.state.get(param) else ", "weight.copy_(copy)", 'one["weight_decay"] = 0.0'
_GROUP, _STATE, _ENDS = 'one["step"] * 0 + count', "new[name] * 0 + first", "\n    optimizer.zero_grad()"
_DECAYS = 'if "weight_decay" in one:'
_BY_HAND = {
    f"{_STEP}    for": ["    for", f"{_STEP}{_STEP}    for"],
    _KEPT: [""],
    f"{_KEPT}torch.zeros_like(param)": ["None"],
    "torch.zeros_like(param)": ["torch.ones_like(param)"],
    _BACK: ["pass", "weight.zero_()", "weight.copy_(2 * copy)"],
    "weight.clone()": ["weight"],
    _NONE: ["pass"],
    'one["weight_decay"] = decay': ["pass", 'one["weight_decay"] = 0.1', 'one["weight_decay"] = decays[0]'],
    'for one in optimizer.param_groups for it in one["params"]': [
        f'for it in optimizer.param_groups[{at}]["params"]' for at in (0, -1)
    ],
    _DECAYS: [f'one["lr"] = 0.0\n        {_DECAYS}'],
    _GROUP: ['one["step"]', 'one["step"] * 0', f"{_GROUP} + 1"],
    'one.get("step", 0) + 0': ['one.get("step", 0)'],
    _STATE: ["new[name]"],
    '("step", 0)': ['("step", 1)'],
    "or {} for it in made": ["or {} for it in optimizer.state"],
    ' ("mu_product", 1)': ["", ' ("mu_product", 0)'],
    _ENDS: [f"\n    optimizer.state.clear(){_ENDS}", "\n    pass"],
}
MUTANTS = [Mutants("megatron-core", ("0.17.1", "0.19.2"), each(_BY_HAND))]
_COUNTS = without(r"(one\[.step.\]|new\[name\]) \* 0 \+ \w+", r"\1", 0)
_RATE = without(r'if "weight_decay" in one:\s+one\["weight_decay"\] = 0', r'one["lr"] = 0.0\n        \g<0>')
_OFF = "differs: weight"
_HALVES = {
    "half: the weights alone": Other(_COUNTS, ("adamw", "adam-2"), _OFF),
    "half: the decay stays on": Other(without(r'one\["weight_decay"\] = 0\.0', "pass"), ("adam-2", "momentum"), _OFF),
    "as upstream, a rate of 0": Other(_RATE, ("rprop",), _OFF),
}
PROOFS = [Proofs("megatron-core", [Release(it, core=it == "0.19.2") for it in ("0.19.2", "0.18.2", "0.17.1")], _HALVES)]
FUZZ = Fuzz(CASES, 2, "zeros_like|optimizer.step|zero_grad|param_groups|weight_decay", examples=40)
