"""What is recorded of a proof for its drawing, apart from the ranks themselves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from proofs import drawn
from support.jobs import needs_torch
from unhang.shapes import catalog


def began(kind: str, *ranks: int) -> dict[str, Any]:
    return {"kind": kind, "ranks": list(ranks)}


def test_a_rank_is_read_from_what_it_wrote_as_calls_began_and_returned(tmp_path: Path) -> None:
    lines = [began("barrier", 0, 1), 0, began("all_reduce", 0), 1, began("all_reduce", 0, 1)]
    (tmp_path / "0.rank").write_text("\n".join(map(json.dumps, lines)))
    assert drawn._read(tmp_path / "0.rank") == [
        {"kind": "barrier", "ranks": [0, 1], "returned": True},
        {"kind": "all_reduce", "ranks": [0, 1], "returned": False},
    ]


def test_what_is_not_drawn_is_counted() -> None:
    did = [began(kind, 0, 1) for kind in ("a", "b", "object", "c", "d", "e")]
    found = drawn._windowed({"skip": 1, "show": 2, "without": ["object"]}, {"end": "done"}, did)
    assert [one["kind"] for one in found["did"]] == ["b", "c"]
    assert (found["before"], found["after"], found["end"]) == (1, 2, "done")


def test_numbers_are_found_in_what_an_outcome_says() -> None:
    assert drawn._values(r"norm is ([\d., ]+) on", "the norm is 5.1, 7.0 on the ranks") == [5.1, 7.0]
    assert drawn._values(r"is (\w+), not (\w+)", "it is nan, not None") == ["NaN", None]
    with pytest.raises(ValueError, match="is not in"):
        drawn._values("is (5)", "it is 6")


@pytest.mark.parametrize("fix", catalog.fixes())
def test_each_drawing_names_a_release_and_is_written_as_the_recorder_does(fix: str) -> None:
    text = drawn.file(fix).read_text(encoding="utf-8")
    content = json.loads(text)
    assert drawn._text(content) == text
    proof, case = drawn.proof_of(fix, content)
    assert (proof.name, case.name) == (content["recorded"]["proof"], content["case"])
    with pytest.raises(LookupError, match="no proof"):
        drawn.proof_of(fix, {"case": "gone"})


@needs_torch
@pytest.mark.parametrize("fix", ["critic-microbatch-scale", "mtp-cp-deadlock"])
def test_a_run_records_what_the_drawing_has(fix: str) -> None:
    assert drawn.recorded(fix) == json.loads(drawn.file(fix).read_text(encoding="utf-8"))["recorded"]


def test_the_text_of_a_drawing_is_the_drawing() -> None:
    drawing = {
        "bars": {"untouched": r"norm is ([\d., ]+) on"},
        "recorded": {"did": [{"kind": "barrier", "ranks": [0, 1]}]},
    }
    assert json.loads(drawn._text(drawing)) == drawing
    assert '{"kind": "barrier", "ranks": [0, 1]}' in drawn._text(drawing)
