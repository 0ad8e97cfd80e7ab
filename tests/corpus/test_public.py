"""Hangs and aborts that people posted: what a colleague would see in a minute is said, and no suspect is wrong."""

from __future__ import annotations

import json
import re

import pytest

from corpus import public
from support import checkout
from unhang.cli.error_codes import causes
from unhang.diagnose.phrases import CODES

SHARED = checkout.REPOSITORY.parent / "shared" / "reports"
"""Where a steering copy of more reports lies, beside a checkout that has one."""
FORMS = SHARED.with_name("formats")  # where texts in other forms lie: RAS, HCCL, Ray, native stacks
_NINE_IN_TEN, _SEVEN_IN_TEN = 0.9, 0.7


@pytest.mark.parametrize("name", [one.name for one in public.reports(public.HERE)])
def test_a_public_report_is_answered(name: str) -> None:
    truth = json.loads((public.HERE / name / "truth.json").read_text())
    found = public.score(truth, public.answer(public.HERE / name))
    assert found.verdict == truth.get("verdict", "answered"), (found.lacks, truth.get("note", ""))


def test_what_is_right_is_written_whole_and_few_reports_are_known_to_be_missed() -> None:
    truths = [json.loads((one / "truth.json").read_text()) for one in public.reports(public.HERE)]
    wanted = {"suspects", "processes", "causes", "says"}
    assert [truth["posted"] for truth in truths if not wanted <= truth.keys()] == []
    missed = [truth["posted"] for truth in truths if "verdict" in truth]
    assert len(missed) <= (1 - _NINE_IN_TEN) * len(truths), missed


def test_reports_of_every_launcher_are_there_and_short() -> None:
    texts = {one: "".join(path.read_text() for path in one.iterdir()) for one in public.reports(public.HERE)}
    assert len(texts) > 60
    assert max(text.count("\n") for text in texts.values()) < 150
    for launcher in ("torchrun", "srun|slurm", "mpirun", "(raylet)", "[launch.py:", "[1,0]<stderr>", "NVRM"):
        assert any(one in text.lower() for text in texts.values() for one in launcher.lower().split("|")), launcher


@pytest.mark.skipif(not SHARED.is_dir(), reason=f"no reports in {SHARED}")
def test_of_the_shared_reports_none_is_answered_wrongly_and_nine_in_ten_of_the_logs_are() -> None:
    scores = public.scored(SHARED)
    assert "wrong" not in {one.verdict for one in scores.values()}, public.table(scores)
    verdicts = [one.verdict for path, one in scores.items() if [*path.glob("*.log")]]
    assert verdicts.count("answered") >= _NINE_IN_TEN * len(verdicts), public.table(scores)


@pytest.mark.skipif(not FORMS.is_dir(), reason=f"no texts in {FORMS}")
def test_of_the_texts_in_other_forms_none_is_answered_wrongly_and_seven_in_ten_are() -> None:
    scores = public.scored(FORMS)
    assert "wrong" not in {one.verdict for one in scores.values()}, public.table(scores)
    verdicts = [one.verdict for path, one in scores.items() if not path.name.startswith("other-")]
    assert verdicts.count("answered") >= _SEVEN_IN_TEN * len(verdicts), public.table(scores)


def test_an_answer_that_suspects_another_rank_is_wrong_whatever_else_it_says() -> None:
    said = {"suspects": [1], "processes": ["pid 7"], "causes": [{"code": "network"}], "text": "a b"}
    assert public.score({"suspects": [2], "says": ["a"]}, said).verdict == "wrong"
    assert public.score({"suspects": [1, 2]}, said) == public.Score("thin", ("suspects [2]",))
    assert public.score({"says": ["a"]}, said).verdict == "wrong"
    assert public.score({"suspects": [1], "processes": []}, said) == public.Score("wrong", ("suspects ['pid 7']",))
    right = {"suspects": [1], "causes": ["mismatch", "network"], "says": ["b$"]}
    assert public.score(right, said).verdict == "answered"
    assert public.score({"says": ["c"]}, {**said, "suspects": [], "processes": [], "causes": []}).verdict == "empty"


def test_no_report_has_lines_of_source() -> None:
    below = re.compile(r"File \"[^\n]*, in [^\n]*\n(?:[^\n]{0,60}(?:\]:|\|\|))? {3,}(?!File )\S[^\n]*")
    found = {path: below.findall(path.read_text()) for path in public.HERE.rglob("*.log")}
    assert {path.parent.name: lines for path, lines in found.items() if lines} == {}


def test_each_cause_has_a_page_of_about_ten_lines() -> None:
    assert causes().keys() == CODES.keys()
    assert {code: lines for code, page in causes().items() if not 6 <= (lines := page.count("\n") + 1) <= 14} == {}
