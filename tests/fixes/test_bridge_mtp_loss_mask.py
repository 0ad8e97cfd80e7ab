"""bridge-mtp-loss-mask: its anchors, and what the sessions need of it."""

from __future__ import annotations

import pytest

from fuzz.subject import Fuzz
from mutants.by_hand import Mutants, each
from proofs.others import Other, Proofs, Release, without
from support import sources
from unhang.judge.decide import codemod

FIX = "bridge-mtp-loss-mask"
CASES = sources.cases(FIX, {"megatron-bridge": ("0.3.1", "0.4.2", "0.5.0", "0.5.1", "0.6.2")})
_PLACE = "'labels': labels}"
_FIXED = [
    *("'labels': labels, 'loss_mask': loss_mask}", "**dict(labels=labels, loss_mask=loss_mask)}"),
    f"{_PLACE}\n    forward_args.update(loss_mask=loss_mask)",
]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("new", _FIXED)
def test_a_model_that_gets_the_mask_has_the_fix(case: sources.Case, new: str) -> None:
    source = case.load()
    has_fix = codemod(source.target).fixed_upstream
    assert has_fix(sources.mutated(source.function, _PLACE, new))
    assert not has_fix(source.function)


_CALL, _PLAN = "model(**forward_args)", r"build_schedule_plan\(..., loss_mask=...\)"
REFUSED = sources.edits(
    CASES[0],
    [
        *((_PLACE, new, "_forward_step_common without 'loss_mask'") for new in _FIXED),
        *(("loss_mask=loss_mask", new, _PLAN) for new in ("mask=loss_mask", "loss_mask=2 * loss_mask")),
        ("model.build_schedule_plan(", "model.plan(", "build_schedule_plan"),
        *((_CALL, f"model({it})", r"model\(\*\*...\)") for it in ("tokens, **forward_args", "**forward_args, a=1")),
    ],
    "^not found: {}",
)

# -- for the sessions -------------------------------------------------------------------------------------------------

_HAS, _TRAINS = 'hasattr(core_model, "mtp_process")', "core_model.config.mtp_num_layers"
_TAKES = '"loss_mask" in signature(core_model.forward).parameters'
_IF, _PACKED, _GIVEN = f"has_mtp and {_TAKES}", '"packed_seq_params"', 'forward_args["loss_mask"] = loss_mask'
_MASKS = (
    *("torch.ones_like(loss_mask)", "loss_mask.roll(-1, -1)", "loss_mask[:1]", "loss_mask.view(1, -1)"),
    "loss_mask / loss_mask.sum() * loss_mask.shape[-1]",
)
_TWICE = 'while core_model is not getattr(getattr(model, "module", 0), "module", 0) and hasattr'
_BY_HAND = {
    _IF: [
        *(f"{_IF} and {it}" for it in (f"{_PACKED} in forward_args", f"{_PACKED} not in forward_args")),
        *(f"{_IF} and {_TRAINS} == {layers}" for layers in (1, 2)),
    ],
    f"= {_HAS}": ['= getattr(core_model, "mtp_process", False)', f"= not {_HAS}"],
    "while hasattr": ["while False and hasattr", "if hasattr", _TWICE],
    f" and not {_HAS}:": [":"],
    "core_model.forward": ["model.forward", "core_model"],
    _GIVEN: [
        *(f'forward_args["loss_mask"] = {it}' for it in _MASKS),
        *(_GIVEN.replace('["loss_mask"]', f'["{it}"]') for it in ("padding_mask", "labels")),
    ],
    f"has_mtp = {_HAS}": ['has_mtp = hasattr(core_model, "mtp")', 'has_mtp = getattr(core_model, "post_process", 0)'],
    " model(": [" core_model("],
}
MUTANTS = [Mutants("megatron-bridge", ("0.4.2", "0.6.2"), each(_BY_HAND))]
_MENDED = {"one-token": "megatron-core 0.17 and later divide by one where no token is left"}
_RELEASES = [
    Release("0.6.2", beside=(("megatron-core", "0.19.2"),), core=True, lacking=_MENDED),
    Release("0.5.1", beside=(("megatron-core", "0.17.1"),), lacking=_MENDED),
    Release("0.3.1", beside=(("megatron-core", "0.16.1"),)),
]
_OF_A_STAGE = without(r'= hasattr\(core_model, "mtp_process"\)', "= core_model.mtp_process")
_HALVES = {
    "to every model, as upstream": Other(
        without(r"if has_mtp .*:", "if True:"), ("takes-no-mask", "vision"), "crashed: "
    ),
    "half: to a stage with such layers alone": Other(_OF_A_STAGE, ("loss-alone",)),
    "half: to a bare model alone": Other(without("while", "while False and"), ("wrapped", "wrapped-twice")),
    "half: in one wrapper": Other(without("while", "if"), ("wrapped-twice",)),
}
PROOFS = [Proofs("megatron-bridge", _RELEASES, _HALVES)]
FUZZ = Fuzz(CASES, 1, "loss_mask|forward_args|mtp_process|signature", examples=40)
