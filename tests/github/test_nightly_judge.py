"""How the results of nightly jobs are judged."""

import json
from typing import Any

import nightly_judge as judge
import pytest
from nightly_judge import Ran


def rows(*verdicts: str, **fields: Any) -> str:
    row = {"upstream": "verl", "version": "0.9.0", "fix": "f", "function": "g", "shape": None, "detail": "d", **fields}
    return json.dumps({"schema": 1, "results": [{**row, "verdict": verdict} for verdict in verdicts]})


@pytest.mark.parametrize(
    "out",
    [
        rows("needed", "not-affected"),
        rows("unlisted", code="older-than-floor"),
        f"Looking in links: {{}}\n{rows('applied')}\nbye",
    ],
    ids=["needed", "abandoned branch", "lines of pip around it"],
)
def test_known_verdicts_are_no_trouble(out: str) -> None:
    assert judge.by_verdicts(Ran(1, out, ""), "branch main", {}).green


@pytest.mark.parametrize(
    "ran", [Ran(2, '{"schema": 1, "error": {}}', "why"), Ran(1, "no JSON", ""), Ran(0, "[1]", ""), Ran(0, "{}", "")]
)
def test_neither_verdicts_nor_answers_are_trouble(ran: Ran) -> None:
    for result, what in (judge.by_verdicts(ran, "", {}), "verdicts"), (judge.by_answers(ran, ["verl"]), "answers"):
        assert (result.green, result.detail) == (False, f"exit code {ran.code}, and no {what}")


@pytest.mark.parametrize("verdict", ["drifted", "unlisted"])
def test_an_unknown_shape_is_trouble_and_in_the_log(verdict: str) -> None:
    result = judge.by_verdicts(Ran(1, rows("needed", verdict), ""), "branch main", {})
    assert (result.green, result.log) == (False, f"verl branch main: f is {verdict}: g has the shape -: d")


@pytest.mark.parametrize(("newest", "is_news"), [("needed", True), ("fixed-upstream", False), (None, False)])
def test_a_fix_upstream_is_news_while_the_newest_release_lacks_it(newest: str | None, is_news: bool) -> None:
    known = {} if newest is None else {("verl", "f"): newest}
    result = judge.by_verdicts(Ran(0, rows("fixed-upstream"), ""), "branch main", known)
    assert result.news == ((("verl", "f", "branch main"),) if is_news else ())


def answers(*given: str, **fields: Any) -> str:
    row = {"upstream": "verl", "fix": "f", "case": "cp2", "detail": "why", "patched": None, **fields}
    side = {"status": "hung", "detail": "rank 0", "seconds": 1.0}
    return json.dumps({"schema": 1, "results": [{**row, "untouched": side, "answer": answer} for answer in given]})


def test_a_defect_of_the_untouched_tip_is_no_trouble() -> None:
    out = answers("proven", "unaffected", "patched-passes", "nothing-to-prove")
    assert judge.by_answers(Ran(1, out, ""), ["verl"]).green


@pytest.mark.parametrize("answer", ["failed", "unknown"])
def test_a_proof_that_fails_or_does_not_know_the_tip_is_trouble_and_in_the_log(answer: str) -> None:
    result = judge.by_answers(Ran(0, answers("proven", answer), ""), ["verl"])
    assert (result.green, result.detail) == (False, "1 of 2 answers are bad")
    assert result.log == f"verl f cp2: {answer}: why; untouched: rank 0"


def test_answers_about_other_upstreams_do_not_count() -> None:
    ours, beside = (json.loads(answers(answer, upstream=name))["results"] for answer, name in
                    (("proven", "verl"), ("failed", "megatron-core")))  # fmt: skip
    assert judge.by_answers(Ran(1, json.dumps({"results": ours + beside}), ""), ["verl"]).green
    assert not judge.by_answers(Ran(1, json.dumps({"results": beside}), ""), ["verl"]).green


def test_a_long_log_keeps_its_end() -> None:
    log = judge.by_code(Ran(1, "x" * 100_000, "the reason")).log
    assert len(log) < 7_000
    assert log.endswith("the reason")
