"""allgather-empty-expert: run the real methods on stand-in tensors, alone and as a pair, with and without fusion."""

from __future__ import annotations

import ast
import itertools
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import support.checkout  # noqa: F401 - makes unhang.compat.endstates importable
from fuzz.subject import Fuzz
from mutants.by_hand import EVERY, Mutants, Sub
from proofs.others import Change, Other, Proofs, Release, without
from support import plans, sources, wheels
from support.rewrites import EveryRewrite
from unhang.codemods.base import AnchorError
from unhang.compat.endstates.allgather_empty_expert import ROUTED, Dispatcher, Misfit, Setting, Tensor
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
PAIRS = [pytest.param(version, id=version) for version in (*OLD, *NEW)]
SETTINGS = [
    Setting(*chosen, *sizes)
    for chosen in itertools.product(ROUTED, (True, False), (False, True))
    for sizes in ((1, 2), (2, 2), (1, 1))
]


class Pair(NamedTuple):
    """The two methods of a release: one permutes, the other one unpermutes."""

    permutes: Any
    unpermutes: Any


def pair(version: str, rewritten: tuple[bool, bool] = (True, True)) -> Pair:
    """Load the methods of a release, each rewritten or not."""
    names = [name for name, versions in RELEASES.items() if version in versions]
    found = [sources.wheel(FIX, version, function=name) for name in names]
    return Pair(*(one.rewritten.function if new else one.function for one, new in zip(found, rewritten)))


def run(methods: Pair, setting: Setting) -> tuple[Any, list[Any]]:
    """Run both methods as one rank, whose experts double each row. Return the output, and what was called."""
    beside = Dispatcher(setting, methods.permutes)
    permutes, unpermutes = (sources.callable_of(one, beside.namespace()) for one in methods)
    given = [beside.hidden, beside.probs, beside.routing_map][: len(methods.permutes.args.args) - 1]
    rows, *_ = permutes(beside, *given)
    beside.hidden_shape = len(beside.hidden) // setting.tp // setting.ep, 2
    doubled = Tensor([[2 * value for value in row] for row in rows.values], rows.width, rows.origin | {"experts"})
    found = unpermutes(beside, doubled)
    return (found[0] if isinstance(found, tuple) else found).described(), beside.calls


def fused(calls: list[Any]) -> list[bool]:
    """Return whether each permutation of these calls was fused."""
    return [call[1] for call in calls if call[0] in ("permute", "unpermute")]


# -- no-op cases ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", PAIRS)
def test_nothing_changes_with_a_token_or_without_fusion(version: str) -> None:
    before, after = pair(version, (False, False)), pair(version)
    for setting in SETTINGS:
        if setting.order or not setting.fusion:
            assert run(after, setting) == run(before, setting)
            assert fused(run(after, setting)[1]) == [setting.fusion] * 2


@pytest.mark.parametrize("function", list(RELEASES)[:2])
def test_the_methods_of_0_10_know_no_fusion(function: str) -> None:
    source = sources.wheel(FIX, "0.10.0", function=function)
    assert source.known.state == "not-affected"
    with pytest.raises(AnchorError, match=r"^not found: (un)?permute\(fused=self.config.moe_permute_fusion\)"):
        codemod(source.target).plan(source.function)


@pytest.mark.parametrize("pull", sources.as_written(FIX))
def test_the_pull_request_as_written_is_right_in_these_methods(pull: sources.Case) -> None:
    source = pull.load()
    assert (source.known.state, "3626" in source.known.note) == ("fixed", True)


def test_the_other_dispatchers_are_left_alone() -> None:
    assert {target.function.partition(".")[0] + "." for target in catalog.fix(FIX).targets} == {CLASS}


# -- the rewrite ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
class TestRewrite(EveryRewrite):
    pass


@pytest.mark.parametrize("version", PAIRS)
def test_a_rank_without_tokens_returns_zeros_in_the_graph(version: str) -> None:
    for setting in (it for it in SETTINGS if not it.order):
        output, calls = run(pair(version), setting)
        assert fused(calls) == [False, False]
        assert output == run(pair(version, (False, False)), setting._replace(fusion=False))[0]
        assert {"experts", "hidden"} <= set(output[2]), "the graph"


@pytest.mark.parametrize("version", PAIRS)
@pytest.mark.parametrize("rewritten", [(False, False), (True, False), (False, True)])
def test_untouched_or_half_rewritten_it_fails(version: str, rewritten: tuple[bool, bool]) -> None:
    """The defect, by the same measure; with one method rewritten, too."""
    right = run(pair(version), Setting())[0]
    for refuses in (False, True):
        try:
            output = run(pair(version, rewritten), Setting(refuses=refuses))[0]
        except Misfit:
            continue
        assert output != right


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
_TOKENS = "tokens_per_expert = self.local_map.sum(dim=0).long().cpu()"


@pytest.mark.parametrize(
    ("function", "old", "new", "anchor"),
    [
        ("dispatch_postprocess", _FUSED, "fused=self.fusion", r"permute\(fused="),
        ("dispatch_postprocess", f", {_FUSED}", "", r"permute\(fused="),
        ("dispatch_postprocess", ".long().cpu()", ".long()", "tokens_per_expert = "),
        (
            "dispatch_postprocess",
            _TOKENS,
            f"{_TOKENS}\n    {_TOKENS}",
            "found 2 times, expected once: tokens_per",
        ),
        ("combine_preprocess", _FUSED, f"{_FUSED} and self.fusion", r"unpermute\(fused="),
        ("combine_preprocess", " = unpermute(", " = self.unpermute(", r"unpermute\(fused="),
    ],
)
def test_a_call_that_differs_is_no_anchor(function: str, old: str, new: str, anchor: str) -> None:
    source = sources.wheel(FIX, "0.19.2", function=CLASS + function)
    with pytest.raises(AnchorError, match=anchor):
        codemod(source.target).plan(sources.mutated(source.function, old, new))


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


def _by_hand(condition: str, others: dict[str, str]) -> dict[str, tuple[Sub, ...]]:
    def every(new: str) -> tuple[Sub, ...]:
        return (Sub(condition, new, EVERY),)

    return {
        "never fused": every("False"),
        "whatever is configured": (Sub(_SETTING, "", EVERY),),
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
    "the bias fused": (Sub(f"{_SETTING}{_ROW}", _SETTING.removesuffix(" and "), 1),),
    "the rows fused": (Sub(f"{_SETTING}{_ROW}", _SETTING.removesuffix(" and ")),),
    "the bias not fused": (Sub(_ROW, "False", 1),),
    "the rows not fused": (Sub(_ROW, "False"),),
}
_SAME = "the same condition"
_SAME_TOKENS = {r"by hand: (compared as a tensor|with a token for some expert)": _SAME}
_SAME_ROWS = {r"by hand: by the (length|size)": _SAME}
MUTANTS = [
    Mutants("megatron-core", versions, by_hand, equivalent, function=CLASS + function)
    for function, versions, by_hand, equivalent in (
        ("dispatch_postprocess", ("0.16.1", "0.19.2"), _TOKENS_BY_HAND, _SAME_TOKENS),
        ("combine_preprocess", ("0.19.2",), _ROWS_BY_HAND, _SAME_ROWS),
        ("token_permutation", ("0.11.0", "0.12.3"), _TOKENS_BY_HAND, _SAME_TOKENS),
        ("token_unpermutation", ("0.11.0", "0.12.0"), _BOTH_BY_HAND, _SAME_ROWS),
        ("token_unpermutation", ("0.12.3",), _ROWS_BY_HAND, _SAME_ROWS),
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
