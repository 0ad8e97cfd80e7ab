"""The page of a fix: first what a reader in need must know, in 25 lines; the evidence behind ``-v``."""

import re

import pytest

from support import checkout, cli
from unhang.compat.sweep import parts
from unhang.job import condition
from unhang.shapes import catalog
from unhang.tell import fix_page


@pytest.mark.parametrize("fix", parts.names(checkout.REPOSITORY))
def test_what_a_reader_in_need_must_know_is_in_25_lines_of_80_columns(fix: str) -> None:
    page = cli.called_with_all("explain", fix)
    lines = page.out.splitlines()
    assert (page.code, lines[0]) == (0, f"# {fix}")
    assert len(lines) <= fix_page.LINES == 25
    assert max(map(len, lines)) <= 80
    labels = [line.partition(":")[0] for line in lines if re.match(r"[A-Z][a-z ]+: ", line)]
    must = ["Symptom", "Who is hit", "Danger", "Workaround", "Grade"]
    assert [label for label in labels if label in must] == must
    assert f"  unhang check --fix {fix}  # " in page.out
    assert f"  unhang apply --fix {fix}  # " in page.out
    assert lines[-1].startswith(f"  unhang explain -v {fix}  # ")
    text = " ".join(page.out.split())
    for job in catalog.fix(fix).leave_out:
        assert f"{condition.words(job.condition)} ({job.effect})" in text
    for beside in catalog.fix(fix).companions:
        assert f"{beside.fix} ({beside.upstream}" in text


@pytest.mark.parametrize("fix", parts.names(checkout.REPOSITORY))
def test_the_whole_page_begins_as_the_short_one_and_fits_80_columns(fix: str) -> None:
    page = cli.called_with_all("explain", "-v", fix)
    titles = [line.removeprefix("## ") for line in page.out.splitlines() if line.startswith("## ")]
    assert titles[:5] == [*fix_page.FRONT, "Commands"]
    assert titles.index("Commands") < titles.index("Evidence") < titles.index("In the matrix")
    assert max(map(len, page.out.splitlines())) <= 80
    assert len(page.out) > 2 * len(cli.called_with_all("explain", fix).out)


def test_jobs_to_leave_a_fix_out_of_are_named_and_those_that_do_not_fit_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fix = catalog.fix("mtp-cp-deadlock")
    names = [f"a_setting_{number}" for number in range(30)]
    jobs = [{"if": f"{name} > 1", "effect": "worse-values", "why": f"{name} counts twice"} for name in names]
    beside = {"fix": "other-fix", "upstream": "verl", "releases": "<0.8", "why": "ranks wait"}
    few, many = (
        fix._replace(manifest={**fix.manifest, "leave-out": jobs[:number], "with": [beside]}) for number in (1, 30)
    )
    text = fix_page.short(few)
    assert "Leave it out if: a_setting_0 over 1 (worse-values): `--skip mtp-cp-deadlock`.\n" in text
    assert "Needs beside it: other-fix (verl <0.8): ranks wait.\n" in text
    text = " ".join(fix_page.short(many).split())
    assert fix_page.short(many).count("\n") < fix_page.LINES
    told = sum(name in text for name in names)
    assert 3 < told < 30
    assert f"; {30 - told} other kinds of jobs, which -v names: `--skip" in text
    whole = " ".join(fix_page.whole(many).split())
    for name in names:
        assert f"- {name} over 1: the job gets worse values. {name.capitalize()} counts twice." in whole
    assert "It needs other fixes beside it: - other-fix (verl <0.8): ranks wait." in whole
