"""allgather-empty-expert: its rewrites and anchors, and what the sessions need of it."""

from __future__ import annotations

import ast
import re
from functools import partial
from pathlib import Path

import pytest

from fuzz.subject import Fuzz
from mutants.by_hand import EVERY, ByHand, Mutants, Sub
from proofs.others import Change, Other, Proofs, Release, without
from support import hung_jobs, plans, sources, wheels
from support.hung_jobs import HungJob, failing, issued, job, rank
from unhang.codemods.base import AnchorError
from unhang.diagnose.evidence import Job, Rank
from unhang.judge.decide import codemod
from unhang.shapes import catalog

FIX = "allgather-empty-expert"
CLASS = "MoEAllGatherTokenDispatcher."
OLD, NEW = ("0.11.0", "0.12.0", "0.12.3"), ("0.13.1", "0.14.0", "0.16.1", "0.17.1", "0.19.2")
RELEASES = {
    f"{CLASS}token_permutation": OLD,
    f"{CLASS}token_unpermutation": OLD,
    f"{CLASS}dispatch_postprocess": NEW,
    f"{CLASS}combine_preprocess": NEW,
}
CASES = [
    case
    for function, versions in RELEASES.items()
    for case in sources.cases(FIX, {"megatron-core": versions}, function=function)
]


@pytest.mark.parametrize("function", list(RELEASES)[:2])
def test_the_methods_of_0_10_know_no_fusion(function: str) -> None:
    source = sources.wheel(FIX, "0.10.0", function=function)
    assert source.known.state == "not-affected"
    with pytest.raises(AnchorError, match=r"^not found: (un)?permute\(fused=self.config.moe_permute_fusion\)"):
        codemod(source.target).plan(source.function)


def test_the_other_dispatchers_are_left_alone() -> None:
    assert {target.function.partition(".")[0] + "." for target in catalog.fix(FIX).targets} == {CLASS}


def test_one_drifted_method_blocks_both(tmp_path: Path) -> None:
    """Half of the rewrite is wrong, so the fix goes in whole or not at all."""
    name = "megatron/core/transformer/moe/token_dispatcher.py"
    data = wheels.read("megatron-core", "0.19.2", name)
    assert data is not None
    folder = tmp_path / name
    folder.parent.mkdir(parents=True)
    (tmp_path / "megatron/core/__init__.py").touch()
    edited = data.replace(b"unpermuted_local_hidden = unpermute(", b"unpermuted_local_hidden = self.unpermute(", 1)
    for text, blocked in (data, []), (edited, [FIX]):
        folder.write_bytes(text)
        findings, planned = plans.plan_of(tmp_path)
        mine = [one.verdict.verdict for one in findings if one.target.fix == FIX]
        assert [one.fix for one in planned.blocked if one.fix == FIX] == blocked, mine
        files = [file for file in planned.files if any(one.target.fix == FIX for one in file.steps)]
        assert len(files) == (not blocked)


_FUSED = "fused=self.config.moe_permute_fusion"
_ROWS = "num_out_tokens=tokens_per_expert.sum().item()"


REFUSED = [
    *sources.edits(
        sources.case(FIX, "0.19.2", function=CLASS + "dispatch_postprocess"),
        [
            (_FUSED, "fused=self.fusion", r"permute\(fused="),
            (f", {_FUSED}", "", r"permute\(fused="),
            (f"{_ROWS}, ", "", "permute.num_out_tokens="),
            (_ROWS, f"{_ROWS} or 0", "permute.num_out_tokens="),
            (_FUSED, "fused=self.config.moe_permute_fusion and True", r"permute\(fused="),
        ],
    ),
    *sources.edits(
        sources.case(FIX, "0.19.2", function=CLASS + "combine_preprocess"),
        [
            (_FUSED, f"{_FUSED} and self.fusion", r"unpermute\(fused="),
            (" = unpermute(", " = self.unpermute(", r"unpermute\(fused="),
        ],
    ),
]


def test_a_third_call_is_no_anchor() -> None:
    source = sources.wheel(FIX, "0.11.0", function=f"{CLASS}token_unpermutation")
    function = sources.bare(source.function)
    (call,) = (node for node in function.body if ast.unparse(node).startswith("unpermuted_local_hidden = "))
    function.body.insert(function.body.index(call), call)
    with pytest.raises(AnchorError, match=r"found 3 times, expected once: unpermute\(fused="):
        codemod(source.target).plan(function)


# -- for the sessions -------------------------------------------------------------------------------------------------

_TOKEN, _ROW = "tokens_per_expert.sum().item() > 0", "hidden_states.shape[0] > 0"
_SETTING = "self.config.moe_permute_fusion and "


def _by_hand(condition: str, others: dict[str, str]) -> ByHand:
    every = partial(Sub, condition, number=EVERY)
    return {
        "never fused": every("False"),
        "whatever is configured": Sub(_SETTING, "", EVERY),
        "not fused with a token": every(f"not {condition}"),
        "fused on rank 0": every(f"({condition} or torch.distributed.get_rank() == 0)"),
        "not fused on rank 0": every(f"{condition} and torch.distributed.get_rank() != 0"),
        "fused on rank 1": every(f"({condition} or torch.distributed.get_rank() == 1)"),
        "not fused on rank 1": every(f"{condition} and torch.distributed.get_rank() != 1"),
        "more than two": every(condition.replace("> 0", "> 2")),
        "with expert parallelism": every(f"{condition} and self.ep_size > 1"),
        "without expert parallelism": every("self.ep_size == 1"),
        "with tensor parallelism": every(f"{condition} and self.tp_size > 1"),
        "without tensor parallelism": every(f"{condition} and self.tp_size == 1"),
        **{
            f"fused with {other}": every(f"({condition} or {other})")
            for other in (
                *("not hidden_states.requires_grad", "not torch.is_grad_enabled()", "not self.training"),
                *("self.num_local_experts == 1", "len(self.local_expert_indices) > 1"),
            )
        },
        "fetched from the GPU": every("self.local_map.sum().item() > 0"),
        "fetched from the GPU once more": every(f"{condition} and self.local_map.sum().item() > 0"),
        "in a group with a token": every("self.local_map.shape[0] > 0"),
        **{name: every(new) for name, new in others.items()},
    }


_TOKENS_BY_HAND = _by_hand(
    _TOKEN,
    {
        "compared as a tensor": "tokens_per_expert.sum() > 0",
        "with a token for the first expert": "tokens_per_expert.tolist()[0] > 0",
        "with a token for the last expert": "tokens_per_expert.tolist()[-1] > 0",
        "with a token for every expert": "min(tokens_per_expert.tolist()) > 0",
        "with a token for some expert": "max(tokens_per_expert.tolist()) > 0",
        "with a row": _ROW,
    },
)
_ROWS_BY_HAND = _by_hand(
    _ROW,
    {
        "by the length": "len(hidden_states) > 0",
        "by the size": "hidden_states.size(0) > 0",
        "with a row to restore": "self.hidden_shape_before_permute[0] > 0",
        "with a row for each row to restore": "hidden_states.shape[0] >= self.hidden_shape_before_permute[0]",
        "by the probabilities": "self.local_probs.shape[0] > 0",
    },
)
_BOTH_BY_HAND = {
    **_ROWS_BY_HAND,
    "the bias fused": Sub(f"{_SETTING}{_ROW}", _SETTING.removesuffix(" and "), 1),
    "the rows fused": Sub(f"{_SETTING}{_ROW}", _SETTING.removesuffix(" and ")),
    "the bias not fused": Sub(_ROW, "False", 1),
    "the rows not fused": Sub(_ROW, "False"),
}
MUTANTS = [
    Mutants("megatron-core", versions, by_hand, function=CLASS + function)
    for function, versions, by_hand in (
        ("dispatch_postprocess", ("0.16.1", "0.19.2"), _TOKENS_BY_HAND),
        ("combine_preprocess", ("0.19.2",), _ROWS_BY_HAND),
        ("token_permutation", ("0.11.0", "0.12.3"), _TOKENS_BY_HAND),
        ("token_unpermutation", ("0.11.0", "0.12.0"), _BOTH_BY_HAND),
        ("token_unpermutation", ("0.12.3",), _ROWS_BY_HAND),
    )
]


def _zeros(path: str, before: bytes, after: bytes) -> bytes:
    """Return zeros for an empty batch from another dispatcher, outside of the graph, as pull request 3626 does."""
    head, marker, tail = after.decode().partition("class MoEAlltoAllTokenDispatcher")
    zeros = "\n        if not len(output):\n            output = torch.zeros(self.hidden_shape)\n"
    changed, found = re.subn(r"(?s)(\n        output = unpermute\(.*?\n        \)\n)", rf"\1{zeros}", tail, count=1)
    assert found == 1
    return f"{head}{marker}{changed}".encode()


def _fused_again(condition: str) -> Change:
    return without(re.escape(f" and {condition}"), "", count=0)


PROOFS = [
    Proofs(
        "megatron-core",
        [Release(version, core=version == "0.19.2") for version in (*OLD, *NEW, "0.18.2")],
        {
            "half: permuted without fusion alone": Other(_fused_again(_ROW), ("refuses", "returns"), "size 0"),
            "half: unpermuted without fusion alone": Other(_fused_again(_TOKEN), ("refuses", "returns")),
            "no fusion at all": Other(
                without(r" and (tokens_per_expert\.sum|hidden_states).* > 0", " and False", 0), ("tokens",)
            ),
            "zeros for an empty batch, as in pull request 3626": Other(_zeros, ("alltoall-no-batch",), "hung: "),
        },
    )
]
FUZZ = Fuzz(CASES, 2, r"permute|fused|tokens_per_expert|hidden_states", examples=40)


def _combined(other: Rank) -> Job:
    waits = rank(issued(_EXPERT_TP, 18, "reduce_scatter", 64, 32, at=(_DISPATCHER + "token_combine",)))
    return job([waits, waits, other, other])


_EXPERT_TP = hung_jobs.group("12", "EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP")
_DISPATCHER = "megatron/core/transformer/moe/token_dispatcher.py::MoEAllGatherTokenDispatcher."
_GATHERED = issued(_EXPERT_TP, 17, "all_gather", 16, 32, done=True)
_AT = ("megatron/core/transformer/moe/moe_utils.py::permute", _DISPATCHER + "dispatch_postprocess")
_REFUSED = failing(
    "AssertionError: moe_permute (mask map) requires num_out_tokens > 0, got 0. Use int(routing_map.sum())", *_AT
)
_SHAPED = "RuntimeError: shape '[16, 1, 32]' is invalid for input of size 0"
_HOOKED = failing(
    _SHAPED,
    "job/hooks.py::reshape", _DISPATCHER + "combine_postprocess",
)  # fmt: skip
_NO_MEMORY = failing("torch.OutOfMemoryError: CUDA out of memory", "job/train.py::step")


def _failed(rows: int) -> Rank:
    """Return a rank that has issued the reduce-scatter with so many rows, and ended for want of any."""
    lines = failing(_SHAPED, _DISPATCHER + "combine_postprocess", "pretrain_gpt.py::<module>")
    return rank(_GATHERED, issued(_EXPERT_TP, 18, "reduce_scatter", rows, 32), lines=lines)


HANGS = [
    HungJob("without rows", _combined(rank(_GATHERED, issued(_EXPERT_TP, 18, "reduce_scatter", 0, 32, done=True)))),
    HungJob("failed, and its dump waits without rows", _combined(_failed(0))),
    HungJob("failed for want of rows, and issued some", _combined(_failed(16))),
    HungJob("refused", _combined(rank(_GATHERED, lines=_REFUSED))),
    HungJob("a line alone", job([None, rank(lines=_REFUSED, recorded=False)])),
    HungJob("a hook of the user's fails", _combined(rank(_GATHERED, lines=_HOOKED)), "also"),
    HungJob("no memory for the tokens", _combined(rank(_GATHERED, lines=_NO_MEMORY)), "also"),
    HungJob(
        "another refusal", job([rank(lines=failing("ValueError: Permute not possible", *_AT), recorded=False)]), ""
    ),
]
