"""mtp-zero-tokens: by what the loss of each layer of multi-token prediction is divided, logged and trained."""

from __future__ import annotations

import ast
import itertools
import operator
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from types import CodeType, MappingProxyType
from typing import Any, ClassVar, NamedTuple

from unhang.compat.endstates.endstate import EndState, Outcome, Source, importing, plain
from unhang.compat.endstates.standin import Globals, StandIn
from unhang.compat.endstates.tensors import Tensor, torch
from unhang.shapes.branches import words
from unhang.shapes.shape import Function

MASKS = MappingProxyType(
    {
        "full": (1.0, 1.0, 1.0, 1.0),
        "end": (0.0, 1.0, 1.0, 1.0),
        "one": (1.0, 0.0, 0.0, 0.0),
        "two": (1.0, 1.0, 0.0, 0.0),
        "empty": (0.0, 0.0, 0.0, 0.0),
        "fractions": (0.125, 0.125, 0.125, 0.125),
        "one fraction": (0.125, 0.0, 0.0, 0.0),
        "integers": (1, 1, 0, 1),
        "one integer": (1, 0, 0, 0),
        "none": (1, 1, 1, 1),
    }
)
"""The weight of each token, of which each layer shifts one out. A function that gets none counts each one."""
_SCALER, _MTP = "MTPLossAutoScaler", "multi_token_prediction"
_LOSSES = (2.0, 3.0, 5.0, 7.0)


class Setting(NamedTuple):
    """One micro-batch of a job."""

    mask: str = "one"
    layers: int = 1
    training: bool = True
    per_token: bool = False
    scale: float = 0.5
    rank: int = 0

    @property
    def counts(self) -> list[float]:
        """The number of tokens of each layer."""
        return [sum(MASKS[self.mask][layer + 1 :]) for layer in range(self.layers)]


class Seen(NamedTuple):
    """What became of the loss of each layer."""

    logged: list[float]
    trained: list[list[float]]
    kept: str


class Values(Tensor):
    """A tensor of losses, weights or tokens."""

    def __and__(self, other: Tensor) -> Any:
        return self._with(other, operator.and_, None)

    def new_tensor(self, data: float) -> Values:
        return Values([data], self.dtype, self.device, shape=())

    def long(self) -> Values:
        return Values([int(value) for value in self.values_], "int64", self.device, shape=self.shape)

    def _like(self, values: Any, shape: Sequence[int]) -> Values:
        return Values([*values], self.dtype, self.device, (), shape)

    def _with(self, other: Any, combine: Callable[[Any, Any], Any], dtype: str | None) -> Any:
        made = super()._with(other, combine, dtype)
        return Values(made.values_, made.dtype, made.device, (), made.shape) if isinstance(made, Tensor) else made


class Layer(StandIn):
    """An output layer."""

    def __call__(self, *given: Any, **named: Any) -> Any:
        return _output(*given, **named)


def run(source: Source, part: ast.stmt, setting: Setting) -> Seen:
    """Run the part of the function that is about the losses. A division by zero, which is NaN in torch, raises."""
    logged: list[float] = []
    trained: list[list[float]] = []

    def roll(tensor: Any, shifts: int = -1, dims: int = -1, **of_groups: Any) -> Any:
        if isinstance(tensor, list):
            return [roll(one)[0] for one in tensor]
        rolled = Values([*tensor.values_[1:], 0], tensor.dtype, shape=tensor.shape)
        return rolled, rolled.sum()

    def save(loss: Tensor, *given: Any, **of_groups: Any) -> None:
        count, *numbers = given if len(given) == 3 else (1, *given)  # newer ones divide later, when they report
        assert numbers == [len(logged), setting.layers]
        logged.append(float(loss) / (float(count) or 1))

    def apply(output: Any, mtp_loss: Tensor) -> Any:
        trained.append([*mtp_loss.values_])
        return output

    config = StandIn(
        "config",
        **dict.fromkeys(("mtp_num_layers", "mtp_unroll_steps"), setting.layers),
        mtp_loss_scaling_factor=setting.scale,
        calculate_per_token_loss=setting.per_token,
        recompute_granularity=None,
        is_multimodal=False,
    )

    def layer(**given: Any) -> Any:
        return given["hidden_states"]

    own = {
        "output_layer": Layer("output_layer", sequence_parallel=False),
        "compute_language_model_loss": lambda labels, logits: _losses(logits, labels),
        "config": config,
    }
    groups = StandIn("groups", cp="cp")
    itself = StandIn(
        "self",
        training=setting.training,
        mtp_process=True,
        mtp_loss_scaling_factor=setting.scale,
        layers=[layer] * setting.layers,
        _custom=lambda number: layer,
        mtp=layer,
        embedding="embedding",
        _forward_output_layer=lambda *given, **named: _output(*given, **named)[0],
        compute_output_layer_and_language_model_loss=_losses,
        shared_embedding_or_output_weight=lambda: None,
        cp_group="cp",
        pg_collection=groups,
        model_comm_pgs=groups,
        fuse_linear_cross_entropy=False,
        **own,
    )
    weights: tuple[float, ...] = MASKS[setting.mask]
    if _takes_bits(part):
        weights = tuple(map(int, weights))
    dtype = "int64" if isinstance(weights[0], int) else "float32"
    mask = Values([*weights], dtype, shape=(1, 4))
    ids = Values([1, 2, 0, 1], "int64", shape=(1, 4))
    of_function = {
        **own,
        **dict.fromkeys(("input_ids", "position_ids", "labels", "mtp_labels"), ids),
        **dict.fromkeys(("hidden_states", "hidden_states_main_model"), "hidden states"),
        **dict.fromkeys(("output_weight", "output_weight_for_mtp", "runtime_gather_output", "attention_mask")),
        **dict.fromkeys(("packed_seq_params", "inference_params", "sequence_len_offset", "extra_block_kwargs")),
        **dict.fromkeys(("rotary_pos_emb", "rotary_pos_cos", "rotary_pos_sin", "cp_group", "tp_group")),
        **dict.fromkeys(("scale_logits_fn", "sequence_roll_context")),
        **dict.fromkeys(("fuse_linear_cross_entropy", "derived_labels_from_input_ids"), False),
        "self": itself,
        "loss_mask": None if setting.mask == "none" and isinstance(part, ast.If) else mask,
        "original_num_tokens": mask.sum(),
        "hidden_states_list": [f"hidden states {number}" for number in range(setting.layers + 1)],
        "output_layer_for_mtp": own["output_layer"],
        "is_training": setting.training,
        "embedding": lambda input_ids, position_ids: "embedded",
    }
    counts = {"_compute_mtp_acceptance_counts": lambda *given, **named: (0, 0)}
    names = {
        **of_function,
        **counts,
        "__builtins__": importing({f"megatron.core.transformer.{_MTP}": StandIn(_MTP, **counts)}),
        "roll_tensor": roll,
        "MTPLossLoggingHelper": StandIn(
            "MTPLossLoggingHelper",
            save_loss_to_tracker=save,
            save_metrics_to_tracker=lambda loss, correct, total, *numbers, **of_groups: save(loss, *numbers),
            should_collect_acceptance=lambda: False,
        ),
        _SCALER: StandIn(_SCALER, apply=apply),
        "parallel_state": StandIn(
            "parallel_state",
            get_data_parallel_group=lambda with_context_parallel=False: "dp",
            get_tensor_and_context_parallel_group=lambda: "tp-cp",
        ),
        "torch": torch(
            sum=lambda input: input.sum(),
            clamp=lambda input, min: input.clamp(min=min),
            chunk=lambda input, chunks, dim: [input] * chunks,
            ones_like=lambda input: Values(1, input.dtype, shape=input.shape),
            distributed=StandIn("torch.distributed", get_rank=lambda group=None: setting.rank),
        ),
    }
    namespace = Globals(names, source.bound)
    exec(_code(part), namespace)  # noqa: S102 - upstream's code, in the sandbox
    kept = "hidden_states_main_model" if "hidden_states_main_model" in words(part) else "hidden_states"
    return Seen(logged, trained, namespace[kept])


@cache
def _takes_bits(part: ast.stmt) -> bool:
    """Return whether the mask is one of bits, and not of weights."""
    return any(isinstance(node, ast.BitAnd) for node in ast.walk(part))


@cache
def _code(part: ast.stmt) -> CodeType:
    return compile(ast.Module([plain(part)], []), "<upstream>", "exec", dont_inherit=True)


def _losses(hidden_states: Any, labels: Tensor, **others: Any) -> Values:
    return Values([*_LOSSES], "float32", shape=labels.shape)


def _output(
    input_: Any,
    weight: Any = None,
    runtime_gather_output: Any = None,
    output_cross_entropy_loss: bool = False,
    labels: Any = None,
) -> Any:
    return _losses(input_, labels) if output_cross_entropy_loss else ("logits", None)


class Loss(EndState):
    """The end state of the three functions, of which a release has one that divides."""

    varied: ClassVar[dict[str, str]] = {
        "loss_mask": "mask",
        **dict.fromkeys(("self.training", "is_training"), "training"),
        **dict.fromkeys(("self.config.calculate_per_token_loss", "config.calculate_per_token_loss"), "per_token"),
    }
    held: ClassVar[dict[str, str]] = {
        "num_tokens": "the mask decides",
        **dict.fromkeys(("self.mtp_process", "self.config.mtp_num_layers"), "without a layer there is no loss"),
        **dict.fromkeys(("extra_block_kwargs", "self.config.recompute_granularity"), "is about the layers alone"),
        **dict.fromkeys(("scale_logits_fn", "fuse_linear_cross_entropy"), "is about the logits alone"),
        "self.fuse_linear_cross_entropy": "is about the logits alone",
        "derived_labels_from_input_ids": "is about the labels alone",
        "labels": "without labels there is no loss",
        **dict.fromkeys(("cu_seqlens", "packed_seq_params"), "is about how the mask is shifted"),
        "self.config.context_parallel_size": "is about how the mask is shifted",
        "self.config.is_multimodal": "is about the layers alone",
        **dict.fromkeys(("MTPLossLoggingHelper", "hasattr"), "is about another metric"),
        **dict.fromkeys(("mtp_logits", "MTPLossLoggingHelper.should_collect_acceptance"), "is about another metric"),
    }

    def part(self, function: Function) -> ast.stmt:
        if _SCALER not in words(function):
            return ast.Pass()
        found = [node for node in function.body if _SCALER in words(node)]
        return found[0] if len(found) == 1 else function

    def configurations(self, function: Function) -> Iterator[Setting]:
        off_on = (False, True)
        for mask, layers, training, per_token in itertools.product(MASKS, (1, 2, 3), off_on, off_on):
            if _takes_bits(function) and "fraction" in mask:
                continue
            for scale, rank in ((0.5, 0), (4.0, 1)):
                yield Setting(mask, layers, training, per_token, scale, rank)

    def has_feature(self, source: Source) -> bool:
        return _SCALER in words(source.function)

    def concerned(self, configuration: Setting) -> bool:
        divides = configuration.training or not configuration.per_token
        return divides and any(count < 1 for count in configuration.counts)

    def control(self, configuration: Setting) -> Setting | None:
        # upstream divides a fraction by one
        if not self.concerned(configuration) or any(0 < count < 1 for count in configuration.counts):
            return None
        return configuration._replace(mask="full")

    def observe(self, source: Source, configuration: Setting) -> Outcome:
        if not self.has_feature(source):
            divides = [node for node in ast.walk(source.function) if isinstance(node, ast.Div)]
            return Outcome(frozenset({"it divides"} if divides else ()), ())
        seen = run(source, self.part(source.function), configuration)
        return Outcome(frozenset(_faults(configuration, seen)), repr(seen))


def _faults(setting: Setting, seen: Seen) -> Iterator[str]:
    weights, scale = MASKS[setting.mask], setting.scale / setting.layers
    if seen.kept != "hidden states":
        yield "other hidden states"
    if (len(seen.logged), len(seen.trained)) != (setting.layers * setting.training, setting.layers):
        yield "a layer is logged or trained other than once"
        return
    for layer, count in enumerate(setting.counts):
        losses = [weight * loss for weight, loss in zip((*weights[layer + 1 :], *[0] * 4), _LOSSES)]
        divisor = count or 1
        if setting.training and not _same(seen.logged[layer : layer + 1], [sum(losses) / divisor]):
            yield "another loss is logged"
        times = (1.0, sum(weights) / max(count, 1)) if setting.per_token else (1 / divisor,)
        if not any(_same(seen.trained[layer], [scale * loss * by for loss in losses]) for by in times):
            yield "another loss is trained"


def _same(found: Sequence[float], wanted: Sequence[float]) -> bool:
    return len(found) == len(wanted) and all(abs(one - other) < 1e-9 for one, other in zip(found, wanted))


END_STATES = dict.fromkeys(
    ("GPTModel._postprocess", "MultiTokenPredictionBlock.forward", "process_mtp_loss"),
    Loss(),
)
