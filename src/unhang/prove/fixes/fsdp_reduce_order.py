"""TODO: what is run for real, what stands for the rest, and what is compared."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ..cases import HUNG, PASSED, Case, Outcome, Topology, alike
from ..ranks import gloo

if TYPE_CHECKING:
    from collections.abc import Collection

WARM = ("torch",)
_WHERE = "in reduce_gradients"
_TWO = Topology(dp=2)
CASES = (
    Case("two", _TWO, "ranks", HUNG, _WHERE, {"defect": True}, core=True),
    Case("two-without", _TWO, "ranks", PASSED, options={"defect": False}, core=True),
    Case("one", Topology(), "ranks", PASSED, options={"defect": True}),
)
_FUNCTIONS = {
    "megatron.core.distributed.fsdp.src.megatron_fsdp.param_and_grad_buffer": "GradReducePipeline.reduce_gradients",
}


def ruled_out(topology: Topology) -> str:
    """Return why the defect cannot occur; empty where it can."""
    return "TODO: why one process is right" if topology.world == 1 else ""


def case_for(topology: Topology, upstream: str, shapes: Collection[str]) -> Case:
    """Return the case of a user's job, of which up to 8 ranks are run."""
    return Case("yours", alike(topology, 8), "ranks", HUNG, _WHERE, {"defect": True})


def prepare() -> None:
    """Import the real modules."""
    for name in _FUNCTIONS:  # TODO: stand-ins for what they import and a CPU lacks
        importlib.import_module(name)


def run(case: Case, deadline_s: float) -> Outcome:
    """Run one case."""
    world = gloo.run(case.topology.world, lambda rank: _on_rank(case, rank), deadline_s=deadline_s)
    if world.status != PASSED:
        return Outcome(world.status, world.text())
    return Outcome(PASSED, "every rank is done")


def _on_rank(case: Case, rank: int) -> Any:
    """Call the real function as one rank of the job."""
    raise NotImplementedError("TODO: with the defect's cause if case.options['defect'], else without")
