"""Whom the fixes of real releases strike and harm, as `check` and `apply` tell it, and what `apply` then writes."""

import shutil
from pathlib import Path

import pytest

from support import cli
from unhang.shapes import catalog

SIZE_ONE, BESIDE = "fsdp-size-one-no-sync", "fsdp-dynamic-bsz"
CORE = ("megatron-core", "0.16.1")
NO_VERL_LOSS = ("--setting", "calculate_per_token_loss=true", "--setting", "moe_aux_loss_coeff=0.01")


@pytest.fixture(scope="module", params=["0.7.1", "0.8.0"])
def pristine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Lay out a release of verl, beside a megatron-core."""
    return cli.unpack_targets(tmp_path_factory.mktemp("job") / request.param, ("verl", request.param), CORE)


@pytest.fixture
def site(pristine: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(pristine, tmp_path / pristine.name))


def settings(**given: object) -> list[str]:
    return [word for name, value in given.items() for word in ("--setting", f"{name}={value}")]


def written(site: Path) -> set[str]:
    rows = cli.called_with_all("check", "--target", site, "--output-format", "json").json["results"]
    return {row["fix"] for row in rows if row["verdict"] == "applied"}


SHARDED = settings(strategy="fsdp", fsdp_size=1, ranks=2, use_dynamic_bsz=True, **{"lora.merge": False})


def test_what_a_fix_needs_beside_it_comes_along_in_the_releases_that_need_it(site: Path) -> None:
    assert "--skip" not in cli.called_with_all("check", "--target", site, "--fix", SIZE_ONE).out
    ran = cli.called_with_all("apply", "--target", site, "--fix", SIZE_ONE)
    needed = site.name == "0.7.1"
    assert ran.code == 0
    assert written(site) == {SIZE_ONE, *([BESIDE] if needed else [])}
    assert (f"{BESIDE} came along: {SIZE_ONE} needs it here: without it, " in ran.err) is needed
    assert f"look before you start: may abort some jobs: {SIZE_ONE}; which: unhang check --target {site} " in ran.err
    assert "--skip" not in ran.out + ran.err, "nothing is left without it"
    last = ran.err.splitlines()[-1]
    assert last.endswith(" other fixes are needed here; --fix left them out")
    again = cli.called_with_all("apply", "--target", site, "--fix", SIZE_ONE)
    assert again.err.splitlines()[-2:] == ["nothing was changed", last], "not a bare nothing left to do"
    check = cli.called_with_all("check", "--target", site, "--fix", SIZE_ONE)
    assert check.code == 0
    assert check.out.splitlines()[-1].startswith("nothing left to do of these fixes (digest ")
    assert check.out.rstrip().endswith(last)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [[], ["--kind", "wrong-values"]])
def test_without_it_the_fix_is_blocked_by_name_and_required_it_fails(kind: list[str], site: Path) -> None:
    ran = cli.called_with_all("apply", "--target", site, *kind, "--skip", BESIDE, "--require", SIZE_ONE)
    if site.name != "0.7.1":
        assert (ran.code, SIZE_ONE in written(site)) == (0, True)
        return
    assert (ran.code, SIZE_ONE in written(site), "fused-head-no-gradient" in written(site)) == (1, False, True)
    assert f"blocked: {SIZE_ONE} (cure) on verl 0.7.1" in ran.err
    assert f"it must not go in without {BESIDE}, which --skip leaves out: " in ran.err
    assert ran.err.splitlines()[-1].startswith(f"required fix not in place: {SIZE_ONE} is needed on verl 0.7.1")
    assert f"needs {BESIDE} beside it, which --skip leaves out" in ran.out


def test_check_is_about_the_job_and_apply_writes_no_more(site: Path) -> None:
    where = ["--target", str(site), *SHARDED]
    ran = cli.called_with_all("check", *where)
    assert (ran.code, f"  unhang apply --target {site} --setting strategy=fsdp" in ran.out) == (1, True)
    rows = cli.called_with_all("check", *where, "--output-format", "json").json["results"]
    struck = {row["fix"]: row["strikes"]["word"] for row in rows}
    assert struck[SIZE_ONE] == "strikes"
    assert struck["merged-lora-stale-sync"] == "cannot-strike"
    assert "  merged-lora-stale-sync  " not in ran.out
    assert cli.called_with_all("apply", *where).code == 0
    may = {row["fix"] for row in rows if row["verdict"] == "needed" and row["strikes"]["word"] != "cannot-strike"}
    beside = {name for row in rows if row["fix"] in may for name in row["needs"]}
    assert (SIZE_ONE in may, BESIDE in beside - may) == (True, site.name == "0.7.1")
    assert written(site) == may | beside
    assert (f"comes along: {SIZE_ONE} needs it here" in ran.out) is (site.name == "0.7.1")
    after = cli.called_with_all("check", *where)
    assert (after.code, "nothing left to do for this job" in after.out) == (0, True)
    assert cli.called_with_all("check", "--target", site).code == 1, "of another job, something is"


def test_nothing_comes_along_with_what_cannot_strike(site: Path) -> None:
    alone = ["--target", str(site), "--fix", SIZE_ONE, *settings(fsdp_size=-1, strategy="fsdp", use_dynamic_bsz=True)]
    ran = cli.called_with_all("check", *alone, "--output-format", "json")
    assert (ran.code, {row["fix"] for row in ran.json["results"] if row["verdict"] == "needed"}) == (0, {SIZE_ONE})
    assert (cli.called_with_all("apply", *alone).code, written(site)) == (0, set())


@pytest.mark.slow
def test_what_would_harm_the_job_is_not_written_unless_it_is_asked_for_by_its_condition(site: Path) -> None:
    fix = "router-token-scale"
    where = ["--target", str(site), *NO_VERL_LOSS, *settings(tensor_model_parallel_size=2)]
    (harm, *_) = catalog.fix(fix).leave_out
    for command in ("apply", "overlay"):
        folder = [site / "overlay"] if command == "overlay" else []
        ran = cli.called_with_all(command, *folder, *where, "--require", fix)
        assert (ran.code, fix in written(site)) == (1, False)
        assert f"blocked: {fix} (cure) on megatron-core 0.16.1" in ran.err
        assert f"would make the values of this job worse ({harm.when}): {harm.why}" in ran.out
        assert f"--fix {fix} --even-if '{harm.when}'" in ran.err
    assert cli.called_with_all("apply", *where, "--fix", fix, "--even-if", "tea").code == 2
    ran = cli.called_with_all("apply", *where, "--fix", fix, "--even-if", harm.when)
    assert (ran.code, fix in written(site)) == (0, True)
    ran = cli.called_with_all("check", *where, "--fix", fix)
    assert (ran.code, f"  unhang revert --target {site} --fix {fix}" in ran.out) == (1, True)


def test_a_wheel_has_no_more_than_the_job_bears(tmp_path: Path) -> None:
    from support import wheels

    path = wheels.fetch("verl", "0.7.1")
    ran = cli.called_with_all("wheel", path, "-o", tmp_path, "--fix", SIZE_ONE, "--skip", BESIDE)
    assert (ran.code, f"blocked: {SIZE_ONE}" in ran.err) == (1, True)
    ran = cli.called_with_all("wheel", path, "-o", tmp_path, "--fix", SIZE_ONE)
    assert (ran.code, f"{BESIDE} came along: {SIZE_ONE} needs it" in ran.err) == (0, True)
    assert "other fixes are needed here; --fix left them out" in ran.err


def test_the_upstream_that_is_judged_is_not_all_that_the_job_may_run(tmp_path: Path) -> None:
    site = cli.unpack(cli.unpack_targets(tmp_path / "site", CORE), ("verl", "0.8.0"))  # with verl's own defaults
    script = tmp_path / "train.sh"
    script.write_text(
        "python3 -m verl.trainer.main_ppo trainer.n_gpus_per_node=8 actor_rollout_ref.model.path=/model\n"
    )
    job = ("--job", script, "--setting", "actor_rollout_ref.actor.stratgy=fsdp")
    ran = cli.called_with_all("check", "--target", site, "--upstream", "megatron-core", *job)
    assert ran.code == 0
    assert "cannot strike this job: " in ran.out
    assert "may strike" not in ran.out
    assert "has no setting actor_rollout_ref.actor.stratgy; did you mean actor_rollout_ref.actor.strategy?" in ran.err


def test_a_notice_of_what_cannot_strike_asks_for_nothing(site: Path) -> None:
    job = ("--fix", SIZE_ONE, *settings(ranks=1), "--output-format", "github")
    (line, *_) = cli.called_with_all("check", "--target", site, *job).out.splitlines()
    assert line.startswith("::notice ")
    assert "cannot strike this job" in line
    assert "unhang apply" not in line


def test_a_setting_that_no_fix_asks_for_is_told_if_its_name_is_nearly_one(site: Path) -> None:
    given = settings(tensor_model_paralel_size=2, pipeline_model_parallel_sise=2, learning_rate=1, fsdp_size=1, rank=8)
    ran = cli.called_with_all("check", "--target", site, *given)
    notes = [line for line in ran.err.splitlines() if "no fix asks for" in line]
    assert [line.partition("no fix asks for ")[2] for line in notes] == [
        "pipeline_model_parallel_sise; did you mean pipeline_model_parallel_size?",
        "rank; did you mean ranks?",
        "tensor_model_paralel_size; did you mean tensor_model_parallel_size?",
    ]
