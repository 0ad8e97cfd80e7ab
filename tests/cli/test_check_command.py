"""`unhang check`: one line for each fix on each installation, the JSON document, required fixes; on real releases."""

from __future__ import annotations

from pathlib import Path

import pytest

import unhang
from support import cli, environments

VERL = ("verl", "0.7.1")
KEYS = "upstream version location fix file function verdict shape code detail hint nearest".split()


def test_the_json_document_has_the_documented_form(pristine: Path) -> None:
    document = cli.unhang("check", "--target", pristine, "--output-format", "json").json
    assert list(document) == ["schema", "unhang", "environment", "digest", "interrupted", "warnings", "results"]
    assert (document["schema"], document["unhang"]) == (1, unhang.__version__)
    assert document["environment"] == {"python": None, "prefix": str(pristine), "found_by": "--target"}
    assert all(list(result) == KEYS for result in document["results"])
    assert {result["location"] for result in document["results"]} == {str(pristine)}


def test_every_fix_on_every_installation_has_one_line(pristine: Path) -> None:
    lines = cli.unhang("check", "--target", pristine).out.splitlines()
    shown = [line.split()[1] for line in lines if line.startswith("  ")]
    assert sorted(shown) == [
        "empty-expert-hang",
        "expert-dp-warmup",
        "expert-dp-warmup",
        "mtp-cp-deadlock",
        "sft-packed-seq-broadcast",
        "sft-packed-seq-broadcast",
    ]
    assert lines[0] == f"environment: {pristine} (found by --target)"


def test_a_fix_without_a_target_here_is_nothing_to_judge(pristine: Path) -> None:
    ran = cli.unhang("check", "--target", pristine, "--upstream", "verl", "--fix", "empty-expert-hang")
    assert (ran.code, "nothing to judge" in ran.out) == (0, True)


@pytest.mark.parametrize("command", ["check", "apply"])
def test_a_required_fix_with_nothing_to_judge_exits_1_by_name(command: str, tmp_path: Path) -> None:
    site = cli.unpack_targets(tmp_path, ("verl", "0.9.1"))
    ran = cli.unhang(command, "--target", site, "--require", "mtp-cp-deadlock")
    assert ran.code == 0, "fixed upstream is good enough"
    ran = cli.unhang(command, "--target", site, "--require", "empty-expert-hang")
    assert ran.code == 1
    assert ran.err.splitlines()[-1].startswith(
        "required fix not in place: empty-expert-hang: there is no megatron-core here"
    )


def test_a_required_fix_is_judged_although_fix_names_another(pristine: Path) -> None:
    ran = cli.unhang("check", "--target", pristine, "--fix", "empty-expert-hang", "--require", "mtp-cp-deadlock")
    assert ran.code == 1
    assert "required fix not in place: mtp-cp-deadlock is needed on verl 0.7.1" in ran.err


@pytest.mark.parametrize(
    ("environment", "coloured"),
    [({}, False), ({"FORCE_COLOR": "1"}, True), ({"NO_COLOR": "1", "FORCE_COLOR": "1"}, False)],
)
def test_colour_only_if_asked_for(pristine: Path, environment: dict[str, str], coloured: bool) -> None:
    assert ("\x1b[" in cli.unhang("check", "--target", pristine, env=environment).out) is coloured


def test_a_script_beside_a_checkout_shadows_the_wheel(tmp_path: Path) -> None:
    env = environments.make_env(tmp_path / "venv")
    cli.unpack_targets(env.site, ("verl", "0.9.1"))
    job = cli.unpack_targets(tmp_path / "job", VERL)
    (job / "train.py").write_text("import verl\n")
    plain = cli.unhang("check", "--python", env.python, "--output-format", "json", cwd=tmp_path)
    assert [item["verdict"] for item in plain.json["results"]] == ["fixed-upstream"]
    beside = cli.unhang("check", "--python", env.python, cwd=job)
    assert f"a job started here could import {job / 'verl'}" in beside.err
    script = cli.unhang("check", "--python", env.python, "--script", job / "train.py")
    assert script.code == 1
    assert f"shadows {env.site / 'verl'}" in script.out
    assert f"verl 0.7.1  {job}" in script.out
