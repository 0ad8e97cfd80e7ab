"""The report is about the job: what strikes it comes first, what cannot is a number, and harm stands in the row."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from support import gates, job_fixes
from support.job_fixes import to_a_job
from unhang.job.settings import Job
from unhang.judge import companions
from unhang.judge.decide import APPLIED
from unhang.judge.findings import Finding
from unhang.records import Environment, Request, Search
from unhang.shapes import catalog
from unhang.tell import console, report, sarif
from unhang.tell.report import Report

ANY = Request()
CONDITION = job_fixes.LEAVE_OUT["when"]
OF_A_JOB = Request(target="site", job=Job(), chosen=(("--job", "train.sh"),))


@pytest.fixture(autouse=True)
def _made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    job_fixes.install(monkeypatch)


@pytest.fixture
def found(tmp_path: Path) -> list[Finding]:
    return companions.with_harms(job_fixes.findings(tmp_path), [gates.installation(tmp_path)], all_=True)


def what(findings: Sequence[Finding], request: Request = ANY) -> Report:
    return Report(Search(Environment(None, "/job", "--target"), (), ()), request, findings, None, False)


def text(findings: Sequence[Finding], request: Request = ANY, *, verbose: bool = False) -> list[str]:
    """Return the lines below the name of the installation."""
    return report.text_report(what(findings, request), verbose=verbose).splitlines()[3:]


def struck(findings: Sequence[Finding], gate: str, pause: str, *, holds: bool | None = None) -> list[Finding]:
    words = {"gate": gate, "pause": pause}
    return [to_a_job(it, words[it.target.fix], holds=holds) for it in findings]


def in_place(findings: Sequence[Finding]) -> list[Finding]:
    return [it._replace(verdict=it.verdict._replace(verdict=APPLIED)) for it in findings]


def test_hangs_and_aborts_come_before_wrong_values_and_a_lone_group_has_no_name(found: list[Finding]) -> None:
    first, gate, second, pause = text(found[::-1])
    assert (first, second) == ("  hangs and aborts:", "  wrong values:")
    assert [row.split()[:2] for row in (gate, pause)] == [["needed", "gate"], ["needed", "pause"]]
    (alone,) = text([it for it in found if it.target.fix == "pause"])
    assert alone.split()[:2] == ["needed", "pause"]


def test_what_strikes_comes_first_and_what_cannot_is_a_number(
    found: list[Finding], monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {name: fix._replace(kinds=("hang",)) for name, fix in catalog.fixes().items()}
    monkeypatch.setattr(catalog, "fixes", lambda: known)
    rows = text(struck(found, "unknown", "strikes"), OF_A_JOB)
    assert [row.split()[1] for row in rows] == ["pause", "gate"]
    assert "  strikes this job: size=2 (train.sh:3)" in rows[0]
    assert "only with a pause" not in rows[0], "what decides is told in its place"
    assert "  may strike this job, depending on size=2 (train.sh:3)" in rows[1]
    ruled = struck(found, "strikes", "cannot-strike")
    row, folded = text(ruled, OF_A_JOB)
    assert row.split()[:2] == ["needed", "gate"]
    assert folded == "  cannot strike this job: 1 needed (-v shows each, with the setting that decides)"
    assert text(ruled, OF_A_JOB, verbose=True)[-1].endswith(
        "cannot strike this job: size=2 (train.sh:3)  verl/one.py  Loop.stop"
    )
    asked = text(ruled, OF_A_JOB._replace(required=("pause",)))
    assert "cannot strike this job: size=2 (train.sh:3)" in asked[-1], "a required fix is shown"
    assert [line.split()[1] for line in text(struck(found, "cannot-strike", "strikes"), OF_A_JOB)] == [
        "pause",
        "strike",
    ]


def test_a_row_says_whom_the_fix_may_harm_and_with_a_job_why(found: list[Finding]) -> None:
    def harm(findings: Sequence[Finding], *, verbose: bool = False) -> list[str]:
        rows = [line for line in text(findings, verbose=verbose) if "  gate  " in line]
        return [part for part in rows[0].split("  ") if " abort " in part]

    assert harm(found) == ["may abort some jobs"]
    assert harm(found, verbose=True) == [f"may abort this job ({CONDITION}): it divides by 0"]
    assert harm(struck(found, "strikes", "strikes")) == [f"may abort this job ({CONDITION})"]
    assert harm(struck(found, "strikes", "strikes", holds=True)) == [
        f"would abort this job ({CONDITION}): it divides by 0"
    ]
    fixed = [it._replace(verdict=it.verdict._replace(verdict="fixed-upstream")) for it in found]
    assert harm(fixed, verbose=True) == [], "nothing would be written"
    assert "needs gate" not in text(companions.along(found, ["gate"], []))[-1], "it is on its way"
    assert "needs gate beside it, which --skip leaves out" in text(companions.along(found, ["gate"], ["gate"]))[-1]
    assert "comes along: pause needs it here" in text(companions.along(found, ["gate"], []))[1]
    ruled = struck(companions.along(found, [], []), "cannot-strike", "strikes")
    (row,) = (line for line in text(ruled, OF_A_JOB) if "  gate  " in line)
    assert "comes along: pause needs it here" in row, "though it cannot strike"


def test_what_is_in_place_and_harms_the_job_is_shown_with_the_command_that_takes_it_back(found: list[Finding]) -> None:
    harmful = in_place(struck(found, "strikes", "strikes", holds=True))
    row, settled = text(harmful, OF_A_JOB)
    assert row.split()[:2] == ["applied", "gate"]
    assert settled == "  1 settled: 1 applied (-v shows each)"
    assert console.summary(harmful, OF_A_JOB).splitlines()[1] == "  unhang revert --target site --fix gate"
    assert [it.left for it in harmful] == [it.target.fix == "gate" for it in harmful]
    assert "nothing left to do" in console.summary(in_place(found), Request())


def test_the_last_line_is_about_what_is_left_for_the_job(found: list[Finding]) -> None:
    ruled = struck(found, "cannot-strike", "cannot-strike")
    assert console.summary(ruled, OF_A_JOB).startswith("nothing left to do for this job (digest ")
    counts, command = console.summary(struck(found, "strikes", "cannot-strike"), OF_A_JOB).splitlines()
    assert counts.startswith("1 needed (digest ")
    assert command == "  unhang apply --target site --job train.sh"
    harmed = struck(found, "strikes", "cannot-strike", holds=True)
    counts, command = console.summary(harmed, OF_A_JOB).splitlines()
    assert counts.endswith(f"gate would abort this job ({CONDITION}); to write it anyway:")
    assert command == f"  unhang apply --target site --job train.sh --fix gate --even-if '{CONDITION}'"


def test_what_options_left_out_is_counted_in_the_last_line(found: list[Finding]) -> None:
    narrow = Request(chosen=(("--fix", "a"), ("--kind", "hang"), ("--fix", "b"), ("--upstream", "verl")))
    others = report.left_out(["c", "d"], narrow)
    assert others == "2 other fixes are needed here; --fix and --kind left them out"
    assert report.left_out(["c"], narrow) == "c is needed here too; --fix and --kind left it out"
    assert report.left_out([], narrow) == ""
    assert console.summary(in_place(found), narrow, None, others).startswith(
        "nothing left to do of these fixes (digest"
    )
    for findings in found, in_place(found):
        assert others in console.summary(findings, narrow, None, others)


def test_before_the_job_is_started_one_line_says_what_is_not_known(found: list[Finding]) -> None:
    assert report.uncertain(found, Request()) == (
        "look before you start: may abort some jobs: gate; which: unhang check -v --job FILE"
    )
    open_ = struck(found, "strikes", "strikes")
    assert report.uncertain(open_, OF_A_JOB).endswith(f"({CONDITION}); --setting NAME=VALUE tells loss, size")
    assert report.uncertain(struck(found, "strikes", "strikes", holds=True), OF_A_JOB) == ""
    each = open_[0].harms[0]
    many = [open_[0]._replace(harms=tuple(each._replace(names=(name,)) for name in "abcd"))]
    assert report.uncertain(many, OF_A_JOB) == "look before you start: may abort some jobs: gate", "the rows say which"


def test_json_sarif_and_annotations_carry_all_of_it(found: list[Finding], tmp_path: Path) -> None:
    leave_out = {
        "condition": job_fixes.LEAVE_OUT["if"],
        "when": CONDITION,
        "effect": "aborts",
        "why": "it divides by 0",
        "holds": None,
    }
    row = report.result(found[0])
    assert (row["strikes"], row["leave_out"], row["needs"]) == (None, [leave_out], [])
    harmed = companions.along(struck(found, "strikes", "cannot-strike", holds=True), [], [])
    decided = {"word": "strikes", "names": ["size"], "why": ["size=2 (train.sh:3)"]}
    rows = {it["fix"]: it for it in json.loads(report.json_report(what(harmed)))["results"]}
    assert (rows["gate"]["strikes"], rows["gate"]["leave_out"]) == (decided, [{**leave_out, "holds": True}])
    assert (rows["pause"]["strikes"]["word"], rows["pause"]["needs"]) == ("cannot-strike", ["gate"])
    results = {it["ruleId"]: it for it in sarif.results(what(harmed), str(tmp_path))}
    assert {name: it["level"] for name, it in results.items()} == {"gate": "error", "pause": "note"}
    for name, result in results.items():
        keys = ("strikes", "leave_out", "needs")
        assert {key: result["properties"][key] for key in keys} == {key: rows[name][key] for key in keys}
    assert f"would abort this job ({CONDITION}): it divides by 0" in results["gate"]["message"]["text"]
    assert "strikes this job: size=2 (train.sh:3)" in results["gate"]["message"]["text"]
    gate, pause = report.github_report(what(harmed)).splitlines()
    assert gate.startswith("::error ")
    assert "::needed: a gate; strikes this job: size=2 (train.sh:3); would abort this job (" in gate
    assert pause.startswith("::notice ")
    assert "::needed: cannot strike this job: size=2 (train.sh:3)" in pause
    plain = report.github_report(what(found)).splitlines()[1]
    assert "::needed: a pause; only with a pause" in plain, "what is wrong, and when"
