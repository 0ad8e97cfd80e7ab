"""sft-packed-seq-broadcast: sender against receivers, on every stage, with every setting of the function."""

from __future__ import annotations

import pytest

from support import sources
from support.endstates import row, row_of
from unhang.compat.endstates.endstate import Source

FIX = "sft-packed-seq-broadcast"


@pytest.mark.parametrize("version", ["0.17.1", "0.18.2", "0.19.2"])
def test_a_release_is_as_on_record(version: str) -> None:
    source = sources.wheel(FIX, version)
    assert row(source) == row_of(source)


_SENDS, _NONE = "if args.sft:\n                _broadcast", "else:\n                max_seqlen = None"


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("elif args.sft:", "elif False:", "not cured with stages=4, stage=1: middle: "),
        (_SENDS, _SENDS.replace("args.sft", "False"), "not cured with stages=4, stage=3: raises MismatchError: "),
        (_NONE, "else:\n                pass", "worse with stages=4, stage=3, sft=False, dynamic=True: "),
    ],
)
def test_part_of_the_rewrite_is_a_problem(old: str, new: str, problem: str) -> None:
    source = sources.wheel(FIX, "0.17.1")
    text = source.rewritten.data.decode()
    assert old in text
    found = row(source, Source(text.replace(old, new), source.target.function))
    assert [it for it in found.problems if it.startswith(problem)], found.problems
