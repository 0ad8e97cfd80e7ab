"""Tensors computed from values of other ranks; jobs that read them are in support.programs. They need torch."""

from __future__ import annotations

from support.jobs import needs_torch, tensor
from unhang.prove.ranks.taint import Taint


@needs_torch
def test_views_copies_and_results_are_tainted_and_nothing_else() -> None:
    reads: list[str] = []
    taint = Taint(reads.append, lambda how, **_: reads.append(how) or 1.0)
    source, clean, target = tensor(4), tensor(4), tensor(4)
    taint.mark([source])
    with taint.mode():
        result, view = source * 2, source[1:]
        target.copy_(view.sum())
        other = clean + 1
        assert taint.has([result])
        assert taint.has([view, clean])
        assert taint.has([target])
        assert not taint.has([clean, other])
        assert float(other.sum()) == 8
        assert result.sum().item() == 1.0
        with taint.paused():
            assert float(source.sum()) == 4
    assert reads == ["_local_scalar_dense.default"]
