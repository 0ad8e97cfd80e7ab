"""grpo-window-scale: its rewrite and anchors, and what the sessions need of it."""

from __future__ import annotations

from functools import partial

from fuzz.subject import Fuzz
from mutants.by_hand import ByHand, Mutants, Sub
from proofs.others import Other, Proofs, Release, without
from support import sources

FIX = "grpo-window-scale"
GRPO, DPPO = "GRPOTrainer._compute_loss", "DPPOTrainer._compute_loss"
CASES = [
    *sources.cases(FIX, {"trl": ["0.22.0", "0.27.2", "1.0.0", "1.9.0"]}, function=GRPO),
    *sources.cases(FIX, {"trl": ["1.7.1"]}, function=DPPO),
]
_OTHERS = [("/ self.accelerator.num_processes", "/ 8"), ("['num_items_in_batch']", "['items']")]
REFUSED = sources.edits(CASES[0], _OTHERS, "not found: .*num_items_in_batch")
_SHARE = "(self.current_gradient_accumulation_steps / self.args.steps_per_generation)"
_share = partial(Sub, _SHARE)
_SCALED, _TEST = f"normalizer * {_SHARE}", "if self.model.training:"
BY_HAND: ByHand = {
    "none": _share("1"),
    "the other way round": _share("(self.args.steps_per_generation / self.current_gradient_accumulation_steps)"),
    "only the window": _share("self.current_gradient_accumulation_steps"),
    "only the generation": _share("(1 / self.args.steps_per_generation)"),
    "whole numbers": _share(_SHARE.replace(" / ", " // ")),
    "never more than a generation": _share(f"min(1, {_SHARE})"),
    "never less than a generation": _share(f"max(1, {_SHARE})"),
    "once more for the ranks": _share(f"{_SHARE} / self.accelerator.num_processes"),
    "as many as were asked for": _share(_SHARE.replace("current_", "args.")),
    "once more for the iterations": _share(f"{_SHARE} / self.num_iterations"),
    "a whole number": Sub(_SCALED, f"({_SCALED}).int()"),
    "half a float": Sub(_SCALED, f"({_SCALED}).half()"),
    "bfloat16": Sub(_SCALED, f"({_SCALED}).bfloat16()"),
    "never less than a token": Sub(_SCALED, f"({_SCALED}).clamp(min=1.0)"),
    "in evaluation too": Sub(_TEST, "if True:"),
    "in evaluation alone": Sub(_TEST, "if not self.model.training:"),
    "where gradients meet": Sub(_TEST, "if self.model.training and self.accelerator.sync_gradients:"),
    "in the first step": Sub(_TEST, "if self.model.training and self.state.global_step == 0:"),
    "in the first process": Sub(_TEST, "if self.model.training and self.accelerator.is_main_process:"),
    "without a reference model": Sub(_TEST, "if self.model.training and self.beta == 0.0:"),
    "without vllm": Sub(_TEST, "if self.model.training and not self.use_vllm:"),
}
_OF_GRPO: ByHand = {
    "not vespo": Sub(_TEST, "if self.model.training and self.loss_type != 'vespo':"),
    "of no token": Sub(_SCALED, f"inputs['num_items_in_batch'] / self.accelerator.num_processes * {_SHARE}"),
}
MUTANTS = [
    Mutants("trl", ("1.9.0",), {**BY_HAND, **_OF_GRPO}, function=GRPO),
    Mutants("trl", ("1.7.1",), BY_HAND, function=DPPO),
]
_WRONG = ("half", "twice", "four-times")
PROOFS = [
    Proofs(
        "trl",
        [Release(version, core=version == "1.9.0") for version in ("0.22.0", "0.27.2", "1.0.0", "1.9.0")],
        {
            "half: the window alone": Other(without(r" / self.args.steps_per_generation\)", ")", 0), _WRONG),
            "half: the generation alone": Other(
                without(r"self.current_gradient_accumulation_steps / self.args", "1 / self.args", 0), _WRONG
            ),
        },
    )
]
FUZZ = Fuzz(CASES, 1, "num_items_in_batch|num_processes|normalizer", examples=40)
