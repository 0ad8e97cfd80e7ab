"""allgather-empty-expert: its anchors, and what the sessions need of it."""

from __future__ import annotations

import re

from fuzz.subject import Fuzz
from mutants.by_hand import EVERY, ByHand, Mutants, Sub
from proofs.others import Other, Proofs, Release, without
from support import hung_jobs, sources
from support.hung_jobs import HungJob, failing, issued, job, rank
from unhang.diagnose.evidence import Job, Rank

FIX = "allgather-empty-expert"
CLASS = "MoEAllGatherTokenDispatcher."
OLD, NEW = ("0.11.0", "0.12.0", "0.12.3"), ("0.13.1", "0.14.0", "0.16.1", "0.17.1", "0.19.2")
_OF = {"token_permutation": OLD, "token_unpermutation": OLD, "dispatch_postprocess": NEW, "combine_preprocess": NEW}
CASES = [it for name in _OF for it in sources.cases(FIX, {"megatron-core": _OF[name]}, function=CLASS + name)]
_FUSED, _ROWS = "fused=self.config.moe_permute_fusion", "num_out_tokens=tokens_per_expert.sum().item()"
_HIDDEN = "unpermuted_local_hidden = "
_REFUSED_IN = {
    ("0.19.2", "dispatch_postprocess"): [
        (_FUSED, "fused=self.fusion", r"permute\(fused="),
        (_ROWS, f"{_ROWS} or 0", "permute.num_out_tokens="),
    ],
    ("0.19.2", "combine_preprocess"): [(" = unpermute(", " = self.unpermute(", r"unpermute\(fused=")],
    ("0.11.0", "token_unpermutation"): [(_HIDDEN, f"unpermute({_FUSED}); {_HIDDEN}", "found 3 times, .*unpermute")],
}
REFUSED = [
    edit
    for (version, name), rows in _REFUSED_IN.items()
    for edit in sources.edits(sources.case(FIX, version, function=CLASS + name), rows)
]

# -- for the sessions -------------------------------------------------------------------------------------------------

_TOKEN, _ROW = "tokens_per_expert.sum().item() > 0", "hidden_states.shape[0] > 0"
_SETTING = "self.config.moe_permute_fusion and "
_ALSO = (
    *("torch.distributed.get_rank() == 0", "not hidden_states.requires_grad", "not self.training"),
    *("self.num_local_experts == 1", "len(self.local_expert_indices) > 1"),
)
_ONLY = (
    *("torch.distributed.get_rank() != 0", "self.local_map.sum().item() > 0"),
    *("self.ep_size > 1", "self.tp_size > 1", "self.tp_size == 1"),
)
_INSTEAD = "False", "self.ep_size == 1", "self.local_map.sum().item() > 0", "self.local_map.shape[0] > 0"


def _by_hand(condition: str, *others: str) -> ByHand:
    """Return what may stand in the place of a condition, by its code."""
    found = [*others, *_INSTEAD, f"not {condition}", condition.replace("> 0", "> 2")]
    found += [*(f"({condition} or {it})" for it in _ALSO), *(f"{condition} and {it}" for it in _ONLY)]
    return {"whatever is configured": Sub(_SETTING, "", EVERY), **{it: Sub(condition, it, EVERY) for it in found}}


_EACH = "tokens_per_expert.tolist()"
_OF_SOME = (f"{_EACH}[0] > 0", f"{_EACH}[-1] > 0", f"min({_EACH}) > 0")
_OF_THREE = ("(tokens_per_expert[:2].sum() > 0)", "(tokens_per_expert[[0, -1]].sum() > 0)")
_KEPT = f"vars(self.config).update(moe_permute_fusion={_TOKEN}) is None and {_TOKEN}"
_TOKENS_BY_HAND = _by_hand(_TOKEN, *_OF_SOME, *_OF_THREE, _KEPT, _ROW)
_BEFORE = "self.hidden_shape_before_permute[0]"
_OF_OTHERS = ("self.local_probs.shape[0] > 0", f"{_BEFORE} > 0", f"hidden_states.shape[0] >= {_BEFORE}")
_ROWS_BY_HAND = _by_hand(_ROW, *_OF_OTHERS)
_BOTH_BY_HAND = {**_ROWS_BY_HAND, "the bias not fused": Sub(_ROW, "False", 1), "the rows not fused": Sub(_ROW, "False")}
MUTANTS = [
    Mutants("megatron-core", versions, by_hand, function=CLASS + function)
    for function, versions, by_hand in (
        ("dispatch_postprocess", ("0.16.1", "0.19.2"), _TOKENS_BY_HAND),
        ("combine_preprocess", ("0.19.2",), _ROWS_BY_HAND),
        ("token_permutation", ("0.11.0", "0.12.3"), _TOKENS_BY_HAND),
        ("token_unpermutation", ("0.11.0", "0.12.0"), _BOTH_BY_HAND),
        ("token_unpermutation", ("0.12.3",), _ROWS_BY_HAND),
    )
]


def _zeros(path: str, before: bytes, after: bytes) -> bytes:
    """Return zeros for an empty batch from another dispatcher, outside of the graph, as pull request 3626 does."""
    head, marker, tail = after.decode().partition("class MoEAlltoAllTokenDispatcher")
    zeros = "\n        if not len(output):\n            output = torch.zeros(self.hidden_shape)\n"
    changed, found = re.subn(r"(?s)(\n        output = unpermute\(.*?\n        \)\n)", rf"\1{zeros}", tail, count=1)
    assert found == 1
    return f"{head}{marker}{changed}".encode()


_ROWS_FUSED, _TOKENS_FUSED = (without(re.escape(f" and {it}"), "", 0) for it in (_ROW, _TOKEN))
_GUARDS = r" and (tokens_per_expert\.sum|hidden_states).* > 0"
_HALVES = {
    "half: permuted without fusion alone": Other(_ROWS_FUSED, ("refuses", "returns"), "size 0"),
    "half: unpermuted without fusion alone": Other(_TOKENS_FUSED, ("refuses", "returns")),
    "no fusion at all": Other(without(_GUARDS, " and False", 0), ("tokens",)),
    "zeros for an empty batch, as in pull request 3626": Other(_zeros, ("alltoall-no-batch",), "hung: "),
}
_RUN = [Release(version, core=version == "0.19.2") for version in (*OLD, *NEW, "0.18.2")]
PROOFS = [Proofs("megatron-core", _RUN, _HALVES)]
FUZZ = Fuzz(CASES, 2, r"permute|fused|tokens_per_expert|hidden_states", examples=40)
_EXPERT_TP = hung_jobs.group("12", "EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP")
_DISPATCHER = "megatron/core/transformer/moe/token_dispatcher.py::MoEAllGatherTokenDispatcher."
_GATHERED = issued(_EXPERT_TP, 17, "all_gather", 16, 32, done=True)
_AT = ("megatron/core/transformer/moe/moe_utils.py::permute", _DISPATCHER + "dispatch_postprocess")
_REFUSED = failing("AssertionError: moe_permute (mask map) requires num_out_tokens > 0, got 0. Use int(", *_AT)
_SHAPED = "RuntimeError: shape '[16, 1, 32]' is invalid for input of size 0"
_HOOKED = failing(_SHAPED, "job/hooks.py::reshape", _DISPATCHER + "combine_postprocess")


def _issued(rows: int, done: bool = False) -> Rank:
    """Return a rank that has issued the reduce-scatter with so many rows: it is done, or failed for want of any."""
    lines = failing(_SHAPED, _DISPATCHER + "combine_postprocess", "pretrain_gpt.py::<module>")
    return rank(_GATHERED, issued(_EXPERT_TP, 18, "reduce_scatter", rows, 32, done=done), lines=[] if done else lines)


def _combined(other: Rank) -> Job:
    waits = rank(issued(_EXPERT_TP, 18, "reduce_scatter", 64, 32, at=(_DISPATCHER + "token_combine",)))
    return job([waits, waits, other, other])


HANGS = [
    HungJob("without rows", _combined(_issued(0, done=True))),
    HungJob("failed, and its dump waits without rows", _combined(_issued(0))),
    HungJob("refused", _combined(rank(_GATHERED, lines=_REFUSED))),
    HungJob("a line alone", job([None, rank(lines=_REFUSED, recorded=False)])),
    HungJob("a hook of the user's fails", _combined(rank(_GATHERED, lines=_HOOKED)), "also"),
    HungJob("another refusal", job([rank(lines=failing("ValueError: not possible", *_AT), recorded=False)]), ""),
]
