"""fsdp-size-one-no-sync: its anchors, and what the sessions need of it."""

from __future__ import annotations

import pytest

from fuzz.subject import Fuzz
from mutants.by_hand import ByHand, Mutants, Sub
from proofs.others import Other, Proofs, Release, in_file, untouched, without
from support import sources

FIX = "fsdp-size-one-no-sync"
RELEASES = ("0.4.0", "0.7.1", "0.8.0", "0.9.1")
CASES = sources.cases(FIX, {"verl": RELEASES})


@pytest.mark.parametrize("pull", sources.as_written(FIX))
def test_the_scene_finds_no_fault_in_the_pull_request_as_written(pull: sources.Case) -> None:
    assert pull.load().known.state == "fixed"


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
    "sharded over all ranks": Sub(_NONE, "ShardingStrategy.FULL_SHARD"),
    "gradients sharded over all ranks": Sub(_NONE, "ShardingStrategy.SHARD_GRAD_OP"),
    "still a hybrid": Sub(_NONE, "ShardingStrategy.HYBRID_SHARD"),
    "still a hybrid, gathered once": Sub(_NONE, "ShardingStrategy._HYBRID_SHARD_ZERO2"),
    "no strategy": Sub(_NONE, "None"),
    "its name": Sub(_NONE, "'NO_SHARD '"),
    "the replicas": Sub("size(1)", "size(0)"),
    "all ranks": Sub("size(1)", "size()"),
    "the last dimension": Sub("size(1)", "size(-1)"),
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
_DIFFERS = "differs: {}: the weights of the ranks"
PROOFS = [
    Proofs(
        "verl",
        [Release(version, core=version == "0.9.1") for version in RELEASES],
        {
            "half: the legacy workers untouched": Other(
                in_file("fsdp_workers.py", untouched), ("size-1-of-2",), _DIFFERS.format("fsdp_workers"), ("0.7.1",)
            ),
            "half: the engine untouched": Other(
                in_file("utils.py", untouched), ("size-1-of-2",), _DIFFERS.format("utils"), ("0.7.1",)
            ),
            "the replicas": Other(without(r"size\(1\)", "size(0)"), ("size-1-of-2", "size-1-of-4")),
        },
    )
]
FUZZ = Fuzz(CASES, 1, "device_mesh|sharding_strategy|ShardingStrategy|zero3_enable", examples=40)
