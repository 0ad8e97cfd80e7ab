"""fsdp2-buffer-order's proof: a user's job, and what the buffers should hold. Runs no torch."""

from __future__ import annotations

import pytest

from unhang.prove.fixes import fsdp2_buffer_order as proof


def test_a_control_leaves_nothing_open() -> None:
    assert "whether yours registers buffers so" in proof.caveat(proof.YOURS)
    assert not any(proof.caveat(control) for control in proof.CASES if control.is_control)


@pytest.mark.parametrize(
    ("full", "sliding", "wrong"),
    [
        ([0.0, 1.0], [1000.0, 1001.0], ""),
        ([1000.0, 1001.0], [0.0, 1.0], "rank 3 holds values of another buffer in full_attention_inv_freq: 1000.0, not"),
        ([0.0, 1.0], [1000.0, 0.0], "rank 3 holds values of another buffer in sliding_attention_inv_freq"),
    ],
)
def test_each_table_holds_its_own_values(full: list[float], sliding: list[float], wrong: str) -> None:
    case = proof.YOURS._replace(options={"sizes": (2, 2)})
    right = {"full_attention_inv_freq": [0.0, 1.0], "sliding_attention_inv_freq": [1000.0, 1001.0]}
    held = {"full_attention_inv_freq": full, "sliding_attention_inv_freq": sliding}
    found = proof.wrong(case, [right] * 3 + [held])
    assert found.startswith(wrong)
    assert bool(found) == bool(wrong)
