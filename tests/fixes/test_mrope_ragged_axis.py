"""mrope-ragged-axis: its anchors, and what the sessions need of it."""

from __future__ import annotations

from fuzz.subject import Fuzz
from mutants.by_hand import ByHand, Mutants, Sub
from proofs.others import Other, Proofs, Release, without
from support import sources
from unhang.shapes import catalog

FIX = "mrope-ragged-axis"
MAKE, CHUNK, SELECT = (target.function for target in catalog.fix(FIX).targets)
OLD = ("0.7.0", "0.7.1")
CASES = [
    *sources.cases(FIX, {"verl": [*OLD, "0.8.0", "0.9.1"]}, function=MAKE),
    *(case for function in (CHUNK, SELECT) for case in sources.cases(FIX, {"verl": OLD}, function=function)),
]
REFUSED = sources.edits(
    sources.case(FIX, "0.9.1", function=MAKE),
    [
        (", layout=torch.jagged)", ")", "not found"),
        ("= torch.nested.as_nested_tensor(", "= 0 or torch.nested.as_nested_tensor(", "not found"),
        ("position_ids_nested = torch", "position_ids_nested = again = torch", "found 2 times"),
    ],
)
_MADE = "= tu.nested_tensor"
UNLIKE_UPSTREAM = sources.edits(
    sources.as_written(FIX)[0], [(_MADE, f"= torch.nested.as_nested_tensor() or {_MADE[2:]}")]
)

# -- for the sessions -------------------------------------------------------------------------------------------------

BY_HAND: ByHand = {
    "never": Sub("_ragged_idx == 1", "_ragged_idx == 0"),
    "always": Sub("_ragged_idx == 1", "_ragged_idx > 0"),
    "of one axis": Sub(".dim() == 3", ".dim() == 2"),
    "the first axis": Sub("jagged_dim=2", "jagged_dim=1"),
    "in the order of the axes": Sub(".transpose(0, 1)", ""),
    "of one length": Sub(".size(2)", ".size(0)"),
    "without the last": Sub(".size(0) + 1", ".size(0)"),
}
_OF_A_BATCH: ByHand = {
    **BY_HAND,
    "of all": Sub('key == "position_ids"', "key"),
    "of a part": Sub("_ragged_idx == 1", "_ragged_idx == 1 and batch_size < batch.batch_size[0]"),
    "in their order": Sub("_ragged_idx == 1", "_ragged_idx == 1 and bool((indices.diff() > 0).all())"),
    "all in their order": Sub("data_dict[key].values()", "torch.cat([tensor_lst[it] for it in sorted(indices)])"),
}
MUTANTS = [
    Mutants("verl", ("0.9.1",), BY_HAND, function=MAKE),
    Mutants("verl", ("0.7.0",), BY_HAND, function=CHUNK),
    Mutants("verl", ("0.7.1",), _OF_A_BATCH, function=SELECT),
]
_RELEASES = [Release(it, core=it in ("0.9.1", "0.7.1")) for it in ("0.9.1", "0.8.0", *OLD)]
_OTHERS = {
    "half: along the axes": Other(without(r"\.transpose\(0, 1\)", ""), ("equal",)),
    "never": Other(without("_ragged_idx == 1", "_ragged_idx == 0", count=0), ("one",)),
}
PROOFS = [Proofs("verl", _RELEASES, _OTHERS)]
FUZZ = Fuzz(CASES, 2, "as_nested_tensor|nested_tensor_from_jagged|position_ids", examples=60)
