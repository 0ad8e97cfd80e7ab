"""TODO: what is run for real, what stands for the rest, and what is compared."""

from __future__ import annotations

import importlib
from typing import Any

from ..cases import DIFFERS, PASSED, Case, Outcome, Topology
from ..ranks import gloo

WARM = ("torch",)
_WHERE = "in value_loss"
_TWO = Topology(dp=2)
CASES = (
    Case("two", _TWO, "ranks", DIFFERS, _WHERE, {"defect": True}, core=True),
    Case("two-without", _TWO, "ranks", PASSED, options={"defect": False}, core=True),
    Case("one", Topology(), "ranks", PASSED, options={"defect": True}),
)
YOURS = Case("yours", Topology(), "ranks", DIFFERS, _WHERE, {"defect": True})
RULED_OUT = ("world", "TODO: why one process is right")
_FUNCTIONS = {
    "verl.workers.utils.losses": "value_loss",
}


def prepare() -> None:
    """Import the real modules."""
    for name in _FUNCTIONS:  # TODO: stand-ins for what they import and a CPU lacks
        importlib.import_module(name)


def run(case: Case, deadline_s: float) -> Outcome:
    """Run one case."""
    world = gloo.run(case.topology.world, lambda rank: _on_rank(case, rank), deadline_s=deadline_s)
    return world.outcome(_wrong, lambda values: f"{_WHERE}: {values}")


def _wrong(values: list[Any]) -> str:
    """Return what is wrong with what the ranks returned; empty where nothing is."""
    wanted = [None for _ in values]  # TODO: what is right, computed in another way
    return f"{_WHERE}: {values}, not {wanted}" if values != wanted else ""


def _on_rank(case: Case, rank: int) -> Any:
    """Call the real function as one rank of the job."""
    raise NotImplementedError("TODO: with the defect's cause if case.options['defect'], else without")
