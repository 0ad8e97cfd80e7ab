"""The answer of two outcomes, the exit code of all answers, and how they are printed."""

from __future__ import annotations

import json

import pytest

from unhang import __version__
from unhang.prove import answers
from unhang.prove.cases import ABSENT, BROKEN, DIFFERS, HUNG, PASSED, Case, Outcome, Topology
from unhang.records import Environment, Request

REDUCE = "reduce_loss_in_tracker"
LINE = answers.Line("verl", "0.7.1", "/", "mtp-cp-deadlock", "needed", "unknown", "")
DEFECT = Case("yours", Topology(cp=2), "ranks", HUNG, REDUCE)
CONTROL = Case("yours", Topology(dp=2), "ranks", PASSED)
EITHER = DEFECT._replace(options={"may_pass": True})
FINE, STUCK = Outcome(PASSED, "all is well", 0.2), Outcome(HUNG, f"in {REDUCE}", 1.5)
NOT_RUN = Outcome(BROKEN, "a traceback\nValueError: 7")


ASKED = Request(python="/bin/python", target="a site", chosen=(("--skip", "expert-dp-warmup"), ("--upstream", "verl")))


def report(line: answers.Line, topology: Topology | None = None) -> answers.Report:
    place = Environment(None, "/site", "--target")
    return answers.Report(
        place, "/bin/python", {"python": "3.12.0", "torch": "2.0"}, topology, [line], ["a warning"], ASKED
    )


@pytest.mark.parametrize(
    ("case", "untouched", "patched", "answer", "code"),
    [
        (DEFECT, STUCK, FINE, "proven", 1),
        (CONTROL, FINE, FINE, "unaffected", 0),
        (DEFECT, None, FINE, "patched-passes", 0),
        (DEFECT, STUCK, STUCK, "failed", 1),
        (CONTROL, FINE, Outcome(DIFFERS, "rank 1"), "failed", 1),
        (DEFECT, None, STUCK, "failed", 1),
        (DEFECT, Outcome(HUNG, "elsewhere"), FINE, "unknown", 2),
        (DEFECT, FINE, FINE, "unknown", 2),
        (CONTROL, STUCK, FINE, "unknown", 2),
        (EITHER, FINE, FINE, "unaffected", 0),
        (EITHER, STUCK, FINE, "proven", 1),
        (EITHER, FINE, STUCK, "failed", 1),
        (EITHER, Outcome(HUNG, "elsewhere"), FINE, "unknown", 2),
        (DEFECT, STUCK, NOT_RUN, "unknown", 2),
        (DEFECT, NOT_RUN, FINE, "unknown", 2),
    ],
)
def test_the_answer_of_two_outcomes(
    case: Case, untouched: Outcome | None, patched: Outcome, answer: str, code: int
) -> None:
    line = answers.judged(LINE, case, untouched, patched)
    assert (line.answer, answers.exit_code([line])) == (answer, code)
    assert bool(line.detail) is (answer == "unknown")
    if BROKEN in (patched.status, untouched and untouched.status):
        assert line.detail == "the proof does not run here: ValueError: 7"


def test_a_failure_comes_before_an_unknown_answer() -> None:
    proven = answers.judged(LINE, DEFECT, STUCK, FINE)
    assert answers.exit_code([LINE, proven]) == 1
    assert answers.exit_code([LINE, proven._replace(verdict="applied")]) == 2
    assert answers.exit_code([proven._replace(verdict="applied")]) == 0
    assert answers.exit_code([]) == 0


def test_the_document_has_the_sizes_and_both_outcomes() -> None:
    shown = json.loads(answers.document(report(answers.judged(LINE, DEFECT, STUCK, FINE), Topology(cp=2))))
    (result,) = shown.pop("results")
    sizes = {"tp": 1, "pp": 1, "cp": 2, "dp": 1, "ep": 1, "etp": 1, "instances": 1, "vpp": 1}
    assert shown == {
        "schema": 1,
        "unhang": __version__,
        "environment": {"python": None, "prefix": "/site", "found_by": "--target"},
        "interpreter": {"path": "/bin/python", "python": "3.12.0", "torch": "2.0"},
        "topology": {**sizes, "world_size": 2},
        "warnings": ["a warning"],
    }
    assert list(result) == [*answers.Line._fields, "kinds", "changes_numbers"]
    assert result["untouched"] == {"status": HUNG, "detail": f"in {REDUCE}", "seconds": 1.5}
    assert json.loads(answers.document(report(LINE)))["results"][0]["untouched"] is None


def test_the_text_shows_both_sides_and_the_next_command() -> None:
    line = answers.judged(LINE, DEFECT, STUCK, FINE)
    shown = answers.text(report(line), colour=False)
    assert f"untouched (installed) hung (1.5 s): in {REDUCE}\n" in shown
    assert "patched passed (0.2 s): all is well\n" in shown
    assert "run in /bin/python: Python 3.12.0, torch 2.0, CPU only" in shown
    assert shown.endswith(
        "\n1 proven; the installed source has the defect; run: unhang apply --target 'a site' --upstream verl "
        "--fix mtp-cp-deadlock"
    )
    assert "\x1b" not in shown
    shown = answers.text(report(line._replace(verdict="applied")), colour=True)
    assert "patched (installed) passed" in shown
    assert "\x1b[32mproven" in shown
    assert shown.endswith("\n1 proven")


def test_the_summary_tells_a_cure_from_a_safeguard() -> None:
    """A safeguard's proof shows the cause, or stand-ins: it is no reason to say that the installed source hangs."""
    cure = answers.judged(LINE._replace(grade="cure"), DEFECT, STUCK, FINE)
    guard = cure._replace(fix="empty-expert-hang", grade="safeguard")
    asked, what = Request(python="/bin/python"), "unhang apply --python /bin/python --fix"
    told = (
        "empty-expert-hang: a safeguard, of which only the cause was shown, and not that your job hangs; "
        f"to guard against it: {what} empty-expert-hang"
    )
    assert answers.summary([guard], asked) == f"1 proven; {told}"
    assert answers.summary([cure, guard], asked) == (
        f"2 proven; the installed source has the defect; run: {what} mtp-cp-deadlock; {told}"
    )
    assert "needed (safeguard)  yours" in answers.text(report(guard), colour=False)
    row = json.loads(answers.document(report(guard)))["results"][0]
    assert [row[key] for key in ("grade", "kinds", "changes_numbers")] == ["safeguard", ["hang", "abort"], False]


def test_what_is_needed_and_unknown_stays_in_the_command() -> None:
    proven = answers.judged(LINE, DEFECT, STUCK, FINE)
    other = LINE._replace(fix="another-fix")
    run = "run: unhang apply --target 'a site' --upstream verl"
    text = answers.summary([proven, other], ASKED)
    assert text == (
        "1 proven, 1 unknown; the installed source has the defect; another-fix: needed, though not shown here; "
        f"{run} --fix mtp-cp-deadlock --fix another-fix"
    )
    assert answers.summary([other], ASKED).endswith(f"needed, though not shown here; {run} --fix another-fix")
    for verdict in "drifted", "applied", "unlisted":
        assert answers.summary([other._replace(verdict=verdict)], ASKED) == "1 unknown", "apply would not write it"
    both = [proven, proven._replace(answer="unknown")]
    assert answers.summary(both, ASKED).endswith(f"has the defect; {run} --fix mtp-cp-deadlock"), "and only once"


def test_all_missing_modules_are_in_one_command() -> None:
    first, second = (Outcome(BROKEN, f"a traceback\n{ABSENT}{names}") for names in ("ray yaml", "peft ray"))
    lines = [LINE._replace(untouched=first, patched=first), LINE._replace(patched=second), LINE]
    shown = report(LINE)._replace(lines=lines, python="/an env/bin/python")
    assert answers.missing(shown) == (
        "hint: the proofs also need peft, ray, yaml; run: '/an env/bin/python' -m pip install peft ray PyYAML"
    )
    assert answers.missing(shown._replace(pip=False)).endswith(
        "run: uv pip install --python '/an env/bin/python' peft ray PyYAML"
    )
    assert answers.text(shown, colour=False).splitlines()[-1] == answers.missing(shown)
    assert answers.missing(report(LINE._replace(patched=NOT_RUN))) == ""
