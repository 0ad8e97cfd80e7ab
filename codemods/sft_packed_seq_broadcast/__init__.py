"""Megatron-LM: broadcast the packed-sequence metadata once on every pipeline stage, on sender and receivers.

https://github.com/NVIDIA/Megatron-LM/pull/4150 (it leaves the last stage without the metadata)
"""

from __future__ import annotations

import ast

from unhang.codemods.base import AnchorError, Codemod, bound, expression, mentioned
from unhang.codemods.edit import Edit
from unhang.codemods.sft_packed_seq_broadcast import arms, trailing
from unhang.codemods.sft_packed_seq_broadcast.halves import halves, named_as_here, places
from unhang.shapes.shape import Function


class GetBatchOnThisTpRank(Codemod):
    """0.17 and dev (``arms``): with ``args.sft``, the last and the middle stages get the metadata too.

    Before::

        def get_batch_on_this_tp_rank(data):
            args = get_args()
            if mpu.get_tensor_model_parallel_rank() == 0:
                batch = next(data)
                if args.pipeline_model_parallel_size == 1 or mtp_on_this_rank:
                    ...
                elif mpu.is_pipeline_first_stage():
                    ...
                elif mpu.is_pipeline_last_stage():
                    _broadcast(batch['labels'])
            else:
                labels = torch.empty(8)
                if args.sft:
                    max_seqlen = torch.empty(1)
                else:
                    max_seqlen = None
                if args.pipeline_model_parallel_size == 1 or mtp_on_this_rank:
                    ...
                elif mpu.is_pipeline_first_stage():
                    ...
                elif mpu.is_pipeline_last_stage():
                    max_seqlen = None
                    _broadcast(labels)
                batch = {'labels': labels, 'cu_seqlens': cu_seqlens, 'max_seqlen': max_seqlen}
            return batch

    After::

        def get_batch_on_this_tp_rank(data):
            args = get_args()
            if mpu.get_tensor_model_parallel_rank() == 0:
                ...
                elif mpu.is_pipeline_last_stage():
                    _broadcast(batch['labels'])
                    # unhang sft-packed-seq-broadcast: this stage attends over packed sequences too
                    if args.sft:
                        _broadcast_cu_seqlens(batch['cu_seqlens'])
                        _broadcast(batch['max_seqlen'])

                elif args.sft:
                    # unhang sft-packed-seq-broadcast: this stage attends over packed sequences too
                    _broadcast_cu_seqlens(batch['cu_seqlens'])
                    _broadcast(batch['max_seqlen'])
            else:
                labels = torch.empty(8)
                ...
                elif mpu.is_pipeline_last_stage():
                    _broadcast(labels)
                    # unhang sft-packed-seq-broadcast: this stage attends over packed sequences too
                    if args.sft:
                        cu_seqlens = _broadcast_cu_seqlens()
                        _broadcast(max_seqlen)
                    else:
                        max_seqlen = None

                elif args.sft:
                    # unhang sft-packed-seq-broadcast: this stage attends over packed sequences too
                    labels = None

                    cu_seqlens = _broadcast_cu_seqlens()
                    _broadcast(max_seqlen)
                batch = {'labels': labels, 'cu_seqlens': cu_seqlens, 'max_seqlen': max_seqlen}
            return batch

    0.16 (``trailing``): of the broadcasts in the arms and after them, only the latter stay, which serve all stages.

    Before::

        def get_batch_on_this_tp_rank(data):
            args = get_args()
            if mpu.get_tensor_model_parallel_rank() == 0:
                batch = next(data)
                def _broadcast_cu_seqlens(cu_seqlens): ...
                if args.pipeline_model_parallel_size == 1 or mtp_on_this_rank:
                    _broadcast(batch['tokens'])
                    _broadcast_cu_seqlens(batch['cu_seqlens'])
                    _broadcast(batch['max_seqlen'])
                elif mpu.is_pipeline_first_stage():
                    _broadcast(batch['tokens'])
                    _broadcast_cu_seqlens(batch['cu_seqlens'])
                    _broadcast(batch['max_seqlen'])
                elif mpu.is_pipeline_last_stage():
                    _broadcast(batch['labels'])
                def _broadcast_cu_seqlens(cu_seqlens): ...
                _broadcast_cu_seqlens(batch['cu_seqlens'])
                _broadcast(batch['max_seqlen'])
            else:
                if args.sft:
                    max_seqlen = torch.empty(1)
                else:
                    max_seqlen = None
                cu_seqlens = None
                max_seqlen = torch.empty(1) if args.hybrid_context_parallel else None
                tokens, labels = torch.empty(8), torch.empty(8)
                def _broadcast_cu_seqlens(): ...
                if args.pipeline_model_parallel_size == 1 or mtp_on_this_rank:
                    _broadcast(tokens)
                    cu_seqlens = _broadcast_cu_seqlens()
                    _broadcast(max_seqlen)
                elif mpu.is_pipeline_first_stage():
                    _broadcast(tokens)
                    cu_seqlens = _broadcast_cu_seqlens()
                    _broadcast(max_seqlen)
                elif mpu.is_pipeline_last_stage():
                    tokens = None
                    cu_seqlens = None
                    max_seqlen = None
                    _broadcast(labels)
                def _broadcast_cu_seqlens(): ...
                cu_seqlens = _broadcast_cu_seqlens()
                _broadcast(max_seqlen)
            return tokens, labels, cu_seqlens, max_seqlen

    After::

        def get_batch_on_this_tp_rank(data):
            args = get_args()
            if mpu.get_tensor_model_parallel_rank() == 0:
                batch = next(data)
                if args.pipeline_model_parallel_size == 1 or mtp_on_this_rank:
                    _broadcast(batch['tokens'])
                elif mpu.is_pipeline_first_stage():
                    _broadcast(batch['tokens'])
                elif mpu.is_pipeline_last_stage():
                    _broadcast(batch['labels'])
                def _broadcast_cu_seqlens(cu_seqlens): ...
                _broadcast_cu_seqlens(batch['cu_seqlens'])
                _broadcast(batch['max_seqlen'])
            else:
                # unhang sft-packed-seq-broadcast: one buffer, and one broadcast after the arms, for all
                if args.sft or args.hybrid_context_parallel:
                    max_seqlen = torch.empty(1)
                else:
                    max_seqlen = None
                tokens, labels = torch.empty(8), torch.empty(8)
                if args.pipeline_model_parallel_size == 1 or mtp_on_this_rank:
                    _broadcast(tokens)
                elif mpu.is_pipeline_first_stage():
                    _broadcast(tokens)
                elif mpu.is_pipeline_last_stage():
                    tokens = None
                    _broadcast(labels)
                def _broadcast_cu_seqlens(): ...
                cu_seqlens = _broadcast_cu_seqlens()
                _broadcast(max_seqlen)
            return tokens, labels, cu_seqlens, max_seqlen
    """

    def plan(self, function: Function) -> list[Edit]:
        # stages that did not call the helpers do so now, and the helpers use these names
        for name in sorted(bound(*function.body) & {"int", "isinstance", "torch"}):
            raise AnchorError(f"{function.name} that does not rebind {name}")
        renamed, names = named_as_here(function)
        sender, receiver = (half._replace(names=names) for half in halves(renamed))
        is_trailing = any("_broadcast_cu_seqlens" in mentioned(*half.after()) for half in (sender, receiver))
        return trailing.plan(sender, receiver) if is_trailing else arms.plan(sender, receiver)

    def names(self, function: Function) -> frozenset[str]:
        return frozenset({"torch", "mpu", "get_args"})

    def fixed_upstream(self, function: Function) -> bool:
        """Return whether each arm of both halves of core's function has the metadata, all for the same flag."""
        flags = [given.arg for given in function.args.args if given.arg in ("is_sft", "has_cu_seqlens")]
        tests = ["pipeline_model_parallel_size == 1 or mtp_on_this_rank", "is_pipeline_first_stage"]
        try:
            both = halves(function, "tp_rank == 0", [*tests, "is_pipeline_last_stage", *flags])
        except AnchorError:
            return False
        # in the first drafts of that change, receivers lacked the batch dimension
        if len(flags) != 1 or "cu_seqlens.dim() == 2" not in expression(function):
            return False
        gates = (flags[0], f"{flags[0]} or is_hybrid_cp")
        for half in both:
            for arm in half.arms:
                gated = [node.body for node in arm if isinstance(node, ast.If) and expression(node.test) in gates]
                if sum(len(places(body, half.metadata)) for body in (arm, *gated)) != 1:
                    return False
        return True


CODEMODS = {"get_batch_on_this_tp_rank": GetBatchOnThisTpRank()}
