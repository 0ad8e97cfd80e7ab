"""gdn-out-norm-tp: its anchor, and what the sessions need of it."""

from __future__ import annotations

from fuzz.subject import Fuzz
from mutants.by_hand import Mutants, Sub
from proofs.others import Other, Proofs, Release, without
from support import sources

FIX = "gdn-out-norm-tp"
RELEASES = ("0.19.2", "0.18.2", "0.17.1", "0.16.1", "0.16.0")
CASES = sources.cases(FIX, {"megatron-core": [*RELEASES, "0.14.0", "0.14.0rc6", "0.13.1"]})
REFUSED = sources.edits(
    sources.case(FIX, "0.19.2"),
    [
        ("'q_layernorm' in name", "'q_norm' in name", "not found: elif"),
        ("'q_layernorm' in name", "'q_layernorm' in name + ''", "not found: 'q_layernorm' in a name"),
        ("config.sequence_parallel and getattr", "True if name else getattr", "not found: elif"),
        ("elif config.sequence_parallel", "elif 'q_layernorm' in name or config.sequence_parallel", "found 2 times"),
        ("'k_layernorm' in name", "'.self_attention.out_norm.' in name", "which is ours"),
    ],
)

# -- for the sessions -------------------------------------------------------------------------------------------------

_IN = """(
                    ".self_attention.out_norm." in name
                    and not getattr(param, "tensor_model_parallel", False)
                )"""
_NAMED, _WHOLE = '".self_attention.out_norm." in name', 'not getattr(param, "tensor_model_parallel", False)'
_OR, _END = f" or {_IN}:", '"{}" in name'
BY_HAND = {
    "by the end of the name": Sub(_NAMED, 'name.endswith("out_norm.weight")'),
    "the bias alone": Sub(_NAMED, 'name.endswith(".self_attention.out_norm.bias")'),
    "any output norm, to its dot": Sub(_NAMED, _END.format(".out_norm.")),
    "without the last dot": Sub(_NAMED, _END.format(".self_attention.out_norm")),
    "any norm of an attention": Sub(_NAMED, _END.format(".self_attention.")),
    "of the first layer": Sub(_OR, f' or {_IN} and ".1." not in name:'),
    "of the decoder": Sub(_OR, f' or {_IN} and name.startswith("decoder"):'),
    "of MTP": Sub(_OR, f' or {_IN} and name.startswith("mtp"):'),
    "marked alone": Sub(_OR, f' or getattr(param, "sequence_parallel", False) and {_IN}:'),
    "without Megatron-FSDP": Sub(_OR, f" or not ddp_config.use_megatron_fsdp and {_IN}:"),
    "of the first chunk": Sub(_OR, f" or model_chunk is model[0] and {_IN}:"),
    "with TP 2": Sub(_OR, f" or tp_group.size() == 2 and {_IN}:"),
    "split ones too": Sub(_OR, f" or {_NAMED}:"),
    "without asking for a mark": Sub(_WHOLE, "not param.tensor_model_parallel"),
    "by whether there is a mark": Sub(_WHOLE, 'not hasattr(param, "tensor_model_parallel")'),
    "in float32": Sub(_OR, f" or param.dtype == torch.float32 and {_IN}:"),
    "in the first step": Sub(_OR, f' or {_IN} and param.__dict__.setdefault("step", config) is config:'),
    "not of layer 0": Sub(_OR, f' or {_IN} and ".0." not in name:'),
}
MUTANTS = [Mutants("megatron-core", ("0.13.1", "0.19.2"), BY_HAND)]
_CONDITION = r'"\.self_attention\.out_norm\." in name'
_ON_RANK_0 = without(_CONDITION, r"torch.distributed.get_rank() == 0 and \g<0>")
_WEIGHT_ALONE = without(_CONDITION, 'name.endswith(".self_attention.out_norm.weight")')
_BY_END, _OF_VISION = without(_CONDITION, 'name.endswith("out_norm.weight")'), "differs: the gradient of vision_model"
_HALVES = {
    "half: on rank 0 alone": Other(_ON_RANK_0, ("tp2",), "(crashed|hung|differs)"),
    "half: the weight alone": Other(_WEIGHT_ALONE, ("tp2-bias",), "differs"),
    "by the end of the name": Other(_BY_END, ("tp2", "tp2-sequence-parallel"), _OF_VISION),
}
PROOFS = [Proofs("megatron-core", [Release(it, core=it == "0.19.2") for it in RELEASES], _HALVES)]
FUZZ = Fuzz(CASES, 1, "out_norm|self_attention|q_layernorm|k_layernorm|sequence_parallel", examples=40)
