"""A stand-in knows what it declares. Anything else is a gap, whatever the function under test does about errors."""

from collections.abc import Callable
from typing import Any

import pytest

import support.checkout  # noqa: F401 - makes unhang.compat.endstates importable
from unhang.compat.endstates import standin
from unhang.compat.endstates.compare import UNFIT, compare
from unhang.compat.endstates.endstate import EndState, Outcome, Source, called
from unhang.compat.endstates.standin import Gap, StandIn


class Layer(StandIn):
    """A stand-in with a method."""

    def run(self, rows: int) -> int:
        return rows


def layer() -> Any:
    return Layer("self", ["older"], size=2, fill=lambda value: value)


GAPS: dict[str, Callable[[], Any]] = {
    "self.other": lambda: layer().other,
    "self.sizes": lambda: hasattr(layer(), "sizes"),
    "self.newer": lambda: getattr(layer(), "newer", None),
    "Layer.run: ": lambda: layer().run(1, other=2),
    "self.fill: ": lambda: layer().fill(1, 2),
}


@pytest.mark.parametrize("told", GAPS)
def test_what_is_not_declared_is_a_gap(told: str) -> None:
    standin.GAPS.clear()
    with pytest.raises(Gap, match=f"^{told}"):
        GAPS[told]()
    assert [it.startswith(told) for it in standin.GAPS] == [True]


def test_what_is_declared_or_absent_is_as_usual() -> None:
    standin.GAPS.clear()
    made = layer()
    assert (made.size, made.fill(3), made.run(rows=4)) == (2, 3, 4)
    assert (hasattr(made, "older"), getattr(made, "older", 5), hasattr(made, "__array__")) == (False, 5, False)
    made.size = 6
    assert made.size == 6
    with pytest.raises(TypeError):  # an error of its own, deeper than its arguments
        Layer("self", fail=lambda: layer() + 1).fail()
    assert standin.GAPS == []


class Alone(EndState):
    """``f`` runs once, and nothing is wrong with it."""

    varied, held = {}, {}

    def configurations(self, function: object) -> Any:
        return iter([Setting()])

    def observe(self, source: Source, configuration: object) -> Outcome:
        return Outcome(frozenset(), called(source, {"layer": Layer("layer", ["older"])})())

    def concerned(self, configuration: object) -> bool:
        return True

    control = concerned


class Setting(tuple[()]):
    """The only setting."""

    _field_defaults: dict[str, object] = {}  # noqa: RUF012

    def _asdict(self) -> dict[str, object]:
        return {}


SWALLOWED = "\n    try:\n        {}\n    except {}:\n        pass"
BODIES = {
    "layer.other": f"{UNFIT} the defaults: the stand-ins lack layer.other",
    SWALLOWED.format("layer.other", "Exception"): f"{UNFIT} the defaults: the stand-ins lack layer.other",
    SWALLOWED.format("layer.other", "BaseException"): f"{UNFIT} the defaults: the stand-ins lack layer.other",
    SWALLOWED.format("bound", "NameError"): f"{UNFIT} the defaults: the stand-ins lack bound",
    SWALLOWED.format("unbound", "NameError"): "",
    SWALLOWED.format("layer.older", "AttributeError"): "",
    "len([])": "",
}


@pytest.mark.parametrize("body", BODIES)
def test_a_gap_that_the_function_catches_is_told_all_the_same(body: str) -> None:
    row = compare(Alone(), Source(f"import bound\ndef f():\n    {body}\n", "f"), None)
    assert row.problems == ([BODIES[body]] if BODIES[body] else [])
    assert (row.passed, row.failed) == ((0, 1) if BODIES[body] else (1, 0))
