"""cp-masked-loss: its rewrite and its anchors, and what the sessions need of it."""

from __future__ import annotations

import re

import pytest

from fuzz.subject import Fuzz
from mutants.by_hand import ByHand, Mutants, Sub
from proofs.others import Other, Proofs, Release, without
from support import sources, wheels
from unhang.judge import untouched
from unhang.shapes import catalog

FIX = "cp-masked-loss"
RELEASES = ("0.19.2", "0.18.2", "0.17.1", "0.16.1", "0.15.3", "0.14.0")
CASES = sources.cases(FIX, {"megatron-core": [*RELEASES]})
REFUSED = sources.edits(
    sources.case(FIX, "0.19.2"),
    [
        ("cp_group_size=None", "size=None", "arguments model and cp_group_size"),
        ("output_tensor, num_tokens, loss_reduced = outputs", "output_tensor, num_tokens = outputs", "a report"),
        ("if not config.calculate_per_token_loss", "if config.calculate_per_token_loss", "output_tensor /= num_tokens"),
        ("torch.clamp(num_tokens, min=1)", "torch.clamp(num_tokens, min=2)", "output_tensor /= num_tokens"),
        ("output_tensor /= torch.clamp", "output_tensor *= torch.clamp", "output_tensor /= num_tokens"),
        ("num_tokens = torch.tensor", "num_tokens = cp_tokens = torch.tensor", "which is ours"),
    ],
)


@pytest.mark.parametrize("version", ["0.11.0", "0.12.3", "0.13.0rc0", "0.13.1", "0.14.0rc2", "0.14.0rc5", "0.14.0"])
def test_the_releases_that_divide_in_another_function_are_known_by_it(version: str) -> None:
    (row,) = catalog.fix(FIX).manifest["instead"]
    data = wheels.read("megatron-core", version, *row["files"])
    assert (re.search(row["pattern"].encode(), data or b"") is not None) == (version in row["needed-in"])
    release = catalog.releases()["megatron-core"][version]
    found = untouched.verdict(catalog.fix(FIX), "megatron-core", release, catalog.shape_table())
    assert found == ("needed" if version >= "0.13" else "not-affected")


# -- for the sessions -------------------------------------------------------------------------------------------------

_IF = "if cp_group_size > 1 and torch.is_grad_enabled():"
_SAME = "if cp_group is not None and cp_group.size() == cp_group_size:"
_SUM, _SCALE = "torch.distributed.all_reduce(cp_tokens, group=cp_group)", "output_tensor *= cp_group_size"
_CLONE = "cp_tokens.detach().clone()"
_OF_MODEL = 'get_attr_wrapped_model(model, "cp_group")'
BY_HAND: ByHand = {
    "with one rank too": Sub(_IF, "if torch.is_grad_enabled():"),
    "with more than two": Sub("cp_group_size > 1", "cp_group_size > 2"),
    "with two alone": Sub("cp_group_size > 1", "cp_group_size == 2"),
    "with four at most": Sub("cp_group_size > 1", "1 < cp_group_size <= 4"),
    "with even sizes": Sub("cp_group_size > 1", "cp_group_size % 2 == 0"),
    "in evaluation too": Sub(_IF, "if cp_group_size > 1:"),
    "for a loss that needs a gradient on this rank": Sub("torch.is_grad_enabled()", "num_tokens > 0"),
    "for a loss with a gradient": Sub("torch.is_grad_enabled()", "output_tensor.requires_grad"),
    "of any size": Sub(_SAME, "if cp_group is not None:"),
    "without asking for a group": Sub(_SAME, "if cp_group.size() == cp_group_size:"),
    "a group of None": Sub(_SAME, "if True:"),
    "of parallel_state alone": Sub(_OF_MODEL, "None"),
    "of the model alone": Sub("if cp_group is None:", "if False:"),
    "of the outer model": Sub(_OF_MODEL, 'getattr(model, "cp_group", None)'),
    "the largest": Sub(_SUM, f"{_SUM[:-1]}, op=torch.distributed.ReduceOp.MAX)"),
    "of the default group": Sub(_SUM, "torch.distributed.all_reduce(cp_tokens)"),
    "not waited for": Sub(_SUM, f"{_SUM[:-1]}, async_op=True)"),
    "summed twice": Sub(_SUM, f"{_SUM}; {_SUM}"),
    "summed once": Sub(_SCALE, f'cp_tokens = vars(config).setdefault("sum", cp_tokens); {_SCALE}'),
    "summed once for each count": Sub(
        _SUM, f"if vars(config).setdefault(str(num_tokens), cp_tokens) is cp_tokens: {_SUM}"
    ),
    "summed up": Sub(_SCALE, f'cp_tokens = config.sum = getattr(config, "sum", 0) + cp_tokens; {_SCALE}'),
    "the count is changed": Sub(_CLONE, "cp_tokens"),
    "in the type of the count": Sub("num_tokens, dtype=torch.float32", "num_tokens"),
    "in integers": Sub("torch.float32", "torch.int64"),
    "in bfloat16": Sub("torch.float32", "torch.bfloat16"),
    "in the type of the loss": Sub("torch.float32", "output_tensor.dtype"),
    "not scaled": Sub(_SCALE, "pass"),
    "scaled too much": Sub(_SCALE, f"{_SCALE} * 2"),
    "scaled out of place": Sub(_SCALE, "output_tensor = output_tensor * cp_group_size"),
    "scaled by the tokens": Sub(_SCALE, "output_tensor *= num_tokens"),
    "divided by its own": Sub("torch.clamp(cp_tokens", "torch.clamp(num_tokens"),
    "divided by less than one": Sub("torch.clamp(cp_tokens, min=1)", "(cp_tokens + (cp_tokens == 0))"),
}
MUTANTS = [Mutants("megatron-core", ("0.15.3", "0.19.2"), BY_HAND)]
PROOFS = [
    Proofs(
        "megatron-core",
        [Release("0.19.2", core=True), *map(Release, RELEASES[1:])],
        {
            "half: not scaled": Other(
                without(r"output_tensor \*= cp_group_size(?=\n\s+output_tensor /= \S*cp_tokens)", "pass"),
                ("cp2",),
                "differs",
            ),
            "half: on rank 0 alone": Other(
                without(r"cp_group_size > 1 and", r"\g<0> torch.distributed.get_rank() == 0 and"),
                ("cp2",),
                "(crashed|hung|differs)",
            ),
            "the largest count": Other(
                without(r"group=cp_group\)", "group=cp_group, op=torch.distributed.ReduceOp.MAX)"),
                ("cp2-no-mask",),
                "differs",
            ),
        },
    )
]
FUZZ = Fuzz(CASES, 1, "torch|tokens|cp_group|model|clamp|all_reduce|parallel_state|output_tensor", examples=40)
