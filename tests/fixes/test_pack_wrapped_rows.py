"""pack-wrapped-rows: its rewrite and anchors, and what the sessions need of it."""

from __future__ import annotations

from functools import partial

from fuzz.subject import Fuzz
from mutants.by_hand import EVERY, ByHand, Mutants, Sub
from proofs.others import Other, Proofs, Release, without
from support import sources

FIX = "pack-wrapped-rows"
CASES = sources.cases(FIX, {"trl": ["1.0.0", "1.13.0"]})
_WHOLE = "column.values)"
REFUSED = sources.edits(
    CASES[0],
    [
        (_WHOLE, "values)", "not found: .*column.values"),
        (_WHOLE, "columns[0].values)", "not found: .*column.values"),
        (_WHOLE, "column.flatten())", "not found: .*column.values"),
        ("num_elements", "first", "without first, which is ours", 3),
    ],
)
UNLIKE_UPSTREAM = sources.edits(
    sources.cases(FIX, {"trl": ["1.14.0"]}, state="fixed")[0],
    [
        ("column.flatten()", "column.values"),
        ("column_values) for", "column.values) for"),
        ("zip(columns, values,", "zip(columns, columns,"),
    ],
)
_first, _last, _cut = partial(Sub, "offsets[0]"), partial(Sub, "offsets[-1]"), partial(Sub, "[first:last]")
BY_HAND: ByHand = {
    "the whole buffer": _cut(""),
    "from the first row on, shifted": _cut("[first + 1 : last + 1]"),
    "up to the last alone": _cut("[:last]"),
    "as many, from the end of the buffer": _cut("[first - last :]"),
    "the first column's": Sub("column.values[", "columns[0].values["),
    "the last column's": Sub("column.values[", "columns[-1].values["),
    "the second row": _first("offsets[1]"),
    "the last row twice": _first("offsets[-1]"),
    "one row too few": _last("offsets[-2]"),
    "the first row twice": _last("offsets[0]"),
    "rows for values": Sub("columns[0].offsets[0].as_py()", "columns[0].offset"),
    "the lists' new offsets": Sub("columns[0].offsets", "offsets", EVERY),
    "none at all": _cut("[:0]"),
    "every second": _cut("[first:last:2]"),
    "backwards": _cut("[first:last][::-1]"),
}
MUTANTS = [Mutants("trl", ("1.0.0", "1.13.0"), BY_HAND)]
_WRONG = ("batches", "last-row", "selected")
PROOFS = [
    Proofs(
        "trl",
        [Release("1.0.0"), Release("1.9.2"), Release("1.13.0", core=True)],
        {"up to the last row, from the buffer's start": Other(without("first:last", ":last"), _WRONG)},
    )
]
FUZZ = Fuzz(CASES, 1, "offsets|values|from_arrays", examples=40)
