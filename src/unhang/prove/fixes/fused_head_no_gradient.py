"""verl: the real fused head with the torch backend, in one process. Its hidden states come in several layouts.

The packages around its module are stand-ins, and so is what returns a view, as liger's RMSNorm does; all else is real.
The right gradient is that of a plain log-softmax with contiguous hidden states, for which the head itself is right.
"""

from __future__ import annotations

import importlib
import itertools
import sys
from typing import TYPE_CHECKING, Any

from ..cases import DIFFERS, PASSED, Case, Topology
from ..ranks.around import Around, Filled

if TYPE_CHECKING:
    from collections.abc import Sequence

WARM, _MODULE = ("torch",), "verl.utils.experimental.torch_functional"
_WHERE = "the gradient of the backbone is"
_ONE = Topology()
_ROWS, _TOKENS, _HIDDEN, _WORDS = 2, 6, 8, 11
CASES = (
    Case("contiguous", _ONE, PASSED, options={"layout": "contiguous"}, core=True),
    Case("transposed", _ONE, DIFFERS, _WHERE, {"layout": "transposed"}, core=True),
    Case("sliced", _ONE, DIFFERS, _WHERE, {"layout": "sliced"}, core=True),
    Case("own-view", _ONE, DIFFERS, _WHERE, {"layout": "own view"}, core=True),
    Case("own-view-one-row", _ONE, DIFFERS, _WHERE, {"layout": "own view", "rows": 1}, core=True),
    Case("frozen-head", _ONE, DIFFERS, _WHERE, {"layout": "transposed", "head": False}, core=True),
    Case("bfloat16", _ONE, DIFFERS, _WHERE, {"layout": "transposed", "dtype": "bfloat16"}),
    Case("one-row", _ONE, PASSED, options={"layout": "transposed", "rows": 1}, core=True),
    Case("two-dimensions", _ONE, PASSED, options={"layout": "flat"}, core=True),
    Case("detached", _ONE, PASSED, options={"layout": "transposed", "backbone": False}, core=True),
    Case("frozen-head-contiguous", _ONE, PASSED, options={"layout": "contiguous", "head": False}),
)
YOURS = Case("yours", _ONE, DIFFERS, _WHERE, {"layout": "own view"})
_COPIES = ("transposed", "sliced", "own view")
"""The layouts whose flattened copy, or view, does not need a gradient."""
GRID = [
    Case(
        f"{layout}, {backbone} and {head}, {losses}, {rows} rows, {chunk}, {dtype}, {ranks} ranks",
        Topology(dp=ranks),
        DIFFERS if backbone and layout in _COPIES and (rows > 1 or layout == "own view") else PASSED,
        options={
            **{"layout": layout, "backbone": backbone, "head": head, "losses": losses, "rows": rows, "chunk": chunk},
            **{"dtype": dtype, "temperature": temperature},
        },
    )
    for ranks, chunks in ((1, (2, 4, 512)), (2, (4,)))  # the head is the same on each rank
    for layout, (backbone, head), losses, rows, chunk, (dtype, temperature) in itertools.product(
        (*_COPIES, "contiguous", "flat"),
        ((True, True), (True, False), (False, True)),
        ((1, 0.1), (1, 0), (0, 1)),
        (1, 2),
        chunks,
        (("float32", 1.0), ("bfloat16", 0.5))[: 3 - ranks],
    )
]


def caveat(case: Case) -> str:
    """Return what the case leaves open: the user's own model is not run."""
    return "hidden states of the proof's own: yours are such a view with use_liger, and perhaps without it"


def settings(case: Case) -> dict[str, Any]:
    """Return what the user of such a job sets."""
    options, layout = case.options, case.options["layout"]
    return {
        **{"strategy": "fsdp", "use_fused_kernels": True, "impl_backend": "torch"},
        "use_liger": layout in ("own view", "flat"),
        "use_remove_padding": options.get("rows") == 1,
        "hidden states that do not flatten without a copy": layout in ("transposed", "sliced"),
        "hidden states of three dimensions need a gradient": layout != "flat" and options.get("backbone", True),
    }


def prepare() -> None:
    """Import the real module among stand-ins."""
    sys.meta_path.insert(0, Around("verl", {_MODULE}, Filled))
    module: Any = importlib.import_module(_MODULE)
    module._FLASH_ATTN_CROSS_ENTROPY_AVAILABLE = False  # its kernel needs a GPU


def on_rank(case: Case, rank: int) -> tuple[Any, Any]:
    """Return the gradients of a forward and a backward pass, of backbone and head, and the right ones."""
    head = importlib.import_module(_MODULE).FusedLinearForPPO(chunk_size=case.options.get("chunk", 4))
    return _gradients(case, head, case.options["layout"]), _gradients(case, _plain, "contiguous")


def wrong(case: Case, ranks: Sequence[tuple[Any, Any]]) -> str:
    """Return what is wrong with the gradients; empty where nothing is."""
    texts = (f"{_WHERE} {_norms(it)}; right: {_norms(due)}" for it, due in ranks if not all(map(_close, it, due)))
    return next(texts, "")


def right(case: Case, ranks: Sequence[tuple[Any, Any]]) -> str:
    """Return what was seen."""
    return f"{_WHERE} {_norms(ranks[0][0])}, as it should be"


def _norms(gradients: Any) -> str:
    return ", of the head ".join("None" if one is None else f"{one.float().norm():.4f}" for one in gradients)


def _close(one: Any, other: Any) -> bool:
    """Return whether two gradients are the same but for rounding, or both None."""
    if one is None or other is None:
        return one is other
    close = 1e-2 if "bfloat16" in str(one.dtype) else 1e-5
    return one.dtype == other.dtype and bool((one - other).norm() <= close * max(other.norm(), 1e-3))


def _gradients(case: Case, head: Any, layout: str) -> tuple[Any, Any]:
    """Run a head on hidden states in this layout, forward and backward."""
    import torch

    options = case.options
    torch.manual_seed(0)
    dtype = getattr(torch, options.get("dtype", "float32"))
    backbone = torch.randn(options.get("rows", _ROWS), _TOKENS, _HIDDEN).to(dtype).requires_grad_()
    weights = torch.randn(_WORDS, _HIDDEN).to(dtype).requires_grad_(options.get("head", True))
    ids = torch.randint(0, _WORDS, backbone.shape[:2])
    hidden = _laid_out(backbone, layout)
    hidden = hidden if options.get("backbone", True) else hidden.detach()
    outputs = head(hidden, weights, ids.reshape(hidden.shape[:-1]), options.get("temperature", 1.0))
    sum(of * one.float().sum() for of, one in zip(options.get("losses", (1, 0.1)), outputs) if of).backward()
    return backbone.grad, weights.grad


def _laid_out(backbone: Any, layout: str) -> Any:
    """Return hidden states with the values of the backbone's output."""
    import torch

    class OwnView(torch.autograd.Function):  # type: ignore[misc]
        """Returns a view of what it has computed, as liger's RMSNorm does."""

        @staticmethod
        def forward(ctx: Any, given: Any) -> Any:
            return (given.reshape(-1, given.shape[-1]) * 1.0).view(*given.shape)

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            return gradient

    if layout == "transposed":
        return (backbone.transpose(0, 1).contiguous() * 1.0).transpose(0, 1)
    if layout == "sliced":
        return torch.cat([backbone, backbone[:, :1]], 1)[:, :-1]
    if layout == "flat":
        return OwnView.apply(backbone).flatten(0, 1)
    return OwnView.apply(backbone) if layout == "own view" else backbone * 1.0


def _plain(hidden: Any, weights: Any, ids: Any, temperature: float) -> Any:
    """Do what the head does, with autograd alone."""
    import torch

    scores = torch.log_softmax((hidden @ weights.t()).float() / temperature, -1)
    return scores.gather(-1, ids.unsqueeze(-1)), -(scores.exp() * scores).sum(-1)
