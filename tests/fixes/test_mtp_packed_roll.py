"""mtp-packed-roll: its anchors, and what the sessions need of it."""

from __future__ import annotations

from fuzz.subject import Fuzz
from mutants.by_hand import ByHand, Mutants, Sub
from proofs.others import Other, Proofs, Release, without
from support import sources
from support.hung_jobs import WORLD, HungJob, failing, issued, job, rank

FIX = "mtp-packed-roll"
CASES = sources.cases(FIX, {"megatron-core": ["0.16.1", "0.17.1", "0.19.2"]})
_TAKEN, _PADDED = "cu_seqlens = packed_seq_params.cu_seqlens_q", "packed_seq_params.cu_seqlens_q_padded"
REFUSED = sources.edits(
    CASES[0],
    [
        (_TAKEN, f"cu_seqlens = {_PADDED}", "without cu_seqlens_q_padded"),
        (_TAKEN, f"{_TAKEN}.tolist()", "not found: .*cu_seqlens_q"),
        (_TAKEN, f"{_TAKEN}; {_TAKEN}", "found 2 times"),
    ],
)

_AT = "megatron/core/transformer/multi_token_prediction.py::_roll_tensor_packed_seq"
_ERROR = "IndexError: list index out of range"
_FAILS, _SENDS = rank(lines=failing(_ERROR, _AT)), rank(issued(WORLD, 1, "send", 1, at=[_AT]))
HANGS = [
    HungJob("both ranks fail", job([_FAILS, _FAILS])),
    HungJob("its peer waits in the exchange", job([_FAILS, _SENDS])),
    HungJob("elsewhere", job([rank(lines=failing(_ERROR, "job/data.py::__getitem__"))]), ""),
    HungJob("another error", job([rank(lines=failing("IndexError: too many indices for tensor", _AT))]), ""),
]

# -- for the sessions -------------------------------------------------------------------------------------------------

_IF, _NEW = 'getattr(packed_seq_params, "cu_seqlens_q_padded", None) is not None', f"cu_seqlens = {_PADDED}"
BY_HAND: ByHand = {
    "as before": Sub(_NEW, "pass"),
    "whether or not there are any": Sub(_IF, "True"),
    "without asking for the attribute": Sub(_IF, f"{_PADDED} is not None"),
    "if there are no others": Sub(_IF, "cu_seqlens is None"),
    "with one rank alone": Sub(_IF, f"(cp_group is None or cp_group.size() == 1) and {_IF}"),
    "with several ranks alone": Sub(_IF, f"cp_group is not None and cp_group.size() > 1 and {_IF}"),
    "where there are more of them": Sub(_IF, f"{_IF} and len({_PADDED}) > len(cu_seqlens)"),
    "where some sequence is padded by several": Sub(_IF, f"{_IF} and {_PADDED}[-1] > cu_seqlens[-1] + 9"),
    "the nearer ones": Sub(_NEW, f"cu_seqlens = torch.minimum(cu_seqlens, {_PADDED})"),
    "those of the first": Sub(_NEW, f"{_NEW}[:2]"),
    "the first as it was": Sub(_NEW, f"cu_seqlens = torch.cat((cu_seqlens[:2], {_PADDED}[2:]))"),
    "the lengths": Sub(_NEW, f"{_NEW}.diff()"),
    "but the last": Sub(_NEW, f"{_NEW}[:-1]"),
    "the last as it was": Sub(_NEW, f"{_NEW.replace('cu_seqlens =', 'cu_seqlens[:-1] =')}[:-1]"),
    "into what was given": Sub("rolled_tensor = tensor.clone()", "rolled_tensor = tensor"),
    "where there are several": Sub(_IF, f"{_IF} and len({_PADDED}) > 2"),
    "for good": Sub(_NEW, f"{_NEW}\n        packed_seq_params.cu_seqlens_q = cu_seqlens"),
    "once": Sub(_NEW, f"{_NEW}\n        {_PADDED} = None"),
    "of two dimensions": Sub(_IF, f"{_IF} and tensor.dim() == 2"),
}
MUTANTS = [Mutants("megatron-core", ("0.16.1", "0.19.2"), BY_HAND)]
_HALVES = {
    "half: with several ranks alone": Other(without(r"if getattr", "if cp_group.size() > 1 and getattr"), ("padded",)),
    "half: with one rank alone": Other(without(r"if getattr", "if cp_group.size() == 1 and getattr"), ("padded-cp2",)),
}
PROOFS = [Proofs("megatron-core", [Release("0.19.2", core=True), Release("0.17.1"), Release("0.16.1")], _HALVES)]
FUZZ = Fuzz(CASES, 2, r"cu_seqlens|packed_seq_params|rolled_tensor", examples=60)
