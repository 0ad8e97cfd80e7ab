"""The jobs of each fix that hang on untouched source: its proof's own, at 4, 8 and 16 ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hangs import foreign
from proofs import suite
from unhang.prove.cases import HUNG, Case, Topology

_DP = {4: Topology(dp=4), 8: Topology(dp=8), 16: Topology(dp=16)}
_CP = {4: Topology(cp=2, dp=2), 8: Topology(tp=2, pp=2, cp=2), 16: Topology(tp=2, pp=2, cp=2, dp=2)}
_PP = {4: Topology(pp=4), 8: Topology(tp=2, pp=4), 16: Topology(tp=2, pp=4, dp=2)}
_EP2 = {4: Topology(dp=4, ep=2), 8: Topology(dp=8, ep=2), 16: Topology(dp=16, ep=2)}
_EP4 = {4: Topology(dp=4, ep=4), 8: Topology(dp=8, ep=4), 16: Topology(dp=16, ep=4)}
_TP = {4: Topology(tp=2, dp=2), 8: Topology(tp=2, pp=4), 16: Topology(tp=2, pp=4, dp=2)}


def _each(jobs: Mapping[int, Topology], name: str = "", **options: Any) -> list[Case]:
    names = {size: f"{name}-{size}" if name else str(size) for size in jobs}
    return [Case(names[size], topology, HUNG, options=options) for size, topology in jobs.items()]


def _methods() -> list[Case]:
    methods = {"policy-update": "update_policy", "log-prob": "compute_log_prob"}
    methods |= {"values": "compute_values", "critic-update": "update_critic"}
    found = [case for name, method in methods.items() for case in _each(_DP, name, methods=(method,), long=2)]
    options = {"methods": ("update_policy",), "long": 2, "replicas": 2}
    return [*found, Case("hybrid-4", _DP[4], HUNG, options=options)]


HANGS: dict[str, Sequence[Case]] = {
    "allgather-empty-expert": [*_each(_EP4, "refuses", refuses=True), *_each(_EP4, "returns")],
    "empty-expert-hang": _each(_EP2, dispatcher="alltoall", cuts=True, each=True),
    "fsdp-dynamic-bsz": _methods(),
    "fsdp2-buffer-order": _each(_DP, sizes=(64, 32)),
    "hybrid-aux-tracker-hang": [*_each(_PP), *_each(_PP, "mtp", mtp=1)],
    "infer-metric-rank0": [*_each(_DP, "acc", metric="acc"), *_each(_DP, "rouge", metric="rouge")],
    "mean-metric-dtype": _each(_DP, strategy="seq", reduces=True),
    "moe-aux-tracker-hang": [*_each(_PP), *_each(_PP, "two-mtp-layers", mtp=2)],
    "mtp-cp-deadlock": _each(_CP),
}
TREES: dict[str, Sequence[Case]] = {"sft-packed-seq-broadcast": _each(_TP)}  # on a source tree, which needs a clone
_TREE = "core_v0.16.1"
LIKE = {
    "hybrid-aux-tracker-hang": "moe-aux-tracker-hang",
    "moe-aux-tracker-hang": "hybrid-aux-tracker-hang",
    "infer-metric-rank0": "mean-metric-dtype",
}
"""The fix whose hang waits in the same function, and differs by what an error does not say: sizes, types or peers."""
FEW = 4  # the ranks of the jobs that are run patched as well
_CORE = {"infer-metric-rank0": "acc-4", "moe-aux-tracker-hang": "4", "mtp-cp-deadlock": "4"}
_CORE_FOREIGN = ("healthy", "out-of-memory", "skipped-group", "slow-rank", "wrong-sizes-in-pipeline")


def proof(fix: str) -> suite.Proof:
    """Return the proof whose release hangs: the core one, or a source tree."""
    of_fix = [one for one in suite.every_proof() if one.fix == fix]
    return next(one for one in of_fix if (one.version == _TREE if fix in TREES else one.release.core))


def chosen() -> dict[str, Sequence[Case]]:
    """Return the jobs to run: all of them, on source trees where a clone is given; or the core set."""
    if suite.everything():
        return {**HANGS, **{fix: TREES[fix] for fix in TREES if suite.CLONES[proof(fix).upstream]}}
    return {fix: [case for case in HANGS[fix] if case.name == name] for fix, name in _CORE.items()}


def chosen_foreign() -> list[str]:
    """Return the foreign jobs to run."""
    return list(foreign.JOBS) if suite.everything() else list(_CORE_FOREIGN)
