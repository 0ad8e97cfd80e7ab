"""megatron-core, mcore-bridge, verl: the real function that adds the MTP losses, forward and backward, in one process.

Before 0.14 that is ``MultiTokenPredictionBlock.forward``, then ``GPTModel._postprocess``, then ``process_mtp_loss``;
mcore-bridge has a copy of the second, whose mask has bits and no weights, and verl has one that returns scores. The
layers below and the output layer are small stand-ins, and so is what takes the loss that is logged: commits give it
more than their nearest release takes. The right gradient is that of the same losses in plain torch. A function that
leaves the losses to another one is judged with the right losses in that one's place.
"""

from __future__ import annotations

import importlib
import inspect
import itertools
import os
import sys
from functools import partial
from operator import attrgetter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from ..cases import DIFFERS, PASSED, Case, Topology
from ..ranks import megatron, shims, sites
from ..ranks.around import Around, any_module

if TYPE_CHECKING:
    import ast
    from collections.abc import Sequence

BESIDE = {"mcore-bridge": ("megatron-core",), "verl": ("megatron-core",)}
_CORE, _BRIDGE = "megatron.core.models.gpt.gpt_model", "mcore_bridge.model.gpt_model"
_MTP = "megatron.core.transformer.multi_token_prediction"
_VERL = ("verl.models.mcore.mtp_patch", "_megatron_gptmodel_postprocess")
_ONE = Topology()
_GRADIENT, _LOGGED = "the gradient is nan", "the logged loss is [nan]"
_FIRST = (1.0, 0.0, 0.0, 0.0)
CASES = (
    Case("one-token", _ONE, DIFFERS, _GRADIENT, {"mask": _FIRST}, core=True),
    Case("one-token-training", _ONE, DIFFERS, _GRADIENT, {"mask": _FIRST, "training": True}, core=True),
    Case("one-integer", _ONE, DIFFERS, _GRADIENT, {"mask": (1, 0, 0, 0), "training": True}),
    Case("second-layer", _ONE, DIFFERS, _GRADIENT, {"mask": (1.0, 1.0, 0.0, 0.0), "layers": 2}, core=True),
    Case("per-token", _ONE, DIFFERS, _LOGGED, {"mask": _FIRST, "training": True, "per_token": True}, core=True),
    Case("per-token-evaluation", _ONE, PASSED, options={"mask": _FIRST, "per_token": True}),
    Case("all-tokens", _ONE, PASSED, options={"mask": (1.0,) * 4, "training": True}, core=True),
    Case("fractions", _ONE, PASSED, options={"mask": (0.125,) * 4, "training": True}, core=True),
    Case("integers", _ONE, PASSED, options={"mask": (1, 1, 0, 1), "training": True}, core=True),
    Case("no-mask", _ONE, PASSED, options={"mask": None, "training": True}),
)
YOURS = Case("yours", _ONE, DIFFERS, _GRADIENT, {"mask": _FIRST, "training": True})
_TOKENS, _HIDDEN, _WORDS, _CLOSE = 4, 3, 5, 1e-8
_TWO_SAMPLES, _MANY = (0.0,) * 4 + (1.0,) * 4, 40001  # no 16-bit number is twice as many
_MASKS = (
    *((1.0,) * 4, _TWO_SAMPLES, _FIRST, (1.0, 1.0, 0.0, 0.0), (0.0,) * 4),
    *((0.001,) * 4, (0.125, 0.0, 0.0, 0.0), (_MANY, _MANY, 0, _MANY), (1, 0, 0, 0), None),
)


def _left(mask: Any, layers: int) -> list[float]:
    """Return how many tokens each layer has left: it shifts each sample's by one."""
    each = [*enumerate(mask or (1,) * _TOKENS)]
    return [sum(it for at, it in each if at % _TOKENS >= layer) for layer in range(1, layers + 1)]


def _grid() -> Any:
    """Yield the settings. In those of fractions, upstream's own fix divides by one: it may fail there."""
    scales, off_on = itertools.cycle((0.5, 4.0, 1.0)), (False, True)
    for ranks, masks, numbers in ((1, _MASKS, (1, 3)), (2, (_FIRST, _MASKS[0]), (2,))):
        for mask, layers, training, per_token in itertools.product(masks, numbers, off_on, off_on):
            counts = _left(mask, layers)
            yield Case(
                f"{mask}, {layers} layers, training {training}, per-token {per_token}, {ranks} ranks",
                Topology(dp=ranks),
                DIFFERS if 0 in counts and (training or not per_token) else PASSED,
                options={
                    **{"mask": mask, "layers": layers, "training": training, "per_token": per_token},
                    **{"scale": next(scales), "beyond": any(0 < count < 1 for count in counts)},
                    **{"type": "bfloat16", "packed": ranks > 1},
                },
            )


_NEWER_CORE = {"mask": _FIRST, "core": "0.17.0", "of": [_VERL[1]], "beyond": False}
GRID = [*_grid(), Case("verl 0.8.0 with a newer core", _ONE, PASSED, options=_NEWER_CORE)]
_LABELS, _LAYERS, _SCORES = "is about labels and mask", "is about the layers", "is about the scores"
HELD = {
    "labels|loss_mask is None|input_ids|cu_seqlens|packed|shard_params|context_parallel_size|_roll_|roll_pos": _LABELS,
    "num_tokens > 0": "rewritten, the count is never zero",
    "inference|is_spec_decode|output_processor|post_process": "is not in training",
    r"extra_block_kwargs|recompute|mtp_process|mtp_num_layers|mtp_detach|isinstance\(output_layer": _LAYERS,
    "mtp_isolated|multimodal|repeated|_width|in_postprocess|mhc_|fine_grained|hsm|hidden_state_": _LAYERS,
    "output_weight|share_embeddings|scale_logits|use_mup|runtime_gather|sequence_parallel|tensor_model": _SCORES,
    "fuse_linear|cross_entropy_fusion|task_type": _SCORES,
    "padding_mask|_PROCESS_MTP_LOSS_PARAMS|pg_collection": "is about what a newer core's function takes",
    r"config_logger|should_collect_acceptance|hasattr\(|mtp_logits": "is about another metric",
}


def settings(case: Case) -> dict[str, Any]:
    """Return what the user of a case's job sets. A mean is trained on in each case; a loss per token is only logged."""
    options, per_token = case.options, case.options.get("per_token", False)
    layers = options.get("layers", 1)
    return {
        "mtp_num_layers": layers,
        "calculate_per_token_loss": per_token,
        "a micro-batch with no token left for MTP": 0 in _left(options["mask"], layers),
        "a step of training": not per_token or options.get("training", False),
        "version mcore-bridge": None,
        "version verl": "0.8.0" if "core" in options else None,
        "version megatron-core": options.get("core", "0.16.1"),
    }


def caveat(case: Case) -> str:
    """Return what the case leaves open: the user's data are not read."""
    return "whether a micro-batch of yours is left without a token, your data decide"


def has_feature(function: ast.FunctionDef) -> bool:
    """Return whether the function adds the losses, or divides something."""
    import ast

    return "MTPLossAutoScaler" in (text := ast.unparse(function)) or " / " in text


class Step(NamedTuple):
    """What one step leaves: the gradients of the output layer and the hidden states, and each layer's logged loss."""

    gradient: Any
    below: Any
    logged: list[float]

    def text(self) -> str:
        """Return the norm of all gradients and the losses, rounded."""
        import torch

        logged = ", ".join(f"{loss:.4f}" for loss in self.logged)
        return (
            f"the gradient is {torch.cat([it.flatten() for it in self[:2]]).norm():.4f}, the logged loss is [{logged}]"
        )

    def is_close(self, other: Step) -> bool:
        """Return whether both are the same but for rounding."""
        import torch

        mine, others = (torch.cat([it.flatten() for it in (*one[:2], torch.tensor(one[2]))]) for one in (self, other))
        return mine.shape == others.shape and bool(((mine - others).abs() < _CLOSE).all())


def prepare() -> None:
    """Import megatron-core for a CPU, and mcore-bridge's model or verl's module among stand-ins.

    A commit may call, or give to what it calls, something that its nearest release lacks.
    """
    shims.cuda_on_cpu()
    mtp, model = (vars(importlib.import_module(name)) for name in (_MTP, _CORE))
    roll = mtp["roll_tensor"]

    def rolled(one: Any, **of: Any) -> Any:
        return [_known(roll, it, **of)[0] for it in one] if isinstance(one, list) else _known(roll, one, **of)

    mtp["roll_tensor"] = model["roll_tensor"] = rolled
    for name in ("resolve_cp_group", "prepare_mtp_sequence_roll_context"):  # there is no group
        model.setdefault(name, lambda *_, **__: None)
    if _is_beside(_VERL[0], sys.path) or _is_beside(_VERL[0], sites.ROOTS):
        sys.meta_path.insert(0, Around("verl", _VERL[:1], any_module))
        importlib.import_module(_VERL[0])
    if _is_beside(_BRIDGE, sys.path) or _is_beside(_BRIDGE, sites.ROOTS):
        sys.meta_path.insert(0, Around("mcore_bridge", (_BRIDGE,), any_module))
        utils: Any = importlib.import_module("mcore_bridge.utils")
        utils.roll_tensor = rolled  # its own calls this one
        linear = type("TELinear", (), {})
        sys.modules["megatron.core.extensions.transformer_engine"] = SimpleNamespace(TELinear=linear)  # type: ignore[assignment]
        importlib.import_module(_BRIDGE)


def _known(function: Any, *given: Any, **named: Any) -> Any:
    """Call a function with those of the arguments that it has."""
    names = inspect.signature(function).parameters
    return function(*given, **{name: value for name, value in named.items() if name in names})


def _is_beside(module: str, folders: Sequence[str]) -> bool:
    """Return whether a module is in one of these folders."""
    return any(os.path.exists(os.path.join(it, f"{module.replace('.', os.sep)}.py")) for it in folders)


def on_rank(case: Case, rank: int) -> list[Step]:
    """Run a step with the real function, and in plain torch: with per-token loss, there are two right ones."""
    megatron.initialize(case.topology)
    function = _function(case)
    rescales = (False, True) if case.options.get("per_token") else (False,)
    return [_Job(case, function).step(), *(_Job(case, function).plain(it) for it in rescales)]


def wrong(case: Case, ranks: Sequence[list[Step]]) -> str:
    """Return what is wrong with a step; empty where nothing is."""
    for found, *right in ranks:
        if not any(map(found.is_close, right)):
            return f"{found.text()}; right: {right[0].text()}"
    return ""


def right(case: Case, ranks: Sequence[list[Step]]) -> str:
    """Return what was seen."""
    return f"{ranks[0][0].text()}, as it should be"


def _function(case: Case) -> Any:
    """Return the setting's function; in a proof, the one that adds the losses in this release."""
    mtp = importlib.import_module(_MTP)
    block = "MultiTokenPredictionBlock.forward"
    is_old = "labels" in _named(attrgetter(block)(mtp))
    model = _BRIDGE if _is_beside(_BRIDGE, sites.ROOTS) else _CORE
    default = (_MTP, block) if is_old else (model, "GPTModel._postprocess")
    default = _VERL if _is_beside(_VERL[0], sites.ROOTS) else default
    module, function = (case.options.get(*it) for it in zip(("module", "function"), default))
    return attrgetter(function)(importlib.import_module(module))


class _Off(SimpleNamespace):
    """A part of a model. What is not set is off."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)

    def __call__(self, *given: Any, **named: Any) -> Any:
        return self.call(*given, **named)


class _Job:
    """A step: its hidden states, labels, weights and mask."""

    def __init__(self, case: Case, function: Any) -> None:
        import torch

        self.function, self.is_of_verl = function, function.__name__ == _VERL[1]
        self.detaches = "functional_call" in inspect.unwrap(function).__code__.co_names
        self.options = options = case.options
        self.layers, self.scale = options.get("layers", 1), options.get("scale", 1.0)
        self.logged: list[float] = []
        drawn = torch.Generator().manual_seed(0)
        mask = None if options["mask"] is None else torch.tensor(options["mask"]).view(-1, _TOKENS)
        samples, dtype = 1 if mask is None else len(mask), getattr(torch, options.get("type", "float64"))
        self.hidden = torch.randn((1 + self.layers) * _TOKENS, samples, _HIDDEN, generator=drawn).to(dtype)
        self.hidden.requires_grad_()
        self.head: Any = torch.nn.Module()
        self.head.weight = self.weights = torch.nn.Parameter(torch.randn(_WORDS, _HIDDEN, generator=drawn).double())
        self.head.forward, self.head.sequence_parallel = self.output, False
        self.labels = torch.randint(0, _WORDS, (samples, _TOKENS), generator=drawn)
        self.mask = mask.bool() if mask is not None and function.__module__ == _BRIDGE else mask

    def output(self, input_: Any, *_: Any, **others: Any) -> Any:
        """Return the scores of hidden states; or the losses where a function asks for both in one."""
        scores = input_.double() @ self.head.weight.t()
        return self.loss(others["labels"], scores) if others.get("output_cross_entropy_loss") else (scores, None)

    def loss(self, labels: Any, scores: Any) -> Any:
        """Return the loss of each token."""
        import torch

        flat = scores.transpose(0, 1).reshape(-1, _WORDS)
        return torch.nn.functional.cross_entropy(flat, labels.reshape(-1), reduction="none").view(labels.shape)

    def log(self, loss: Any, *given: Any, **_: Any) -> None:
        """Take a loss, its layer and their number; newer functions give the tokens too, and divide when they report."""
        count, *numbers = given if len(given) == 3 else (1, *given)
        assert numbers == [len(self.logged), self.layers]
        self.logged.append(float(loss) / (float(count) or 1))

    def left(self, main: Any) -> Step:
        """Run the backward pass of the main loss of each token, and return what the step leaves."""
        import torch

        mask = torch.ones_like(self.labels) if self.mask is None else self.mask
        ((main * mask).sum() / (float(mask.sum()) or 1)).backward()
        return Step(self.weights.grad, self.hidden.grad, self.logged)

    def step(self) -> Step:
        """Run the real function."""
        import torch

        function = self.function
        mtp: Any = importlib.import_module(_MTP)
        hidden = self.hidden.chunk(1 + self.layers)
        is_block, adds = function.__name__ == "forward", "labels" in _named(function)
        mtp.MTPLossAutoScaler.main_loss_backward_scale = torch.tensor(1.0)
        namespace = inspect.unwrap(function).__globals__
        namespace["MTPLossLoggingHelper"] = SimpleNamespace(
            save_loss_to_tracker=self.log,
            save_metrics_to_tracker=lambda loss, correct, total, *numbers, **_: self.log(loss, *numbers),
            should_collect_acceptance=lambda: False,
        )
        if function.__name__ == "_postprocess":  # where another adds the losses, that one is judged on its own
            namespace["process_mtp_loss"] = self.added
        namespace.update(_HAS_PROCESS_MTP_LOSS="core" in self.options, _process_mtp_loss=self.added)

        def layer(output: Any, **given: Any) -> Any:
            """Return its output: alone in a block that adds the losses; else before what it passes on."""
            names = ("input_ids", "position_ids", "padding_mask")
            return output if adds else (output, *(given[it] for it in names if it in given))

        config = _Off(
            **dict.fromkeys(("mtp_num_layers", "mtp_unroll_steps"), self.layers),
            mtp_loss_scaling_factor=self.scale,
            calculate_per_token_loss=self.options.get("per_token", False),
            task_type="causal_lm",
            config_logger_dir="",
            **dict.fromkeys(("context_parallel_size", "pipeline_model_parallel_size"), 1),
        )
        output = self.head if self.is_of_verl else _Off(call=self.output)
        own = {"output_layer": output, "compute_language_model_loss": self.loss, "config": config}
        itself = _Off(
            **own,
            **dict.fromkeys(("pg_collection", "model_comm_pgs"), _Off()),
            **dict.fromkeys(("post_process", "mtp_process"), True),
            training=self.options.get("training", False),
            mtp_loss_scaling_factor=self.scale,
            mtp=_Off(call=lambda **of: self.added(**of) if "labels" in of else self.hidden),
            shared_embedding_or_output_weight=lambda: None,
            _scale_logits=lambda scores: scores,
            _custom=lambda number: partial(layer, hidden[number + 1]),
            _forward_output_layer=lambda *given, **named: self.output(*given, **named)[0],
            compute_output_layer_and_language_model_loss=lambda it, labels, **_: self.loss(labels, self.output(it)[0]),
            layers=[partial(layer, at) for at in hidden[1:]],
        )
        ends = torch.tensor([0, _TOKENS])
        packed: Any = importlib.import_module("megatron.core.packed_seq_params").PackedSeqParams
        given = {
            **own,
            **{"self": itself, "labels": self.labels, "input_ids": self.labels, "position_ids": self.labels},
            **{"loss_mask": None if self.mask is None else self.mask.clone(), "is_training": itself.training},
            **{"hidden_states": hidden[0] if is_block else self.hidden, "embedding": lambda **_: None},
            "mtp_in_postprocess": True,
            "packed_seq_params": packed("thd", ends, ends) if self.options.get("packed") else None,
        }
        found = function(**{name: given.get(name) for name in _named(function)})
        if is_block and not adds:
            found = self.added(found, self.labels, self.mask)
        if self.is_of_verl:
            found = self.loss(self.labels, found.transpose(0, 1))
        elif function.__name__ != "_postprocess":  # of the main model: its loss comes later
            found = self.loss(self.labels, self.output(found[:_TOKENS])[0])
        return self.left(found)

    def plain(self, rescaled: bool) -> Step:
        """Do the same in plain torch. Newer releases rescale a per-token loss, because each layer has fewer tokens."""
        main = self.added(self.hidden, self.labels, self.mask, rescaled)
        return self.left(self.loss(self.labels, self.output(main)[0]))

    def added(self, hidden_states: Any, labels: Any, loss_mask: Any, rescaled: bool = False, **_: Any) -> Any:
        """Run the backward pass of the layers' losses, and return the hidden states of the main model."""
        import torch

        main, *hidden = hidden_states.chunk(1 + self.layers)
        mask = torch.ones_like(labels) if loss_mask is None else loss_mask
        every = mask.sum()
        for each in hidden:
            labels, mask = (torch.cat([one[:, 1:], torch.zeros_like(one[:, :1])], 1) for one in (labels, mask))
            weights = self.weights.detach() if self.detaches else self.weights
            losses = mask * self.loss(labels, each.double() @ weights.t())
            mean = losses.sum() / (float(mask.sum()) or 1)
            per_token = losses.sum() * (every / mask.sum().clamp(min=1) if rescaled else 1)
            due = per_token if self.options.get("per_token") else mean
            (due * self.scale / self.layers).backward(retain_graph=True)
            self.logged += [float(mean)] * self.options.get("training", False)
        return main


def _named(function: Any) -> list[str]:
    return [name for name, it in inspect.signature(function).parameters.items() if it.kind is not it.VAR_KEYWORD]
