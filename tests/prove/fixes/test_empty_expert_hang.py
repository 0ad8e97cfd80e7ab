"""empty-expert-hang's proof: what is wrong with what the ranks did. Runs no torch."""

from __future__ import annotations

from typing import Any

import pytest

from unhang.prove.cases import Case
from unhang.prove.fixes import empty_expert_hang as proof

CASES = {case.name: case for case in proof.CASES}
SOME: dict[str, float | None] = {"linear_fc1.weight0": 2.0, "linear_fc2.weight0": 1.0}
NONE_LEFT: dict[str, float | None] = dict.fromkeys(SOME, 0.0)
FULL = proof.Step(tokens=3, shape=(32, 1, 32), reaches_input=True, gradients=SOME, differs=())
EMPTY = FULL._replace(tokens=0, gradients=NONE_LEFT)


def ep2(second: proof.Step) -> list[list[proof.Step]]:
    """Two ranks in three steps; the second one's step without tokens is as given."""
    return [[FULL] * 3, [FULL._replace(gradients=SOME), second, FULL]]


@pytest.mark.parametrize("case", [case for case in proof.CASES if case.topology.dp == 2 and "same" not in case.name])
def test_zero_gradients_on_the_empty_rank_are_right(case: Case) -> None:
    assert not proof.wrong(case, ep2(EMPTY))
    assert "zero there" in proof.right(case, ep2(EMPTY))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"gradients": {**NONE_LEFT, "linear_fc2.weight0": None}}, "no gradient of linear_fc2.weight0"),
        ({"gradients": {}}, "no gradient of any expert"),
        ({"gradients": {**NONE_LEFT, "linear_fc1.weight0": 0.5}}, "0 tokens, gradients"),
        ({"shape": (34, 1, 32)}, "output (34, 1, 32)"),
        ({"reaches_input": False}, "no gradient of the input"),
        ({"differs": ("output",)}, "differs from the untouched forward: output"),
    ],
)
def test_a_step_that_is_wrong_is_named(change: dict[str, Any], why: str) -> None:
    found = proof.wrong(CASES["alltoall-cuts"], ep2(EMPTY._replace(**change)))
    assert found.startswith("rank 1, step 2 (empty): ")
    assert why in found


def test_tokens_without_any_gradient_are_wrong_and_unexpected_tokens_a_failure_of_the_proof() -> None:
    steps = [[FULL, FULL, FULL._replace(gradients=NONE_LEFT)], [FULL, EMPTY, FULL]]
    assert proof.wrong(CASES["alltoall-keeps"], steps).startswith("rank 0, step 3 (full): 3 tokens, gradients")
    with pytest.raises(AssertionError, match="rank 1 has 3 tokens in step 2, empty"):
        proof.wrong(CASES["alltoall-cuts"], ep2(FULL))


def test_replicas_of_an_expert_have_the_same_gradients() -> None:
    case = CASES["ddp-cuts"]
    empty = FULL._replace(tokens=0)  # it has the gradients of its replica
    values = [[FULL] * 3, [FULL, empty, FULL], [FULL] * 3, [FULL] * 3]
    assert not proof.wrong(case, values)
    values[3] = [FULL, FULL._replace(gradients=dict.fromkeys(SOME, 7.0)), FULL]
    assert proof.wrong(case, values) == "rank 3, step 2 (uneven): gradients differ from its replica on rank 1"


def test_the_installed_transformer_engine_is_named() -> None:
    assert proof.about({}).startswith("no Transformer Engine is installed")
    remark = proof.about({"transformer-engine": "2.1.0", "transformer-engine-cu12": "2.1.0"})
    assert remark.startswith("Transformer Engine 2.1.0 is installed")
    assert "does not cure" in remark
    assert "does not cure" not in proof.about({"transformer-engine": "2.10.0"})
