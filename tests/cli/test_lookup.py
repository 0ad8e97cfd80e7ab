"""A reporter's own words lead to the page that helps: the first, or beside it."""

from __future__ import annotations

import pytest

from unhang.cli import lookup

# As people have put them, in titles of issues; in brackets, where.
POSTED = {
    "DataLoader worker (pid 11011) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory": "loader-died",  # pytorch 108861
    "Workers (tasks / actors) killed due to memory pressure (OOM)": "process-died",  # OpenRLHF 198
    "Task was killed due to the node running low on memory (ray oom)": "process-died",  # OpenRLHF 1013
    "A worker died or was killed by an unexpected system error when the training completes": "process-died",  # verl 1299
    "[BUG] exits with return code = -9": "process-died",  # DeepSpeed 3160
    "Sigkill, process exits with return code -9": "process-died",  # OpenRLHF 841
    "torch: process 0 terminated with signal SIGKILL": "process-died",  # Prompt4NR 3
    "mpirun noticed that process rank 1 exited on signal 9 (Killed)": "process-died",  # Aware-of-the-history 2
    "Some of the step tasks have been OOM Killed - Custom reward_func": "process-died",  # OpenRLHF 1139
    "slurmstepd: error: Detected 1 oom_kill event in StepId=11300781.0.": "process-died",  # nextflow 5932
    "RendezvousConnectionError when use C10d on multi nodes": "rendezvous",  # pytorch 69197
    "DDP , error . [c10d] The client socket has timed out after 900s while trying to connect to": "rendezvous",  # pytorch 105782
    "DDP expects same model across all ranks, but Rank 0 has 128 params": "mismatch",  # ChatDoctor 49
    "DDP multi node multi gpu inconsistent params": "mismatch",  # pytorch 102438
    "NCCL WARN NET/IB : Got completion from peer <55921> with status=12 opcode=1 len=0 vendor err 129": "network",  # nccl 1814
    "NCCL failure caused by NET/IB completion error": "network",  # nccl 1405
    "NCCL WARN Connect to 10.0.10.112<21724> failed : Connection refused": "network",  # espnet 1940
    "socketPollConnect: Connect to 10.0.0.4<56849> returned 113(No route to host)": "network",  # sglang 3820
    "CUDA error: uncorrectable ECC error encountered": "cuda-error",  # sglang 3204
    'nvidia error "GPU has fallen off the bus"': "cuda-error",  # pop 3363
    "CUDA error: device-side assert triggered when running": "cuda-error",  # sglang 271
    "Missing ranks and deadlock warning": "never-arrived",  # horovod 2565
    "Ranks 4, 5, 6, 7 failed to pass monitoredBarrier in 2000000 ms": "never-arrived",  # nccl 849
    "NCCL watchdog thread terminated with exception: Watchdog caught collective operation timeout": "never-arrived",  # pytorch 118369
    "CUDA out of memory in multi-node training Qwen3-Embedding-4B with DeepSpeed ZeRO-3": "gpu-memory",  # ms-swift 6301
    "multi-node distributed training rank0 hang at dataloader after a few epochs": "slow-rank",  # pytorch 87995
    "shape '[2048, 1, 4096]' is invalid for input of size 0": "allgather-empty-expert",  # Megatron-LM 1877
}
OURS = {
    "multi-token prediction hangs with context parallelism": "mtp-cp-deadlock",
    "multi token predicton hang context paralelism": "mtp-cp-deadlock",
    "FSDP hangs with use_dynamic_bsz": "fsdp-dynamic-bsz",
    "swift infer never prints the metric": "infer-metric-rank0",
    "found NaN in local grad norm for bucket 3": "mtp-zero-tokens",
    "Tensors must have same number of dimensions: got 4 and 3": "sft-packed-seq-broadcast",
    "every rank at the same all_reduce in MeanMetric": "mean-metric-dtype",
    "rollout_probs_diff_mean climbs with lora": "merged-lora-stale-sync",
    "stuck at first save, safe_ddp_context": "mcore-save-barrier",
    "critic grad norm depends on the micro batch size": "critic-microbatch-scale",
    "my reward is flat": "fused-head-no-gradient",
    "my reward is flat!": "merged-lora-stale-sync",
    "gradient norm too low with tensor parallel and grouped gemm": "expert-grad-norm",
    "cuda out of memry": "gpu-memory",
    "torch says address already in use": "rendezvous",
    "other ranks time out while one saves a checkpoint": "slow-rank",
    "unbalanced experts": "router-token-scale",
    "expert load imbalance with tp": "router-token-scale",
    "moe aux loss too small": "router-token-scale",
    "grad_norm nan but loss is fine": "mtp-zero-tokens",
    "replicas diverge": "fsdp-size-one-no-sync",
    "loss spike after resume qwen3.5": "gdn-out-norm-tp",
    "cross contamination sft packing": "sft-packed-seq-broadcast",
    "mtp loss wrong on packed sequences with context parallelism": "mtp-packed-roll",  # after Megatron-LM 6205
    "tokens leak across sequence boundaries in MTP, THD with odd seqlens": "mtp-packed-roll",  # after Megatron-LM 4495
    "Megatron-FSDP expert gradients amplified with gradient accumulation when EP equals DP": "mfsdp-lone-shard",  # after Megatron-LM 6660
    "expert grads shrink with every micro-batch, ep size equals dp": "mfsdp-lone-shard",
    "Megatron-FSDP without 1/DP scaling of gradients, no parity with FSDP2": "mfsdp-wrong-reduce",  # after Megatron-LM 3023
    "grad norm doubled with megatron fsdp zero 1, optim sharding": "mfsdp-wrong-reduce",
    "fsdp_dtensor checkpoint loaded at another PP size has wrong layers": "mfsdp-pp-checkpoint",  # after 7452
    "megatron fsdp pipeline stages overwrite each other in checkpoint": "mfsdp-pp-checkpoint",
    "vllm uses base model instead of lora": "merged-lora-stale-sync",
    "effective learning rate varies with accumulation": "grpo-window-scale",
    "ms-swift dapo: effective learning rate shrinks with gradient_accumulation_steps": "dapo-window-scale",  # after 10117
    "cispo loss is divided by gradient accumulation steps twice": "dapo-window-scale",
    "rollout keeps sampling from the initial policy": "async-lora-unsynced",
    "vLLM weights are not synchronized with sleep mode": "sleep-stale-weights",  # after TRL 5312
    "trl grpo vllm always generates with base weights, enable_sleep_mode": "sleep-stale-weights",  # after TRL 5355
    "AsyncGRPO weight sync hangs forever when the vLLM server returns HTTP 500": "async-grpo-server-hang",  # TRL 6796
    "lora adapter never reaches vllm with checkpoint engine nccl": "async-lora-unsynced",
    "grad_norm of the last step of each epoch is half of the others": "short-last-window",
    "too small a gradient norm in the last step of an epoch, dpo with accumulation": "short-last-window",
    "multi-turn rollout misses the newline after <|im_end|>, tokens differ from apply_chat_template": "lost-turn-separator",
    "packed dataset repeats the first examples, packing_strategy wrapped": "pack-wrapped-rows",  # after TRL 6669
    "tool agent loop drops separator between turns": "lost-turn-separator",
}
FLAT = ("reward is flat", "my reward stays flat", "reward not increasing", "GRPO reward never goes up", "reward stuck")
"""Two defects do that."""
_FIRST = 2


@pytest.fixture(autouse=True)
def _four_fixes() -> None:
    """Look among all fixes, not four as the tests of the commands do."""


@pytest.mark.parametrize(("words", "page"), [*POSTED.items(), *OURS.items()])
def test_the_words_of_a_report_lead_to_its_page(words: str, page: str) -> None:
    assert page in [one.name for one in lookup.find(words)][:_FIRST]


@pytest.mark.parametrize("words", FLAT)
def test_all_defects_with_one_symptom_are_found(words: str) -> None:
    assert {"fused-head-no-gradient", "merged-lora-stale-sync"} <= {one.name for one in lookup.find(words)}


def test_words_that_no_page_has_lead_nowhere() -> None:
    assert [lookup.find(words) for words in ("the weather in the mountains", "12 34 5", "")] == [[], [], []]


def test_one_page_is_shown_alone_only_if_it_is_far_ahead() -> None:
    assert len(lookup.find("DataLoader worker is killed by signal: Bus error")) == 1
    assert len(lookup.find("my reward is flat")) > 1
