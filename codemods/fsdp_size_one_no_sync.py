"""verl: choose the strategy of FSDP that averages gradients where each rank has the whole model.

https://github.com/verl-project/verl/pull/7494
"""

from __future__ import annotations

import ast

from unhang.codemods.base import AnchorError, Codemod, before, bound, once
from unhang.codemods.edit import Edit
from unhang.shapes.shape import Function

_NEW = """\
# unhang fsdp-size-one-no-sync: a hybrid averages gradients in the group of shards, which is one rank
if {mesh}.ndim == 2 and {mesh}.size(1) == 1:
    {strategy} = ShardingStrategy.NO_SHARD
"""


class GetShardingStrategy(Codemod):
    """Return NO_SHARD where the second dimension of the mesh has one rank: FSDP then averages over the first.

    Before::

        def get_sharding_strategy(device_mesh):
            from torch.distributed.fsdp import ShardingStrategy
            strategy = ShardingStrategy.FULL_SHARD if device_mesh.ndim == 1 else ShardingStrategy.HYBRID_SHARD
            return strategy

    After::

        def get_sharding_strategy(device_mesh):
            from torch.distributed.fsdp import ShardingStrategy
            strategy = ShardingStrategy.FULL_SHARD if device_mesh.ndim == 1 else ShardingStrategy.HYBRID_SHARD
            # unhang fsdp-size-one-no-sync: a hybrid averages gradients in the group of shards, which is one rank
            if device_mesh.ndim == 2 and device_mesh.size(1) == 1:
                strategy = ShardingStrategy.NO_SHARD

            return strategy
    """

    def plan(self, function: Function) -> list[Edit]:
        returned = once([it for it in ast.walk(function) if isinstance(it, ast.Return)], "return ...").value
        arguments = [it.arg for it in function.args.args]
        if not isinstance(returned, ast.Name) or not arguments or "ShardingStrategy" not in bound(function):
            raise AnchorError("a mesh, an import of ShardingStrategy, and the name of what is returned")
        return [before(function, f"return {returned.id}", _NEW.format(mesh=arguments[0], strategy=returned.id))]


CODEMODS = {"get_sharding_strategy": GetShardingStrategy()}
