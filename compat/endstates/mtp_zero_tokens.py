"""mtp-zero-tokens: TODO: what each rank does, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

from unhang.compat.endstates.endstate import EndState, Outcome, Source, called
from unhang.compat.endstates.standin import StandIn
from unhang.shapes.shape import Function

_RANKS = 2


class PostprocessSetting(NamedTuple):
    """One job."""

    # TODO: the values that matter of each condition; sizes, names, groups and ranks in more than one value
    extra_block_kwargs: bool = False
    has_config_logger_enabled: bool = False
    in_inference_mode: bool = False
    inference_context: bool = False
    inference_context_is_static_batching: bool = False
    inference_context_materialize_only_last_token_logits: bool = False
    labels: bool = False
    loss_mask: bool = False
    mtp_in_postprocess: bool = False
    config: bool = False
    config_calculate_per_token_loss: bool = False
    config_mtp_num_layers: bool = False
    output_layer_sequence_parallel: bool = False
    post_process: bool = False
    share_embeddings_and_output_weights: bool = False
    training: bool = False
    sequence_parallel_override: bool = False


class Postprocess(EndState):
    """The end state of the function."""

    varied: ClassVar[dict[str, str]] = {
        "extra_block_kwargs": "extra_block_kwargs",
        "has_config_logger_enabled": "has_config_logger_enabled",
        "in_inference_mode": "in_inference_mode",
        "inference_context": "inference_context",
        "inference_context.is_static_batching": "inference_context_is_static_batching",
        "inference_context.materialize_only_last_token_logits": "inference_context_materialize_only_last_token_logits",
        "labels": "labels",
        "loss_mask": "loss_mask",
        "mtp_in_postprocess": "mtp_in_postprocess",
        "self.config": "config",
        "self.config.calculate_per_token_loss": "config_calculate_per_token_loss",
        "self.config.mtp_num_layers": "config_mtp_num_layers",
        "self.output_layer.sequence_parallel": "output_layer_sequence_parallel",
        "self.post_process": "post_process",
        "self.share_embeddings_and_output_weights": "share_embeddings_and_output_weights",
        "self.training": "training",
        "sequence_parallel_override": "sequence_parallel_override",
    }
    held: ClassVar[dict[str, str]] = {}
    # TODO: what a setting has without the defect, by dimension; or a method ``control``, where that depends
    without: ClassVar[dict[str, Any]] = {}

    def configurations(self, function: Function) -> Iterator[PostprocessSetting]:
        yield PostprocessSetting()
        for field in PostprocessSetting._fields:  # TODO: those that play together, together
            yield PostprocessSetting(**{field: True})

    def concerned(self, configuration: PostprocessSetting) -> bool:
        raise NotImplementedError("TODO: whether the fix plays a part here")

    def observe(self, source: Source, configuration: PostprocessSetting) -> Outcome:
        ranks = [self.did(source, configuration, rank) for rank in range(_RANKS)]
        # TODO: compare what they compute, beside what is right. Upstream's own fix has no fault, the untouched function has some.
        faults = {"the ranks do not do the same"} if any(rank != ranks[0] for rank in ranks) else set()
        return Outcome(frozenset(faults), repr(ranks))

    def did(self, source: Source, setting: PostprocessSetting, rank: int) -> list[Any]:
        """Run the function as one rank. Return what it did, and then what it returned."""
        did: list[Any] = []
        # TODO: a value for each None, and what each function returns; what stays is noted. What is missing is a gap.
        names = {
            "MTPLossAutoScaler": StandIn("MTPLossAutoScaler", **{
                "apply": lambda hidden_states, given_2: did.append(("apply", hidden_states, given_2)),
            }),
            "MTPLossLoggingHelper": StandIn("MTPLossLoggingHelper", **{
                "save_loss_to_tracker": lambda given_1, mtp_layer_number, given_3, avg_group=None: did.append(("save_loss_to_tracker", given_1, mtp_layer_number, given_3, avg_group)),
            }),
            "OrderedDict": lambda given_1: did.append(("OrderedDict", given_1)),
            "gather_from_sequence_parallel_region": lambda hidden_states, group=None: did.append(("gather_from_sequence_parallel_region", hidden_states, group)),
            "has_config_logger_enabled": lambda given_1: setting.has_config_logger_enabled,
            "log_config_to_disk": lambda given_1, payload, prefix=None: did.append(("log_config_to_disk", given_1, payload, prefix)),
            "parallel_state": StandIn("parallel_state", **{
                "get_data_parallel_group": lambda with_context_parallel=None: did.append(("get_data_parallel_group", with_context_parallel)),
            }),
            "roll_tensor": lambda mtp_labels, shifts=None, dims=None, cp_group=None, packed_seq_params=None: did.append(("roll_tensor", mtp_labels, shifts, dims, cp_group, packed_seq_params)),
            "torch": StandIn("torch", **{
                "chunk": lambda hidden_states, given_2, dim=None: did.append(("chunk", hidden_states, given_2, dim)),
                "ones_like": lambda mtp_labels: did.append(("ones_like", mtp_labels)),
                "sum": lambda mtp_loss: did.append(("sum", mtp_loss)),
            }),
        }
        value = called(source, names)(
            **{
                "self": StandIn("self", **{
                    "compute_language_model_loss": lambda mtp_labels, mtp_logits: did.append(("compute_language_model_loss", mtp_labels, mtp_logits)),
                    "config": StandIn("self.config", **{
                        "calculate_per_token_loss": setting.config_calculate_per_token_loss,
                        "mtp_loss_scaling_factor": None,
                        "mtp_num_layers": setting.config_mtp_num_layers,
                    }),
                    "cp_group": None,
                    "embedding": None,
                    "mtp": lambda input_ids=None, position_ids=None, hidden_states=None, attention_mask=None, inference_params=None, rotary_pos_emb=None, rotary_pos_cos=None, rotary_pos_sin=None, packed_seq_params=None, sequence_len_offset=None, embedding=None, **others: did.append(("mtp", input_ids, position_ids, hidden_states, attention_mask, inference_params, rotary_pos_emb, rotary_pos_cos, rotary_pos_sin, packed_seq_params, sequence_len_offset, embedding, others)),
                    "output_layer": StandIn("self.output_layer", **{
                        "sequence_parallel": setting.output_layer_sequence_parallel,
                    }),
                    "pg_collection": StandIn("self.pg_collection", **{
                        "tp": None,
                    }),
                    "post_process": setting.post_process,
                    "share_embeddings_and_output_weights": setting.share_embeddings_and_output_weights,
                    "shared_embedding_or_output_weight": lambda: did.append(("shared_embedding_or_output_weight",)),
                    "training": setting.training,
                }),
                "hidden_states": StandIn("hidden_states", **{
                    "squeeze": lambda given_1: did.append(("squeeze", given_1)),
                }),
                "input_ids": None,
                "position_ids": None,
                "labels": StandIn("labels", **{
                    "clone": lambda: did.append(("clone",)),
                }),
                "rotary_pos_emb": None,
                "rotary_pos_cos": None,
                "rotary_pos_sin": None,
                "mtp_in_postprocess": setting.mtp_in_postprocess,
                "loss_mask": setting.loss_mask,
                "decoder_input": None,
                "attention_mask": None,
                "inference_params": None,
                "packed_seq_params": None,
                "sequence_len_offset": None,
                "runtime_gather_output": None,
                "extra_block_kwargs": setting.extra_block_kwargs,
                "inference_context": StandIn("inference_context", **{
                    "is_dynamic_batching": lambda: did.append(("is_dynamic_batching",)),
                    "is_static_batching": lambda: setting.inference_context_is_static_batching,
                    "last_token_logits": lambda given_1: did.append(("last_token_logits", given_1)),
                    "materialize_only_last_token_logits": setting.inference_context_materialize_only_last_token_logits,
                }),
            }
        )
        return [*did, value]


END_STATES = {
    "GPTModel._postprocess": Postprocess(),
}
