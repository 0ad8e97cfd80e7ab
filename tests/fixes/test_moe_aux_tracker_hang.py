"""moe-aux-tracker-hang: call the real function as the stages of a pipeline do, and measure the entries it reduces."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fuzz.subject import Fuzz
from mutants.by_hand import Mutants, Sub
from proofs.others import Other, Proofs, Release, without
from support import sources
from support.rewrites import EveryRewrite, is_no_rewrite
from unhang.codemods.base import AnchorError
from unhang.judge.decide import codemod

FIX = "moe-aux-tracker-hang"
CASES = sources.cases(FIX, {"megatron-core": ["0.13.1", "0.15.3", "0.16.1"]})
FIXED = sources.cases(FIX, {"megatron-core": ["0.17.1", "0.19.2"]}, state="fixed")
NOT_AFFECTED = sources.cases(FIX, {"megatron-core": ["0.10.0", "0.12.3"]}, state="not-affected")
NAMES = ["load_balancing_loss", "z_loss"]


class Tensor:
    """A tensor of which only the length counts."""

    def __init__(self, length: int, device: str = "of the router") -> None:
        assert isinstance(length, int)
        self.length, self.device = length, device

    def _self(self, *_: object) -> Tensor:
        return self

    float = sum = __mul__ = __truediv__ = __add__ = _self


def reduced(function: Any, mtp: int | None, has_moe: bool, **given: Any) -> list[tuple[str, int, str]]:
    """Return the name, the length and the device of each entry that a stage of a pipeline with 8 layers reduces."""
    seen: list[tuple[str, int, str]] = []
    tracker = {name: {"values": Tensor(8 + (mtp or 0))} for name in NAMES} if has_moe else {}

    def reduce(names: list[str], **_: object) -> None:
        seen.extend((name, tracker[name]["values"].length, tracker[name]["values"].device) for name in names)

    namespace = {
        "torch": SimpleNamespace(zeros=Tensor),
        "get_moe_layer_wise_logging_tracker": lambda: tracker,
        "reduce_aux_losses_tracker_across_ranks": reduce,
        "clear_aux_losses_tracker": lambda: None,
    }
    arguments = {"num_layers": 8, "mtp_num_layers": mtp, "track_names": NAMES, "force_initialize": True, **given}
    sources.callable_of(function, namespace)(1.0, 1, None, **arguments)
    return seen


def same_lengths(function: Any, mtp: int | None) -> bool:
    """Return whether stages with and without MoE layers reduce entries of the same lengths, in the same order."""
    first, second = (reduced(function, mtp, has_moe) for has_moe in (True, False))
    assert [device for *_, device in second] == ["cuda", "cuda"]
    return [entry[:2] for entry in first] == [entry[:2] for entry in second]


def arguments(function: Any) -> set[str]:
    return {argument.arg for argument in function.args.args}


# -- no-op cases ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", FIXED + NOT_AFFECTED + CASES)
def test_upstreams_own_fix_is_found_in_every_shape_that_has_it(case: sources.Case) -> None:
    source = case.load()
    change, state = codemod(source.target), source.known.state
    assert change.fixed_upstream(source.function) is (state == "fixed")
    assert ("mtp_num_layers" in arguments(source.function)) is (state != "not-affected")
    if state == "affected":
        assert not change.fixed_upstream(source.rewritten.function)
    else:
        missing = "tracker" if state == "fixed" else "the argument mtp_num_layers$"
        with pytest.raises(AnchorError, match=f"^not found: {missing}"):
            change.plan(source.function)


@pytest.mark.parametrize(
    ("version", "old", "new"),
    [
        ("0.17.1", "tracker_num_layers += mtp_num_layers", "tracker_num_layers += 1"),
        ("0.17.1", "torch.zeros(tracker_num_layers", "torch.zeros(num_layers"),
        ("0.17.1", "tracker_num_layers = num_layers", "tracker_num_layers = 0"),
        ("0.19.2", "mtp_num_layers=mtp_num_layers", "mtp_num_layers=None"),
        ("0.19.2", "num_layers=num_layers, moe", "num_layers=8, moe"),
        ("0.19.2", "return get_moe_metrics_tracker()", "return other_tracker()"),
    ],
)
def test_a_function_that_differs_is_not_taken_for_upstreams_own_fix(version: str, old: str, new: str) -> None:
    source = sources.wheel(FIX, version)
    assert codemod(source.target).fixed_upstream(source.function)
    assert not codemod(source.target).fixed_upstream(sources.mutated(source.function, old, new))


@pytest.mark.parametrize("pull", sources.as_written(FIX))
def test_the_pull_request_as_written_is_upstreams_own_fix_with_a_fault_of_its_own(pull: sources.Case) -> None:
    source = pull.load()
    assert source.known.state == "fixed"
    assert "3401" in source.known.note
    assert codemod(source.target).fixed_upstream(source.function)
    assert all(same_lengths(source.function, mtp) for mtp in (None, 0, 1, 2))
    with pytest.raises(TypeError):
        reduced(source.function, 1, True, num_layers=None, moe_layer_freq=[0, 1], force_initialize=False)


# -- the rewrite ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
class TestRewrite(EveryRewrite):
    def test_stages_without_moe_layers_reduce_as_many_values_as_the_others(self, case: sources.Case) -> None:
        source = case.load()
        assert [same_lengths(source.function, mtp) for mtp in (None, 0, 1, 2)] == [True, True, False, False]
        assert all(same_lengths(source.rewritten.function, mtp) for mtp in (None, 0, 1, 2))

    def test_the_number_of_layers_may_be_missing_where_no_entry_is_made(self, case: sources.Case) -> None:
        source, given = case.load(), {"num_layers": None, "moe_layer_freq": [0, 1]}
        for function in source.function, source.rewritten.function:
            for force in {"force_initialize": False}, {"force_initialize": True}:
                assert len(reduced(function, 1, True, **given, **force)) == len(NAMES)
            with pytest.raises(TypeError if function is source.rewritten.function else AssertionError):
                reduced(function, 1, False, **given)


_SIZE = "num_layers + (mtp_num_layers or 0)"


@pytest.mark.parametrize(
    "size", ["num_layers", "num_layers + (mtp_num_layers or 1)", "num_layers + 1", "mtp_num_layers"]
)
def test_another_size_is_no_rewrite(size: str) -> None:
    source = sources.first(CASES)
    function = sources.mutated(source.rewritten.function, _SIZE, size)
    assert is_no_rewrite(source, function) is (size != "num_layers")
    with pytest.raises((AssertionError, TypeError)):
        assert all(same_lengths(function, mtp) for mtp in (None, 0, 2))


_ENTRY = "tracker[key]['values'] = torch.zeros(num_layers, device='cuda')"


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        (_ENTRY, _ENTRY.replace("num_layers", "num_layers + 1"), "not found: tracker"),
        (_ENTRY, _ENTRY.replace("'cuda'", "'cpu'"), "not found: tracker"),
        (_ENTRY, f"{_ENTRY}\n                    {_ENTRY}", "found 2 times"),
        ("mtp_num_layers: Optional[int]", "mtp_layers: Optional[int]", "not found: the argument mtp_num_layers"),
    ],
)
def test_an_entry_that_differs_is_no_anchor(old: str, new: str, found: str) -> None:
    source = sources.first(CASES)
    with pytest.raises(AnchorError, match=found):
        codemod(source.target).plan(sources.mutated(source.function, old, new))


def test_a_comment_of_ones_own_is_kept() -> None:
    source = sources.first(CASES)
    line, end = b'torch.zeros(num_layers, device="cuda")', b'device="cuda"\n                    )'
    commented = source.data.replace(line, line + b"  # ours")
    assert commented.count(b"# ours") == 1
    done = sources.rewritten(source.target, commented, source.known.result)
    assert done == source.rewritten.data.replace(end, end + b"  # ours")


def _sized(*sizes: str) -> dict[str, tuple[Sub, ...]]:
    return {size: (Sub(_SIZE, size),) for size in sizes}


_VALUES = 'tracker[key]["values"] = torch.zeros('
_HALF = "num_layers + ((mtp_num_layers or 0) if {} else 0)"
BY_HAND = {
    **_sized(
        "num_layers + 1",
        "num_layers + bool(mtp_num_layers)",
        "num_layers + 2 * (mtp_num_layers or 0)",
        "num_layers + min(mtp_num_layers or 0, 1)",
        "num_layers + (mtp_num_layers or 1) - 1",
        "num_layers - (mtp_num_layers or 0)",
        "num_layers * (mtp_num_layers or 1)",
        "num_layers + mtp_num_layers",
        "max(num_layers, mtp_num_layers or 0)",
        "(num_layers := num_layers + (mtp_num_layers or 0))",
        "num_layers + (mtp_num_layers or 0) + len(tracker) - 1",
        "num_layers + (mtp_num_layers or 0) * (moe_layer_freq or 1)",
        "(sum(moe_layer_freq) if isinstance(moe_layer_freq, list) else num_layers) + (mtp_num_layers or 0)",
        *map(
            _HALF.format,
            (
                "moe_layer_freq is None",
                "isinstance(moe_layer_freq, list)",
                "writer",
                "wandb_writer",
                "per_layer_logging",
                "key == track_names[0]",
                "key != track_names[0]",
            ),
        ),
    ),
    "of integers": (Sub('device="cuda"', 'device="cuda", dtype=torch.int64'),),
    "below another name": (Sub('["values"]', '["value"]'),),
    "of one entry for all names": (Sub(_VALUES, f"{_VALUES.replace('key', 'track_names[0]')}"),),
    "the same tensor for all names": (
        Sub("torch.zeros(", 'next((it["values"] for it in tracker.values() if "values" in it), None) or torch.zeros('),
    ),
}
EQUIVALENT = {
    r"dtype: .*": "zeros are of this type by default",
    r"late: .* <-> tracker.*reduce_group.*": "neither statement uses what the other one does",
}
MUTANTS = [Mutants("megatron-core", ("0.13.1", "0.16.1"), BY_HAND, EQUIVALENT)]
PROOFS = [
    Proofs(
        "megatron-core",
        [Release(line, core=line == "0.16.1") for line in ("0.13.1", "0.14.0", "0.15.3", "0.16.1")]
        + [Release("0.16.0rc0.dev100085")],
        {
            "half: one MTP layer, however many there are": Other(
                without(r"\(mtp_num_layers or 0\)", "1"), ("pp3-no-mtp", "pp3-two-mtp-layers")
            ),
            "half: no MTP layer on the first of two names": Other(
                without(r"\(mtp_num_layers or 0\)", "(mtp_num_layers or 0) * (key == 'z_loss')"), ("pp3", "schedule-32")
            ),
        },
    )
]
FUZZ = Fuzz(CASES, 3, r"num_layers|zeros|tracker|track_names|force_initialize", examples=60)
