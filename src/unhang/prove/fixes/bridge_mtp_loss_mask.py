"""Megatron-Bridge: its real step function and a real model of megatron-core, forward and backward, in one process.

Stand-ins: the other modules of Megatron-Bridge, and so what reads the batch; NVIDIA's ModelOpt; and the generator of
random numbers on a GPU, which no dropout asks for. The right gradient is that of the same model called by hand.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import itertools
import sys
import textwrap
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest.mock import MagicMock

from ..cases import DIFFERS, PASSED, Case, Topology
from ..ranks import megatron, shims
from ..ranks.around import Around, Filled

if TYPE_CHECKING:
    from collections.abc import Sequence

BESIDE = {"megatron-bridge": ("megatron-core",)}
_STEP, _FUNCTION = "megatron.bridge.training.gpt_step", "_forward_step_common"
_ONE = Topology()
_WHERE = "the gradient of the MTP layers is"
_ANSWER, _FIRST, _ALL = (0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0, 0.0), (1.0,) + (0.0,) * 7, (1.0,) * 8
_TOKENS, _WORDS, _HIDDEN = len(_ALL), 16, 8
CASES = (
    Case("answer", _ONE, DIFFERS, _WHERE, {}, core=True),
    Case("two-layers", _ONE, DIFFERS, _WHERE, {"layers": 2}),
    Case("packed", _ONE, DIFFERS, _WHERE, {"packed": True}),
    Case("wrapped", _ONE, DIFFERS, _WHERE, {"model": "wrapped"}, core=True),
    Case("wrapped-twice", _ONE, DIFFERS, _WHERE, {"model": "wrapped twice"}, core=True),
    Case("loss-alone", _ONE, DIFFERS, _WHERE, {"model": "loss alone"}, core=True),
    Case("all-tokens", _ONE, PASSED, options={"mask": _ALL}, core=True),
    Case("no-mtp", _ONE, PASSED, options={"layers": None}, core=True),
    Case("schedule-plan", _ONE, PASSED, options={"plan": True}, core=True),
    Case("takes-no-mask", _ONE, PASSED, options={"mask": _ALL, "model": "takes no mask"}, core=True),
    Case("vision", _ONE, PASSED, options={"mask": _ALL, "model": "vision"}, core=True),
    Case("one-token", _ONE, DIFFERS, _WHERE, {"mask": _FIRST, "without": "mtp-zero-tokens"}, patched=DIFFERS),
)
YOURS = Case("yours", _ONE, DIFFERS, _WHERE, {})
_CORES, _OTHERS = ("wrapped", "wrapped thrice", "loss alone"), ("takes no mask", "vision")
_OFF_ON = (False, True)
GRID = [
    Case(
        f"{model}, {mask}, {layers} layers, packed {packed}, plan {plan}, {ranks} ranks",
        Topology(dp=ranks),
        DIFFERS if layers and not all(mask) and not plan else PASSED,
        options={
            **{"model": model, "mask": mask, "layers": layers, "packed": packed, "plan": plan},
            "beyond": model in _OTHERS,  # upstream's own fix hands the mask to these too
            "rows": 1 if packed else 2,
            "per_token": layers == 2,
        },
    )
    for ranks, model, mask, layers, packed, plan in [
        *itertools.product((1,), ("plain",), (_ANSWER, _ALL), (None, 1, 2), _OFF_ON, (False,)),
        *itertools.product((1,), ("plain",), (_ANSWER, _ALL), (None, 1), _OFF_ON, (True,)),
        *itertools.product((1,), _CORES, (_ANSWER, _ALL), (None, 1, 2), (False,), (False,)),
        *itertools.product((1,), _OTHERS, (_ALL,), (None, 1), (False,), (False,)),
        *itertools.product((1,), _OTHERS, (_ANSWER,), (None,), (False,), (False,)),
        *((1, "plain", _FIRST, 1, False, False), (2, "plain", _ANSWER, 1, False, False)),
    ]
]
HELD = {
    "cu_seqlens|cp_use_thd|is_hybrid_model|tokens is|labels is|padding_mask": "of packed sequences alone",
    "mtp_num_layers.*or 0|_get_batch_fn or": "of what reads the batch alone",
    "_model_chunk_vp_stage": "tells what reads the batch which stage it is",
    **dict.fromkeys(
        (
            *("_prepare_packed_padding_mask", "_validate_packed_moe_cuda_graph", "pre_dispatch_with_padding_mask"),
            *("_patch_mcore_schedule_plan_padding_mask", "build_transformer_layer_callables"),
        ),
        "of the padding of packed sequences",
    ),
}


def settings(case: Case) -> dict[str, Any]:
    """Return what the user of such a job sets."""
    return {
        "mtp_num_layers": case.options.get("layers", 1),
        "overlap_moe_expert_parallel_comm": case.options.get("plan", False),
        "targets that the loss leaves out, such as a prompt or padding": not all(case.options.get("mask", _ANSWER)),
    }


def caveat(case: Case) -> str:
    """Return what the case leaves open: the user's data are not read."""
    return "supposes a batch with a prompt and padding"


class Step(NamedTuple):
    """What a step leaves."""

    mtp: float
    """The norm of the gradient of the MTP layers."""
    gradients: Any
    """All gradients, one after the other."""

    def text(self) -> str:
        """Return the gradient's norm."""
        return f"{_WHERE} {self.mtp:.4f}"


def prepare() -> None:
    """Import the real function among stand-ins."""
    shims.cuda_on_cpu()
    from megatron.core.tensor_parallel.random import CudaRNGStatesTracker

    CudaRNGStatesTracker.fork = lambda *_: nullcontext()
    sys.meta_path[:0] = [Around("megatron.bridge", {_STEP}, Filled), Around("modelopt", (), Filled)]
    importlib.import_module(_STEP)


def on_rank(case: Case, rank: int) -> list[Step]:
    """Do a step through the real function, and one by hand."""
    import torch

    megatron.initialize(case.topology)
    step: Any = importlib.import_module(case.options.get("module", _STEP))
    made = torch.Generator().manual_seed(0)
    rows, first = case.options.get("rows", 1), case.options.get("mask", _ANSWER)
    tokens, labels = (torch.randint(0, _WORDS, (rows, _TOKENS), generator=made) for _ in range(2))
    mask = torch.tensor([first, (first[0], *first[2:], first[1])][:rows])
    batch = {
        **{"tokens": tokens, "labels": labels, "loss_mask": mask, "position_ids": torch.arange(_TOKENS)[None]},
        "attention_mask": torch.triu(torch.ones(_TOKENS, _TOKENS), 1).bool()[None, None],
    }
    if case.options.get("packed"):
        batch["cu_seqlens"] = torch.tensor([0, _TOKENS])
        batch["packed_seq_metadata"] = {"cu_seqlens": batch["cu_seqlens"]}
    function = getattr(step, case.options.get("function", _FUNCTION))
    step.get_batch = lambda *_, **__: tuple(batch.get(name) for name in _read(function))
    for name in ("get_attr_wrapped_model", "accumulate_flops_metadata"):  # commits use what their closest release lacks
        vars(step).setdefault(name, MagicMock())
    step.get_pg_collection = lambda _: MagicMock()
    step.get_packed_seq_params = lambda *_: None  # attention on a CPU knows none
    given = {name: it for name, it in batch.items() if name in ("labels", "attention_mask", "position_ids")}
    takes = {} if case.options.get("model") == "takes no mask" else {"loss_mask": mask}
    steps = []
    for by_hand in (False, True):
        model, inner = _model(case, {"input_ids": tokens, "position_ids": batch["position_ids"]})
        if by_hand:
            output, used = model(input_ids=tokens, **given, **takes), mask
            output = output[0] if isinstance(output, tuple) else output
        else:
            output, used = function(MagicMock(), iter(()), model, case.options.get("plan", False))
        ((output * used).sum() / used.sum()).backward()
        steps.append(_left(inner))
    return steps


def _read(function: Any) -> list[str]:
    """Return the names that the function reads a batch into."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    targets = [node.targets[0] for node in ast.walk(tree) if isinstance(node, ast.Assign)]
    rows = [[getattr(it, "id", "") for it in target.elts] for target in targets if isinstance(target, ast.Tuple)]
    return next(row for row in rows if "loss_mask" in row)


def _left(model: Any) -> Step:
    import torch

    own = [(name, it) for name, it in model.named_parameters() if it.grad is not None]
    mtp = [it.grad.float().flatten() for name, it in own if name.startswith("mtp")]
    norm = float(torch.cat(mtp).norm()) if mtp else 0.0
    return Step(norm, torch.cat([it.grad.float().flatten() for _, it in own]))


def _model(case: Case, inputs: Any) -> tuple[Any, Any]:
    """Return the model that the function gets, and megatron-core's inside of it."""
    import torch
    from megatron.core.models.gpt import gpt_layer_specs
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.module import Float16Module
    from megatron.core.transformer.multi_token_prediction import MTPLossLoggingHelper
    from megatron.core.transformer.transformer_config import TransformerConfig

    class Own(GPTModel):  # type: ignore[misc]
        """Its schedule is a plain pass."""

        def build_schedule_plan(self, *tokens: Any, **given: Any) -> Any:
            packed = {name: given.pop(name) for name in ("packed_seq_params", "padding_mask") if name in given}
            assert not any(it is not None for it in packed.values())
            return self(*tokens, **given)

    class TakesNoMask(Own):
        """Somebody's model, from before there was a mask."""

        def forward(
            self, input_ids: Any, position_ids: Any, attention_mask: Any, labels: Any = None,
            packed_seq_params: Any = None,
        ) -> Any:  # fmt: skip
            return super().forward(input_ids, position_ids, attention_mask, labels=labels)

    class Vision(torch.nn.Module):  # type: ignore[misc]
        """Returns the mask too, if it is given one, as MiniMax-M3's does."""

        post_process = True

        def forward(self, loss_mask: Any = None, **given: Any) -> Any:
            output = self.language_model(loss_mask=loss_mask, **given)
            return output if loss_mask is None else (output, loss_mask)

    class Wrapper(torch.nn.Module):  # type: ignore[misc]
        """Is not megatron-core's to strip, as what its FSDP has inside. That it is called shows in what comes out."""

        def __init__(self, module: Any) -> None:
            super().__init__()
            self.config, self.module = config, module

        def forward(self, **given: Any) -> Any:
            return 2 * self.module(**given)

    layers, kind = case.options.get("layers", 1), case.options.get("model", "plain")
    config = TransformerConfig(
        **{"num_layers": 1, "hidden_size": _HIDDEN, "num_attention_heads": 2, "use_cpu_initialization": True},
        **{"hidden_dropout": 0.0, "attention_dropout": 0.0, "masked_softmax_fusion": False, "bf16": "wrapped" in kind},
        **{"mtp_num_layers": layers, "mtp_loss_scaling_factor": 0.5},
        calculate_per_token_loss=case.options.get("per_token", False),
    )
    config.overlap_moe_expert_parallel_comm = case.options.get("plan", False)  # asked for experts when it is made
    MTPLossLoggingHelper.tracker.clear()  # of another setting, with other layers
    torch.manual_seed(0)
    spec = gpt_layer_specs.get_gpt_layer_local_spec()
    mtp = gpt_layer_specs.get_gpt_mtp_block_spec(config, spec, use_transformer_engine=False) if layers else None
    own = (TakesNoMask if kind == "takes no mask" else Own)(config, spec, _WORDS, _TOKENS, mtp_block_spec=mtp)
    if kind == "loss alone" and layers:  # of the last stage, to which another hands what the MTP layers return
        before, own.mtp_process = own.decoder.forward, False
        own.mtp_of_another = own.mtp
        del own.mtp
        own.decoder.forward = lambda **it: own.mtp_of_another(
            **inputs, hidden_states=before(**it), attention_mask=it["attention_mask"], embedding=own.embedding
        )
    outer: Any = Vision() if kind == "vision" else own
    if kind == "vision":
        outer.config, outer.language_model = config, own
    for _wrapper in range({"wrapped twice": 1, "wrapped thrice": 2}.get(kind, 0)):
        outer = Wrapper(outer)
    if kind in ("wrapped twice", "wrapped thrice", "loss alone"):
        own.module = torch.nn.Identity()  # has nothing to do with wrappers
    return (Float16Module(config, outer) if "wrapped" in kind else outer), own


def wrong(case: Case, ranks: Sequence[list[Step]]) -> str:
    """Return what is wrong; empty where the gradients are those of the model called by hand."""
    for found, due in ranks:
        if not due.gradients.isfinite().all() or not found.gradients.equal(due.gradients):
            return f"{found.text()}; right: {due.text().removeprefix(_WHERE).strip()}"
    return ""


def right(case: Case, ranks: Sequence[list[Step]]) -> str:
    """Return what was seen."""
    return f"{ranks[0][0].text()}, as it should be"
