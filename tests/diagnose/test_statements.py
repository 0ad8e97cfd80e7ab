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
