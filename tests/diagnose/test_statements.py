"""Each phrase says of its example whom it blames, who waits, and by which cause."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from unhang.diagnose import phrases, statements
from unhang.diagnose.evidence import SPEAKER, Statement
from unhang.diagnose.log_prefixes import Speaker

EXAMPLES = json.loads(Path(__file__).with_name("phrases.json").read_text())
"""By phrase: lines, and the statement's cause, words and those of whom it is."""


def test_each_phrase_has_an_example() -> None:
    assert EXAMPLES.keys() == {one.key for one in phrases.PHRASES}


@pytest.mark.parametrize("key", EXAMPLES)
def test_a_phrase_says_what_its_example_means(key: str) -> None:
    example = EXAMPLES[key]
    reader = statements.Reader()
    for text in example["text"].split("\n"):
        reader.line(Speaker("", None, None), text, "log:1", None)
    found = [one for one in reader.statements(lambda _: SPEAKER) if one.key == key]
    assert [said(one) for one in found] == [{**NOTHING, **example["says"]}]


NOTHING: dict[str, object] = {"culprits": [], "processes": [], "waits": []}


def said(one: Statement) -> dict[str, object]:
    people = {"culprits": [*one.culprits], "processes": [*one.processes], "waits": [*one.waits]}
    return {"cause": one.cause, "words": one.words, **people}


NOTIFY = EXAMPLES["hccl-notify"]["text"].replace("rank: [24]", "rank: [{far}]").replace("[25 24]", "[{mine} 24]")
PROCESS = "[ERROR] 2025-10-11-15:09:34 (PID:2969, Device:0, RankID:{rank}) ERR00100 PTA call acl api failed."


@pytest.mark.parametrize(
    ("said", "culprits"),
    [
        ([(25, 24, 101)], [24]),  # a rank of the group: its place in the job is not told
        ([(25, 24, 101), (24, 23, 97)], [23]),  # 24 waits itself, and of 23 nothing else is told
        ([(25, 24, 101), (24, 25, 97)], []),  # each waits for the other
        ([(25, 24, 25), (3, 25, 3)], [24]),  # the group is the job
    ],
)
def test_whom_hccl_awaits_is_a_rank_of_the_job_where_that_can_be_told(
    said: list[tuple[int, int, int]], culprits: list[int]
) -> None:
    reader = statements.Reader()
    for mine, far, rank in said:
        reader.line(Speaker("", None, None), PROCESS.format(rank=rank).replace("2969", f"{mine}"), "log:1", None)
        text = NOTIFY.format(far=far, mine=mine).replace("2969", f"{mine}")
        reader.line(Speaker("", None, None), text, "log:2", None)
    found = [one for one in reader.statements(lambda _: SPEAKER) if one.key == "hccl-notify"]
    assert [one.by for one in found] == [rank for *_, rank in said]
    assert sorted({rank for one in found for rank in one.culprits}) == culprits
