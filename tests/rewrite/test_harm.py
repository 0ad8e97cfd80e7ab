"""No fix goes in that would harm the job, or without the one that it needs beside it."""

from pathlib import Path

import pytest

from support import gates, job_fixes
from support.job_fixes import to_a_job
from unhang.judge import companions
from unhang.judge.findings import Finding
from unhang.records import Request
from unhang.rewrite.harm import weighed
from unhang.rewrite.plan import plan

ANY = Request()
CONDITION = job_fixes.LEAVE_OUT["when"]


@pytest.fixture(autouse=True)
def _made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    job_fixes.install(monkeypatch)


def planned(findings: list[Finding], request: Request = ANY) -> tuple[set[str], dict[str, str]]:
    """Return the fixes that would be written, and why each blocked one is blocked."""
    kept, harmful = weighed(findings, request)
    found = plan(kept, {}, harmful)
    wrote = {step.target.fix for file in found.files for step in file.steps}
    return wrote, {it.fix: it.reason for it in found.blocked}


def test_without_the_one_that_it_needs_a_fix_is_blocked(tmp_path: Path) -> None:
    both = job_fixes.findings(tmp_path / "both")
    assert planned(companions.along(both, ["gate"], [])) == ({"gate", "pause"}, {})
    wrote, blocked = planned(companions.along(both, ["gate"], ["gate"]))
    why = "it must not go in without gate, which --skip leaves out: ranks wait for each other"
    assert (wrote, blocked) == (set(), {"pause": why})
    edited = {**gates.FILES, "verl/two.py": gates.TWO.replace("[y]", "[y, y]")}
    wrote, blocked = planned(companions.along(job_fixes.findings(tmp_path / "edited", edited), ["gate"], []))
    assert (wrote, [*blocked]) == (set(), ["gate", "pause"])
    assert blocked["pause"].startswith("it must not go in without gate, which is blocked: ")


def test_what_was_only_to_come_along_stays_out_with_what_needs_it(tmp_path: Path) -> None:
    found = companions.along(job_fixes.findings(tmp_path), ["gate"], [])
    lost = [it._replace(verdict=it.verdict._replace(code="no-rewrite")) if it.needs else it for it in found]
    wrote, blocked = planned(lost)
    assert (wrote, sorted(blocked)) == (set(), ["gate", "pause"])
    assert blocked["gate"] == "it was to come along with pause, which is blocked"
    chosen = [it._replace(not_chosen=False) for it in lost]
    assert planned(chosen)[0] == {"gate"}


def test_a_fix_that_would_harm_the_job_is_blocked_with_the_command_that_writes_it(tmp_path: Path) -> None:
    found = [to_a_job(it) for it in job_fixes.findings(tmp_path)]
    why = f"would abort this job ({CONDITION}): it divides by 0"
    assert planned(found) == ({"pause"}, {"gate": why})
    _, blocked = weighed(found, Request(target="site", chosen=(("--kind", "hang"), ("--setting", "size=2"))))
    line = f"unhang apply --target site --setting size=2 --fix gate --even-if '{CONDITION}'"
    assert {it.hint for it in blocked} == {f"to write it anyway: `{line}`"}
    for written in (CONDITION, job_fixes.LEAVE_OUT["if"], "loss == mean  and size>1"):
        assert planned(found, Request(even_if=(written,))) == ({"gate", "pause"}, {}), "as a shell may leave it"
    assert planned(found, Request(even_if=("size > 1",)))[0] == {"pause"}
    needing = companions.along(found, [], [])
    assert planned(needing)[0] == set(), "pause needs it"
    for holds in (None, False):
        assert planned([to_a_job(it, holds=holds) for it in found]) == ({"gate", "pause"}, {})


def test_what_cannot_strike_the_job_is_left_as_it_is(tmp_path: Path) -> None:
    def of(gate: str, pause: str, *, holds: bool = False) -> list[Finding]:
        words = {"gate": gate, "pause": pause}
        return [to_a_job(it, words[it.target.fix], holds=holds) for it in job_fixes.findings(tmp_path)]

    no, yes = "cannot-strike", "strikes"
    for holds in (True, False):  # one that would harm the job is not even blocked
        assert planned(of(no, yes, holds=holds)) == ({"pause"}, {})
    for gate, pause, wrote in ((no, no, set()), ("unknown", no, {"gate"}), (no, "unknown", {"pause"})):
        assert planned(of(gate, pause)) == (wrote, {})
    assert planned(of(no, no), Request(required=("gate",))) == ({"gate"}, {}), "a required fix must be in place"
    assert [*planned(of(no, no, holds=True), Request(required=("gate",)))[1]] == ["gate"]
    accepted = [it._replace(accepted=it.target.fix == "pause") for it in of(no, no)]
    assert planned(accepted)[0] == {"pause"}, "a person has asked for it"
    edited = [it._replace(verdict=it.verdict._replace(verdict="drifted")) for it in of(no, no)]
    assert planned(edited) == (set(), {}), "nor does it block"


def test_what_cannot_strike_the_job_comes_along_only_with_what_does(tmp_path: Path) -> None:
    found = job_fixes.findings(tmp_path)

    def of(needing: list[Finding], gate: str, pause: str) -> list[Finding]:
        words = {"gate": gate, "pause": pause}
        return [to_a_job(it, words[it.target.fix], holds=False) for it in needing]

    for coming in ([], ["gate"]):
        needing = companions.along(found, coming, [])
        assert planned(of(needing, "cannot-strike", "strikes")) == ({"gate", "pause"}, {})
        assert planned(of(needing, "cannot-strike", "cannot-strike")) == (set(), {})
    assert planned(of(needing, "strikes", "cannot-strike")) == (set(), {}), "it was not chosen"
