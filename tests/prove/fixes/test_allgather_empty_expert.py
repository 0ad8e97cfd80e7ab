"""allgather-empty-expert's proof: what is wrong with what the ranks did. Runs no torch."""

from __future__ import annotations

from typing import Any

import pytest

from unhang.prove.fixes import allgather_empty_expert as proof

CASES = {case.name: case for case in proof.CASES}
FULL = proof.Step(tokens=3, fused=("permute", "unpermute"), gradients={"experts.fc1": 2.0}, differs=())
EMPTY = proof.Step(tokens=0, fused=(), gradients={"experts.fc1": 0.0}, differs=())
PLAIN = FULL._replace(fused=())


@pytest.mark.parametrize(
    ("version", "does"),
    [("2.1.0", "fails in its backward"), ("2.14.1", "fails in its backward"), ("2.15.0+abc", "refuses")],
)
def test_the_installed_transformer_engine_is_named(version: str, does: str) -> None:
    assert proof.about({}).startswith("no Transformer Engine is installed")
    remark = proof.about({"transformer-engine": version})
    assert remark.startswith(f"Transformer Engine {version} is installed, which by its source {does}")


@pytest.mark.parametrize(
    ("case", "steps"),
    [
        ("refuses", [[FULL] * 3, [FULL, EMPTY, FULL]]),
        ("ep4-returns", [[FULL] * 3, [FULL] * 3, [FULL, EMPTY, FULL], [FULL, EMPTY, FULL]]),
        ("unfused", [[PLAIN] * 3, [PLAIN, EMPTY, PLAIN]]),
        ("tokens", [[FULL] * 3, [FULL] * 3]),
        ("alltoall-no-batch", [[PLAIN] * 3, [PLAIN] * 3]),
    ],
)
def test_steps_that_are_right(case: str, steps: list[list[proof.Step]]) -> None:
    assert not proof.wrong(CASES[case], steps)


@pytest.mark.parametrize(
    ("step", "change", "why"),
    [
        (EMPTY, {"fused": ("permute",)}, "rank 1, step 2 (empty): 0 tokens, fused: permute"),
        (EMPTY, {"gradients": {"experts.fc1": None}}, "rank 1, step 2 (empty): no gradient of experts.fc1"),
        (EMPTY, {"gradients": {}}, "rank 1, step 2 (empty): no gradient of any expert"),
        (EMPTY, {"gradients": {"experts.fc1": 0.5}}, "rank 1, step 2 (empty): 0 tokens, gradients"),
        (EMPTY, {"differs": ("output",)}, "rank 1, step 2 (empty): differs from the run without fusion: output"),
        (FULL, {"fused": ()}, "rank 0, step 1 (full): 3 tokens, fused: nothing"),
        (FULL, {"gradients": {"experts.fc1": 0.0}}, "rank 0, step 1 (full): 3 tokens, gradients"),
    ],
)
def test_a_step_that_is_wrong_is_named(step: proof.Step, change: dict[str, Any], why: str) -> None:
    first, second = [FULL] * 3, [FULL, EMPTY, FULL]
    (second if step is EMPTY else first)[why.startswith("rank 1")] = step._replace(**change)
    assert proof.wrong(CASES["returns"], [first, second]).startswith(why)


def test_unexpected_tokens_are_a_failure_of_the_proof() -> None:
    with pytest.raises(AssertionError, match="rank 1, step 2"):
        proof.wrong(CASES["returns"], [[FULL] * 3, [FULL] * 3])
