"""The parts of a proof: topologies, cases and outcomes. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

PASSED, HUNG, CRASHED, DIFFERS, BROKEN = "passed", "hung", "crashed", "differs", "broken"
MISMATCH = "mismatch"
ABSENT = "modules that are missing: "
"""Precedes their names, in the last line of what is broken for that."""


class Topology(NamedTuple):
    """How a job is laid out over its ranks."""

    tp: int = 1
    pp: int = 1
    cp: int = 1
    dp: int = 1
    ep: int = 1
    """The size of an expert-parallel group. It shares the ranks of tp x cp x dp and adds none."""
    etp: int = 1
    """The size of an expert tensor-parallel group, likewise. Megatron's own default is the tensor-parallel size."""
    instances: int = 1
    """Instances of the distributed optimizer."""
    vpp: int = 1
    """Virtual pipeline chunks on each rank."""

    @property
    def world(self) -> int:
        """The number of ranks."""
        return self.tp * self.pp * self.cp * self.dp

    def text(self) -> str:
        """Return the sizes that are not 1, and the number of ranks."""
        names = {"tp": "TP", "pp": "PP", "cp": "CP", "dp": "DP", "ep": "EP", "etp": "ETP"}
        names |= {"instances": "instances", "vpp": "VPP"}
        sizes = [f"{name} {getattr(self, field)}" for field, name in names.items() if getattr(self, field) > 1]
        return f"{' x '.join(sizes) or 'one of each'} ({self.world} ranks)"


FEW = 8
"""So many ranks a job has for a defect that needs no more."""


def alike(topology: Topology) -> Topology:
    """Return a job of few real ranks, for a defect that depends on nothing but that there are several."""
    return topology if topology.world <= FEW else Topology(dp=FEW)


MOST = 16
"""So many real ranks a job has at most that keeps the dimensions of a larger one."""


def reduced(topology: Topology) -> Topology:
    """Return the job itself, or a smaller one: a dimension above 1 becomes 2, and a pipeline 3 where that fits."""
    if topology.world <= MOST:
        return topology
    small = Topology(*(min(size, 2) for size in topology))._replace(vpp=topology.vpp)
    while small.tp * small.cp * small.dp % (small.ep * small.etp):
        small = small._replace(dp=2 * small.dp)
    longer = small._replace(pp=min(topology.pp, 3))
    return longer if longer.world <= MOST else small


class Case(NamedTuple):
    """One job to run on untouched, patched and mutated source."""

    name: str
    topology: Topology
    untouched: str
    """How the untouched source must end: ``passed`` for a control, else how the defect shows."""
    at: str = ""
    """What the outcome must name on untouched source: a function or a rank. Otherwise it is another defect."""
    options: Mapping[str, Any] = MappingProxyType({})
    """Options for the scene's ``on_rank``. ``may_pass``: the defect depends on the release, so the untouched source may
    also pass."""
    core: bool = False
    """Whether it belongs to the core set, which CI runs."""
    patched: str = PASSED
    """How the patched source must end: otherwise than ``passed`` in a job that the fix is to be left out of."""

    @property
    def is_control(self) -> bool:
        """Whether the untouched source must pass too."""
        return self.untouched == PASSED


class Outcome(NamedTuple):
    """How one run of a case ended. ``broken`` is a failure of the proof itself and never counts as the defect."""

    status: str
    detail: str
    seconds: float = 0.0
    gpu_bytes: int = 0
    """What was in use of a GPU when ranks ended, at most."""


def as_it_may(case: Case, untouched: Outcome | None) -> Case:
    """Return a case as a control, if the untouched source passed it, and may: the defect depends on the release."""
    may = untouched is not None and untouched.status == PASSED and case.options.get("may_pass")
    return case._replace(untouched=PASSED, at="") if may else case


def yours(proof: Any, topology: Topology, upstream: str, shapes: Collection[str]) -> Case | None:
    """Return a proof's case of a user's topology; None for a job that it cannot lay out."""
    if hasattr(proof, "case_for"):
        found: Case | None = proof.case_for(topology, upstream, shapes)
        return found
    case: Case = proof.YOURS
    if case.topology != Topology():
        return case
    return case._replace(topology=alike(topology) if _ruled_out(proof)[0] == "world" else reduced(topology))


def ruled_out(proof: Any, topology: Topology) -> str:
    """Return why a proof's defect cannot occur with this topology; empty where it can."""
    size, why = _ruled_out(proof)
    return why if getattr(topology, size) == 1 else ""


def _ruled_out(proof: Any) -> tuple[str, str]:
    """Return the size that a proof's defect needs above 1, and why."""
    found: tuple[str, str] = getattr(proof, "RULED_OUT", ("world", ""))
    return found


def on_gpu(proof: Any, case: Case) -> Case | None:
    """Return a case as it is on GPUs; None where it has no place there.

    A rank waits at the next line that needs the GPU's answer, which may be far behind the collective. With the option
    ``on_gpu`` off, a case is too slow where many ranks share a GPU.
    """
    here: Case | None = getattr(proof, "on_gpu", lambda it: it)(case) if case.options.get("on_gpu", True) else None
    return here and here._replace(at="")


def as_on_gpu(case: Case, untouched: Outcome | None, patched: Outcome) -> Case:
    """Return a case that expects what each side did, if that was a failure where one is due.

    Where gloo ends a rank, NCCL may hang, or go on with wrong numbers.
    """
    failed = (HUNG, CRASHED, DIFFERS)
    if untouched and case.untouched in failed and untouched.status in failed:
        case = case._replace(untouched=untouched.status)
    if case.patched in failed and patched.status in failed:
        case = case._replace(patched=patched.status)
    return case
