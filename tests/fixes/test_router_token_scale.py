"""router-token-scale: its rewrites and their anchors, and what the sessions need of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuzz.subject import Fuzz
from mutants.by_hand import ByHand, Mutants, Sub
from proofs.others import Other, Proofs, Release, in_file, untouched, without
from support import sources, wheels
from support.rewrites import EveryRewrite
from unhang.codemods.base import AnchorError
from unhang.judge import matrix
from unhang.judge.decide import NO_REWRITE, codemod
from unhang.judge.findings import judge
from unhang.records import Installation
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
FIXED = sources.cases(FIX, {CORE: ["0.19.2"]}, state="fixed", function=ATTACH) + sources.cases(
    FIX, {CORE: ["0.19.2"]}, state="fixed", function=SEQUENCE
)


@pytest.mark.parametrize("case", CASES)
class TestRewrite(EveryRewrite):
    """What the functions do is the end state's to show."""


@pytest.mark.parametrize("case", FIXED)
def test_upstreams_own_fix_is_no_anchor_and_is_known(case: sources.Case) -> None:
    source = case.load()
    change = codemod(source.target)
    with pytest.raises(AnchorError):
        change.plan(source.function)
    assert change.fixed_upstream(source.function)
    assert not change.fixed_upstream(sources.wheel(FIX, "0.18.2", function=source.target.function).function)


@pytest.mark.parametrize(
    ("function", "old", "new", "anchor"),
    [
        (ATTACH, "aux_loss * num_tokens", "aux_loss / num_tokens", "a loss times activation.shape"),
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
        # pull request 7481: what is counted is no longer what is reduced
        (COUNT, "local_tokens_per_expert, reduce_group", "local_tokens_per_expert.clone(), reduce_group", "reduced"),
        (COUNT, "local_tokens_per_expert.sum() / topk", "routing_map.sum() / topk", "a sum of what was reduced"),
        (COUNT, "local_num_tokens * reduce_group.size()", "routing_map.numel()", "\\.\\.\\. \\* "),
    ],
)
def test_another_count_is_no_anchor(function: str, old: str, new: str, anchor: str) -> None:
    sources.assert_no_anchor(sources.wheel(FIX, "0.18.2", function=function), old, new, anchor)


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
    for file in {one.file for one in catalog.fix(FIX).functions}:
        if data := wheels.read(CORE, of, file):
            (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / file).write_bytes(data)
    where = Installation(
        CORE, version, str(tmp_path), str(tmp_path), str(tmp_path / "megatron/core"), "wheel", None, ()
    )
    found = judge([where], [catalog.fix(FIX)], {})
    assert {finding.verdict.verdict for finding in found} == verdicts
    assert {finding.verdict.code == NO_REWRITE for finding in found if finding.verdict.verdict == "needed"} == {
        version == "0.11.0"
    }


# -- for the sessions -------------------------------------------------------------------------------------------------

_SIZE = "self.tp_cp_group.size()"


def _times(size: str) -> ByHand:
    """Return what a person may multiply a loss by instead."""

    def by(new: str) -> Sub:
        return Sub(f"* {size},", f"{new},")

    return {
        "not at all": by(""),
        "divided": by(f"/ {size}"),
        "a square": by(f"* {size} ** 2"),
        "two": by("* 2"),
        "from two on": by(f"* max(2, {size})"),
        "up to two": by(f"* min(2, {size})"),
        "one more": by(f"* ({size} + 1)"),
        "one less": by(f"* ({size} - 1)"),
        "of TP": by("* self.tp_group.size()"),
        "of CP": by("* self.cp_group.size()"),
        "of all": by("* self.tp_dp_cp_group.size()"),
        "half": by(f"* {size} / 2"),
        "the larger": by("* max(self.tp_group.size(), self.cp_group.size())"),
        "with TP alone": by(f"* ({size} if self.tp_group.size() > 1 else 1)"),
        "with CP alone": by(f"* ({size} if self.cp_group.size() > 1 else 1)"),
        "with both alone": by(f"* ({size} if min(self.tp_group.size(), self.cp_group.size()) > 1 else 1)"),
    }


_ATTACHED: ByHand = {
    **_times(_SIZE),
    "of the group that is reduced": Sub(f"* {_SIZE}", "* reduce_group.size() ** 2"),
    "with a count alone": Sub(f"* {_SIZE}", f"* ({_SIZE} if valid_token_count is not None else 1)"),
    "without a count alone": Sub(f"* {_SIZE}", f"* ({_SIZE} if valid_token_count is None else 1)"),
    "on the host": Sub(f"* {_SIZE}", f"* {_SIZE} * int(aux_loss.item() == aux_loss.item())"),
}
_OF_Z: ByHand = {
    **_times(_SIZE),
    "with a mask alone": Sub(f"* {_SIZE}", f"* ({_SIZE} if padding_mask is not None else 1)"),
    "without a mask alone": Sub(f"* {_SIZE}", f"* ({_SIZE} if padding_mask is None else 1)"),
    "all rows": Sub("num_tokens", "logits.shape[0]"),
    "the loss that is logged too": Sub("z_loss * num_tokens", "(z_loss := z_loss * num_tokens)"),
    "the coefficient": Sub(f"* {_SIZE}", "* self.config.moe_z_loss_coeff / moe_z_loss_coeff * self.cp_group.size()"),
}
_OF_SEQUENCES: ByHand = {
    "one sequence": Sub("local_num_tokens * bsz", "local_num_tokens"),
    "divided": Sub("local_num_tokens * bsz", "local_num_tokens / bsz"),
    "all tokens": Sub("local_num_tokens * bsz", "total_num_tokens * bsz"),
    "all tokens of a sequence": Sub("local_num_tokens * bsz", "total_num_tokens"),
    "all rows": Sub("local_num_tokens * bsz", "probs.shape[0]"),
    "nothing": Sub("local_num_tokens * bsz", "None"),
    "by length": Sub("local_num_tokens * bsz", "local_num_tokens * seq_length"),
    "by the experts of a token": Sub("local_num_tokens * bsz", "local_num_tokens * self.topk"),
    "two": Sub("* bsz", "* 2"),
    "one more": Sub("* bsz", "* (bsz + 1)"),
    "up to two": Sub("* bsz", "* min(2, bsz)"),
    "by the group too": Sub("* bsz", f"* bsz * {_SIZE}"),
    "a square": Sub("* bsz", "* bsz**2"),
    "with a mask alone": Sub("* bsz", "* (bsz if with_padding_mask else 1)"),
    "without a mask alone": Sub("* bsz", "* (1 if with_padding_mask else bsz)"),
    "half": Sub("* bsz", "* bsz / 2"),
    "by TP": Sub("* bsz", "* self.tp_group.size()"),
    "the next": Sub("* bsz", "* bsz + 1"),
    "with TP alone": Sub("* bsz", f"* (bsz if {_SIZE} > 1 else 1)"),
}
_OF_ALL: ByHand = {
    "not": Sub("if with_padding_mask:", "if False:"),
    "always": Sub("if with_padding_mask:", "if True:"),
    "the other way": Sub("if with_padding_mask:", "if not with_padding_mask:"),
    "of the group that is reduced": Sub(_SIZE, "self.tp_dp_cp_group.size()"),
    "all tokens": Sub(f"total_num_tokens / {_SIZE}", "total_num_tokens"),
    "times": Sub("total_num_tokens /", "total_num_tokens *"),
    "whole tokens": Sub(f"total_num_tokens / {_SIZE}", f"int(total_num_tokens / {_SIZE})"),
    "of TP": Sub(_SIZE, "self.tp_group.size()"),
    "of CP": Sub(_SIZE, "self.cp_group.size()"),
    "those of a rank": Sub("total_num_tokens /", "local_num_tokens /"),
    "the mean of steps": Sub(_SIZE, f"{_SIZE} / self.ga_steps"),
    "with several ranks alone": Sub("if with_padding_mask:", f"if with_padding_mask and {_SIZE} > 1:"),
    "on one rank alone": Sub("if with_padding_mask:", f"if with_padding_mask and {_SIZE} == 1:"),
    "two": Sub(_SIZE, "2"),
    "up to two": Sub(_SIZE, f"min(2, {_SIZE})"),
    "the total too": Sub("local_num_tokens = total", "local_num_tokens = total_num_tokens = total"),
}
_TOTAL = "global_tokens_per_expert.sum() / topk"
_MEAN = f"{_TOTAL} / reduce_group.size()"
_COUNTED: ByHand = {
    "those of this rank, as pull request 7481": Sub(_MEAN, "routing_map.sum() / topk"),
    "as it was": Sub(_MEAN, "local_tokens_per_expert.sum() / topk"),
    "whole tokens": Sub(_MEAN, f"{_TOTAL} // reduce_group.size()"),
    "rounded": Sub(_MEAN, f"({_MEAN}).long()"),
    "all": Sub(_MEAN, _TOTAL),
    "times": Sub(_MEAN, f"{_TOTAL} * reduce_group.size()"),
    "all rows": Sub(_MEAN, "routing_map.shape[0]"),
    "two": Sub(_MEAN, f"{_TOTAL} / 2"),
    "up to two": Sub("reduce_group.size()", "min(2, reduce_group.size())"),
    "per expert": Sub(_MEAN, f"{_MEAN} / topk"),
    "per chosen expert": Sub(_MEAN, f"{_MEAN} * topk"),
    "the total too": Sub(f"total_num_tokens = {_TOTAL}", "total_num_tokens = local_num_tokens"),
    "on the host": Sub(_TOTAL, "global_tokens_per_expert.sum().item() / topk"),
    "by rank": Sub("reduce_group.size()", "(reduce_group.rank() + 1)"),
    "of the experts": Sub(_MEAN, "global_tokens_per_expert.sum() / reduce_group.size()"),
    "reduced again": Sub(
        _MEAN, "reduce_from_tensor_model_parallel_region(routing_map.sum(dim=0), reduce_group).sum() / topk"
    ),
    "half": Sub(_MEAN, f"{_MEAN} / 2"),
    "one more rank": Sub("reduce_group.size()", "(reduce_group.size() + 1)"),
    "without an experts' sum": Sub(_MEAN, "routing_map.shape[0] * topk"),
}
_WORLD = "parallel_state.get_tensor_and_context_parallel_world_size()"
_PARTITION = "(1 if sequence_partition_group is None else sequence_partition_group.size())"
_OF_PARTITION: ByHand = {
    **_times(_PARTITION),
    "with TP, whatever the dispatcher has gathered": Sub(_PARTITION, _WORLD),
    "of CP alone": Sub(_PARTITION, "parallel_state.get_context_parallel_world_size()"),
}
MUTANTS = [
    Mutants(CORE, ("0.13.1",), _times(_SIZE), function=OLD),
    Mutants(CORE, ("0.12.3",), _OF_PARTITION, function=OLD),
    Mutants(CORE, ("0.15.3",), _times(_SIZE), function=ATTACH),
    Mutants(CORE, ("0.18.2",), _ATTACHED, function=ATTACH),
    Mutants(CORE, ("0.15.3",), _times(_SIZE), function=Z),
    Mutants(CORE, ("0.18.2",), _OF_Z, function=Z),
    Mutants(CORE, ("0.18.2",), _OF_SEQUENCES, function=SEQUENCE),
    Mutants(
        CORE,
        ("0.16.1", "0.19.2"),
        _OF_ALL,
        {"late: if with_padding_mask: .* <-> self.global_tokens_per_expert .*": "neither uses what the other changes"},
        function=GLOBAL,
    ),
    Mutants(
        CORE,
        ("0.19.2",),
        _COUNTED,
        {"late: local_num_tokens = .* <-> total_num_tokens = .*": "neither uses what the other binds"},
        function=COUNT,
    ),
]
_NO_PADDING = dict.fromkeys(
    ("aux-even", "aux-uneven", "sequences-even", "z-uneven", "global-even", "one-padded", "global-dp-padded"),
    "its routers know no padding",
) | dict.fromkeys(
    (
        "half: the losses alone",
        "half: the count alone",
        "without the global loss",
        "those of this rank, as pull request 7481",
        "one sequence",
    ),
    "it has no count of padding",
)
_NO_GLOBAL = {**_NO_PADDING, **dict.fromkeys(("global", "global-dp"), "it has no global loss")}
_RIGHT, _HIDDEN = ("passed", ""), ("aux-even", "aux-uneven", "aux-uneven-dp", "global-even")
_EARLY = {"sequences-alone": _RIGHT}
_BEFORE = dict.fromkeys(_HIDDEN, _RIGHT)  # what is summed in place hides the factor that is not there
_AFTER = dict.fromkeys(
    (
        "aux",
        "aux-cp",
        "aux-tp-cp",
        "aux-tp-dp",
        "aux-prompt",
        "sequences",
        "sequences-alone",
        "z",
        "z-uneven",
        "global",
    ),
    _RIGHT,
)
PROOFS = [
    Proofs(
        CORE,
        [
            Release("0.18.2", core=True, otherwise=_BEFORE),
            Release("0.19.2", otherwise=_AFTER),
            *(Release(version, otherwise=_BEFORE) for version in ("0.17.1", "0.16.1")),
            Release("0.15.3", lacking=_NO_PADDING, otherwise=_EARLY),
            *(Release(version, lacking=_NO_GLOBAL, otherwise=_EARLY) for version in ("0.14.0", "0.13.1", "0.12.3")),
        ],
        {
            "half: the losses alone": Other(in_file("moe_utils.py", untouched), ("aux-even", "aux-uneven"), "differs"),
            "half: the count alone": Other(
                in_file("router.py", untouched), ("aux-even", "sequences", "z"), "differs", PADDED
            ),
            "without the global loss": Other(
                in_file("router.py", without(r"total_num_tokens / self\.tp_cp_group\.size\(\)", "local_num_tokens")),
                ("global-even", "global-dp-padded"),
                "differs",
            ),
            "those of this rank, as pull request 7481": Other(
                in_file(
                    "moe_utils.py",
                    without(r"global\w+\.sum\(\) / topk / reduce_group\.size\(\)", "routing_map.sum() / topk"),
                ),
                ("aux-uneven",),
                "differs: .* is 0.0446, right is 0.0388",
            ),
            "one sequence": Other(
                in_file("router.py", without(r"local_num_tokens \* bsz", "local_num_tokens")),
                ("sequences", "sequences-alone"),
                "differs",
                PADDED,
            ),
        },
    )
]
FUZZ = Fuzz(CASES, 1, "num_tokens|valid_token_count|tp_cp_group|calculate_per_token_loss|topk", examples=40)
