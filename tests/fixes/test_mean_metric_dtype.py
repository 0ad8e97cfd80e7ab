"""mean-metric-dtype: run the real method on two ranks, and record what each one reduces."""

from __future__ import annotations

import itertools

import pytest

import support.checkout  # noqa: F401 - makes unhang.compat.endstates importable
from fuzz.subject import Fuzz
from mutants.by_hand import Mutants, Sub
from proofs.others import Other, Proofs, Release, without
from support import sources
from support.rewrites import EveryRewrite, is_no_rewrite
from unhang.codemods.base import AnchorError
from unhang.compat.endstates import mean_metric_dtype as endstate
from unhang.compat.endstates.endstate import Source
from unhang.compat.endstates.mean_metric_dtype import STATES, Setting
from unhang.judge.decide import codemod

FIX = "mean-metric-dtype"
OLD, NEW = ("3.8.0", "3.12.6"), ("4.0.0", "4.3.0")
CASES = [case for versions in (OLD, NEW) for case in sources.cases(FIX, {"ms-swift": versions})]
FIXED = sources.cases(FIX, {"ms-swift": ["4.5.3", "4.6.0"]}, state="fixed")
BETWEEN = "shape-09036cdcc337017d"  # in no release
_OLDER = sources.cases(FIX, {"ms-swift": ["3.7.3"]}, state="not-affected")
NOT_AFFECTED = [case for case in _OLDER if case.id != BETWEEN]
SETTINGS = [Setting(*chosen) for chosen in itertools.product(STATES, STATES, (True, False), (0, None))]


def run(source: sources.Source, setting: Setting) -> list[endstate.Rank]:
    """Run the method of a file as both ranks."""
    given = Source(source.data.decode(), source.target.function)
    first = [endstate.run(given, setting, rank, []) for rank in (0, 1)]
    return [endstate.run(given, setting, rank, first[1 - rank].reduced) for rank in (0, 1)]


def dtypes(ranks: list[endstate.Rank]) -> list[list[str]]:
    """Return the dtypes that each rank reduces."""
    return [[dtype for dtype, *_ in rank.reduced] for rank in ranks]


# -- no-op cases ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_nothing_changes_without_a_numpy_value(case: sources.Case) -> None:
    source = case.load()
    for setting in SETTINGS:
        if not any("numpy" in name for name in setting[:2]) or not setting.distributed:
            assert run(source.rewritten, setting) == run(source, setting)


@pytest.mark.parametrize("case", FIXED + NOT_AFFECTED + CASES)
def test_upstreams_own_fix_is_found_in_every_shape_that_has_it(case: sources.Case) -> None:
    source = case.load()
    change, state = codemod(source.target), source.known.state
    assert change.fixed_upstream(source.function) is (state == "fixed")
    if state != "affected":
        with pytest.raises(AnchorError, match=r"^not found: torch.tensor\("):
            change.plan(source.function)


@pytest.mark.parametrize("new", ["torch.float64", "None", "torch.float32 if self.count else None"])
def test_another_dtype_is_not_taken_for_upstreams_own_fix(new: str) -> None:
    source = FIXED[0].values[0].load()
    assert not codemod(source.target).fixed_upstream(
        sources.mutated(source.function, "dtype=torch.float32", f"dtype={new}")
    )


@pytest.mark.parametrize("case", NOT_AFFECTED)
def test_without_a_collective_each_rank_has_its_own_mean(case: sources.Case) -> None:
    assert dtypes(run(case.load(), Setting())) == [[], []]


@pytest.mark.parametrize("case", [case for case in _OLDER if case.id == BETWEEN])
def test_before_a_rank_without_an_update_joined_those_that_did_agreed(case: sources.Case) -> None:
    source = case.load()
    assert dtypes(run(source, Setting("numpy", "nothing"))) == [["float64"], []]
    assert dtypes(run(source, Setting("numpy", "numpy zero"))) == [["float64"], ["float64"]]
    assert dtypes(run(source, Setting("floats", "nothing"))) == [["float32"], []]


# -- the rewrite ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
class TestRewrite(EveryRewrite):
    def test_every_rank_reduces_float32(self, case: sources.Case) -> None:
        source = case.load()
        for setting in (it for it in SETTINGS if it.distributed):
            ranks = run(source.rewritten, setting)
            assert dtypes(ranks) == [["float32"], ["float32"]]
            state, count = (sum(each) for each in zip(*setting.states))
            mean = {"value": state / count if count else setting.nan_value}
            assert [(rank.value, rank.state, rank.counted) for rank in ranks] == [(mean, state, count)] * 2
        # the defect, by the same measure: only where one rank has a numpy value, and the other has none
        assert dtypes(run(source, Setting("numpy", "nothing"))) == [["float64"], ["float32"]]
        assert dtypes(run(source, Setting("numpy", "numpy zero"))) == [["float64"], ["float64"]]
        assert dtypes(run(source, Setting("floats", "nothing"))) == [["float32"], ["float32"]]


_CALL = "torch.tensor([self.state, self.count], device=self.device)"


@pytest.mark.parametrize(
    ("new", "anchor"),
    [
        ("torch.tensor([self.state, self.count])", r"not found: torch.tensor\("),
        ("torch.tensor([self.count, self.state], device=self.device)", r"not found: torch.tensor\("),
        (f"{_CALL} + {_CALL}", r"found 2 times, expected once: torch.tensor\("),
    ],
)
def test_a_tensor_that_differs_is_no_anchor(new: str, anchor: str) -> None:
    source = sources.first(CASES)
    with pytest.raises(AnchorError, match=anchor):
        codemod(source.target).plan(sources.mutated(source.function, _CALL, new))


def test_another_dtype_is_no_rewrite() -> None:
    source = sources.first(CASES)
    assert is_no_rewrite(source, sources.mutated(source.rewritten.function, "torch.float32", "torch.float64"))


# -- for the sessions -------------------------------------------------------------------------------------------------

_NEW = "torch.tensor([self.state, self.count], dtype=torch.float32, device=self.device)"


def _by_hand() -> dict[str, tuple[Sub, ...]]:
    def tensor(new: str) -> tuple[Sub, ...]:
        return (Sub(_NEW, new),)

    def dtype(new: str) -> tuple[Sub, ...]:
        return (Sub("torch.float32", new),)

    return {
        "float64": dtype("torch.float64"),
        "no dtype": dtype("None"),
        "float64 with an update": dtype("torch.float64 if self.count else torch.float32"),
        "float64 without an update": dtype("torch.float32 if self.count else torch.float64"),
        "inferred with an update": dtype("None if self.count else torch.float32"),
        "inferred without an update": dtype("torch.float32 if self.count else None"),
        "float64 on rank 0": dtype("torch.float32 if dist.get_rank() else torch.float64"),
        "float64 on rank 1": dtype("torch.float64 if dist.get_rank() else torch.float32"),
        "float64 where the state is zero": dtype("torch.float32 if self.state else torch.float64"),
        "float64 where the state is not zero": dtype("torch.float64 if self.state else torch.float32"),
        "another device": (Sub("device=self.device", "device='cpu'"),),
        "no device": (Sub(", device=self.device", ""),),
        "the count first": (Sub("self.state, self.count]", "self.count, self.state]"),),
        "the state twice": (Sub("self.state, self.count]", "self.state, self.state]"),),
        "the count twice": (Sub("self.state, self.count]", "self.count, self.count]"),),
        "the mean in place of the state": (Sub("[self.state,", "[self.state / max(self.count, 1),"),),
        "without the count": (Sub("self.state, self.count]", "self.state, 0]"),),
        "without the state": (Sub("[self.state,", "[0.0,"),),
        "a Python float alone": tensor("torch.tensor([float(self.state), self.count], device=self.device)"),
        "made twice": (Sub(f"tensor = {_NEW}", f"tensor = {_NEW} and {_NEW}"),),
        "zero where there was no update": tensor(f"{_NEW} if self.count else torch.tensor([0, 0], device=self.device)"),
    }


EQUIVALENT = {
    r"by hand: made twice": "the second tensor is the first one's equal",
    r"by hand: inferred without an update": "the state is a Python float then, from which torch infers float32",
    r"by hand: a Python float alone": "torch infers float32 from a Python float and an integer, by its default dtype",
}
MUTANTS = [Mutants("ms-swift", ("3.8.0", "4.3.0"), _by_hand(), EQUIVALENT)]
PROOFS = [
    Proofs(
        "ms-swift",
        [Release(version, core=version == "4.3.0") for version in (*OLD, *NEW)],
        {
            "half: a dtype without an update alone": Other(
                without(r"torch\.float32", "None if self.count else torch.float32"), ("seq-2", "seq-2-gloo")
            ),
            "half: a dtype that follows the state": Other(
                without(r"torch\.float32", "torch.float64 if self.state else torch.float32"), ("seq-2", "token-2")
            ),
        },
    )
]
FUZZ = Fuzz(CASES, 1, r"tensor|dtype|all_reduce", examples=40)
