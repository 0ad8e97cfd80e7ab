"""gdn-out-norm-tp: its rewrite and its anchor, and what the sessions need of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuzz.subject import Fuzz
from mutants.by_hand import Mutants, Sub
from proofs.others import Other, Proofs, Release, without
from support import sources
from unhang.codemods.base import AnchorError
from unhang.judge import matrix
from unhang.judge.decide import codemod
from unhang.judge.findings import judge
from unhang.shapes import catalog

FIX = "gdn-out-norm-tp"
RELEASES = ("0.19.2", "0.18.2", "0.17.1", "0.16.1", "0.16.0")
CASES = sources.cases(FIX, {"megatron-core": [*RELEASES, "0.14.0", "0.14.0rc6", "0.13.1"]})


REFUSED = sources.edits(
    sources.case(FIX, "0.19.2"),
    [
        ("'q_layernorm' in name", "'q_norm' in name", "not found: elif"),
        ("'q_layernorm' in name", "'q_layernorm' not in name", "not found: elif"),
        ("'q_layernorm' in name", "'q_layernorm' in name + ''", "not found: 'q_layernorm' in a name"),
        ("elif config.sequence_parallel", "elif 'q_layernorm' in name or config.sequence_parallel", "found 2 times"),
        ("'k_layernorm' in name", "'.self_attention.out_norm.' in name", "which is ours"),
    ],
)


def test_a_condition_that_is_no_alternative_is_no_anchor() -> None:
    source = sources.wheel(FIX, "0.19.2")
    test = "config.qk_layernorm and ('q_layernorm' in name or 'k_layernorm' in name)"
    changed = sources.mutated(source.function, test, f"({test} if name else False)")
    codemod(source.target).plan(changed)
    with pytest.raises(AnchorError, match="not found"):
        codemod(source.target).plan(sources.mutated(changed, "config.sequence_parallel and", "True if name else"))


def test_a_release_without_a_gated_delta_net_does_not_need_it() -> None:
    every = catalog.releases()
    now = matrix.rows([catalog.fix(FIX)], {"megatron-core": every["megatron-core"]}, catalog.shape_table())
    needed = [row.version for row in now if row.verdict == "needed"]
    assert (needed[0], {*RELEASES} <= {*needed}) == ("0.16.0", True)
    assert {row.verdict for row in now} == {"needed", "not-affected"}
    place = catalog.fix(FIX).targets[0].place
    assert every["megatron-core"]["0.15.3"].shapes[place] == every["megatron-core"]["0.16.0"].shapes[place] is not None


@pytest.mark.parametrize(
    ("version", "of", "verdict"),
    [
        ("0.15.3", "0.15.3", "not-affected"),
        ("0.15.3", "0.16.1", "needed"),  # as on branch core_dev_r0.15.0, whose versions are those of other trees
        ("0.16.1", "0.16.1", "needed"),
        ("0.19.2", "0.19.2", "needed"),
        ("0.16.1", "0.15.3", "needed"),  # it is gone, and may be elsewhere
    ],
)
def test_code_says_whether_there_is_a_gated_delta_net(tmp_path: Path, version: str, of: str, verdict: str) -> None:
    (found,) = judge([sources.installed(tmp_path, FIX, version, of)], [catalog.fix(FIX)], {})
    assert found.verdict.verdict == verdict


# -- for the sessions -------------------------------------------------------------------------------------------------

_IN = """(
                    ".self_attention.out_norm." in name
                    and not getattr(param, "tensor_model_parallel", False)
                )"""
_NAMED, _WHOLE = '".self_attention.out_norm." in name', 'not getattr(param, "tensor_model_parallel", False)'
_END = '"{}" in name'


def _name(condition: str) -> Sub:
    return Sub(_NAMED, condition)


def _other(condition: str) -> Sub:
    return Sub(f" or {_IN}:", f" or {condition}:")


BY_HAND = {
    "by the end of the name": _name('name.endswith("out_norm.weight")'),
    "the weight alone": _name('name.endswith(".self_attention.out_norm.weight")'),
    "the bias alone": _name('name.endswith(".self_attention.out_norm.bias")'),
    "any output norm": _name(_END.format("out_norm")),
    "any output norm, to its dot": _name(_END.format(".out_norm.")),
    "without the first dot": _name(_END.format("self_attention.out_norm.")),
    "without the last dot": _name(_END.format(".self_attention.out_norm")),
    "any attention": _name(_END.format("_attention.out_norm.")),
    "any norm of an attention": _name(_END.format(".self_attention.")),
    "of the first layer": _other(f'{_IN} and ".1." not in name'),
    "of the decoder": _other(f'{_IN} and name.startswith("decoder")'),
    "of MTP": _other(f'{_IN} and name.startswith("mtp")'),
    "any norm": _name(_END.format("norm")),
    "every parameter": _name("name"),
    "with norms of query and key": _other(f"config.qk_layernorm and {_IN}"),
    "without norms of query and key": _other(f"not config.qk_layernorm and {_IN}"),
    "with sequence parallelism": _other(f"config.sequence_parallel and {_IN}"),
    "marked alone": _other(f'getattr(param, "sequence_parallel", False) and {_IN}'),
    "with Megatron-FSDP": _other(f"ddp_config.use_megatron_fsdp and {_IN}"),
    "without Megatron-FSDP": _other(f"not ddp_config.use_megatron_fsdp and {_IN}"),
    "of the first chunk": _other(f"model_chunk is model[0] and {_IN}"),
    "of the last chunk": _other(f"model_chunk is model[-1] and {_IN}"),
    "the first parameter": _other(f"not params_sum and {_IN}"),
    "with TP 2": _other(f"tp_group.size() == 2 and {_IN}"),
    "with more than TP 2": _other(f"tp_group.size() > 2 and {_IN}"),
    "on rank 0 alone": _other(f"tp_group.rank() == 0 and {_IN}"),
    "on the others alone": _other(f"tp_group.rank() and {_IN}"),
    "not": _other(f"not {_IN}"),
    "split ones too": _other(_NAMED),
    "without asking for a mark": Sub(_WHOLE, "not param.tensor_model_parallel"),
    "by whether there is a mark": Sub(_WHOLE, 'not hasattr(param, "tensor_model_parallel")'),
    "split ones alone": _other(f'{_NAMED} and getattr(param, "tensor_model_parallel", False)'),
    "and": Sub(f" or {_IN}:", f" and {_IN}:"),
    "in float32": Sub(f" or {_IN}:", f" or param.dtype == torch.float32 and {_IN}:"),
    "in the first step": Sub(f" or {_IN}:", f' or {_IN} and param.__dict__.setdefault("step", config) is config:'),
    "not of layer 0": Sub(f" or {_IN}:", f' or {_IN} and ".0." not in name:'),
}
MUTANTS = [Mutants("megatron-core", ("0.13.1", "0.19.2"), BY_HAND)]
_CONDITION = r'"\.self_attention\.out_norm\." in name'
PROOFS = [
    Proofs(
        "megatron-core",
        [Release("0.19.2", core=True), *map(Release, ("0.18.2", "0.17.1", "0.16.1", "0.16.0"))],
        {
            "half: on rank 0 alone": Other(
                without(_CONDITION, r"torch.distributed.get_rank() == 0 and \g<0>"), ("tp2",), "(crashed|hung|differs)"
            ),
            "half: the weight alone": Other(
                without(_CONDITION, 'name.endswith(".self_attention.out_norm.weight")'), ("tp2-bias",), "differs"
            ),
            "by the end of the name": Other(
                without(_CONDITION, 'name.endswith("out_norm.weight")'),
                ("tp2", "tp2-sequence-parallel"),
                "differs: the gradient of vision_model",
            ),
        },
    )
]
FUZZ = Fuzz(CASES, 1, "out_norm|self_attention|q_layernorm|k_layernorm|sequence_parallel", examples=40)
