"""Whom each fix of verl, ms-swift and TRL strikes, by commands that users type and the defaults of real releases."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import cache

import pytest

from support import cli
from unhang.job import lookup, read
from unhang.job.strikes import CANNOT, STRIKES, UNKNOWN, judged
from unhang.records import Installation
from unhang.shapes import catalog

ACTOR, MODEL = "actor_rollout_ref.actor", "actor_rollout_ref.model"
PPO = "python -m verl.trainer.main_ppo"
GRPO = f"{PPO} algorithm.adv_estimator=grpo"
ROLLOUT = "actor_rollout_ref.rollout"
BACKEND = f"{ROLLOUT}.checkpoint_engine.backend"
MERGED = f"{MODEL}.lora_rank=8 +{MODEL}.lora.merge=True"
MODEL_OF_SETS = "a model that makes buffers in the order of a set (Gemma 3, 4)"
# facts, which no setting tells: of all these jobs they hold
OWN_CODE, IDLE = "a model that brings its own code, such as MiniMax", "some rank has nothing to log"
COPIES = "hidden states that do not flatten without a copy"
UNCOUNTED = "tokens within a response that do not count (of a tool, rejected)"
LOST = "a reward on a token that does not count, after one that does"
END = "it goes on from the end of an epoch, with steps left"
BUFFERS = "a model with buffers in its state dict (such as DeepSeek V3, Gemma 4, QAT with w4a4)"
LATER = "a checkpoint in a later epoch"
NONE_LEFT = "a micro-batch with no token left for MTP"
MROPE = "a model with mRoPE (Qwen2-VL to Qwen3.5)"
ONE_LENGTH = "samples that are all as long, in a batch (or, before verl 0.8, in a micro-batch)"
SHORT = "a step is cut short"
TURNS = "a step generates more than once"
MORE_ENDS = "a chat template that writes more after an answer than the stop token"
INSIDE = "a batch of rows begins inside a chunk of the data"
SERVER_FAILS = "the vLLM server fails while it takes the weights"
TALKS = "turns of tools or of a user"
NO_BUILDER = "a model_type (0.9.0: a path) for which verl takes its default builder"
ALL_FACTS = (
    *(SHORT, MODEL_OF_SETS, OWN_CODE, IDLE, COPIES, UNCOUNTED, LOST, END, BUFFERS, NONE_LEFT, LATER, MROPE, ONE_LENGTH),
    *(TURNS, MORE_ENDS, TALKS, NO_BUILDER, INSIDE, SERVER_FAILS),
)
JOBS = [
    ("critic-microbatch-scale", "verl 0.8.0", PPO, {
        "algorithm.adv_estimator=grpo": CANNOT, "critic.loss_agg_mode=seq-mean-token-mean": UNKNOWN,
        "trainer.n_gpus_per_node=1": UNKNOWN,
    }),
    ("critic-microbatch-scale", "verl 0.7.1", f"{PPO} trainer.use_legacy_worker_impl=disable", {
        "trainer.use_legacy_worker_impl=auto": CANNOT,
    }),
    ("fsdp-dynamic-bsz", "verl 0.7.1", f"{GRPO} {ACTOR}.use_dynamic_bsz=True", {
        f"{ACTOR}.use_dynamic_bsz=False": CANNOT, f"{ACTOR}.fsdp_config.fsdp_size=1": CANNOT,
        "trainer.n_gpus_per_node=1": CANNOT, "trainer.use_legacy_worker_impl=disable": CANNOT,
    }),
    ("fsdp-size-one-no-sync", "verl 0.9.1", f"{GRPO} {ACTOR}.fsdp_config.fsdp_size=1", {
        f"{ACTOR}.strategy=fsdp2": CANNOT, f"{ACTOR}.fsdp_config.fsdp_size=2": CANNOT,
        "trainer.n_gpus_per_node=1": CANNOT,
    }),
    ("fsdp-size-one-no-sync", "verl 0.8.0", f"{PPO} critic.fsdp.fsdp_size=1", {"critic.fsdp.fsdp_size=-1": CANNOT}),
    ("fsdp2-buffer-order", "verl 0.7.1", f"{GRPO} {ACTOR}.strategy=fsdp2", {
        f"{ACTOR}.strategy=fsdp": CANNOT, f"{MODEL_OF_SETS}=False": CANNOT,
    }),
    ("fused-head-no-gradient", "verl 0.8.0", f"{GRPO} {MODEL}.use_fused_kernels=True {MODEL}.use_liger=True", {
        f"{MODEL}.use_fused_kernels=False": CANNOT, f"{MODEL}.use_liger=False": CANNOT,
        f"{MODEL}.fused_kernel_options.impl_backend=triton": CANNOT, f"{ACTOR}.strategy=megatron": CANNOT,
    }),
    ("fused-head-no-gradient", "verl 0.8.0",
        f"{GRPO} {MODEL}.use_fused_kernels=True {MODEL}.use_remove_padding=False", {
        f"{MODEL}.use_remove_padding=True": CANNOT, f"{COPIES}=False": CANNOT,
    }),
    ("merged-lora-stale-sync", "verl 0.8.0", f"{GRPO} {ACTOR}.strategy=fsdp2 {MERGED}", {
        f"{ACTOR}.strategy=fsdp": CANNOT, f"{MODEL}.lora.merge=False": CANNOT, f"{MODEL}.lora_rank=0": CANNOT,
    }),
    ("merged-lora-stale-sync", "verl 0.7.1",
        f"{GRPO} trainer.use_legacy_worker_impl=disable {ACTOR}.fsdp_config.strategy=fsdp2 {MERGED}", {
        f"{ACTOR}.fsdp_config.strategy=fsdp": CANNOT, "trainer.use_legacy_worker_impl=auto": CANNOT,
    }),
    ("async-lora-unsynced", "verl 0.9.1", f"{GRPO} {MODEL}.lora_rank=8 {BACKEND}=nccl", {
        f"{BACKEND}=naive": CANNOT, f"{BACKEND}=delta_sharded": CANNOT, f"{MODEL}.lora_rank=0": CANNOT,
        f"+{MODEL}.lora.merge=True": CANNOT, f"{ACTOR}.strategy=fsdp2": STRIKES, f"{ROLLOUT}.name=vllm": STRIKES,
        f"{ROLLOUT}.name=sglang": CANNOT, f"{ROLLOUT}.name=trtllm": CANNOT,
    }),
    ("mtp-cp-deadlock", "verl 0.7.1",
        f"{GRPO} --config-name=ppo_megatron_trainer {MODEL}.mtp.enable=True {ACTOR}.megatron.context_parallel_size=2 "
        "trainer.use_legacy_worker_impl=disable", {
        f"{MODEL}.mtp.enable=False": CANNOT, f"{ACTOR}.megatron.context_parallel_size=1": CANNOT,
        "trainer.use_legacy_worker_impl=auto": CANNOT,
    }),
    ("mtp-zero-tokens", "verl 0.7.1",
        f"{GRPO} --config-name=ppo_megatron_trainer {MODEL}.mtp.enable=True {MODEL}.mtp.enable_train=True", {
        f"{MODEL}.mtp.enable=False": CANNOT, f"{MODEL}.mtp.enable_train=False": CANNOT, f"{NONE_LEFT}=False": CANNOT,
    }),
    ("mtp-zero-tokens", "verl 0.7.1", "torchrun -m verl.trainer.sft_trainer model.mtp.enable=True "
        "model.mtp.enable_train=True engine=megatron", {"model.mtp.enable_train=False": CANNOT}),
    ("reinforce-turn-returns", "verl 0.8.0", f"{PPO} algorithm.adv_estimator=reinforce_plus_plus", {
        "algorithm.adv_estimator=grpo": CANNOT, f"{UNCOUNTED}=False": STRIKES, f"{LOST}=False": STRIKES,
    }),
    ("reinforce-turn-returns", "verl 0.9.1", f"{PPO} algorithm.adv_estimator=reinforce_plus_plus", {
        f"{LOST}=False": CANNOT,
    }),
    ("sft-resume-epoch", "verl 0.9.1", "torchrun --nproc_per_node=2 -m verl.trainer.sft_trainer", {
        "trainer.resume_mode=disable": CANNOT, f"{END}=False": CANNOT,
    }),
    ("merger-buffer-copies", "verl 0.8.0", f"{GRPO} {ACTOR}.strategy=fsdp2 trainer.n_gpus_per_node=8", {
        f"{ACTOR}.strategy=megatron": CANNOT, f"{BUFFERS}=False": CANNOT,
    }),
    ("mrope-ragged-axis", "verl 0.9.1", f"{GRPO} trainer.use_v1=False", {
        "trainer.use_v1=True": CANNOT, f"{MROPE}=False": CANNOT, f"{ONE_LENGTH}=False": CANNOT,
    }),
    ("mrope-ragged-axis", "verl 0.7.1", f"{GRPO} trainer.use_legacy_worker_impl=disable", {
        "trainer.use_legacy_worker_impl=auto": CANNOT,
    }),
    ("lost-turn-separator", "verl 0.8.0", GRPO, {
        f"{TALKS}=False": CANNOT, f"{MORE_ENDS}=False": CANNOT, f"{NO_BUILDER}=False": STRIKES,
    }),
    ("lost-turn-separator", "verl 0.9.1", GRPO, {f"{NO_BUILDER}=False": CANNOT}),
    ("lost-turn-separator", "verl 0.9.0", f"{GRPO} data.continuous_token.enable=True", {
        "data.continuous_token.enable=False": CANNOT, f"{NO_BUILDER}=False": CANNOT,
    }),
    ("dapo-window-scale", "ms-swift 4.5.3",
        "swift rlhf --rlhf_type grpo --loss_type dapo --gradient_accumulation_steps 4", {
        "steps_per_generation=1": CANNOT, "gradient_accumulation_steps=1": CANNOT, "loss_type=grpo": CANNOT,
        "loss_type=fipo": STRIKES, "use_liger_kernel=true": CANNOT, "generation_batch_size=32": STRIKES,
    }),
    ("dapo-window-scale", "ms-swift 3.11.3", "swift rlhf --rlhf_type grpo --loss_type cispo --steps_per_generation 2", {
        "steps_per_generation=1": CANNOT, "sequence_parallel_size=2": STRIKES,
    }),
    ("dapo-window-scale", "ms-swift 4.6.0",
        "swift rlhf --rlhf_type grpo --loss_type dapo --gradient_accumulation_steps 4 --steps_per_generation 1", {
        "steps_per_generation=4": CANNOT, "steps_per_generation=": CANNOT,
    }),
    ("infer-metric-rank0", "ms-swift 4.6.0", "NPROC_PER_NODE=2 NNODES=1 swift infer --metric acc", {"metric=": CANNOT}),
    ("mcore-save-barrier", "ms-swift 4.1.2", "NPROC_PER_NODE=2 NNODES=1 megatron sft", {
        f"{OWN_CODE}=False": CANNOT,
    }),
    ("mean-metric-dtype", "ms-swift 4.3.0", "NPROC_PER_NODE=2 NNODES=1 swift sft --acc_strategy seq", {
        "acc_strategy=token": CANNOT, f"{IDLE}=False": CANNOT,
    }),
    ("megatron-dpo-loss-type", "ms-swift 4.6.0", "megatron rlhf --rlhf_type dpo --loss_type ipo", {
        "loss_type=": CANNOT, "loss_type=sigmoid": CANNOT, "loss_type=hinge": STRIKES, "rlhf_type=kto": CANNOT,
        "tensor_model_parallel_size=": CANNOT,
    }),
    ("resume-data-order", "ms-swift 4.5.2", "swift sft --resume_from_checkpoint output/checkpoint-6", {
        f"{LATER}=False": CANNOT, "streaming=true": CANNOT, "resume_from_checkpoint=": CANNOT,
        "sequence_parallel_size=2": CANNOT, "transformers 4=False": CANNOT,
    }),
    ("resume-data-order", "ms-swift 4.6.0",
        "swift sft --resume_from_checkpoint output/checkpoint-6 --sequence_parallel_size 2", {
        "sequence_parallel_size=1": CANNOT,
    }),
    ("short-last-window", "ms-swift 4.5.2", "swift sft --task_type seq_cls --gradient_accumulation_steps 4", {
        "gradient_accumulation_steps=1": CANNOT, "task_type=causal_lm": CANNOT, f"{SHORT}=False": CANNOT,
    }),
    ("short-last-window", "ms-swift 4.6.0", "swift rlhf --rlhf_type dpo --gradient_accumulation_steps 4", {
        "rlhf_type=simpo": STRIKES, "rlhf_type=kto": CANNOT, "deepspeed=zero2": UNKNOWN,
    }),
    ("mfsdp-pp-checkpoint", "ms-swift 4.6.0",
        "megatron sft --use_megatron_fsdp true --pipeline_model_parallel_size 2", {
        "pipeline_model_parallel_size=1": CANNOT, "use_megatron_fsdp=false": CANNOT,
    }),
    ("tp-logps-gradient", "ms-swift 4.5.2", "megatron rlhf --rlhf_type grpo --tensor_model_parallel_size 2", {
        "rlhf_type=dpo": CANNOT, "rlhf_type=gkd": STRIKES, "tensor_model_parallel_size=1": CANNOT,
    }),
    ("tp-logps-gradient", "ms-swift 4.5.2", "megatron rlhf --rlhf_type gkd --tensor_model_parallel_size 2", {
        "gkd_logits_topk=64": CANNOT,
    }),
    ("grpo-window-scale", "trl 1.9.0", "trl grpo --steps_per_generation 4 --gradient_accumulation_steps 2", {
        "steps_per_generation=2": CANNOT, "steps_per_generation=": CANNOT, "loss_type=grpo": CANNOT,
        "loss_type=cispo": STRIKES, "use_liger_kernel=true": CANNOT,
    }),
    ("grpo-window-scale", "trl 0.22.0", "trl grpo --steps_per_generation 4", {"use_liger_loss=true": CANNOT}),
    ("sleep-stale-weights", "trl 1.9.2", "trl grpo --use_vllm --vllm_mode colocate --vllm_enable_sleep_mode", {
        "vllm_mode=server": CANNOT, "vllm_enable_sleep_mode=false": CANNOT, "use_vllm=false": CANNOT,
    }),
    ("sleep-stale-weights", "trl 0.27.2", "trl rloo --use_vllm --vllm_mode colocate --vllm_enable_sleep_mode true", {
        f"{TURNS}=False": CANNOT,
    }),
    ("async-grpo-server-hang", "trl 1.12.0", "torchrun async_grpo.py", {f"{SERVER_FAILS}=False": CANNOT}),
    ("pack-wrapped-rows", "trl 1.13.0", "trl sft --packing --packing_strategy wrapped", {
        "packing=false": CANNOT, "packing_strategy=bfd": CANNOT, f"{INSIDE}=False": CANNOT,
    }),
]  # fmt: skip


@pytest.fixture(scope="module")
def word(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Return what a fix is to a job on a release."""

    @cache
    def installed(release: str) -> tuple[Installation, ...]:
        project, version = release.split()
        root = str(cli.unpack(tmp_path_factory.mktemp("release"), (project, version)))
        return (Installation(project, version, root, root, root, "wheel", None, ()),)

    def found(fix: str, release: str, command: str, *settings: str) -> str:
        facts = [f"{fact}=True" for fact in ALL_FACTS]
        job = read.job(["-"], [*facts, *settings], io.StringIO(command))
        return judged(catalog.fix(fix), lookup.looks(job, installed(release), release.split()[0])).word

    return found


@pytest.mark.parametrize(("fix", "release", "command", "changes"), JOBS)
def test_a_job_is_struck_and_not_with_another_setting(
    word: Callable[..., str], fix: str, release: str, command: str, changes: dict[str, str]
) -> None:
    assert word(fix, release, command) == STRIKES
    assert {change: word(fix, release, command, change) for change in changes} == changes


def test_each_fix_of_these_upstreams_has_a_job() -> None:
    of = {
        fix.id
        for fix in catalog.fixes().values()
        if {target.upstream for target in fix.targets} & {"verl", "ms-swift", "trl"}
    }
    assert {fix for fix, *_ in JOBS} == of - {"expert-dp-warmup"}  # whose settings are Megatron's
