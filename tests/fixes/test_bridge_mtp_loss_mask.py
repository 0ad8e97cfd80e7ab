"""bridge-mtp-loss-mask: its anchors, and what the sessions need of it."""

from __future__ import annotations

import pytest

from fuzz.subject import Fuzz
from mutants.by_hand import ByHand, Mutants, Sub
from proofs.others import Other, Proofs, Release, without
from support import sources
from unhang.codemods.base import AnchorError
from unhang.judge import matrix
from unhang.judge.decide import codemod
from unhang.shapes import catalog

FIX = "bridge-mtp-loss-mask"
RELEASES = ("0.3.1", "0.4.2", "0.5.0", "0.5.1", "0.6.2")
CASES = sources.cases(FIX, {"megatron-bridge": RELEASES})
_PLACE = "'labels': labels}"
_UPSTREAM = "'labels': labels, 'loss_mask': loss_mask}"
_UPDATED = f"{_PLACE}\n    forward_args.update(loss_mask=loss_mask)"


def test_each_release_needs_it() -> None:
    releases = catalog.releases()["megatron-bridge"]
    rows = matrix.rows([catalog.fix(FIX)], {"megatron-bridge": releases}, catalog.shape_table())
    assert {row.verdict for row in rows} == {"needed"}
    assert {*RELEASES} <= {row.version for row in rows}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("new", [_UPSTREAM, _UPDATED, "**dict(labels=labels, loss_mask=loss_mask)}"])
def test_a_model_that_gets_the_mask_is_no_anchor(case: sources.Case, new: str) -> None:
    source = case.load()
    change, fixed = codemod(source.target), sources.mutated(source.function, _PLACE, new)
    assert change.fixed_upstream(fixed)
    assert not change.fixed_upstream(source.function)
    with pytest.raises(AnchorError, match=r"^not found: _forward_step_common without 'loss_mask'"):
        change.plan(fixed)


REFUSED = sources.edits(
    CASES[0],
    [
        ("loss_mask=loss_mask", "mask=loss_mask", r"build_schedule_plan\(..., loss_mask=...\)"),
        ("loss_mask=loss_mask", "loss_mask=2 * loss_mask", r"build_schedule_plan\(..., loss_mask=...\)"),
        ("model.build_schedule_plan(", "model.plan(", "build_schedule_plan"),
        ("model(**forward_args)", "model(tokens, **forward_args)", r"model\(\*\*...\)"),
        ("model(**forward_args)", "model(**forward_args, a=1)", r"model\(\*\*...\)"),
    ],
    "^not found: {}",
)


# -- for the sessions -------------------------------------------------------------------------------------------------

_HAS, _TRAINS = 'hasattr(core_model, "mtp_process")', "core_model.config.mtp_num_layers"
_TAKES = '"loss_mask" in signature(core_model.forward).parameters'
_IF = f"has_mtp and {_TAKES}"
BY_HAND: ByHand = {
    "to every model, as upstream": Sub(_IF, "True"),
    "to none": Sub(_IF, "False"),
    "to any with such layers": Sub(_IF, "has_mtp"),
    "to any that takes it": Sub(_IF, _TAKES),
    "to either": Sub(_IF, f"has_mtp or {_TAKES}"),
    "to any whose job has such layers": Sub(f"{_HAS} and ", ""),
    "to any with the attribute": Sub(f" and {_TRAINS}", ""),
    "to a stage with such layers": Sub(f"= {_HAS}", '= getattr(core_model, "mtp_process", False)'),
    "to those without": Sub(f"= {_HAS}", f"= not {_HAS}"),
    "to the wrapper": Sub("while hasattr", "while False and hasattr"),
    "to what is in one wrapper": Sub("while hasattr", "if hasattr"),
    "to a module of the model": Sub(f" and not {_HAS}:", ":"),
    "by the wrapper's arguments": Sub("core_model.forward", "model.forward"),
    "by the arguments of a call": Sub("core_model.forward", "core_model"),
    "with packed sequences alone": Sub(_IF, f'{_IF} and "packed_seq_params" in forward_args'),
    "without packed sequences alone": Sub(_IF, f'{_IF} and "packed_seq_params" not in forward_args'),
    "with one layer alone": Sub(_IF, f"{_IF} and core_model.config.mtp_num_layers == 1"),
    "with two layers alone": Sub(_IF, f"{_IF} and core_model.config.mtp_num_layers == 2"),
    "the labels": Sub('["loss_mask"] = loss_mask', '["loss_mask"] = labels'),
    "all tokens": Sub('["loss_mask"] = loss_mask', '["loss_mask"] = torch.ones_like(loss_mask)'),
    "the other tokens": Sub('["loss_mask"] = loss_mask', '["loss_mask"] = 1 - loss_mask'),
    "shifted": Sub('["loss_mask"] = loss_mask', '["loss_mask"] = loss_mask.roll(-1, -1)'),
    "as another argument": Sub('forward_args["loss_mask"]', 'forward_args["padding_mask"]'),
    "in place of the labels": Sub('forward_args["loss_mask"]', 'forward_args["labels"]'),
}
MUTANTS = [Mutants("megatron-bridge", ("0.4.2", "0.6.2"), BY_HAND)]
_MENDED = {"one-token": "megatron-core 0.17 and later divide by one where no token is left"}
PROOFS = [
    Proofs(
        "megatron-bridge",
        [
            Release("0.6.2", beside=(("megatron-core", "0.19.2"),), core=True, lacking=_MENDED),
            Release("0.5.1", beside=(("megatron-core", "0.17.1"),), lacking=_MENDED),
            Release("0.3.1", beside=(("megatron-core", "0.16.1"),)),
        ],
        {
            "to every model, as upstream": Other(
                without(r"if has_mtp and .*:", "if True:"), ("takes-no-mask", "vision"), "crashed: "
            ),
            "half: to a stage with such layers alone": Other(
                without(r'= hasattr\(core_model, "mtp_process"\)', "= core_model.mtp_process"), ("loss-alone",)
            ),
            "half: to a bare model alone": Other(without("while", "while False and"), ("wrapped", "wrapped-twice")),
            "half: in one wrapper": Other(without("while", "if"), ("wrapped-twice",)),
        },
    )
]
FUZZ = Fuzz(CASES, 1, "loss_mask|forward_args|mtp_process|signature", examples=40)
