"""trl: the rows that the real ``_pack_wrapped`` makes of each batch of a table, beside the batch's own tokens in a row.

A table has chunks; a batch is a slice of it, as a batched ``map`` of datasets takes it. Where the rows were shuffled,
or chosen by a filter, datasets looks up each row: the batch has a chunk for each. What the module imports besides
numpy and pyarrow takes no part, and is a stand-in.
"""

from __future__ import annotations

import importlib
import itertools
import sys
from typing import TYPE_CHECKING, Any

from ..cases import DIFFERS, PASSED, Case, Topology
from ..ranks.around import Around, any_module

if TYPE_CHECKING:
    import ast
    from collections.abc import Sequence

WARM = ("torch", "numpy", "pyarrow")
_MODULE, _WHERE = "trl.data_utils", "tokens of the data are packed"
_LENGTHS = (3, 2, 1, 4, 2, 5)


def _case(name: str, batch: int, *, core: bool = False, **more: Any) -> Case:
    """Return a case: ``batch`` rows at a time of a table with such ``chunks``, from its row ``start`` on."""
    options = {"batch": batch, "lengths": _LENGTHS, "others": (), "chunks": (), "start": 0, "looked_up": False, **more}
    options = {"length": 4, "columns": 2, "large": False, **options}
    options["chunks"] = options["chunks"] or (len(options["lengths"]),)
    options["inside"] = _is_inside(options)
    return Case(name, Topology(), *((DIFFERS, _WHERE) if options["inside"] else (PASSED, "")), options, core)


def _is_inside(given: dict[str, Any]) -> bool:
    """Return whether a batch is a part of one chunk that other tokens of the chunk precede."""
    lengths, ends = given["lengths"], [*itertools.accumulate(given["chunks"])]
    for first in range(given["start"], len(lengths), given["batch"]):
        last = min(first + given["batch"], len(lengths)) - 1
        begin = max(end for end in (0, *ends) if end <= first)
        is_one = first == last or (not given["looked_up"] and not any(first < end <= last for end in ends))
        if is_one and sum(lengths[begin:first]) and sum(lengths[first : last + 1]):
            return True
    return False


CASES = (
    _case("batches", 2, core=True),
    _case("one-batch", 6, core=True),
    _case("chunk-of-each", 2, chunks=(2, 2, 2), core=True),
    _case("last-row", 5, looked_up=True, core=True),
    _case("selected", 6, start=2),
)
_SPARSE: dict[str, Any] = {"lengths": (2, 0, 0, 3, 0, 1)}
GRID = [
    *CASES,
    *(_case(f"one column, {size} tokens a row", 2, columns=1, length=size) for size in (1, 2, 16)),
    *(_case(f"large lists, batches of {batch}", batch, large=True) for batch in (1, 3, 6)),
    *(_case(f"chunks of four and two, batches of {batch}", batch, chunks=(4, 2)) for batch in (1, 3, 4)),
    _case("one row after five", 6, start=5, length=3),
    _case("rows looked up, two at a time", 2, looked_up=True),
    _case("the rows before are empty", 1, lengths=(0, 0, 3, 2), start=2, chunks=(3, 1)),
    *(_case(f"some rows are empty, batches of {batch}", batch, **_SPARSE) for batch in (1, 2, 6)),
    _case("a column has other rows before", 4, lengths=(2, 3, 1, 4, 2), others=(4, 1, 1, 4, 2), start=2),
]
HELD = {
    r"types\.is_": "all columns are lists: from 1.0 on, others are refused",
    "isinstance": "the columns of a table are chunked arrays",
}
YOURS = CASES[0]._replace(name="yours", core=False)


def settings(case: Case) -> dict[str, Any]:
    """Return what the user of such a job sets."""
    given = {"packing": True, "eval_packing": None, "packing_strategy": "wrapped"}
    return {**given, "a batch of rows begins inside a chunk of the data": case.options["inside"]}


def has_feature(function: ast.FunctionDef) -> bool:
    """Return whether the function packs all columns by the offsets of the first; before 1.0, each went by its own."""
    import ast

    return "_check_if_columns_can_be_packed" in ast.unparse(function)


def prepare() -> None:
    """Import the real module among stand-ins: of these packages it names the types alone."""
    for package in ("trl", "transformers", "datasets"):
        for name in [it for it in sys.modules if it.partition(".")[0] == package]:
            del sys.modules[name]
        sys.meta_path.insert(0, Around(package, {_MODULE}, any_module))
    importlib.import_module(_MODULE)


def on_rank(case: Case, rank: int) -> list[dict[str, list[list[int]]]]:
    """Return the packed rows of each batch, by column."""
    import pyarrow as pa

    given = case.options
    kind = pa.large_list if given["large"] else pa.list_
    tokens, labels = _tokens(given["lengths"], 1), _tokens(given["others"] or given["lengths"], -1)
    columns = {"input_ids": tokens, "labels": labels} if given["columns"] > 1 else {"input_ids": tokens}
    ends, chunks = [*itertools.accumulate(given["chunks"])], []
    for first, last in zip([0, *ends], ends):
        made = {name: pa.array(rows[first:last], kind(pa.int64())) for name, rows in columns.items()}
        chunks.append(pa.table(made))
    table, pack = pa.concat_tables(chunks), importlib.import_module(_MODULE)._pack_wrapped
    packed = []
    for first in range(given["start"], len(tokens), given["batch"]):
        batch = table.slice(first, given["batch"])
        if given["looked_up"]:
            batch = pa.concat_tables([batch.slice(row, 1) for row in range(len(batch))])
        packed.append(pack(batch, given["length"]).to_pydict())
    return packed


def _tokens(lengths: Sequence[int], sign: int) -> list[list[int]]:
    """Return rows of such lengths, in which no token is there twice."""
    starts = itertools.accumulate(lengths, initial=1)
    return [[sign * it for it in range(start, start + length)] for start, length in zip(starts, lengths)]


def wrong(case: Case, values: Sequence[Any]) -> str:
    """Return what is wrong with the packed rows; empty if nothing is."""
    return "" if values[0] == _due(case) else right(case, values)


def right(case: Case, values: Sequence[Any]) -> str:
    """Return how many tokens of the data the packed rows have."""
    got, due = ({it for batch in of for row in batch["input_ids"] for it in row} for of in (values[0], _due(case)))
    return f"{len(got & due)} of {len(due)} {_WHERE}"


def _due(case: Case) -> list[dict[str, list[list[int]]]]:
    """Return the rows of each batch in one, cut after every few tokens."""
    given, due = case.options, []
    for first in range(given["start"], len(given["lengths"]), given["batch"]):
        rows = _tokens(given["lengths"], 1)[first : first + given["batch"]]
        line, size = [it for row in rows for it in row], given["length"]
        cut = [line[at : at + size] for at in range(0, len(line), size)]
        labels = {"labels": [[-it for it in row] for row in cut]} if given["columns"] > 1 else {}
        due.append({"input_ids": cut, **labels})
    return due
