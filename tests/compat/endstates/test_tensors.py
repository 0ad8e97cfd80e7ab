"""The small tensor does what torch's does, or refuses; where torch is installed, both are asked."""

from typing import Any

import pytest

import support.checkout  # noqa: F401 - makes unhang.compat.endstates importable
from unhang.compat.endstates.standin import Gap
from unhang.compat.endstates.tensors import Misfit, Nested, Tensor, torch

LIKE_TORCH = {
    "t.zeros(2, 3).shape": (2, 3),
    "t.ones((2, 1)).tolist()": [[1.0], [1.0]],
    "t.full((2,), 7, dtype=t.int64).tolist()": [7, 7],
    "t.tensor([[1, 2], [3, 4]]).sum(dim=0).tolist()": [4, 6],
    "t.tensor([[1, 2], [3, 4]]).sum(dim=-1).tolist()": [3, 7],
    "t.zeros(0, 2).sum(dim=0).tolist()": [0.0, 0.0],
    "t.tensor([[1, 2], [3, 4]]).T.tolist()": [[1, 3], [2, 4]],
    "t.tensor([[1, 2], [3, 4]])[1, :1].tolist()": [3],
    "t.tensor([[1, 2], [3, 4]])[..., -1].tolist()": [2, 4],
    "t.tensor([1, 2, 3])[t.tensor([2, 0])].tolist()": [3, 1],
    "t.tensor([1, 2, 3])[1:].tolist()": [2, 3],
    "t.tensor([1, 2, 3])[3:1].tolist()": [],
    "(t.ones(2, 1) * t.tensor([1.0, 2.0])).tolist()": [[1.0, 2.0], [1.0, 2.0]],
    "(1 - t.tensor([1.0, 2.0])).tolist()": [0.0, -1.0],
    "(-t.tensor([1, 2]) != t.tensor([-1, 2])).tolist()": [False, True],
    "t.ones(1) == None": False,
    "(t.tensor([1, 2]) == t.tensor([1, 3])).tolist()": [True, False],
    "(t.tensor([1, 2]) >= 2).tolist()": [False, True],
    "str((t.ones(1, dtype=t.bfloat16) * t.ones(1)).dtype).split('.')[-1]": "float32",
    "str(t.tensor([1.5, 2]).dtype).split('.')[-1]": "float32",
    "str(t.tensor([True]).dtype).split('.')[-1]": "bool",
    "t.cat([t.zeros(0, 2), t.ones(1, 2)]).tolist()": [[1.0, 1.0]],
    "[it.tolist() for it in t.split(t.tensor([1, 2, 3]), [1, 2])]": [[1], [2, 3]],
    "[it.tolist() for it in t.chunk(t.tensor([[1, 2], [3, 4]]), 2, dim=-1)]": [[[1], [3]], [[2], [4]]],
    "t.tensor([1, 2, 3]).view(-1, 1).tolist()": [[1], [2], [3]],
    "t.tensor([1, 2]).unsqueeze(-1).shape[1]": 1,
    "t.tensor([1.0, 9.0]).clamp(min=None, max=2.0).tolist()": [1.0, 2.0],
    "t.tensor([1, 5, 7]).diff().tolist()": [4, 2],
    "t.tensor([1, 5]).masked_select(t.tensor([False, True])).tolist()": [5],
    "t.zeros(2).fill_(3.0).mean().item()": 3.0,
    "t.zeros(2).new_full((1, 2), 4.0).tolist()": [[4.0, 4.0]],
    "bool(t.tensor([1]) > 0)": True,
    "int(t.tensor(3).to(t.int32).max())": 3,
}
REFUSED = (
    *("t.ones(2) + t.ones(3)", "bool(t.ones(2))", "t.ones(2).item()", "t.zeros(0, 2).view(-1, 0)"),
    *("t.split(t.ones(3), [1, 1])", "sorted([t.ones(2), t.ones(2)])", "t.cat([t.ones(1, 2), t.ones(1, 3)])"),
)


@pytest.mark.parametrize("code", LIKE_TORCH)
def test_it_computes_as_torch_does(code: str) -> None:
    for module in modules():
        result = eval(code, {"t": module})
        assert (tuple(result) if isinstance(LIKE_TORCH[code], tuple) else result) == LIKE_TORCH[code], module


@pytest.mark.parametrize("code", REFUSED)
def test_what_torch_refuses_it_refuses(code: str) -> None:
    for module in modules():
        with pytest.raises((Misfit, RuntimeError, IndexError)):
            eval(code, {"t": module})


def modules() -> list[Any]:
    """Return the stand-in, and torch itself where it is installed."""
    try:
        import torch as real
    except ModuleNotFoundError:
        return [torch()]
    return [torch(), real]


def test_what_is_computed_knows_its_origins_and_who_watches() -> None:
    events: list[tuple[str, str]] = []
    one = Tensor([1.0, 2.0], origin={"one"}, watch=lambda event, of: events.append((event, of.device)))
    both = one * Tensor([3.0, 4.0], origin={"two"})
    assert (both.origin, both.detach().origin, both.requires_grad) == ({"one", "two"}, frozenset(), True)
    both.cpu().sum().backward()
    assert both.sum().item() == 11.0
    assert events == [("fetch", "cuda"), ("backward", "cpu"), ("fetch", "cuda")]
    with pytest.raises(Misfit, match="cuda and cpu"):
        one + one.cpu()
    with pytest.raises(Misfit, match="nobody wrote"):
        torch().empty(1).item()
    with pytest.raises(Gap, match=r"Tensor\.cumsum"):
        one.cumsum(0)


def test_one_that_is_too_large_is_refused_before_it_takes_memory() -> None:
    with pytest.raises(Misfit, match="1073741824 values"):
        torch().zeros(1 << 30)


def test_a_nested_tensor_has_rows_of_its_own_lengths() -> None:
    nested = Nested([3, 5])
    assert (nested.is_nested, nested.values().shape) == (True, (8,))
    assert nested.offsets().diff().tolist() == [3, 5] == [len(it) for it in nested.unbind()]
