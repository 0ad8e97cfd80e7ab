"""The answer of two outcomes, the exit code of all answers, and how they are printed."""

from __future__ import annotations

import json
import re

import pytest

from unhang import __version__
from unhang.prove import answers
from unhang.prove.cases import ABSENT, BROKEN, DIFFERS, HUNG, PASSED, Case, Outcome, Topology
from unhang.prove.gpus import Gpu
from unhang.prove.line import Line
from unhang.records import Environment, Request

REDUCE = "reduce_loss_in_tracker"
LINE = Line("verl", "0.7.1", "/", "mtp-cp-deadlock", "needed", "unknown", "")
DEFECT = Case("yours", Topology(cp=2), HUNG, REDUCE)
CONTROL = Case("yours", Topology(dp=2), PASSED)
EITHER = DEFECT._replace(options={"may_pass": True})
FINE, STUCK = Outcome(PASSED, "all is well", 0.2), Outcome(HUNG, f"in {REDUCE}", 1.5)
NOT_RUN = Outcome(BROKEN, "a traceback\nValueError: 7")


ASKED = Request(python="/bin/python", target="a site", chosen=(("--skip", "expert-dp-warmup"), ("--upstream", "verl")))


def report(line: Line, topology: Topology | None = None) -> answers.Report:
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
        "gpus": [],
        "topology": {**sizes, "world_size": 2},
        "warnings": ["a warning"],
    }
    assert list(result) == [*Line._fields, "kinds", "changes_numbers"]
    assert result["untouched"] == {"status": HUNG, "detail": f"in {REDUCE}", "seconds": 1.5, "gpu_bytes": 0}
    assert json.loads(answers.document(report(LINE)))["results"][0]["untouched"] is None


def test_a_log_has_both_sides_in_one_line_and_the_next_command() -> None:
    line = answers.judged(LINE, DEFECT, STUCK, FINE)
    shown = answers.text(report(line))
    (row,) = (text for text in shown.splitlines() if "mtp-cp-deadlock" in text and text.startswith("  proven"))
    assert f"  untouched (installed) hung (1.5 s): in {REDUCE}  patched passed (0.2 s): all is well" in row
    assert "run in /bin/python: Python 3.12.0, torch 2.0, CPU only" in shown
    assert shown.endswith(
        "\nshown: mtp-cp-deadlock: its one case failed without the fix and passed with it; not shown: NCCL, a GPU, "
        "your own model and data\nthe installed source has the defect; next, on every node:\n  unhang apply --target "
        "'a site' --upstream verl --fix mtp-cp-deadlock"
    )
    assert "\x1b" not in shown
    shown = answers.text(report(line._replace(verdict="applied")), colour=True)
    assert "patched (installed) passed" in shown
    assert "\x1b[32mproven" in shown
    assert shown.endswith("your own model and data"), "it is applied: nothing is next"


def test_on_gpus_it_says_versions_memory_what_is_kept_and_what_is_not_shown() -> None:
    gpus = [Gpu("1", "GPU-1", 1 << 30, 80 << 30, "NVIDIA H100")]
    sides = STUCK, FINE._replace(gpu_bytes=5 << 29)
    shown = report(answers.judged(LINE, DEFECT, *sides))._replace(gpus=gpus, keep="left here")
    shown = shown._replace(versions={**shown.versions, "nccl": "2.28.9"})
    text = answers.text(shown)
    assert "torch 2.0, NCCL 2.28.9, GPU 1 (NVIDIA H100), 1.5 GiB of a GPU's memory taken\n" in text
    assert "not shown: several nodes, InfiniBand, NVLink (the ranks speak over sockets), your own model" in text
    command = "  unhang diagnose 'left here/verl/mtp-cp-deadlock/untouched/yours'"
    assert f"what these ranks left is kept; to diagnose it:\n{command}\n" in text
    assert "is kept" not in answers.text(shown._replace(keep=""))
    assert json.loads(answers.document(shown))["gpus"] == [gpus[0]._asdict()]


@pytest.mark.parametrize("width", [60, 80, 140])
def test_a_terminal_has_a_table_of_the_cases_and_what_was_seen_in_one(width: int) -> None:
    waits = Outcome(HUNG, f"rank 0 waits in all_reduce at {'a' * 40}.py:1 in {REDUCE}; rank 1 done", 31.5)
    long = DEFECT._replace(name="schedule-one-micro-batch", topology=Topology(2, 4, 2, 2))
    proven = [answers.judged(LINE, case, waits, FINE) for case in (DEFECT, long)]
    fails = answers.judged(LINE._replace(fix="sft-packed-seq-broadcast"), DEFECT._replace(name="bad"), STUCK, STUCK)
    shown = report(LINE)._replace(lines=[*proven, answers.judged(LINE, CONTROL, FINE, FINE), fails])
    text = answers.text(shown, width=width)
    lines = text.splitlines()
    assert [line for line in lines if len(line) > width and not re.match(r" *(\S+|unhang .*)$", line)] == []
    at = next(number for number, line in enumerate(lines) if line.split()[:1] == ["case"])
    table = [line.split() for line in lines[at + 1 : at + 4]]
    assert [row[0] for row in table] == ["yours", "schedule-one-micro-batch", "yours"]
    assert table[0][-6:] == ["hung", "31.5", "s", "passed", "0.2", "s"]
    assert ("TP 2 x PP 4" in lines[at + 2]) is (width == 140)
    assert text.count("waits in all_reduce") == 1, "of the first; --verbose has the others"
    assert "FAILED WITH THE FIX: please report it" in text.replace("\n ", "")
    assert answers.text(shown, width=width, verbose=True).count("waits in all_reduce") == 2


def test_the_end_tells_a_cure_from_a_safeguard() -> None:
    """A safeguard's proof shows the cause, or stand-ins: it is no reason to say that the installed source hangs."""
    cure = answers.judged(LINE._replace(grade="cure"), DEFECT, STUCK, FINE)
    guard = cure._replace(fix="empty-expert-hang", grade="safeguard")
    asked, what = Request(python="/bin/python"), "  unhang apply --python /bin/python --fix"
    why = "empty-expert-hang: a safeguard, of which only the cause was shown, and not that your job hangs"
    told = [f"{why}; to guard against it:", f"{what} empty-expert-hang"]
    assert answers.after([guard], asked) == told
    assert answers.summary([guard]).startswith(
        "shown: of empty-expert-hang: its one case showed the cause without the fix"
    )
    first = "the installed source has the defect; next, on every node:"
    assert answers.after([cure, guard], asked) == [first, f"{what} mtp-cp-deadlock", *told]
    assert "needed (safeguard)  yours" in answers.text(report(guard))
    row = json.loads(answers.document(report(guard)))["results"][0]
    assert [row[key] for key in ("grade", "kinds", "changes_numbers")] == ["safeguard", ["hang", "abort"], False]


def test_what_is_needed_and_unknown_stays_in_the_command() -> None:
    proven = answers.judged(LINE, DEFECT, STUCK, FINE)
    other = LINE._replace(fix="another-fix")
    run = "  unhang apply --target 'a site' --upstream verl"
    why, command = answers.after([proven, other], ASKED)
    assert why == (
        "the installed source has the defect; another-fix: needed, though not shown here; next, on every node:"
    )
    assert command == f"{run} --fix mtp-cp-deadlock --fix another-fix"
    assert answers.summary([proven, other]).endswith("; not shown: another-fix, NCCL, a GPU, your own model and data")
    assert answers.after([other], ASKED)[-1] == f"{run} --fix another-fix"
    assert answers.summary([other]) == "shown: 1 unknown; not shown: another-fix"
    for verdict in "drifted", "applied", "unlisted":
        assert answers.after([other._replace(verdict=verdict)], ASKED) == [], "apply would not write it"
    both = [proven, proven._replace(answer="unknown")]
    assert answers.after(both, ASKED)[-1] == f"{run} --fix mtp-cp-deadlock", "and only once"


def test_all_missing_modules_are_in_one_command() -> None:
    first, second = (Outcome(BROKEN, f"a traceback\n{ABSENT}{names}") for names in ("ray yaml", "peft ray"))
    lines = [LINE._replace(untouched=first, patched=first), LINE._replace(patched=second), LINE]
    shown = report(LINE)._replace(lines=lines, python="/an env/bin/python")
    assert answers.missing(shown) == (
        "hint: the proofs also need peft, ray, yaml; run: '/an env/bin/python' -m pip install peft ray PyYAML"
    )
    assert answers.missing(shown._replace(pip=False)).endswith(
        "run: uv pip install --python '/an env/bin/python' peft ray PyYAML, "
        "or: pip --python '/an env/bin/python' install peft ray PyYAML"
    )
    assert answers.text(shown).splitlines()[-1] == answers.missing(shown)
    assert answers.missing(report(LINE._replace(patched=NOT_RUN))) == ""
