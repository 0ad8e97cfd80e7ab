"""Megatron-LM: broadcast the packed-sequence metadata once on every pipeline stage, on sender and receivers.

https://github.com/NVIDIA/Megatron-LM/pull/4150 (it leaves the last stage without the metadata)
"""

from __future__ import annotations

from unhang.codemods.base import AnchorError, Codemod, check_plain
from unhang.codemods.edit import Edit
from unhang.codemods.sft_packed_seq_broadcast import arms, trailing
from unhang.codemods.sft_packed_seq_broadcast.halves import halves
from unhang.shapes.shape import Function


class GetBatchOnThisTpRank(Codemod):
    """0.17 and dev: with ``args.sft``, the arms of the last and the middle stages broadcast the metadata too.

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
                    cu_seqlens = None
                    max_seqlen = None
                    _broadcast(labels)
                batch = {'labels': labels, 'cu_seqlens': cu_seqlens, 'max_seqlen': max_seqlen}
            return batch

    After::

    0.16, which broadcasts the metadata in the arms and once more after them: only the latter stays.

    Before::

        def get_batch_on_this_tp_rank(data):
            args = get_args()
            if mpu.get_tensor_model_parallel_rank() == 0:
                batch = next(data)
                def _broadcast_cu_seqlens(cu_seqlens): ...
                if args.pipeline_model_parallel_size == 1 or mtp_on_this_rank:
                    _broadcast_cu_seqlens(batch['cu_seqlens'])
                    _broadcast(batch['max_seqlen'])
                elif mpu.is_pipeline_first_stage():
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
                def _broadcast_cu_seqlens(): ...
                if args.pipeline_model_parallel_size == 1 or mtp_on_this_rank:
                    cu_seqlens = _broadcast_cu_seqlens()
                    _broadcast(max_seqlen)
                elif mpu.is_pipeline_first_stage():
                    cu_seqlens = _broadcast_cu_seqlens()
                    _broadcast(max_seqlen)
                elif mpu.is_pipeline_last_stage():
                    cu_seqlens = None
                    max_seqlen = None
                    _broadcast(labels)
                def _broadcast_cu_seqlens(): ...
                cu_seqlens = _broadcast_cu_seqlens()
                _broadcast(max_seqlen)
            return batch

    After::
    """

    def plan(self, function: Function) -> list[Edit]:
        check_plain(function, ("int", "isinstance", "torch"))  # more stages call the helpers now, which use these
        sender, receiver = halves(function)
        is_trailing = sender.broadcasts(sender.after()) or receiver.broadcasts(receiver.after())
        return trailing.plan(sender, receiver) if is_trailing else arms.plan(sender, receiver)

    def fixed_upstream(self, function: Function) -> bool:
        """Return whether each arm of both halves of core's function has the metadata, for the same flag."""
        flags = [found.arg for found in function.args.args if found.arg in ("is_sft", "has_cu_seqlens")]
        tests = ["pipeline_model_parallel_size == 1 or mtp_on_this_rank", "is_pipeline_first_stage"]
        try:
            both = halves(function, "tp_rank == 0", [*tests, "is_pipeline_last_stage", *flags])
        except AnchorError:
            return False
        gates = [*flags, *(f"{flag} or is_hybrid_cp" for flag in flags)]
        return len(flags) == 1 and all(half.broadcasts(arm, gates) == 1 for half in both for arm in half.arms)

    def names(self, function: Function) -> frozenset[str]:
        return frozenset({"torch", "mpu", "get_args"})


CODEMODS = {"get_batch_on_this_tp_rank": GetBatchOnThisTpRank()}
