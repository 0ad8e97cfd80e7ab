"""What a proof is made of: its cases, what each showed, and whether that proves anything. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

PASSED, HUNG, CRASHED, DIFFERS, BROKEN = "passed", "hung", "crashed", "differs", "broken"


class Topology(NamedTuple):
    """How a job is laid out over its ranks."""

    tp: int = 1
    pp: int = 1
    cp: int = 1
    dp: int = 1
    ep: int = 1
    """The size of an expert-parallel group: it shares the ranks of tp x cp x dp, and adds none."""
    etp: int = 1
    """The size of an expert tensor-parallel group, likewise. Megatron's own default is the tensor-parallel size."""
    instances: int = 1
    """Instances of the distributed optimizer."""

    @property
    def world(self) -> int:
        """The number of ranks."""
        return self.tp * self.pp * self.cp * self.dp

    def text(self) -> str:
        """Its sizes that are not 1, and the number of ranks."""
        names = {"tp": "TP", "pp": "PP", "cp": "CP", "dp": "DP", "ep": "EP", "etp": "ETP", "instances": "instances"}
        sizes = [f"{name} {getattr(self, field)}" for field, name in names.items() if getattr(self, field) > 1]
        return f"{' x '.join(sizes) or 'one of each'} ({self.world} ranks)"


class Case(NamedTuple):
    """One thing to run, on untouched, patched and mutated source alike."""

    name: str
    topology: Topology
    harness: str
    """``ranks`` (real processes) or ``schedule`` (recorded and played)."""
    untouched: str
    """How it must end on untouched source: ``passed`` for a control, else how the defect shows."""
    at: str = ""
    """What must be named where the untouched source ends so: a function, a rank. Else it is another defect."""
    options: Mapping[str, Any] = MappingProxyType({})
    """What else the proof's ``run`` is to know. ``same``: untouched and patched have to show the very same;
    ``may_pass``: whether the defect comes up depends on the release, so that the untouched source may pass."""
    core: bool = False
    """Whether it belongs to the core set, which runs in CI."""

    @property
    def is_control(self) -> bool:
        """Whether the untouched source passes too."""
        return self.untouched == PASSED


class Outcome(NamedTuple):
    """What one run of a case showed. ``broken`` is a fault of the proof's own, which never counts as the defect."""

    status: str
    detail: str
    seconds: float = 0.0


def verdict(case: Case, untouched: Outcome, patched: Outcome) -> str:
    """Why this pair of outcomes proves nothing, or that the rewrite is wrong; empty where it proves what it should."""
    if untouched.status != case.untouched:
        return f"untouched source {untouched.status}, where it should have {case.untouched}: {untouched.detail}"
    if not case.is_control and case.at not in untouched.detail:
        return f"untouched source {untouched.status}, but not at {case.at}: {untouched.detail}"
    if patched.status != PASSED:
        return f"patched source {patched.status}: {patched.detail}"
    if case.options.get("same") and untouched.detail != patched.detail:
        return f"patched source does not do the same as untouched: {patched.detail}, and {untouched.detail}"
    return ""


def survivors(outcomes: Mapping[str, Outcome]) -> str:
    """Why a variant that must fail on all of these cases does not; empty where it fails on each, by its own fault."""
    wrong = [name for name, outcome in outcomes.items() if outcome.status in (PASSED, BROKEN)]
    return "; ".join(f"{name} {outcomes[name].status}: {outcomes[name].detail}" for name in wrong)
