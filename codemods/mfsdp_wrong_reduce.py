"""megatron-core: Megatron-FSDP adds no gradient of a rank to the mean of all, and scales what it reduces.

https://github.com/NVIDIA/Megatron-LM/pull/3067
"""

from __future__ import annotations

import ast
import re

from unhang.codemods.base import AnchorError, Codemod, assignments, calls, expression, instead, once, replaced_by, span
from unhang.codemods.edit import Edit
from unhang.shapes.shape import Function

_STRATEGY = ".data_parallel_sharding_strategy"
_WHOLE = f"{_STRATEGY} == 'no_shard'"
_UPSTREAMS = (
    r"preprocessing\((bucket\.data|unreduced_grad), ",
    r"if not gbuf\.is_data_distributed:|in \['no_shard', 'optim'\]:\s+\w+\.copy_\(",
)
_SCALED = "# unhang mfsdp-wrong-reduce: what is sent, not the sum of those before"
_COPIED = f"""\
# unhang mfsdp-wrong-reduce: what is there is this rank's own, which the mean has
if {{of}}{_STRATEGY} == "optim" and (
    {{of}}.overlap_grad_reduce  # else finish_grad_sync reduces it again
):
    {{there}}.copy_({{mean}})
else:
    {{there}} += {{mean}}
"""


class BucketGroupGradientReduce(Codemod):
    """Let the mean of all ranks take the place of one rank's gradients, and scale what is sent.

    Before::

        def reduce(self, groups, config):
            for gbuf in groups:
                bucket = gbuf.fetch_bucket()
                op = gradient_reduce_preprocessing(gbuf.data, factor, config)
                if config.data_parallel_sharding_strategy == "no_shard":
                    continue
            for local, mean in zip(shards, means):
                local += mean

    After::

        def reduce(self, groups, config):
            for gbuf in groups:
                bucket = gbuf.fetch_bucket()
                # unhang mfsdp-wrong-reduce: what is sent, not the sum of those before
                op = gradient_reduce_preprocessing(bucket.data, factor, config)
                if config.data_parallel_sharding_strategy == "no_shard":
                    continue
            for local, mean in zip(shards, means):
                # unhang mfsdp-wrong-reduce: what is there is this rank's own, which the mean has
                if config.data_parallel_sharding_strategy == "optim" and (
                    config.overlap_grad_reduce  # else finish_grad_sync reduces it again
                ):
                    local.copy_(mean)
                else:
                    local += mean
    """

    def plan(self, function: Function) -> list[Edit]:
        found = (
            (_scaled(function), "gradient_reduce_preprocessing(gbuf.data)"),
            (_copied(function), "local_grad += ..."),
        )
        edits = [once(each, anchor) for each, anchor in found if each]
        if not edits:
            raise AnchorError(" or ".join(anchor for _, anchor in found))
        return edits

    def fixed_upstream(self, function: Function) -> bool:
        return all(re.search(each, expression(function)) for each in _UPSTREAMS)


def _scaled(function: Function) -> list[Edit]:
    """Return the edit of the call that scales a buffer, where a bucket of it was fetched above, and is not scaled."""
    return [
        replaced_by(function, it.args[0], f"{name}.data", _SCALED)
        for it in calls(function, "gradient_reduce_preprocessing")
        for row, name, value in assignments(function)
        if it.args and expression(value) == f"{expression(it.args[0]).removesuffix('.data')}.fetch_bucket()"
        if row.lineno < it.lineno and not calls(function, f"{name}.data.mul_")
    ]


def _copied(function: Function) -> list[Edit]:
    """Return the edit of the sum, where all strategies but no_shard come to it."""
    ifs = [it.test for it in ast.walk(function) if isinstance(it, ast.If)]
    tests = [expression(it) for it in ifs if isinstance(it, ast.Compare)]
    loops = [it for it in ast.walk(function) if isinstance(it, ast.For) and isinstance(it.target, ast.Tuple)]
    rows = [(it.body[0], [expression(one) for one in it.target.elts]) for it in loops]  # type: ignore[attr-defined]
    return [
        span(first, first, instead(_COPIED.format(of=of, there=names[0], mean=names[1])))
        for of in {it.removesuffix(_WHOLE) for it in tests if it.endswith(_WHOLE)}
        for first, names in rows
        if expression(first) == " += ".join(names)
    ]


CODEMODS = {"GradReducePipeline._bucket_group_gradient_reduce": BucketGroupGradientReduce()}
