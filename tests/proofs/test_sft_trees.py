"""sft-packed-seq-broadcast without --sft, and on the source tree of each affected shape.

The trees need ``UNHANG_MEGATRON_CLONE`` and ``UNHANG_PROOFS=all``.
"""

from __future__ import annotations

import re

import pytest

from fixes.sft_packed_seq_broadcast.proofs import TREES
from proofs import suite
from support import sources, wheels
from unhang.prove import host
from unhang.prove.cases import Case

FIX = "sft-packed-seq-broadcast"
PROOFS = [proof for proof in suite.proofs() if proof.fix == FIX]
WHY = f"needs UNHANG_PROOFS=all and a clone that {wheels.CLONES['megatron-lm']} names"
PLAIN = [
    pytest.param(proof, case, id=f"{proof.version}-{case.name}")
    for proof in PROOFS
    for case in proof.cases()
    if not case.options.get("sft", True)
]


@pytest.mark.skipif(not (suite.everything() and suite.CLONES["megatron-lm"]), reason=WHY)
def test_every_tree_is_proved() -> None:
    assert {proof.version for proof in PROOFS if proof.is_tree} == TREES.keys()


@pytest.mark.parametrize(("proof", "case"), PLAIN)
def test_without_sft_the_batch_is_the_same_and_the_broadcasts_are_no_more(proof: suite.Proof, case: Case) -> None:
    """Every field on every rank is as before (by digest)."""
    outcomes = suite.answer(proof).outcomes
    before, after = (outcomes[name][case.name].detail.split("; batches ") for name in (host.UNTOUCHED, host.PATCHED))
    assert after[1] == before[1] != ""
    if "0.16" not in proof.version:
        assert after[0] == before[0]
    else:
        counts = [[int(number) for number in re.findall(r" (\d+)(?=,|$)", detail)] for detail, _ in (before, after)]
        assert len(counts[0]) == len(counts[1]) == case.topology.world // case.topology.tp
        assert all(new <= old for old, new in zip(*counts))


@pytest.mark.parametrize("cases", TREES.values(), ids=TREES.keys())
def test_each_tree_has_a_control_and_a_defect(cases: tuple[Case, ...]) -> None:
    assert {case.is_control for case in cases} == {True, False}
    assert len({case.name for case in cases}) == len(cases)


def test_every_affected_shape_is_proved() -> None:
    """Each is proved on a tree or a wheel. A pull request as written has the result of its base shape."""
    rows = [row for row in sources._ROWS if row["fix"] == FIX and row["state"] == "affected"]
    firsts = {row["result"]: row["first"].split()[1] for row in rows if "first" in row}
    assert {row["result"] for row in rows} == firsts.keys()
    released = {"98d8c56db": "core_v0.16.1", "4bce841d2": "core_v0.17.1"}  # proved on the release that has the shape
    assert {released.get(first, first) for first in firsts.values()} == TREES.keys()
