"""merger-buffer-copies: its anchors, and what the sessions need of it."""

from __future__ import annotations

from fuzz.subject import Fuzz
from mutants.by_hand import ByHand, Mutants, Sub
from proofs.others import Other, Proofs, Release, without
from support import sources
from support.hung_jobs import HungJob, failing, job, rank

FIX = "merger-buffer-copies"
CASES = sources.cases(FIX, {"verl": ["0.4.1", "0.9.0"]})
FIXED = sources.cases(FIX, {"verl": ["0.9.1"]}, state="fixed")
_CAT = "state_dict[key] = torch.cat(state_dict[key], dim=0)"
UNLIKE_UPSTREAM = sources.edits(
    FIXED[0],
    [("dict[key])", "dict[key][:1])"), ("merge_non_dtensor_shards", "print"), ("del model_state_dict_lst", _CAT)],
)
REFUSED = sources.edits(
    CASES[0],
    [
        (_CAT, "state_dict[key] = torch.cat(state_dict[key], dim=1)", "not found"),
        (_CAT, "state_dict[key] = torch.cat(param_placements[key], dim=0)", "not found"),
        (_CAT, "state_dict['key'] = torch.cat(state_dict['key'], dim=0)", "not found"),
        (_CAT, f"{_CAT}; {_CAT}", "found 2 times"),
    ],
)

_AT = "verl/model_merger/fsdp_model_merger.py::FSDPModelMerger._load_and_merge_state_dicts"
(_STOPS,) = failing("RuntimeError: zero-dimensional tensor (at position 0) cannot be concatenated", _AT)
HANGS = [
    HungJob("the merge stops", job([rank(lines=[_STOPS])])),
    HungJob("another error", job([rank(lines=[_STOPS._replace(text="RuntimeError: sizes must match")])]), ""),
]

# -- for the sessions -------------------------------------------------------------------------------------------------

_ALL, _KEPT = "state_dict[key][1:]", "state_dict[key][0].clone(memory_format=torch.contiguous_format)"
_CHECK, _AS_BEFORE = "torch.testing.assert_close(", "torch.cat(state_dict[key], dim=0)"
BY_HAND: ByHand = {
    "as before": Sub(_KEPT, _AS_BEFORE),
    "as before where it has dimensions": Sub(_KEPT, f"{_KEPT} if state_dict[key][0].dim() == 0 else {_AS_BEFORE}"),
    "no copy": Sub(_KEPT, "state_dict[key][0]"),
    "a copy as it lies": Sub(_KEPT, "state_dict[key][0].clone()"),
    "any values": Sub(_CHECK, "bool("),
    "only of the first two": Sub(_ALL, "state_dict[key][1:1]"),
    "with NaN refused": Sub("equal_nan=True", "equal_nan=False"),
    "about": Sub("rtol=0, atol=0", "rtol=0, atol=9"),
    "without a name": Sub('f"{key} differs between ranks"', '"differs"'),
    "as close as torch wants it": Sub("rtol=0, atol=0, ", ""),
    "of some ranks": (Sub(_ALL, f"{_ALL}[:1]"), Sub("(len(state_dict[key]) - 1)", f"len({_ALL}[:1])")),
    "the last one alone": (Sub(_ALL, "state_dict[key][-1:]"), Sub("(len(state_dict[key]) - 1)", "1")),
    "not of one number": Sub(_CHECK, f"if state_dict[key][0].numel() > 1: {_CHECK}"),
}
MUTANTS = [Mutants("verl", ("0.9.0",), BY_HAND)]
_SCALARS = without(r"= (.*clone.*)", rf"= \1 if state_dict[key][0].dim() == 0 else {_AS_BEFORE}")
_UNCHECKED = without(r"torch.testing.assert_close\((?s:.*?),\n *\)", "pass")
_OTHERS = {
    "half: where it has no dimension": Other(_SCALARS, ("vector-2", "vector-4"), "differs: weight_0 is merged to"),
    "half: whatever the others have": Other(_UNCHECKED, ("own-2",), "differs: weight_0"),
}
PROOFS = [Proofs("verl", [Release("0.9.0", core=True), Release("0.4.1")], _OTHERS)]
FUZZ = Fuzz(CASES, 2, r"torch\.cat|state_dict\[key\]|param_placements", examples=60)
