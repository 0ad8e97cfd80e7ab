"""megatron-core, mcore-bridge: the real function that adds the MTP losses, forward and backward, in one process.

Before 0.14 that is ``MultiTokenPredictionBlock.forward``, then ``GPTModel._postprocess``; mcore-bridge has a copy of
the latter, whose mask has bits and no weights. The layers below and the output layer are small stand-ins. The right
gradient is that of the same losses in plain torch.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from ..cases import DIFFERS, PASSED, Case, Outcome, Topology
from ..ranks import gloo, megatron, shims, sites
from ..ranks.around import Around, any_module

if TYPE_CHECKING:
    from collections.abc import Sequence

BESIDE = {"mcore-bridge": ("megatron-core",)}
_CORE, _BRIDGE = "megatron.core.models.gpt.gpt_model", "mcore_bridge.model.gpt_model"
_ONE = Topology()
_GRADIENT, _LOGGED = "the gradient is nan", "the logged loss is [nan]"
_FIRST = (1.0, 0.0, 0.0, 0.0)
CASES = (
    Case("one-token", _ONE, "ranks", DIFFERS, _GRADIENT, {"mask": _FIRST}, core=True),
    Case("one-token-training", _ONE, "ranks", DIFFERS, _GRADIENT, {"mask": _FIRST, "training": True}, core=True),
    Case("one-integer", _ONE, "ranks", DIFFERS, _GRADIENT, {"mask": (1, 0, 0, 0), "training": True}),
    Case("second-layer", _ONE, "ranks", DIFFERS, _GRADIENT, {"mask": (1.0, 1.0, 0.0, 0.0), "layers": 2}, core=True),
    Case(
        "per-token",
        _ONE,
        "ranks",
        DIFFERS,
        _LOGGED,
        {"mask": _FIRST, "training": True, "per_token": True},
        core=True,
    ),
    Case("per-token-evaluation", _ONE, "ranks", PASSED, options={"mask": _FIRST, "per_token": True}),
    Case("all-tokens", _ONE, "ranks", PASSED, options={"mask": (1.0,) * 4, "training": True}, core=True),
    Case("fractions", _ONE, "ranks", PASSED, options={"mask": (0.125,) * 4, "training": True}, core=True),
    Case("integers", _ONE, "ranks", PASSED, options={"mask": (1, 1, 0, 1), "training": True}, core=True),
    Case("no-mask", _ONE, "ranks", PASSED, options={"mask": None, "training": True}),
)
YOURS = Case("yours", _ONE, "ranks", DIFFERS, _GRADIENT, {"mask": _FIRST, "training": True})
_TOKENS, _HIDDEN, _WORDS, _CLOSE = 4, 3, 5, 1e-5


def caveat(case: Case) -> str:
    """Return what the case leaves open: the user's data are not read."""
    return "whether a micro-batch of yours is left without a token, your data decide"


class Step(NamedTuple):
    """What one step leaves: the norm of the output layer's gradient, and the loss that is logged for each layer."""

    gradient: float
    logged: list[float]

    def text(self) -> str:
        """Return both, rounded."""
        logged = ", ".join(f"{loss:.4f}" for loss in self.logged)
        return f"the gradient is {self.gradient:.4f}, the logged loss is [{logged}]"


def prepare() -> None:
    """Import megatron-core for a CPU, and mcore-bridge's model among stand-ins."""
    shims.cuda_on_cpu()
    model = importlib.import_module(_CORE)
    if _module() == _BRIDGE:
        from megatron.core.transformer.multi_token_prediction import roll_tensor

        sys.meta_path.insert(0, Around("mcore_bridge", (_BRIDGE,), any_module))
        utils: Any = importlib.import_module("mcore_bridge.utils")
        utils.roll_tensor = roll_tensor  # its own calls this one
        linear = type("TELinear", (), {})
        sys.modules["megatron.core.extensions.transformer_engine"] = SimpleNamespace(TELinear=linear)  # type: ignore[assignment]
        importlib.import_module(_BRIDGE)
    assert model


def _module() -> str:
    """Return the name of the module of ``GPTModel``: of the upstream that the variant has files of."""
    path = f"{_BRIDGE.replace('.', os.sep)}.py"
    return _BRIDGE if any(os.path.exists(os.path.join(root, path)) for root in sites.ROOTS) else _CORE


def run(case: Case, deadline_s: float) -> Outcome:
    """Run one case: a step with the real function, and the same in plain torch."""
    world = gloo.run(case.topology.world, lambda rank: _on_rank(case), deadline_s=deadline_s)
    return world.outcome(_wrong, lambda ranks: f"{ranks[0][0].text()}, as it should be")


def _wrong(ranks: Sequence[tuple[Step, Step]]) -> str:
    """Return what is wrong with a step; empty where nothing is."""
    for found, right in ranks:
        pairs = zip((found.gradient, *found.logged), (right.gradient, *right.logged))
        if len(found.logged) != len(right.logged) or not all(abs(one - other) < _CLOSE for one, other in pairs):
            return f"{found.text()}; right: {right.text()}"
    return ""


def _on_rank(case: Case) -> tuple[Step, Step]:
    import torch

    megatron.initialize(case.topology)
    return _step(case, torch, _real), _step(case, torch, _plain)


def _step(case: Case, torch: Any, losses: Any) -> Step:
    """Run one step: the main loss, and to it the losses of the layers."""
    options, layers = case.options, case.options.get("layers", 1)
    torch.manual_seed(0)
    hidden = torch.randn((1 + layers) * _TOKENS, 1, _HIDDEN, requires_grad=True)
    weights = torch.randn(_WORDS, _HIDDEN, requires_grad=True)
    labels = torch.randint(0, _WORDS, (1, _TOKENS))
    mask = None if options["mask"] is None else torch.tensor([options["mask"]])
    job = _Job(case, hidden, weights, labels, mask)
    main, logged = losses(job, torch)
    main_mask = torch.ones_like(labels) if mask is None else mask
    ((main * main_mask).sum() / main_mask.sum()).backward()
    return Step(float(weights.grad.norm()), logged)


class _Job(NamedTuple):
    """What a step is given."""

    case: Case
    hidden: Any
    weights: Any
    labels: Any
    mask: Any

    def output(self, hidden: Any, **_: Any) -> tuple[Any, None]:
        """Return the scores of hidden states."""
        return hidden @ self.weights.t(), None

    def loss(self, labels: Any, scores: Any) -> Any:
        """Return the loss of each token."""
        import torch

        flat = scores.transpose(0, 1).reshape(-1, _WORDS)
        return torch.nn.functional.cross_entropy(flat, labels.reshape(-1), reduction="none").view(labels.shape)


def _real(job: _Job, torch: Any) -> tuple[Any, list[float]]:
    """Run the real function. Return the main loss of each token, and what is logged."""
    from megatron.core.transformer import multi_token_prediction as mtp

    options, layers = job.case.options, job.case.options.get("layers", 1)
    model = importlib.import_module(_module())
    mtp.MTPLossAutoScaler.main_loss_backward_scale = torch.tensor(1.0)
    mtp.MTPLossLoggingHelper.tracker = {}
    config = SimpleNamespace(
        mtp_num_layers=layers,
        mtp_loss_scaling_factor=1.0,
        calculate_per_token_loss=options.get("per_token", False),
        recompute_granularity=None,
        mtp_unroll_steps=layers,
        task_type="causal_lm",
        is_multimodal=False,
    )
    hidden = list(job.hidden.chunk(1 + layers))
    itself: Any = SimpleNamespace(
        config=config,
        training=options.get("training", False),
        post_process=True,
        mtp_process=True,
        share_embeddings_and_output_weights=False,
        output_layer=job.output,
        compute_language_model_loss=job.loss,
        cp_group=None,
        mtp_loss_scaling_factor=1.0,
        mtp=lambda **given: given["hidden_states"],
        embedding=None,
        _forward_output_layer=lambda *given, **named: job.output(*given, **named)[0],
        layers=[lambda at=at, **_: hidden[at] for at in range(1, 1 + layers)],
    )
    mask = None if job.mask is None else job.mask.clone() if model.__name__ == _CORE else job.mask.bool()
    of_mask = {"labels": job.labels, "loss_mask": mask}
    block = mtp.MultiTokenPredictionBlock.forward
    if "labels" in inspect.signature(block).parameters:
        of_model = {"embedding": lambda **_: None, "output_layer": job.output, "compute_language_model_loss": job.loss}
        ids = {"input_ids": job.labels, "position_ids": job.labels, "attention_mask": None}
        main = block(itself, hidden_states=hidden[0], **ids, **of_mask, **of_model)
        main = job.loss(job.labels, job.output(main)[0])
    else:
        given = dict.fromkeys([*inspect.signature(model.GPTModel._postprocess).parameters][1:])
        main = model.GPTModel._postprocess(itself, **{**given, "hidden_states": job.hidden, **of_mask})
    values = mtp.MTPLossLoggingHelper.tracker.get("values")
    return main, [] if values is None else values.tolist()


def _plain(job: _Job, torch: Any) -> tuple[Any, list[float]]:
    """Do the same in plain torch, with one sum over the losses of the main model and the layers."""
    options, layers = job.case.options, job.case.options.get("layers", 1)
    hidden = job.hidden.chunk(1 + layers)
    labels = job.labels
    mask = torch.ones_like(labels) if job.mask is None else job.mask
    logged = []
    for layer in range(layers):
        labels, mask = (torch.cat([one[:, 1:], torch.zeros_like(one[:, :1])], 1) for one in (labels, mask))
        losses = mask * job.loss(labels, job.output(hidden[layer + 1])[0])
        mean = losses.sum() / mask.sum() if mask.sum() else 0 * losses.sum()
        (losses.sum() if options.get("per_token") else mean).div(layers).backward(retain_graph=True)
        logged.append(float(mean))
    return job.loss(job.labels, job.output(hidden[0])[0]), logged if options.get("training") else []
