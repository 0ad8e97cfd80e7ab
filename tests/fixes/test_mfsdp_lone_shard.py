"""mfsdp-lone-shard: its anchors, and what the sessions need of it."""

from __future__ import annotations

import itertools

from fuzz.subject import Fuzz
from mutants.by_hand import Mutants, Sub
from proofs.others import Other, Proofs, Release, without
from support import sources

FIX = "mfsdp-lone-shard"
CASES = sources.cases(FIX, {"megatron-core": ["0.16.1", "0.17.1", "0.19.2"]})
_SHARDED = "is_grad_buffer_distributed"
_LONE = f"{_SHARDED} and main_buf_dp_group.size() > 1"
_EDITED = [
    *((_LONE, new) for new in (_SHARDED, _LONE.replace("> 1", "> 2"), _LONE.replace("and", "or"))),
    ("group.main_grad_buffer = ", "group.grad_buffer = "),
    ("transpose_weight_buffer", "other_buffer", "", 5),  # fused accumulation added to what a bucket held
    (f"{_SHARDED} = ", f"{_SHARDED} = group.strategy and ", "", 4),
]
REFUSED = sources.edits(CASES[0], _EDITED, "not found: (group.main|transpose|is_grad)")

# -- for the sessions -------------------------------------------------------------------------------------------------

_MEAN = "self.ddp_config.average_in_collective"
_INSTEAD = (
    *("False", "True", _LONE, _LONE.replace(">", "=="), f"not {_SHARDED}", "group.is_expert_param"),
    *("is_model_weight_buffer_distributed", "is_main_weight_buffer_distributed", "self.dist_index.use_hybrid_fsdp"),
    *(f"{_SHARDED} and not {it}" for it in ("group.is_expert_param", "self.dist_index.use_hybrid_fsdp")),
    *(f"{_LONE} or {_SHARDED} and {it}" for it in ("group.grad_dtype == torch.float32", f"not {_MEAN}")),
)
BY_HAND = {
    f"{new}, number {at}": Sub(f"is_data_distributed={_SHARDED},", f"is_data_distributed={new},", at)
    for at, new in itertools.product((0, 1), _INSTEAD)
}
MUTANTS = [Mutants("megatron-core", ("0.16.1", "0.19.2"), BY_HAND)]
_EARLIER = {"unused": "a block that is left out needs no buffer before 0.19"}
_RELEASES = Release("0.19.2", core=True), *(Release(it, lacking=_EARLIER) for it in ("0.18.2", "0.17.1", "0.16.1"))
_HALF = without(rf"is_data_distributed=({_SHARDED}),", r"is_data_distributed=\1 and not group.is_expert_param,")
_HALVES = {"half: not of experts": Other(_HALF, ("own-experts-2", "own-experts-fused-2"))}
PROOFS = [Proofs("megatron-core", _RELEASES, _HALVES)]
FUZZ = Fuzz(CASES, 2, "main_grad_buffer|is_grad_buffer_distributed|hfsdp_helper_gbuf|hsdp_gbuf", examples=40)
