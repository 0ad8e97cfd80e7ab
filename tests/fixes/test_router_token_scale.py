"""router-token-scale: its rewrites and their anchors, and what the sessions need of it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from fuzz.subject import Fuzz
from mutants.by_hand import ByHand, Mutants, Sub
from proofs.others import Other, Proofs, Release, in_file, untouched, without
from support import sources
from unhang.judge import matrix
from unhang.judge.decide import NO_REWRITE
from unhang.judge.findings import judge
from unhang.shapes import catalog

FIX, CORE = "router-token-scale", "megatron-core"
OLD, ATTACH, Z, SEQUENCE, GLOBAL, COUNT = (target.function for target in catalog.fix(FIX).targets)
UNSCALED, PADDED = ("0.14.0", "0.15.3", "0.16.1", "0.17.1", "0.18.2"), ("0.16.1", "0.17.1", "0.18.2")
CASES = [
    *sources.cases(FIX, {CORE: ["0.12.3", "0.13.1"]}, function=OLD),
    *sources.cases(FIX, {CORE: UNSCALED}, function=ATTACH),
    *sources.cases(FIX, {CORE: ["0.12.3", *UNSCALED]}, function=Z),
    *sources.cases(FIX, {CORE: PADDED}, function=SEQUENCE),
    *sources.cases(FIX, {CORE: [*PADDED, "0.19.2"]}, function=GLOBAL),
    *sources.cases(FIX, {CORE: [*PADDED, "0.19.2"]}, function=COUNT),
]


_EDITED = [
    (ATTACH, "aux_loss * num_tokens", "aux_loss / num_tokens", r"\* \.\.\.\) with self.calc"),
    (ATTACH, "aux_loss * num_tokens", "num_tokens * aux_loss", "a loss times activation.shape"),
    (ATTACH, "else activation.shape[0]", "else activation.shape[1]", "a loss times activation.shape"),
    (ATTACH, "aux_loss * num_tokens)", "aux_loss * num_tokens, None)", "with self.calculate_per_token_loss"),
    (ATTACH, "if self.calculate_per_token_loss", "if self.config.calculate_per_token_loss", "if self.calc"),
    (SEQUENCE, "valid_token_count=local_num_tokens", "valid_token_count=total_num_tokens", "valid_token_count="),
    (SEQUENCE, "valid_token_count=local", "aux_loss_scale_num_tokens=1, valid_token_count=local", "one count"),
    (SEQUENCE, "topk=self.topk * bsz", "topk=bsz", "topk="),
    (GLOBAL, "self.ga_steps += 1", "local_num_tokens = 1", "which nothing else reads"),
    (GLOBAL, "self.ga_steps += 1", "total_num_tokens = 1", "as get_tokens_per_expert"),
    (GLOBAL, "get_tokens_per_expert_and_token_count(", "other(", "get_tokens_per_expert_and_token_count"),
    (COUNT, "local_tokens_per_expert, reduce_group", "local_tokens_per_expert.clone(), reduce_group", "reduced"),
    (COUNT, "local_tokens_per_expert.sum() / topk", "routing_map.sum() / topk", "a sum of what was reduced"),
    (COUNT, "local_num_tokens * reduce_group.size()", "routing_map.numel()", "\\.\\.\\. \\* "),
]
REFUSED = [edit for name, *row in _EDITED for edit in sources.edits(sources.case(FIX, "0.18.2", function=name), [row])]


def test_a_nightly_that_divides_whole_tokens_gets_the_mean_too() -> None:
    """Pull request 7183 divides by ``//``: the mean over the group is a true division all the same."""
    source = sources.wheel(FIX, "0.19.2", function=COUNT)
    whole = source.data.replace(b".sum() / topk", b".sum() // topk")
    assert b"global_tokens_per_expert.sum() // topk / reduce_group.size()" in sources.rewritten(
        source.target, whole, None
    )


def test_each_release_has_the_verdict_of_the_losses_that_it_knows() -> None:
    releases = catalog.releases()[CORE]
    rows = matrix.rows([catalog.fix(FIX)], {CORE: releases}, catalog.shape_table())
    now = {row.version: row.verdict for row in rows}
    assert {now[version] for version in ("0.10.0", "0.12.3", "0.13.1", *UNSCALED, "0.19.0", "0.19.2")} == {"needed"}


@pytest.mark.parametrize(
    ("version", "of", "verdicts"),
    [
        ("0.11.0", "0.11.0", {"needed", "not-affected"}),  # without a rewrite
        ("0.15.3", "0.14.0", {"needed", "not-affected"}),  # before the global loss, under a number that has it
        ("0.14.0", "0.13.1", {"needed", "not-affected"}),
        ("0.19.2", "0.19.2", {"needed", "not-affected", "fixed-upstream"}),
        ("0.19.2", "0.15.3", {"needed", "not-affected", "drifted"}),  # its count is gone, and may be elsewhere
    ],
)
def test_code_says_which_losses_there_are(tmp_path: Path, version: str, of: str, verdicts: set[str]) -> None:
    found = judge([sources.installed(tmp_path, FIX, version, of)], [catalog.fix(FIX)], {})
    assert {finding.verdict.verdict for finding in found} == verdicts
    assert {finding.verdict.code == NO_REWRITE for finding in found if finding.verdict.verdict == "needed"} == {
        version == "0.11.0"
    }


# -- for the sessions -------------------------------------------------------------------------------------------------


def _instead(old: str, *others: str, all_of: str = "{}") -> ByHand:
    """Return what a person may write in the place of some code, each named by itself."""
    return {new: Sub(all_of.format(old), all_of.format(new)) for new in (it.replace("{}", old) for it in others)}


_SIZE, _TP, _CP = "self.tp_cp_group.size()", "self.tp_group.size()", "self.cp_group.size()"
_WORLD = "parallel_state.get_tensor_and_context_parallel_world_size()"
_PARTITION = "(1 if sequence_partition_group is None else sequence_partition_group.size())"
_FACTORS = (
    *("1", "1 / {}", "{} ** 2", "2", "max(2, {})", "min(2, {})", "({} + 1)", "({} - 1)", "{} / 2", _TP, _CP),
    *("self.tp_dp_cp_group.size()", f"max({_TP}, {_CP})", f"({{}} if min({_TP}, {_CP}) > 1 else 1)"),
    *(f"({{}} if {one} > 1 else 1)" for one in (_TP, _CP)),
)
"""What a person may multiply a loss by instead."""
_GIVEN = ("({} if %s is not None else 1)", "({} if %s is None else 1)")
_ATTACHED = _instead(
    *(_SIZE, *_FACTORS, "reduce_group.size()", *(it % "valid_token_count" for it in _GIVEN)),
    "{} * int(aux_loss.item() == aux_loss.item())",
)
_OF_Z: ByHand = {
    **_instead(_SIZE, *_FACTORS, *(it % "padding_mask" for it in _GIVEN)),
    **_instead(_SIZE, f"self.config.moe_z_loss_coeff / moe_z_loss_coeff * {_CP}"),
    "all rows": Sub("num_tokens", "logits.shape[0]"),
    "the loss that is logged too": Sub("z_loss * num_tokens", "(z_loss := z_loss * num_tokens)"),
}
_OF_SEQUENCES = _instead(
    "local_num_tokens * bsz",
    *("local_num_tokens", "local_num_tokens / bsz", "total_num_tokens * bsz", "total_num_tokens", "probs.shape[0]"),
    *("None", "local_num_tokens * seq_length", "local_num_tokens * self.topk", "local_num_tokens * 2"),
    *("local_num_tokens * (bsz + 1)", "local_num_tokens * min(2, bsz)", f"{{}} * {_SIZE}", "{}**2", "{} / 2", "{} + 1"),
    *("local_num_tokens * (bsz if with_padding_mask else 1)", "local_num_tokens * (1 if with_padding_mask else bsz)"),
    *("local_num_tokens * self.tp_group.size()", f"local_num_tokens * (bsz if {_SIZE} > 1 else 1)"),
)
_MASKED = "with_padding_mask"
_OF_ALL: ByHand = {
    **_instead(_MASKED, "False", "True", "not {}", f"{{}} and {_SIZE} > 1", f"{{}} and {_SIZE} == 1", all_of="if {}:"),
    **_instead(_SIZE, "self.tp_dp_cp_group.size()", _TP, _CP, "{} / self.ga_steps", "2", "min(2, {})"),
    **_instead(f"total_num_tokens / {_SIZE}", "total_num_tokens", f"total_num_tokens * {_SIZE}", "int({})"),
    **_instead(f"total_num_tokens / {_SIZE}", f"local_num_tokens / {_SIZE}"),
    "the total too": Sub("local_num_tokens = total", "local_num_tokens = total_num_tokens = total"),
}
_TOTAL, _RANKS = "global_tokens_per_expert.sum() / topk", "reduce_group.size()"
_COUNTED: ByHand = {
    **_instead(
        f"{_TOTAL} / {_RANKS}",
        *("routing_map.sum() / topk", "local_tokens_per_expert.sum() / topk", f"{_TOTAL} // {_RANKS}", "({}).long()"),
        *(_TOTAL, f"{_TOTAL} * {_RANKS}", "routing_map.shape[0]", f"{_TOTAL} / 2", "{} / topk", "{} * topk", "{} / 2"),
        *(f"global_tokens_per_expert.sum() / {_RANKS}", "routing_map.shape[0] * topk"),
        "reduce_from_tensor_model_parallel_region(routing_map.sum(dim=0), reduce_group).sum() / topk",
    ),
    **_instead(_RANKS, "min(2, {})", "(reduce_group.rank() + 1)", "({} + 1)"),
    "the total too": Sub(f"total_num_tokens = {_TOTAL}", "total_num_tokens = local_num_tokens"),
    "on the host": Sub(_TOTAL, "global_tokens_per_expert.sum().item() / topk"),
}
_CONTEXT = "parallel_state.get_context_parallel_world_size()"
MUTANTS = [
    Mutants(CORE, versions, by_hand, function=function)
    for function, versions, by_hand in (
        (OLD, ("0.12.3",), _instead(_PARTITION, *_FACTORS, _WORLD, _CONTEXT)),
        (OLD, ("0.13.1",), _instead(_SIZE, *_FACTORS)),
        (ATTACH, ("0.15.3",), _instead(_SIZE, *_FACTORS)),
        (ATTACH, ("0.18.2",), _ATTACHED),
        (Z, ("0.15.3",), _instead(_SIZE, *_FACTORS)),
        (Z, ("0.18.2",), _OF_Z),
        (SEQUENCE, ("0.18.2",), _OF_SEQUENCES),
        (GLOBAL, ("0.16.1", "0.19.2"), _OF_ALL),
        (COUNT, ("0.19.2",), _COUNTED),
    )
]
_PADDED = ("aux-even", "aux-uneven", "sequences-even", "z-uneven", "global-even", "one-padded", "global-dp-padded")
_ALONE, _COUNT_ALONE, _NO_GLOBAL_LOSS = "half: the losses alone", "half: the count alone", "without the global loss"
_OF_7481, _ONE_SEQUENCE = "those of this rank, as pull request 7481", "one sequence"
_NO_PADDING = {
    **dict.fromkeys(_PADDED, "its routers know no padding"),
    **dict.fromkeys((_ALONE, _COUNT_ALONE, _NO_GLOBAL_LOSS, _OF_7481, _ONE_SEQUENCE), "it has no count of padding"),
}
_NO_GLOBAL = {**_NO_PADDING, **dict.fromkeys(("global", "global-dp"), "it has no global loss")}
_ROUTER, _UTILS = partial(in_file, "router.py"), partial(in_file, "moe_utils.py")
_LOCAL = without(r"total_num_tokens / self\.tp_cp_group\.size\(\)", "local_num_tokens")
_OWN = without(r"global\w+\.sum\(\) / topk / reduce_group\.size\(\)", "routing_map.sum() / topk")
_FIRST = without(r"local_num_tokens \* bsz", "local_num_tokens")
PROOFS = [
    Proofs(
        CORE,
        [
            *(Release(version, core=version == "0.18.2") for version in ("0.18.2", "0.19.2", "0.17.1", "0.16.1")),
            Release("0.15.3", lacking=_NO_PADDING),
            *(Release(version, lacking=_NO_GLOBAL) for version in ("0.14.0", "0.13.1", "0.12.3")),
        ],
        {
            _ALONE: Other(_UTILS(untouched), ("aux-even", "aux-uneven"), "differs"),
            _COUNT_ALONE: Other(_ROUTER(untouched), ("aux-even", "sequences", "z"), "differs", PADDED),
            _NO_GLOBAL_LOSS: Other(_ROUTER(_LOCAL), ("global-even", "global-dp-padded"), "differs"),
            _OF_7481: Other(_UTILS(_OWN), ("aux-uneven",), "differs: .* is 0.0446, right is 0.0388"),
            _ONE_SEQUENCE: Other(_ROUTER(_FIRST), ("sequences", "sequences-alone"), "differs", PADDED),
        },
    )
]
FUZZ = Fuzz(CASES, 1, "num_tokens|valid_token_count|tp_cp_group|calculate_per_token_loss|topk", examples=40)
