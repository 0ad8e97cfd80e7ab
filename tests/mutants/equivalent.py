"""Mutants that do what the rewrite does, by a pattern of their names, and why.

A pattern may begin with the one release that it is about.
"""

from __future__ import annotations

_TWICE = r"count: {} -> \[\.\.\. for _ in range\(2\)\]"
_AGAIN = r"( \(\d\))?"
_INDEPENDENT = "neither statement uses what the other one does"
_LAST_STAGE = "with pipeline stages, rank 0 is never the last stage, and without them another arm runs"
_SENDER = "this half runs on TP rank 0 alone"
_RECEIVER = "this half runs on all TP ranks but 0"
_SOURCE = "the source rank is TP rank 0 and CP rank 0"
_OF_SOURCE = (
    r"rank: (self\.is_mp_src|.metrics. not|losses_).* -> "
    r"(\(\.\.\.\) and )?mpu\.get_(tensor_model|context)_parallel_rank\(\) == 0( and \.\.\.)?"
)
_ZEROS = "how many rows of zeros an expert gets does not matter, if they are aligned and sliced off"
_PADDED = "without skip_routed_expert_padding the forward pads one row to that size itself"
_REPEATED = "a second one changes nothing"
_WARM_UP = {
    r"order: \( .*_(group|GROUP)', \) -> \(\.\.\.\)\[::-1\]": "all ranks have one order, whichever it is",
    _TWICE.format(r"warmed_up_groups\.append\(warmup_group\)"): _REPEATED,
    r"dtype: torch\.zeros\(.*": "a collective of any dtype makes the communicator",
    r"late: if warmup_group is None .* <-> backends = .*": "get_backend takes None, and any group",
    r"late: (torch\.distributed\.all_reduce|warmup_tensor\.item).* <-> warmed_up_groups\.append\(.*": _INDEPENDENT,
}

EQUIVALENT: dict[tuple[str, str], dict[str, str]] = {
    ("mtp-cp-deadlock", "verl"): {
        r"by hand: the ranks that have losses": "the schedules return losses on the last stage only, one a micro-batch",
        _OF_SOURCE: _SOURCE,
        _TWICE.format(r'losses_reduced\[0\]\["metrics"\]\.update\(metrics\)'): _REPEATED,
        r"late: if self\.model_config\.mtp\.enable .* <-> if RouterReplayHelper.*": (
            "the recording of routes uses other groups, after the loss or before it on all ranks of the stage"
        ),
    },
    ("sft-packed-seq-broadcast", "megatron-lm"): {
        r"by hand: middle halves in another order": "both halves have the same order",
        r"rank: args\.sft -> \(\.\.\.\) and mpu\.get_tensor_model_parallel_rank\(\) == 0( \(2\))?": _SENDER,
        r"rank: args\.sft -> \(\.\.\.\) and mpu\.get_tensor_model_parallel_rank\(\) != 0 \([34]\)": _RECEIVER,
        r"rank: _broadcast.*\(batch.* -> mpu\.get_tensor_model_parallel_rank\(\) == 0 and .*": _SENDER,
        r"rank: _broadcast\(max_seqlen\) -> mpu\.get_tensor_model_parallel_rank\(\) != 0 and .*": _RECEIVER,
        r"rank: args\.sft -> \(\.\.\.\) and mpu\.get_pipeline_model_parallel_rank\(\) != 0( \(3\))?": _LAST_STAGE,
        r"rank: _broadcast.* -> mpu\.get_pipeline_model_parallel_rank\(\) != 0 and \.\.\.": _LAST_STAGE,
        r"late: local_cp_size = None <-> cu_seqlens = _broadcast_cu_seqlens\(\)": _INDEPENDENT,
    },
    ("empty-expert-hang", "megatron-core"): {
        r"by hand: two rows for each expert": _ZEROS,
        r"0\.19\.2: count: 1 -> 2": _ZEROS,
        r"by hand: aligned whenever fp8 or fp4 is on": _PADDED,
        r"gate: skip_routed_expert_padding.* -> \(\(self\.config\.fp8 or self\.config\.fp4\)\)": _PADDED,
        r"slice: permuted_local_hidden_states\.shape\[1\] -> permuted_local_hidden_states\.shape\[-1\]": (
            "the hidden states are a matrix"
        ),
        r"early: tokens_per_expert.* <-> has_no_tokens = .*": _INDEPENDENT,
        r"early: output_bias = None <-> if has_no_tokens: .*": _INDEPENDENT,
        r"late: zero_rows = .* <-> tokens_per_expert = .*": _INDEPENDENT,
        r"late: permuted_local_hidden_states = torch.cat.* <-> (permuted_probs|tokens_per_expert) = .*": _INDEPENDENT,
        r"late: permuted_probs = .* <-> tokens_per_expert = .*": _INDEPENDENT,
    },
    ("expert-dp-warmup", "megatron-core"): {
        **_WARM_UP,
        r"by hand: every rank makes one more group": (
            "all ranks take part, and its communicator is made at its first collective, which never comes"
        ),
        _TWICE.format(r"torch\.cuda\.synchronize\(\)"): _REPEATED,
        r"early: _set_global_memory_buffer\(\) <-> .*": "all groups are made before; the buffer allocates nothing yet",
    },
    ("expert-dp-warmup", "ms-swift"): {
        **_WARM_UP,
        _TWICE.format(r"warmup_tensor\.item\(\)"): _REPEATED,
        r"late: if args\.expert_model_parallel_size > 1: .* <-> if is_master\(\): .*": "the other one only logs",
        r"late: from swift\.utils import get_current_device <-> .*": _INDEPENDENT,
        r"late: if torch\.distributed\.get_world_size.* <-> warmup_tensor = .*": "it makes a tensor for nothing",
    },
}
