"""empty-expert-hang's proof: what is wrong with what the ranks did. Runs no torch."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from unhang.prove.fixes import empty_expert_hang as proof

CASES = {case.name: case for case in proof.CASES}
FULL = proof.Step(tokens=3, given={}, faults=())
EMPTY = FULL._replace(tokens=0)
STEPS = [[FULL] * 3, [FULL, EMPTY, FULL]]


def test_each_fault_of_a_step_is_named() -> None:
    case = CASES["alltoall-cuts"]
    assert not proof.wrong(case, STEPS)
    assert proof.right(case, STEPS).startswith("3 steps, rank 1 has no token in one: ")
    faulty = EMPTY._replace(faults=("no gradient of linear_fc2.weight0", "output differs"))
    found = proof.wrong(case, [[FULL] * 3, [FULL, faulty, FULL]])
    assert found == "rank 1, step 2 (empty): no gradient of linear_fc2.weight0; output differs"


def test_what_is_none_on_one_side_alone_is_a_fault() -> None:
    assert not [*proof._faults({"probs": None}, {"probs": None})]
    assert [*proof._faults({"input": None}, {"input": FLOAT})] == ["no gradient of input"]
    weight: dict[str, None] = {"linear_fc1.weight0": None}
    assert [*proof._faults(weight, weight)] == ["no gradient of linear_fc1.weight0"]  # whatever the untouched one does
    assert not [*proof._faults(weight, weight, reaches_all=False)]
    assert [*proof._faults({"biases": FLOAT}, {"biases": None})] == ["biases: ('float', (2,), 'cpu'), and not None"]


FLOAT = SimpleNamespace(dtype="float", shape=[2], device=SimpleNamespace(type="cpu"))


def test_unexpected_tokens_are_a_failure_of_the_proof() -> None:
    with pytest.raises(AssertionError, match=r"rank 1, step 2 \(empty\): 3 tokens"):
        proof.wrong(CASES["alltoall-cuts"], [[FULL] * 3] * 2)


def test_of_replicas_only_the_first_group_lacks_tokens() -> None:
    assert not proof.wrong(CASES["ddp-cuts"], [*STEPS, [FULL] * 3, [FULL] * 3])
    assert not proof.wrong(CASES["alltoall-tokens"], [[FULL] * 3] * 2)
    assert proof.right(CASES["alltoall-tokens"], [[FULL] * 3] * 2).startswith("3 steps, with tokens: ")


def test_the_installed_transformer_engine_is_named() -> None:
    assert proof.about({}).startswith("no Transformer Engine is installed")
    remark = proof.about({"transformer-engine": "2.1.0", "transformer-engine-cu12": "2.1.0"})
    assert remark.startswith("Transformer Engine 2.1.0 is installed")
    assert "does not cure" in remark
    assert "does not cure" not in proof.about({"transformer-engine": "2.10.0"})
