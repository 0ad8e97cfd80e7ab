"""fsdp-size-one-no-sync: its anchors, and what the sessions need of it."""

from __future__ import annotations

from fuzz.subject import Fuzz
from mutants.by_hand import ByHand, Mutants, Sub
from proofs.others import Other, Proofs, Release, in_file, untouched, without
from support import sources

FIX = "fsdp-size-one-no-sync"
RELEASES = ("0.4.0", "0.7.1", "0.8.0", "0.9.1")
CASES = sources.cases(FIX, {"verl": RELEASES})
REFUSED = sources.edits(
    CASES[0],
    [
        ("return sharding_strategy", "return sharding_strategy.value", "the name of what is returned"),
        ("import ShardingStrategy", "import ShardingStrategy as Strategy", "an import of ShardingStrategy"),
        ("return sharding_strategy", "return sharding_strategy; return sharding_strategy", "return"),
    ],
)

# -- for the sessions -------------------------------------------------------------------------------------------------

_TEST, _NONE = "device_mesh.ndim == 2 and device_mesh.size(1) == 1", "ShardingStrategy.NO_SHARD"
BY_HAND: ByHand = {
    **{it: Sub("NO_SHARD", it) for it in ("FULL_SHARD", "SHARD_GRAD_OP", "HYBRID_SHARD", "_HYBRID_SHARD_ZERO2")},
    **{f"size({it})": Sub("size(1)", f"size({it})") for it in ("0", "", "-1")},
    **{it: Sub(_NONE, it) for it in ("None", "'NO_SHARD '")},
    "its shape": Sub("device_mesh.size(1)", "device_mesh.shape[1]"),
    "the name of the dimension": Sub(_TEST, "'ddp' in device_mesh.mesh_dim_names"),
    "any mesh that ends with one rank": Sub("ndim == 2", "ndim >= 2"),
    "one or two ranks": Sub("size(1) == 1", "size(1) <= 2"),
    "more than two replicas": Sub(_TEST, f"{_TEST} and device_mesh.size(0) > 2"),
    "two replicas": Sub(_TEST, f"{_TEST} and device_mesh.size(0) == 2"),
    "on rank 1": Sub(_TEST, f"{_TEST} and torch.distributed.get_rank()"),
    "another name": Sub(f"sharding_strategy = {_NONE}", f"strategy = {_NONE}"),
    "raised": Sub(f"sharding_strategy = {_NONE}", "raise NotImplementedError"),
}
MUTANTS = [Mutants("verl", ("0.9.1",), BY_HAND)]
_HALVES = {
    f"half: the {name} untouched": Other(
        in_file(f"{file}.py", untouched), ("size-1-of-2",), f"differs: {file}: the weights of the ranks", ("0.7.1",)
    )
    for name, file in {"legacy workers": "fsdp_workers", "engine": "utils"}.items()
} | {"the replicas": Other(without(r"size\(1\)", "size(0)"), ("size-1-of-2", "size-1-of-4"))}
PROOFS = [Proofs("verl", [Release(version, core=version == "0.9.1") for version in RELEASES], _HALVES)]
FUZZ = Fuzz(CASES, 1, "device_mesh|sharding_strategy|ShardingStrategy|zero3_enable", examples=40)
