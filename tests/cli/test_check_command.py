"""`unhang check`: one line for each fix on each installation, the JSON document, required fixes; on real releases."""

from pathlib import Path

import pytest

import unhang
from support import cli
from unhang.shapes import catalog

KEYS = (
    "upstream version location fix grade kinds changes_numbers file function verdict shape code detail hint notes"
    " nearest overlay accepted assumes fixed_in strikes leave_out needs"
).split()


def test_the_json_document_has_the_documented_form(pristine: Path) -> None:
    document = cli.called("check", "--target", pristine, "--output-format", "json").json
    assert list(document) == ["schema", "unhang", "environment", "digest", "interrupted", "warnings", "results"]
    assert (document["schema"], document["unhang"]) == (1, unhang.__version__)
    assert document["environment"] == {"python": None, "prefix": str(pristine), "found_by": "--target"}
    assert all(list(result) == KEYS for result in document["results"])
    assert {result["location"] for result in document["results"]} == {str(pristine)}


def test_what_wants_something_has_one_line_and_with_verbose_every_fix_on_every_installation(pristine: Path) -> None:
    lines = cli.called("check", "--target", pristine).out.splitlines()
    rows = [line.split() for line in lines if line.startswith("  ")][:-1]  # the last one is the next command
    assert sorted(row[1] for row in rows if row[0] == "needed") == [
        "empty-expert-hang", "expert-dp-warmup", "expert-dp-warmup", "mtp-cp-deadlock", "sft-packed-seq-broadcast"
    ]  # fmt: skip
    assert [" ".join(row) for row in rows if row[0] != "needed"] == ["1 settled: 1 not-affected (-v shows each)"]
    assert ".py" not in "".join(lines[1:]), "file and function are for -v"
    lines = cli.called("check", "--target", pristine, "-v").out.splitlines()[:-1]
    shown = [line.split()[1] for line in lines if line.startswith("  ")]
    targets = {(fix.id, target.upstream) for fix in catalog.fixes().values() for target in fix.targets}
    assert sorted(shown) == sorted(fix for fix, _ in targets)
    grades = [catalog.fix(fix).grade for fix in shown]
    assert [line.split()[2] for line in lines if line.startswith("  ")] == grades
    results = cli.called("check", "--target", pristine, "--output-format", "json").json["results"]
    assert {(row["fix"], row["grade"]) for row in results} == set(zip(shown, grades))
    assert lines[0] == f"environment: {pristine} (found by --target)"


def test_one_line_says_which_needed_fixes_change_numbers_and_names_the_command_for_the_others(pristine: Path) -> None:
    sft = "sft-packed-seq-broadcast"
    where = ("check", "--target", pristine)
    blank, numbers, summary, command = cli.called(*where).out.splitlines()[-4:]
    assert (blank, summary[:8], command) == ("", "5 needed", f"  unhang apply --target {pristine}")
    assert numbers.startswith(f"changes numbers: {sft}; curves from before and after do not compare, ")
    assert "stay wrong until the job restarts from an older checkpoint; the other fixes alone: " in numbers
    assert numbers.endswith(f"unhang apply --target {pristine} --skip {sft}")
    for more in (["--fix", sft], ["--require", sft]):
        assert "checkpoint\n" in cli.called(*where, *more).out, "there is no other, or it cannot be left out"
    assert "changes numbers" not in cli.called(*where, "--skip", sft).out
    annotated = [
        line for line in cli.called(*where, "--output-format", "github").out.splitlines() if "numbers:" in line
    ]
    assert [line.partition("::changes numbers: ")[0] for line in annotated] == ["::notice title=unhang numbers"]
    rows = cli.called(*where, "--output-format", "json").json["results"]
    for row in rows:
        fix = catalog.fix(row["fix"])
        assert (row["kinds"], row["changes_numbers"]) == (list(fix.kinds), fix.changes_numbers)
    assert {row["fix"] for row in rows if row["changes_numbers"]} == {sft}


def test_a_kind_narrows_it_and_is_in_the_command_that_comes_next(pristine: Path) -> None:
    ran = cli.called("check", "--target", pristine, "--kind", "wrong-values")
    assert {line.split()[1] for line in ran.out.splitlines() if "  cure  " in line} == {"sft-packed-seq-broadcast"}
    assert ran.out.endswith(f"next, on every node:\n  unhang apply --target {pristine} --kind wrong-values\n")


def test_a_fix_without_a_target_here_is_nothing_to_judge(pristine: Path) -> None:
    ran = cli.called("check", "--target", pristine, "--upstream", "verl", "--fix", "empty-expert-hang")
    assert (ran.code, "nothing to judge" in ran.out) == (0, True)


def test_a_required_fix_is_judged_although_fix_names_another(pristine: Path) -> None:
    where = ("check", "--target", pristine, "--fix", "empty-expert-hang", "--require")
    ran = cli.called(*where, "mtp-cp-deadlock", "--upstream", "verl")
    assert ran.code == 1
    assert "required fix not in place: mtp-cp-deadlock is needed on verl 0.7.1" in ran.err
    ran = cli.called(*where, "empty-expert-hang", "--upstream", "verl")
    last = ran.err.splitlines()[-1]
    assert ran.code == 1
    assert last.startswith("required fix not in place: empty-expert-hang: there is no megatron-core here")


def test_a_required_fix_may_be_fixed_upstream(tmp_path: Path) -> None:
    site = cli.unpack_targets(tmp_path, ("verl", "0.9.1"))
    assert cli.called("check", "--target", site, "--require", "mtp-cp-deadlock").code == 0


@pytest.mark.parametrize("environment", [{}, {"FORCE_COLOR": "1"}])
def test_colour_only_if_asked_for(pristine: Path, environment: dict[str, str]) -> None:
    for command in ["check", "--target", str(pristine)], ["matrix"]:
        assert ("\x1b[" in cli.called(*command, env=environment).out) is bool(environment)
