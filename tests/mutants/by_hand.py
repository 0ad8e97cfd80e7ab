"""Mutants made by hand: what a person may write instead. Those of the audit of 2026-11-21 are among them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

EVERY = -1
_LAST_STAGE = "mpu.is_pipeline_last_stage(ignore_virtual=True)"
_UPDATED = 'losses_reduced[0]["metrics"].update(metrics)'


class Sub(NamedTuple):
    """Replaces code that the rewrite added: of its occurrences, the one with this number, or every one."""

    old: str
    new: str
    number: int = 0

    def applied(self, text: str) -> str:
        parts = text.split(self.old)
        assert len(parts) > self.number + 1, f"{self.old!r} is not there"
        if self.number == EVERY:
            return self.new.join(parts)
        at = self.number + 1
        return self.old.join(parts[:at]) + self.new + self.old.join(parts[at:])


def changed(text: str, subs: tuple[Sub, ...]) -> str:
    """Return a rewritten file with these replacements, each from the rewrite's first comment on."""
    head, mark, tail = text.partition("# unhang ")
    for sub in subs:
        tail = sub.applied(tail)
    return head + mark + tail


def _mtp() -> Mapping[str, tuple[Sub, ...]]:
    def gate(new: str) -> tuple[Sub, ...]:
        return (Sub(_LAST_STAGE, new),)

    return {
        "not the CP ranks after the second": gate(f"{_LAST_STAGE} and mpu.get_context_parallel_rank() < 2"),
        "the first half of the DP ranks": gate(f"{_LAST_STAGE} and 2 * mpu.get_data_parallel_rank() < 2"),
        "looks at virtual stages": gate("mpu.is_pipeline_last_stage(ignore_virtual=False)"),
        "looks at virtual stages by default": gate("mpu.is_pipeline_last_stage()"),
        "first stage": gate("mpu.is_pipeline_first_stage(ignore_virtual=True)"),
        "the ranks that have losses": gate("losses_reduced"),
        "the ranks whose loss has no metrics": gate(f"{_LAST_STAGE} and not losses_reduced[0].get('metrics')"),
        "only while it trains": gate(f"{_LAST_STAGE} and not forward_only"),
        "only with context parallelism": gate(f"{_LAST_STAGE} and self.engine_config.context_parallel_size > 1"),
        "each CP rank 0 reports": (
            Sub("if self.is_mp_src_rank_with_outputs()", "if mpu.get_context_parallel_rank() == 0"),
        ),
        "each TP rank 0 reports": (
            Sub("if self.is_mp_src_rank_with_outputs()", "if mpu.get_tensor_model_parallel_rank() == 0"),
        ),
        "more than one micro-batch": (Sub("n_micro_batch > 0", "n_micro_batch > 1"),),
        "metrics replaced": (Sub(_UPDATED, 'losses_reduced[0]["metrics"] = metrics'),),
        "metrics of the last loss": (Sub("losses_reduced[0]", "losses_reduced[-1]", EVERY),),
        "metrics of every loss": (
            Sub(_UPDATED, '[it.setdefault("metrics", {}).update(metrics) for it in losses_reduced]'),
        ),
        "metrics below a name": (Sub(_UPDATED, 'losses_reduced[0]["metrics"]["mtp"] = metrics'),),
        "divided twice": (Sub("get_megatron_mtp_loss(n_micro_batch)", "get_megatron_mtp_loss(2 * n_micro_batch)"),),
        "called twice": (
            Sub(
                "get_megatron_mtp_loss(n_micro_batch)\n",
                "get_megatron_mtp_loss(n_micro_batch)\n            metrics = get_megatron_mtp_loss(n_micro_batch)\n",
            ),
        ),
        "called once for each micro-batch": (
            Sub(
                "get_megatron_mtp_loss(n_micro_batch)",
                "[get_megatron_mtp_loss(n_micro_batch) for _ in range(n_micro_batch)][-1]",
            ),
        ),
        "the source rank calls once more": (
            Sub(_UPDATED, f"get_megatron_mtp_loss(n_micro_batch)\n                {_UPDATED}"),
        ),
        "MTP is not asked": (Sub("self.model_config.mtp.enable and ", ""),),
    }


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


def _sft() -> Mapping[str, tuple[Sub, ...]]:
    def last(gate: str) -> tuple[Sub, ...]:
        return (Sub("            if args.sft:", f"            if {gate}:", EVERY),)

    def middle(gate: str) -> tuple[Sub, ...]:
        return (Sub("        elif args.sft:", f"        elif {gate}:", EVERY),)

    cu_seqlens_alone = Sub(_MIDDLE + _MIDDLE_SENT, f"{_MIDDLE}            _broadcast_cu_seqlens(batch['cu_seqlens'])\n")
    return {
        "middle sender without max_seqlen": (cu_seqlens_alone,),
        "middle halves without max_seqlen": (
            cu_seqlens_alone,
            Sub(_RECEIVED, "            cu_seqlens = _broadcast_cu_seqlens()\n\n        batch = {"),
        ),
        "last halves never": last("False"),
        "middle halves never": middle("False"),
        "last sender in another order": (
            Sub(
                _LAST_SENT,
                "".join(f"{line}\n" for line in reversed(_LAST_SENT.split("\n")[:2])),
            ),
        ),
        "middle halves in another order": (
            Sub(
                _MIDDLE_SENT,
                "            _broadcast(batch['max_seqlen'])\n            _broadcast_cu_seqlens(batch['cu_seqlens'])\n",
                0,
            ),
            Sub(
                _RECEIVED,
                "            _broadcast(max_seqlen)\n"
                "            cu_seqlens = _broadcast_cu_seqlens()\n\n        batch = {",
            ),
        ),
        "middle sender asks the data": (
            Sub("        elif args.sft:", "        elif batch['cu_seqlens'] is not None:"),
        ),
        "last sender asks the data": (
            Sub("            if args.sft:", "            if batch['cu_seqlens'] is not None:"),
        ),
        "middle receiver leaves empty tensors": (Sub(_NOTHING, ""),),
        "second stage alone of the middle ones": middle("args.sft and mpu.get_pipeline_model_parallel_rank() == 1"),
        "last receiver drops cu_seqlens": (
            Sub("                cu_seqlens = _broadcast_cu_seqlens()", "                _broadcast_cu_seqlens()"),
        ),
        "last halves not with CP": last("args.sft and args.context_parallel_size == 1"),
        "middle halves not with CP": middle("args.sft and args.context_parallel_size == 1"),
        "last halves on DP rank 0": last("args.sft and mpu.get_data_parallel_rank() == 0"),
        "last halves not with hybrid CP": last("args.sft and not args.hybrid_context_parallel"),
        "middle halves on the last chunk": middle("args.sft and not mpu.is_pipeline_last_stage(ignore_virtual=True)"),
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
        "last receiver keeps max_seqlen without sft": (Sub(_NO_MAX, ""),),
        "last receiver drops max_seqlen with sft": (Sub(_NO_MAX, "            max_seqlen = None\n"),),
        "middle receiver cuts cu_seqlens": (Sub(_RECEIVED, _RECEIVED.replace("seqlens()", "seqlens()[..., :-1]")),),
        "last halves send the loss mask again without sft": (
            Sub(_NO_MAX, f"{_NO_MAX}                _broadcast(loss_mask)\n"),
            Sub(_LAST_SENT, f"{_LAST_SENT}            else:\n                _broadcast(batch['loss_mask'])\n"),
        ),
        "last receiver takes max_seqlen for cu_seqlens": (
            Sub(
                "                _broadcast(max_seqlen)\n",
                "                _broadcast(max_seqlen)\n                cu_seqlens = max_seqlen\n",
            ),
        ),
    }


_CAT = "permuted_local_hidden_states = torch.cat([permuted_local_hidden_states, zero_rows])"
_PROBS = "permuted_probs = torch.cat([permuted_probs, permuted_probs.new_zeros(num_rows)])"
_EMPTY = "permuted_local_hidden_states.shape[0] == 0"


def _experts() -> Mapping[str, tuple[Sub, ...]]:
    return {
        "probabilities of one": (Sub("permuted_probs.new_zeros(num_rows)", "permuted_probs.new_ones(num_rows)"),),
        "rows and probabilities of one": (
            Sub("permuted_local_hidden_states.new_zeros(", "permuted_local_hidden_states.new_ones("),
            Sub("permuted_probs.new_zeros(num_rows)", "permuted_probs.new_ones(num_rows)"),
        ),
        "rows of one": (Sub("permuted_local_hidden_states.new_zeros(", "permuted_local_hidden_states.new_ones("),),
        "one row left": (Sub("output = output[:0]", "output = output[:1]"),),
        "no row sliced off": (Sub("output = output[:0]", "pass"),),
        "output cut from the graph": (Sub("output = output[:0]", "output = output[:0].detach()"),),
        "output made anew": (Sub("output = output[:0]", "output = output.new_zeros(0, output.shape[1])"),),
        "asks the sum of the counts": (Sub(_EMPTY, "sum(tokens_per_expert) == 0"),),
        "asks for any empty expert": (Sub(_EMPTY, "0 in tokens_per_expert"),),
        "asks the last expert": (Sub(_EMPTY, "tokens_per_expert[-1] == 0"),),
        "also with one token": (Sub(_EMPTY, "permuted_local_hidden_states.shape[0] <= 1"),),
        "all rows to the first expert": (
            Sub(
                "tokens_per_expert = [{k}] * self.num_local_experts",
                "tokens_per_expert = [num_rows] + [0] * (self.num_local_experts - 1)",
            ),
        ),
        "all rows to the last expert": (
            Sub(
                "tokens_per_expert = [{k}] * self.num_local_experts",
                "tokens_per_expert = [0] * (self.num_local_experts - 1) + [num_rows]",
            ),
        ),
        "one row for all experts": (
            Sub(
                "tokens_per_expert = [{k}] * self.num_local_experts",
                "tokens_per_expert = [{k}] + [0] * (self.num_local_experts - 1)",
            ),
            Sub("num_rows = {all}", "num_rows = {k}"),
        ),
        "two rows for each expert": (
            Sub("num_rows = {all}", "num_rows = 2 * {all}"),
            Sub("tokens_per_expert = [{k}] *", "tokens_per_expert = [2 * {k}] *"),
        ),
        "counts of zero": (Sub("tokens_per_expert = [{k}] *", "tokens_per_expert = [0] *"),),
        "rows not joined to the graph": (Sub(_CAT, "permuted_local_hidden_states = zero_rows"),),
        "probabilities not joined to the graph": (Sub(_PROBS, "permuted_probs = permuted_probs.new_zeros(num_rows)"),),
        "rows without probabilities": (Sub(_PROBS, "pass"),),
        "rows in float32": (
            Sub(
                "num_rows, permuted_local_hidden_states.shape[1]",
                "num_rows, permuted_local_hidden_states.shape[1], dtype=torch.float32",
            ),
        ),
        "rows on the CPU": (
            Sub(
                "num_rows, permuted_local_hidden_states.shape[1]",
                "num_rows, permuted_local_hidden_states.shape[1], device='cpu'",
            ),
        ),
        "fp8 forgotten": (Sub("(self.config.fp8 or self.config.fp4)", "self.config.fp4"),),
        "fp4 forgotten": (Sub("(self.config.fp8 or self.config.fp4)", "self.config.fp8"),),
        "aligned whenever fp8 or fp4 is on": (
            Sub(
                "if skip_routed_expert_padding(self.config) and (self.config.fp8 or self.config.fp4)",
                "if self.config.fp8 or self.config.fp4",
            ),
        ),
        "not aligned": (Sub("rows_per_expert = get_align_size_for_quantization(self.config)", "pass"),),
        "aligned to 16 always": (Sub("get_align_size_for_quantization(self.config)", "16"),),
        "aligned by half": (
            Sub("get_align_size_for_quantization(self.config)", "get_align_size_for_quantization(self.config) // 2"),
        ),
        "padded without fp8": (
            Sub(
                "            if self.config.fp8:\n                # the bias",
                "            if True:\n                # the bias",
            ),
        ),
        "not padded under fp8": (
            Sub(
                "            if self.config.fp8:\n                # the bias",
                "            if False:\n                # the bias",
            ),
        ),
        "counts of before the padding": (
            Sub("zero_rows, tokens_per_expert = self.fp8_padding(", "zero_rows, _ = self.fp8_padding("),
        ),
        "number of rows of before the padding": (Sub("                num_rows = zero_rows.shape[0]\n", ""),),
        "without the recipe's size": (Sub("16 if self.config.fp8 else 1", "1"),),
        "a size for fp8 always": (Sub("16 if self.config.fp8 else 1", "16"),),
        "half of the recipe's size": (Sub("16 if self.config.fp8 else 1", "8 if self.config.fp8 else 1"),),
    }


_REDUCED = """torch.distributed.all_reduce(
                torch.zeros(1, device=torch.cuda.current_device()), group=warmup_group
            )"""
_ZEROS = "torch.zeros(1, device=torch.cuda.current_device())"
_FIRST = "        warmed_up_groups = []\n"
_RANK = "torch.distributed.get_rank()"
_INTRA = "            '_INTRA_DISTRIBUTED_OPTIMIZER_INSTANCE_GROUP',\n"
_KNOWN = "('nccl', 'hccl', 'mccl')"


def _core() -> Mapping[str, tuple[Sub, ...]]:
    def reduced(new: str) -> tuple[Sub, ...]:
        return (Sub(_REDUCED, new),)

    def first(new: str) -> tuple[Sub, ...]:
        return (Sub(_FIRST, f"{_FIRST}        {new}\n"),)

    def gated(new: str) -> tuple[Sub, ...]:
        return (Sub("expert_model_parallel_size > 1", new),)

    ranks = "torch.distributed.get_process_group_ranks(warmup_group)"
    return {
        "tensor on the CPU": (Sub(_ZEROS, "torch.zeros(1)"),),
        "last part of a composite backend": (Sub("for backend in backends\n", "for backend in backends[-1:]\n"),),
        "first part of a composite backend": (Sub("for backend in backends\n", "for backend in backends[:1]\n"),),
        "composites by their end": (Sub("backend.split(':')[-1] in", "backend in"),),
        "mccl forgotten": (Sub(_KNOWN, "('nccl', 'hccl')"),),
        "hccl forgotten": (Sub(_KNOWN, "('nccl', 'mccl')"),),
        "every part of cuda": (
            Sub(
                f"backend.split(':')[-1] in {_KNOWN}",
                f"backend.split(':')[-1] in {_KNOWN} or backend.startswith('cuda:')",
            ),
        ),
        "every part of a backend": (Sub(" or not any(\n", " or not all(\n"),),
        "device not waited for": (Sub("            torch.cuda.synchronize()", "            pass"),),
        "expert model-parallel group": (Sub("'_EXPERT_DATA_PARALLEL_GROUP',", "'_EXPERT_MODEL_PARALLEL_GROUP',"),),
        "without the intra-instance group": (Sub(_INTRA, ""),),
        "without the inter-instance group": (Sub("            '_INTER_PARTIAL_EXPERT_DATA_PARALLEL_GROUP',\n", ""),),
        "without the expert group": (Sub("            '_EXPERT_DATA_PARALLEL_GROUP',\n", ""),),
        "order turned around in half of the world": (
            Sub(
                f"{_INTRA}        ):",
                f"{_INTRA}        )[::1 if {_RANK} * 2 < torch.distributed.get_world_size() else -1]:",
            ),
        ),
        "groups of one rank too": (Sub("torch.distributed.get_world_size(warmup_group) == 1 or not any(", "not any("),),
        "one group by each of its names": (Sub(" or any(warmup_group is other for other in warmed_up_groups)", ""),),
        "groups of the same ranks once": (
            Sub(
                "any(warmup_group is other for",
                f"any({ranks} == torch.distributed.get_process_group_ranks(other) for",
            ),
        ),
        "barrier": reduced("torch.distributed.barrier(group=warmup_group)"),
        "broadcast": reduced(f"torch.distributed.broadcast({_ZEROS}, {ranks}[0], group=warmup_group)"),
        "EP above 2": gated("expert_model_parallel_size > 2"),
        "EP of any size": gated("expert_model_parallel_size > 0"),
        "not on rank 0": gated(f"expert_model_parallel_size > 1 and {_RANK} != 0"),
        "not with pipeline stages": gated("expert_model_parallel_size > 1 and pipeline_model_parallel_size == 1"),
        "not with several instances": gated(
            "expert_model_parallel_size > 1 and num_distributed_optimizer_instances == 1"
        ),
        "world": (Sub(", group=warmup_group\n", "\n"),),
        "not waited for": (Sub(", group=warmup_group\n", ", group=warmup_group, async_op=True\n"),),
        "a fresh group of the same ranks": reduced(
            f"torch.distributed.all_reduce({_ZEROS}, "
            f"group=torch.distributed.new_group({ranks}, use_local_synchronization=True))"
        ),
        "even ranks make one more group": first(f"{_RANK} % 2 == 0 and torch.distributed.new_group([0, 1])"),
        "every rank makes one more group": first("torch.distributed.new_group([0, 1])"),
        "ranks make their groups in an order of their own": first(
            f"[torch.distributed.new_group([one]) for one in ((0, 1) if {_RANK} % 2 else (1, 0))]"
        ),
        "by the group's own method, but not on rank 0": reduced(
            f"{_RANK} == 0 or warmup_group.allreduce([{_ZEROS}]).wait()"
        ),
        "functional, but not on rank 0": reduced(
            f"{_RANK} == 0 or torch.distributed.distributed_c10d._resolve_process_group("
            f"warmup_group.group_name).allreduce([{_ZEROS}]).wait()"
        ),
        "rank 0 once more, by the group's own method": reduced(
            f"{_REDUCED}\n            if {_RANK} == 0:\n                warmup_group.allreduce([{_ZEROS}])"
        ),
        "rank 0 once more, by a broadcast": reduced(
            f"{_REDUCED}\n            if {_RANK} == 0:\n"
            f"                torch.distributed.broadcast({_ZEROS}, 0, group=warmup_group)"
        ),
        "rank 0 waits at a barrier": first(f"{_RANK} == 0 and torch.distributed.barrier()"),
        "many elements": (Sub("torch.zeros(1,", "torch.zeros(1 << 30,"),),
    }


def _swift() -> Mapping[str, tuple[Sub, ...]]:
    names = [
        f"                    'get_{name}_group',\n"
        for name in (
            "expert_data_parallel",
            "inter_distributed_optimizer_instance",
            "intra_distributed_optimizer_instance",
        )
    ]
    called = "getattr(mpu, accessor_name)()"
    return {
        "AssertionError not caught": (Sub("except (AttributeError, AssertionError)", "except AttributeError"),),
        "AttributeError not caught": (Sub("except (AttributeError, AssertionError)", "except AssertionError"),),
        "the first missing one ends it": (Sub("                    continue\n", "                    break\n"),),
        "tensor on the CPU": (Sub("torch.zeros(1, device=get_current_device())", "torch.zeros(1)"),),
        "tensor on a GPU": (Sub("device=get_current_device()", "device=torch.cuda.current_device()"),),
        "device not waited for": (
            Sub("                warmup_tensor.item()  # waits for the device, whichever it is\n", ""),
        ),
        "a GPU waited for": (Sub("warmup_tensor.item()", "torch.cuda.synchronize()"),),
        "without the expert group": (Sub(names[0], ""),),
        "without the inter-instance group": (Sub(names[1], ""),),
        "without the intra-instance group": (Sub(names[2], ""),),
        "inter-instance group alone": (Sub(names[0], ""), Sub(names[2], "")),
        "dense data-parallel group": (Sub("'get_expert_data_parallel_group'", "'get_data_parallel_group'"),),
        "check_initialized given": (Sub(called, "getattr(mpu, accessor_name)(check_initialized=False)"),),
        "mccl forgotten": (Sub(_KNOWN, "('nccl', 'hccl')"),),
        "hccl forgotten": (Sub(_KNOWN, "('nccl', 'mccl')"),),
        "last part of a composite backend": (Sub("for backend in backends)", "for backend in backends[-1:])"),),
        "EP above 2": (Sub("args.expert_model_parallel_size > 1", "args.expert_model_parallel_size > 2"),),
        "EP of any size": (Sub("args.expert_model_parallel_size > 1", "args.expert_model_parallel_size > 0"),),
        "master rank alone": (
            Sub("args.expert_model_parallel_size > 1", "args.expert_model_parallel_size > 1 and is_master()"),
        ),
        "once more, by the group's own method": (
            Sub(
                "                warmup_tensor.item()",
                "                warmup_group.allreduce([warmup_tensor])\n                warmup_tensor.item()",
            ),
        ),
        "not waited for": (
            Sub(
                "group=warmup_group)\n                warmup_tensor",
                "group=warmup_group, async_op=True)\n                warmup_tensor",
            ),
        ),
        "groups of one rank too": (Sub("torch.distributed.get_world_size(warmup_group) == 1 or not any(", "not any("),),
        "one group by each of its names": (Sub(" or any(warmup_group is other for other in warmed_up_groups)", ""),),
    }


BY_HAND: dict[tuple[str, str], Mapping[str, tuple[Sub, ...]]] = {
    ("mtp-cp-deadlock", "verl"): _mtp(),
    ("sft-packed-seq-broadcast", "megatron-lm"): _sft(),
    ("empty-expert-hang", "megatron-core"): _experts(),
    ("expert-dp-warmup", "megatron-core"): _core(),
    ("expert-dp-warmup", "ms-swift"): _swift(),
}


def by_hand(fix: str, upstream: str, text: str) -> dict[str, str]:
    """Return the mutants of a rewritten file. A release may lack what some of them change."""
    aligned = "rows_per_expert" in text
    words = {"{k}": "rows_per_expert" if aligned else "1"}
    words["{all}"] = f"{words['{k}']} * self.num_local_experts" if aligned else "self.num_local_experts"
    found = {}
    for name, subs in BY_HAND[fix, upstream].items():
        for word, new in words.items():
            subs = tuple(Sub(sub.old.replace(word, new), sub.new.replace(word, new), sub.number) for sub in subs)
        if all(sub.old in text for sub in subs):
            found[name] = changed(text, subs)
        else:
            assert fix == "empty-expert-hang", f"{name} changes nothing"
    return found
