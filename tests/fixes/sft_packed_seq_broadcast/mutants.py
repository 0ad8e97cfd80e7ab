"""The mutants of sft-packed-seq-broadcast."""

from __future__ import annotations

from mutants.by_hand import EVERY, ByHand, Mutants, Sub
from mutants.rules import DP, PP, TP

_INDEPENDENT = "neither statement uses what the other one does"
_LAST_STAGE = "with pipeline stages, rank 0 is never the last stage, and without them another arm runs"
_SENDER = "this half runs on TP rank 0 alone"
_RECEIVER = "this half runs on all TP ranks but 0"
_COMMENT = "            # unhang sft-packed-seq-broadcast: this stage attends over packed sequences too\n"
_SENT = "_broadcast_cu_seqlens(batch['cu_seqlens'])\n{0}_broadcast(batch['max_seqlen'])\n"
_LAST_SENT, _MIDDLE_SENT = " " * 16 + _SENT.format(" " * 16), " " * 12 + _SENT.format(" " * 12)
_MIDDLE = f"        elif args.sft:\n{_COMMENT}"
_NO_MAX = "            else:\n                max_seqlen = None\n"
_NOTHING = "".join(
    f"            {name} = None\n"
    for name in ("tokens", "labels", "loss_mask", "attention_mask", "position_ids", "local_cp_size")
)
_RECEIVED = "            cu_seqlens = _broadcast_cu_seqlens()\n            _broadcast(max_seqlen)\n\n        batch = {"
_LAST_RECEIVES = "            if args.sft:\n                cu_seqlens = "


def _last(gate: str) -> Sub:
    return Sub("            if args.sft:", f"            if {gate}:", EVERY)


def _middle(gate: str) -> Sub:
    return Sub("        elif args.sft:", f"        elif {gate}:", EVERY)


_CU_SEQLENS_ALONE = Sub(_MIDDLE + _MIDDLE_SENT, f"{_MIDDLE}            _broadcast_cu_seqlens(batch['cu_seqlens'])\n")
_BY_HAND: ByHand = {
    "middle sender without max_seqlen": (_CU_SEQLENS_ALONE,),
    "middle halves without max_seqlen": (
        _CU_SEQLENS_ALONE,
        Sub(_RECEIVED, "            cu_seqlens = _broadcast_cu_seqlens()\n\n        batch = {"),
    ),
    "last halves with short sequences": _last("args.sft and args.seq_length == 8"),
    "middle halves with long sequences": _middle("args.sft and args.seq_length > 8"),
    "last halves without CP by TP": _last("args.sft and args.tensor_model_parallel_size == 2"),
    "last halves never": _last("False"),
    "middle halves never": _middle("False"),
    "last sender in another order": Sub(
        _LAST_SENT, "".join(f"{line}\n" for line in reversed(_LAST_SENT.split("\n")[:2]))
    ),
    "middle halves in another order": (
        Sub(
            _MIDDLE_SENT,
            "            _broadcast(batch['max_seqlen'])\n            _broadcast_cu_seqlens(batch['cu_seqlens'])\n",
            0,
        ),
        Sub(
            _RECEIVED,
            "            _broadcast(max_seqlen)\n            cu_seqlens = _broadcast_cu_seqlens()\n\n        batch = {",
        ),
    ),
    "middle sender asks the data": Sub("        elif args.sft:", "        elif batch['cu_seqlens'] is not None:"),
    "last sender asks the data": Sub("            if args.sft:", "            if batch['cu_seqlens'] is not None:"),
    "middle receiver leaves empty tensors": Sub(_NOTHING, ""),
    "second stage alone of the middle ones": _middle("args.sft and mpu.get_pipeline_model_parallel_rank() == 1"),
    "last receiver drops cu_seqlens": Sub(
        "                cu_seqlens = _broadcast_cu_seqlens()", "                _broadcast_cu_seqlens()"
    ),
    "last halves not with CP": _last("args.sft and args.context_parallel_size == 1"),
    "middle halves not with CP": _middle("args.sft and args.context_parallel_size == 1"),
    "last halves on DP rank 0": _last("args.sft and mpu.get_data_parallel_rank() == 0"),
    "last halves not with hybrid CP": _last("args.sft and not args.hybrid_context_parallel"),
    "middle halves on the last chunk": _middle("args.sft and not mpu.is_pipeline_last_stage(ignore_virtual=True)"),
    "middle halves also send the mask": (
        Sub(_MIDDLE + _MIDDLE_SENT, f"{_MIDDLE}            _broadcast(batch['attention_mask'])\n{_MIDDLE_SENT}"),
        Sub(
            "loss_mask = None\n            attention_mask = None\n",
            "loss_mask = None\n            _broadcast(attention_mask)\n",
        ),
    ),
    "middle halves also send the tokens": (
        Sub(_MIDDLE + _MIDDLE_SENT, f"{_MIDDLE}            _broadcast(batch['tokens'])\n{_MIDDLE_SENT}"),
        Sub("            tokens = None\n            labels", "            _broadcast(tokens)\n            labels"),
    ),
    "last receiver keeps max_seqlen without sft": Sub(_NO_MAX, ""),
    "last receiver drops max_seqlen with sft": Sub(_NO_MAX, "            max_seqlen = None\n"),
    "middle receiver cuts cu_seqlens": Sub(_RECEIVED, _RECEIVED.replace("seqlens()", "seqlens()[..., :-1]")),
    "last halves send the loss mask again without sft": (
        Sub(_NO_MAX, f"{_NO_MAX}                _broadcast(loss_mask)\n"),
        Sub(_LAST_SENT, f"{_LAST_SENT}            else:\n                _broadcast(batch['loss_mask'])\n"),
    ),
    "last receiver takes max_seqlen for cu_seqlens": Sub(
        "                _broadcast(max_seqlen)\n",
        "                _broadcast(max_seqlen)\n                cu_seqlens = max_seqlen\n",
    ),
}


EQUIVALENT = {
    r"by hand: middle halves in another order": "both halves have the same order",
    r"rank: args\.sft -> \(\.\.\.\) and mpu\.get_tensor_model_parallel_rank\(\) == 0( \(2\))?": _SENDER,
    r"rank: args\.sft -> \(\.\.\.\) and mpu\.get_tensor_model_parallel_rank\(\) != 0 \([34]\)": _RECEIVER,
    r"rank: _broadcast.*\(batch.* -> mpu\.get_tensor_model_parallel_rank\(\) == 0 and .*": _SENDER,
    r"rank: _broadcast\(max_seqlen\) -> mpu\.get_tensor_model_parallel_rank\(\) != 0 and .*": _RECEIVER,
    r"rank: args\.sft -> \(\.\.\.\) and mpu\.get_pipeline_model_parallel_rank\(\) != 0( \(3\))?": _LAST_STAGE,
    r"rank: _broadcast.* -> mpu\.get_pipeline_model_parallel_rank\(\) != 0 and \.\.\.": _LAST_STAGE,
    r"late: local_cp_size = None <-> cu_seqlens = _broadcast_cu_seqlens\(\)": _INDEPENDENT,
}
MUTANTS = [Mutants("megatron-lm", ("0.17.1",), _BY_HAND, EQUIVALENT, ranks=(TP, DP, PP))]
