"""cp-masked-loss: its anchors, and what the sessions need of it."""

from __future__ import annotations

import re

import pytest

from fuzz.subject import Fuzz
from mutants.by_hand import ByHand, Mutants, Sub
from proofs.others import Other, Proofs, Release, without
from support import sources, wheels
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
        ("output_tensor /= torch.clamp", "output_tensor *= torch.clamp", "output_tensor /= num_tokens"),
        ("num_tokens = torch.tensor", "num_tokens = cp_tokens = torch.tensor", "which is ours"),
    ],
)


@pytest.mark.parametrize("version", ["0.12.3", "0.13.0rc0", "0.13.1", "0.14.0rc2", "0.14.0rc5", "0.14.0"])
def test_the_releases_that_divide_in_another_function_are_known_by_it(version: str) -> None:
    (row,) = catalog.fix(FIX).manifest["instead"]
    data = wheels.read("megatron-core", version, *row["files"])
    assert (re.search(row["pattern"].encode(), data or b"") is not None) == (version in row["needed-in"])


# -- for the sessions -------------------------------------------------------------------------------------------------

_IF = "if cp_group_size > 1 and torch.is_grad_enabled():"
_SAME = "if cp_group is not None and cp_group.size() == cp_group_size:"
_SUM, _SCALE = "torch.distributed.all_reduce(cp_tokens, group=cp_group)", "output_tensor *= cp_group_size"
_CLONE = "cp_tokens.detach().clone()"
_OF_MODEL = 'get_attr_wrapped_model(model, "cp_group")'
BY_HAND: ByHand = {
    "with one rank too": Sub(_IF, "if torch.is_grad_enabled():"),
    "with four at most": Sub("cp_group_size > 1", "1 < cp_group_size <= 4"),
    "in evaluation too": Sub(_IF, "if cp_group_size > 1:"),
    "for a loss that needs a gradient on this rank": Sub("torch.is_grad_enabled()", "num_tokens > 0"),
    "for a loss with a gradient": Sub("torch.is_grad_enabled()", "output_tensor.requires_grad"),
    "of any size": Sub(_SAME, "if cp_group is not None:"),
    "without asking for a group": Sub(_SAME, "if cp_group.size() == cp_group_size:"),
    "of parallel_state alone": Sub(_OF_MODEL, "None"),
    "of the model alone": Sub("if cp_group is None:", "if False:"),
    "the largest": Sub(_SUM, f"{_SUM[:-1]}, op=torch.distributed.ReduceOp.MAX)"),
    "not waited for": Sub(_SUM, f"{_SUM[:-1]}, async_op=True)"),
    "summed once": Sub(_SCALE, f'cp_tokens = vars(config).setdefault("sum", cp_tokens); {_SCALE}'),
    "summed once for each count": Sub(
        _SUM, f"if vars(config).setdefault(str(num_tokens), cp_tokens) is cp_tokens: {_SUM}"
    ),
    "the count is changed": Sub(_CLONE, "cp_tokens"),
    "in bfloat16": Sub("torch.float32", "torch.bfloat16"),
    "in the type of the loss": Sub("torch.float32", "output_tensor.dtype"),
    "scaled out of place": Sub(_SCALE, "output_tensor = output_tensor * cp_group_size"),
    "divided by less than one": Sub("torch.clamp(cp_tokens, min=1)", "(cp_tokens + (cp_tokens == 0))"),
}
MUTANTS = [Mutants("megatron-core", ("0.15.3", "0.19.2"), BY_HAND)]
_NOT_SCALED = without(r"output_tensor \*= cp_group_size(?=\n\s+output_tensor /= \S*cp_tokens)", "pass")
_ON_RANK_0 = without(r"cp_group_size > 1 and", r"\g<0> torch.distributed.get_rank() == 0 and")
_LARGEST = without(r"group=cp_group\)", "group=cp_group, op=torch.distributed.ReduceOp.MAX)")
_HALVES = {
    "half: not scaled": Other(_NOT_SCALED, ("cp2",), "differs"),
    "half: on rank 0 alone": Other(_ON_RANK_0, ("cp2",), "(crashed|hung|differs)"),
    "the largest count": Other(_LARGEST, ("cp2-no-mask",), "differs"),
}
PROOFS = [Proofs("megatron-core", [Release(it, core=it == "0.19.2") for it in RELEASES], _HALVES)]
FUZZ = Fuzz(CASES, 1, "torch|tokens|cp_group|model|clamp|all_reduce|parallel_state|output_tensor", examples=40)
