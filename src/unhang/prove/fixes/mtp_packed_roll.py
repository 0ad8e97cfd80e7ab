"""megatron-core: the real roll of multi-token prediction, on packed sequences that lie as context parallelism has them.

Each sequence is padded, and rank r of a context-parallel group of n has its chunks r and 2n - 1 - r. What the layers
learn is compared with the tokens of each sequence, which all have numbers of their own.
"""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from ..cases import CRASHED, DIFFERS, PASSED, Case, Topology
from ..ranks import megatron, shims

if TYPE_CHECKING:
    from collections.abc import Sequence

_PADDING = "padding between packed sequences that cu_seqlens_q leaves out (Megatron-Bridge: pad_seq_to_mult over 1)"
_AT = "targets of MTP are right"
_CP1, _CP2, _CP4 = Topology(), Topology(cp=2), Topology(cp=4)
_ODD, _EVEN = (13, 22, 17), (16, 24)
_SHORT = {"lengths": _ODD, "multiple": 8}
CASES = (
    Case("padded", _CP1, DIFFERS, _AT, _SHORT, core=True),
    Case("padded-cp2", _CP2, DIFFERS, _AT, {"lengths": _ODD, "multiple": 4}, core=True),
    Case("padded-cp4", _CP4, DIFFERS, _AT, {"lengths": (*_ODD, 30), "multiple": 8}),
    Case("padded-cp2-dp2", Topology(cp=2, dp=2), DIFFERS, _AT, {"lengths": _ODD, "multiple": 4}),
    Case("two-layers", _CP1, DIFFERS, _AT, {**_SHORT, "layers": 2}, core=True),
    Case("two-layers-cp2", _CP2, DIFFERS, _AT, {**_SHORT, "layers": 2}, core=True),
    Case("short-cp2", _CP2, CRASHED, "list index out of range", {"lengths": (2, *_ODD), "multiple": 4}, core=True),
    Case("no-padding", _CP1, PASSED, options={"lengths": _ODD, "multiple": 1}, core=True),
    Case("no-padding-cp2", _CP2, PASSED, options={"lengths": _EVEN, "multiple": 4}, core=True),
    Case("padded-ends-alone-cp2", _CP2, PASSED, options={**_SHORT, "ends": "padded alone"}, core=True),
    Case("padded-ends-twice-cp2", _CP2, PASSED, options={**_SHORT, "ends": "padded twice"}),
)
GRID = [
    *CASES,
    Case("no group", _CP1, DIFFERS, options={**_SHORT, "group": None}),
    Case("no sum, the axis by its number", _CP1, DIFFERS, options={**_SHORT, "dims": 1, "return_sum": False}),
    Case("an empty sequence", _CP1, DIFFERS, options={**_SHORT, "lengths": (*_ODD, 0)}),
    Case("one sequence, CP 2", _CP2, DIFFERS, options={"lengths": _ODD[:1], "multiple": 4}),
    Case("positions of three axes", _CP1, DIFFERS, options={**_SHORT, "axes": 3}),
    Case("positions of three axes, CP 2", _CP2, DIFFERS, options={**_SHORT, "axes": 3}),
    Case("no sum, CP 2", _CP2, DIFFERS, options={**_SHORT, "dims": 1, "return_sum": False}),
    Case("no such attribute", _CP1, PASSED, options={**_SHORT, "ends": "no attribute", "beyond": True}),
]
HELD = {
    r"local_seq_len == 0|\.size\(dims\) == 0": "of sequences shorter than twice the ranks, which padding rules out",
    r"numel\(\)|cp_partition_mode|local_rank [<>]": "of another layout, contiguous, that commits alone have",
}
YOURS = Case("yours", _CP2, DIFFERS, _AT, {"lengths": _ODD, "multiple": 4})


def settings(case: Case) -> dict[str, Any]:
    """Return what the user of such a job sets."""
    ends, padded = _ends(case)
    return {"mtp_num_layers": case.options.get("layers", 1), _PADDING: "ends" not in case.options and ends != padded}


def prepare() -> None:
    """Import the layers of multi-token prediction for a CPU."""
    shims.cuda_on_cpu()
    import megatron.core.transformer.multi_token_prediction  # noqa: F401


class Rolled(NamedTuple):
    """What a rank got of the last layer."""

    labels: list[list[int]]
    """Of each axis."""
    mask: list[int]
    learnt: float | None
    """The sum of the mask, if the function returns it."""
    is_kept: bool
    """Whether all that the function was given is as it was."""


def on_rank(case: Case, rank: int) -> Rolled:
    """Shift the labels, or positions of several axes, and the loss mask once for each layer."""
    import torch
    from megatron.core import parallel_state
    from megatron.core.packed_seq_params import PackedSeqParams
    from megatron.core.transformer import multi_token_prediction as module

    megatron.initialize(case.topology)
    options, roll = case.options, module._roll_tensor_packed_seq
    ends, padded = (torch.tensor(it, dtype=torch.int32) for it in _ends(case))
    kind = options.get("ends", "both")
    given = {"cu_seqlens_q": ends if kind == "both" else padded}
    if kind == "padded twice" or (kind == "both" and options["multiple"] > 1):
        given["cu_seqlens_q_padded"] = padded
    packed = SimpleNamespace(**given) if kind == "no attribute" else PackedSeqParams(**given)
    group = options.get("group", parallel_state.get_context_parallel_group())
    more = {name: options[name] for name in inspect.signature(roll).parameters if name == "return_sum" in options}
    mask, count = (torch.tensor([_due(case, rank, 0)]) > 0).float(), None
    labels = torch.tensor([_due(case, rank, 0)]).expand(options.get("axes", 1), 1, -1).clone()
    labels = labels if "axes" in options else labels[0]
    before, is_kept = {**vars(packed)}, True
    for _layer in range(options.get("layers", 1)):
        taken = labels, mask
        copies = [it.clone() for it in taken]
        labels, _ = roll(labels, -1, options.get("dims", -1), packed, group, **more)
        mask, count = roll(mask, -1, options.get("dims", -1), packed, group, **more)
        is_kept &= all(map(torch.equal, taken, copies))
    is_kept &= vars(packed) == before and [ends.tolist(), padded.tolist()] == [*_ends(case)]
    each = labels.flatten(0, -2).tolist()
    return Rolled(each, mask[0].int().tolist(), None if count is None else float(count), is_kept)


def wrong(case: Case, ranks: Sequence[Rolled]) -> str:
    """Return what is wrong with the targets of the last layer; empty where nothing is."""
    right = found = total = 0
    is_right = True
    for rank, (labels, mask, count, is_kept) in enumerate(ranks):
        if not is_kept:
            return f"rank {rank} has something else than before in what it gave"
        due = _due(case, rank, case.options.get("layers", 1))
        right += sum(one == it > 0 and counts for one, it, counts in zip(labels[0], due, mask))
        found, total = found + sum(mask), total + sum(it > 0 for it in due)
        is_right &= labels == [due] * len(labels) and mask == [int(it > 0) for it in due] and count in (None, sum(mask))
    return "" if is_right else f"{right} of {total} {_AT}, and {found} are learnt"


def right(case: Case, ranks: Sequence[Rolled]) -> str:
    """Return what was seen."""
    total = sum(sum(it.mask) for it in ranks)
    return f"{total} of {total} {_AT}"


def _ends(case: Case) -> tuple[list[int], list[int]]:
    """Return the ends of the sequences without their padding, and with it."""
    ends, padded, multiple = [0], [0], case.options["multiple"]
    for length in case.options["lengths"]:
        ends.append(ends[-1] + length)
        padded.append(padded[-1] - -length // multiple * multiple)
    return ends, padded


def _due(case: Case, rank: int, layer: int) -> list[int]:
    """Return a rank's labels as the tokens themselves tell: of a layer (0 is the main loss), 0 behind a sequence."""
    size, (_, padded) = case.topology.cp, _ends(case)
    at, replica = rank % size, rank // size
    due = []
    for number, length in enumerate(case.options["lengths"]):
        whole = padded[number + 1] - padded[number]
        half = whole // (2 * size)
        places = [*range(at * half, (at + 1) * half), *range(whole - (at + 1) * half, whole - at * half)]
        nexts = [place + 1 + layer for place in (places if size > 1 else range(whole))]
        due += [1000 * (replica + 1) + 100 * number + it if it < length else 0 for it in nexts]
    return due
