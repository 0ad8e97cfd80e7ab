"""The mutants of empty-expert-hang."""

from __future__ import annotations

from mutants.by_hand import ByHand, Mutants, Sub

_CAT = "permuted_local_hidden_states = torch.cat([permuted_local_hidden_states, zero_rows])"
_PROBS = "permuted_probs = torch.cat([permuted_probs, permuted_probs.new_zeros(num_rows)])"
_EMPTY = "permuted_local_hidden_states.shape[0] == 0"


def _by_hand(k: str, every: str) -> ByHand:
    return {
        "probabilities of one": Sub("permuted_probs.new_zeros(num_rows)", "permuted_probs.new_ones(num_rows)"),
        "rows and probabilities of one": (
            Sub("permuted_local_hidden_states.new_zeros(", "permuted_local_hidden_states.new_ones("),
            Sub("permuted_probs.new_zeros(num_rows)", "permuted_probs.new_ones(num_rows)"),
        ),
        "rows of one": Sub("permuted_local_hidden_states.new_zeros(", "permuted_local_hidden_states.new_ones("),
        "one row left": Sub("output = output[:0]", "output = output[:1]"),
        "no row sliced off": Sub("output = output[:0]", "pass"),
        "output cut from the graph": Sub("output = output[:0]", "output = output[:0].detach()"),
        "output made anew": Sub("output = output[:0]", "output = output.new_zeros(0, output.shape[1])"),
        "asks the sum of the counts": Sub(_EMPTY, "sum(tokens_per_expert) == 0"),
        "asks for any empty expert": Sub(_EMPTY, "0 in tokens_per_expert"),
        "asks the last expert": Sub(_EMPTY, "tokens_per_expert[-1] == 0"),
        "also with one token": Sub(_EMPTY, "permuted_local_hidden_states.shape[0] <= 1"),
        "all rows to the first expert": Sub(
            f"tokens_per_expert = [{k}] * self.num_local_experts",
            "tokens_per_expert = [num_rows] + [0] * (self.num_local_experts - 1)",
        ),
        "all rows to the last expert": Sub(
            f"tokens_per_expert = [{k}] * self.num_local_experts",
            "tokens_per_expert = [0] * (self.num_local_experts - 1) + [num_rows]",
        ),
        "one row for all experts": (
            Sub(
                f"tokens_per_expert = [{k}] * self.num_local_experts",
                f"tokens_per_expert = [{k}] + [0] * (self.num_local_experts - 1)",
            ),
            Sub(f"num_rows = {every}", f"num_rows = {k}"),
        ),
        "two rows for each expert": (
            Sub(f"num_rows = {every}", f"num_rows = 2 * {every}"),
            Sub(f"tokens_per_expert = [{k}] *", f"tokens_per_expert = [2 * {k}] *"),
        ),
        "counts of zero": Sub(f"tokens_per_expert = [{k}] *", "tokens_per_expert = [0] *"),
        "rows not joined to the graph": Sub(_CAT, "permuted_local_hidden_states = zero_rows"),
        "probabilities not joined to the graph": Sub(_PROBS, "permuted_probs = permuted_probs.new_zeros(num_rows)"),
        "rows without probabilities": Sub(_PROBS, "pass"),
        "only with several experts": Sub(_EMPTY, f"{_EMPTY} and self.num_local_experts > 1"),
        "only with one expert": Sub(_EMPTY, f"{_EMPTY} and self.num_local_experts == 1"),
        "only where it trains": Sub(_EMPTY, f"{_EMPTY} and self.training"),
        "only with gradients": Sub(_EMPTY, f"{_EMPTY} and torch.is_grad_enabled()"),
        "only of what needs gradients": Sub(_EMPTY, f"{_EMPTY} and permuted_local_hidden_states.requires_grad"),
        "a second result": Sub("output = output[:0]", "output, output_bias = output[:0], output[:0]"),
        "probabilities of one, on the CPU": Sub("permuted_probs.new_zeros(num_rows)", "torch.ones(num_rows)"),
        "rows of torch.zeros": Sub("permuted_local_hidden_states.new_zeros(", "torch.zeros("),
        "rows that nobody wrote": Sub("permuted_local_hidden_states.new_zeros(", "torch.empty("),
        "rows in float32": Sub(
            "num_rows, permuted_local_hidden_states.shape[1]",
            "num_rows, permuted_local_hidden_states.shape[1], dtype=torch.float32",
        ),
        "rows on the CPU": Sub(
            "num_rows, permuted_local_hidden_states.shape[1]",
            "num_rows, permuted_local_hidden_states.shape[1], device='cpu'",
        ),
        "fp8 forgotten": Sub("(self.config.fp8 or self.config.fp4)", "self.config.fp4"),
        "fp4 forgotten": Sub("(self.config.fp8 or self.config.fp4)", "self.config.fp8"),
        "aligned whenever fp8 or fp4 is on": Sub(
            "if skip_routed_expert_padding(self.config) and (self.config.fp8 or self.config.fp4)",
            "if self.config.fp8 or self.config.fp4",
        ),
        "not aligned": Sub("rows_per_expert = get_align_size_for_quantization(self.config)", "pass"),
        "aligned to 16 always": Sub("get_align_size_for_quantization(self.config)", "16"),
        "aligned by half": Sub(
            "get_align_size_for_quantization(self.config)", "get_align_size_for_quantization(self.config) // 2"
        ),
        "padded without fp8": Sub(
            "            if self.config.fp8:\n                # the bias",
            "            if True:\n                # the bias",
        ),
        "not padded under fp8": Sub(
            "            if self.config.fp8:\n                # the bias",
            "            if False:\n                # the bias",
        ),
        "counts of before the padding": Sub(
            "zero_rows, tokens_per_expert = self.fp8_padding(", "zero_rows, _ = self.fp8_padding("
        ),
        "number of rows of before the padding": Sub("                num_rows = zero_rows.shape[0]\n", ""),
        "without the recipe's size": Sub("16 if self.config.fp8 else 1", "1"),
        "a size for fp8 always": Sub("16 if self.config.fp8 else 1", "16"),
        "half of the recipe's size": Sub("16 if self.config.fp8 else 1", "8 if self.config.fp8 else 1"),
        "counts for the experts of all ranks": Sub(
            f"[{k}] * self.num_local_experts", f"[{k}] * self.config.num_moe_experts"
        ),
        "as wide as the model": Sub(
            "num_rows, permuted_local_hidden_states.shape[1]", "num_rows, self.config.hidden_size"
        ),
        "only the first time": Sub(
            _EMPTY, f"{_EMPTY} and not self.__dict__.setdefault('seen', []) and not self.seen.append(1)"
        ),
    }


_ROWS, _EACH = "rows_per_expert", "self.num_local_experts"
MUTANTS = [
    Mutants("megatron-core", ("0.10.0", "0.15.3"), _by_hand("1", _EACH), may_lack=True),
    Mutants("megatron-core", ("0.19.2",), _by_hand(_ROWS, f"{_ROWS} * {_EACH}"), may_lack=True),
]
