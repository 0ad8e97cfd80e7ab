"""The state of a shape, from what its function does."""

import pytest

from support import fake_scenes
from support.fake_index import AFFECTED, CLEAN, PARALLEL, UNCLEAR
from unhang.codemods import base, expert_dp_warmup
from unhang.codemods.edit import Edit
from unhang.codemods.expert_dp_warmup import InitializeModelParallel
from unhang.judge import rows, scene
from unhang.judge.decide import codemod
from unhang.judge.rows import Row, Source
from unhang.shapes import catalog
from unhang.shapes.shape import Function
from unhang.survey.classify import State, classify

TARGETS = [target for fix in catalog.fixes().values() for target in fix.targets]
WARMUP = next(target for target in TARGETS if target.file == PARALLEL)
# upstream's own fix and its own defect, made up from `CLEAN`
LOSS = """\
        if self.model_config.mtp.enable and mpu.is_pipeline_last_stage(ignore_virtual=True):
            metrics = get_megatron_mtp_loss(len(batches))
            if self.is_mp_src_rank_with_outputs():
                losses[0].setdefault("metrics", {}).update(metrics)
        return"""
FIXED = CLEAN.replace("        return", LOSS)
UNGATED = FIXED.replace("self.model_config.mtp.enable and ", "")
BROKEN = FIXED.replace("mpu.is_pipeline_last_stage(ignore_virtual=True)", "self.is_mp_src_rank_with_outputs()")
WARM = """\
    for _ in range(min(expert_model_parallel_size - 1, "ccl" in torch.distributed.get_backend())):
        torch.distributed.all_reduce(
            torch.zeros(1, device=torch.cuda.current_device()), group=_EXPERT_DATA_PARALLEL_GROUP
        )
        torch.cuda.synchronize()
    _set_global"""


def classified(data: str, fix: str) -> State:
    target = next(target for target in TARGETS if target.fix == fix)
    return classify(data.encode(), target, fake_scenes.run)


@pytest.mark.parametrize(
    ("fix", "data", "state", "why"),
    [
        ("expert-dp-warmup", AFFECTED, "affected", ""),
        ("mtp-cp-deadlock", CLEAN, "not-affected", ""),
        ("mtp-cp-deadlock", FIXED, "fixed", ""),
        ("mtp-cp-deadlock", BROKEN, "undecided", "hung: rank 0 waits in all_reduce"),
        ("mtp-cp-deadlock", UNCLEAR, "undecided", "raised TypeError"),
        # a function of which one could think that it has no such feature (H4)
        ("mtp-cp-deadlock", UNGATED, "undecided", "rank 0 of 1 joins 1 reductions"),
        ("expert-dp-warmup", AFFECTED.replace("import torch\n", ""), "undecided", "does not define or import torch; "),
        (
            "expert-dp-warmup",
            AFFECTED.replace("EXPERT_DATA", "OTHER"),
            "undecided",
            "define or import _EXPERT_DATA_PARALLEL_GR",
        ),
    ],
)
def test_what_a_made_up_function_does_is_its_state(fix: str, data: str, state: str, why: str) -> None:
    found = classified(data, fix)
    assert (found.state, why in found.why) == (state, True), found
    assert (found.why == "") == (state != "undecided")
    assert found.row is not None
    if state == "affected":
        assert found.result is not None
        assert found.names == tuple(sorted(found.names)) != ()


@pytest.mark.parametrize(
    ("fails", "feature", "state"),
    [(False, True, "wrong"), (None, True, "repaired"), (None, False, "right"), (True, True, "undecided")],
)
def test_a_function_that_targets_depend_on_is_right_or_wrong(
    fails: bool | None, feature: bool, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``fails``: whether it does so in a control, or where the defect is."""
    (other,) = set(catalog.fix("fused-head-no-gradient").functions) - set(TARGETS)
    wrong = {it.name: "why" for it in scene.of(other.fix).GRID if it.is_control is fails}

    def run(fix: str, before: Source, after: Source | None) -> Row:
        return rows.row(fix, before, after, {rows.BEFORE: {"wrong": wrong, "ran": 99, "open": []}})

    monkeypatch.setattr(scene, "has_feature", lambda *_: feature)
    owner, name = other.function.split(".")
    found = classify(f"class {owner}:\n    def {name}(): pass\n".encode(), other, run)
    assert (found.state, found.result, bool(found.why)) == (state, None, state == "undecided")


def test_a_function_with_a_fix_of_its_own_is_fixed_though_the_anchors_match() -> None:
    data = AFFECTED.replace("    _set_global_memory_buffer()\n", WARM + "_memory_buffer()\n")
    assert data != AFFECTED
    assert classified(data, "expert-dp-warmup").state == "fixed"


def test_a_rewrite_that_breaks_a_setting_is_undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its anchors, names and second pass are right; it also warms up without expert parallelism."""
    planned = InitializeModelParallel.plan
    right = classify(AFFECTED.encode(), WARMUP, fake_scenes.run)

    def careless(self: InitializeModelParallel, function: Function) -> list[Edit]:
        (edit,) = planned(self, function)
        template = expert_dp_warmup._IN_MEGATRON.replace("expert_model_parallel_size > 1", "True")
        return [edit._replace(change=base.followed_by(template))]

    monkeypatch.setattr(InitializeModelParallel, "plan", careless)
    found = classify(AFFECTED.encode(), WARMUP, fake_scenes.run)
    assert (found.state, found.why.split(" with ")[0]) == ("undecided", "worse")
    assert found.result not in (None, right.result), "a person may still decide that it is affected"


def test_a_defect_that_the_codemod_refuses_is_a_state_once_the_manifest_says_what_else_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fix = catalog.fix("mtp-cp-deadlock")
    (target,) = (one._replace(workaround="do something else") for one in fix.targets)
    monkeypatch.setattr(catalog, "fix", lambda name: fix._replace(targets=(target,)))
    states = {"fixed": FIXED, "not-affected": CLEAN, "no-rewrite": BROKEN, "undecided": UNCLEAR}
    for state, data in states.items():
        found = classify(data.encode(), target, fake_scenes.run)
        assert (found.state, bool(found.why), found.result) == (state, state == "undecided", None)


def test_a_fix_without_a_scene_is_undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scene, "of", lambda fix: None)
    monkeypatch.setattr(codemod(WARMUP), "plan", None)
    found = classify(AFFECTED.encode(), WARMUP, fake_scenes.run)
    assert (found.state, found.row) == ("undecided", None)
    assert found.why == "expert-dp-warmup has no scene that could show its state"
