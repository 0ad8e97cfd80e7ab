"""Each fix has a drawing, of a case of its proof; and what is drawn of ranks and numbers, in plain characters."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from unhang.shapes import catalog
from unhang.shapes.catalog import Fix
from unhang.tell import drawing
from unhang.tell.drawing import DONE, WAITS, WRONG, Drawing

FIXES = [pytest.param(fix, id=fix.id) for fix in catalog.fixes().values()]
OF_NO_NUMBER = {"async-grpo-server-hang", "merger-buffer-copies", "mfsdp-pp-checkpoint"}
"""Drawings whose bars are of what a file has, or of what ends: no number that a job computes."""


def content(fix: Fix) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(fix.folder, "drawing.json").read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize("fix", FIXES)
def test_the_drawing_of_a_fix_is_of_a_case_of_its_proof(fix: Fix) -> None:
    drawn = content(fix)
    proof = importlib.import_module(f"unhang.prove.fixes.{fix.id.replace('-', '_')}")
    by_upstream = getattr(proof, "CASES_BY_UPSTREAM", {}).values()
    cases = {case.name: case for cases in (proof.CASES, *by_upstream) for case in cases}
    case, recorded = cases[drawn["case"]], drawn["recorded"]
    assert recorded["topology"] == case.topology.text()
    assert recorded["proof"].startswith(f"{fix.id} {fix.targets[0].upstream} ")
    assert (recorded["untouched"]["status"], recorded["patched"]["status"]) == (case.untouched, "passed")
    if "bars" not in drawn:
        assert [len(recorded[side]["ranks"]) for side in ("untouched", "patched")] == [case.topology.world] * 2


@pytest.mark.parametrize("fix", FIXES)
def test_the_drawing_of_a_fix_shows_the_defect_and_then_none(fix: Fix) -> None:
    drawn = drawing.of_fix(fix)
    assert drawn
    before, after = drawn.panels
    assert (before.is_good, after.is_good) == (False, True)
    if before.bars:
        right = [bar.value for bar in before.bars if bar.is_right]
        assert all(bar.value not in right for bar in before.bars if not bar.is_right)
        assert all(bar.value == pytest.approx(right[0], abs=0.02) for bar in after.bars)
        assert fix.changes_numbers is (fix.id not in OF_NO_NUMBER)
    elif before.how in ("hangs", "aborts"):
        assert {block.state for row in before.rows for block in row.blocks} & {WAITS, WRONG}
    else:  # what no CPU can show hang has a word on that
        assert drawn.note
    assert {row.end for row in after.rows} <= {"done"}
    assert {block.state for row in after.rows for block in row.blocks} <= {DONE}
    letters = {block.letter for panel in drawn.panels for row in panel.rows for block in row.blocks}
    assert letters == {letter for letter, _ in drawn.legend}


@pytest.mark.parametrize("fix", FIXES)
@pytest.mark.parametrize("width", [60, 80])
def test_plain_characters_stay_within_the_width(fix: Fix, width: int) -> None:
    drawn = drawing.of_fix(fix)
    assert drawn
    text = drawing.text(drawn, width)
    names = [word for line in text.splitlines() for word in line.split() if len(word) > width - 10]
    assert text.isascii()
    assert [line for line in text.splitlines() if len(line) > width and not any(name in line for name in names)] == []
    assert all(f" {row.name} " in text for panel in drawn.panels for row in panel.rows)


def test_a_safeguard_says_what_its_drawing_leaves_open() -> None:
    silent = [fix.id for fix in catalog.fixes().values() if fix.grade == "safeguard" and not content(fix)["note"]]
    assert silent == []


def call(group: str, ranks: list[int], what: str = "1 x float32", kind: str = "all_reduce") -> dict[str, Any]:
    return {"kind": kind, "group": group, "of": "", "ranks": ranks, "what": what, "in": "step", "returned": True}


def rank(*did: dict[str, Any], end: str = "done", at: str = "") -> dict[str, Any]:
    return {"end": end, "at": at, "error": "", "before": 0, "did": list(did), "after": 0}


def hung(*ranks: dict[str, Any]) -> Drawing:
    about = {"title": "A hang", "before": "They wait.", "note": "", "case": "made-up"}
    return drawing.read({**about, "recorded": {"untouched": {"status": "hung", "ranks": [*ranks]}}})


def states(drawn: Drawing) -> list[list[tuple[int, str]]]:
    return [[(block.column, block.state) for block in row.blocks] for row in drawn.panels[0].rows]


def test_a_rank_waits_for_one_that_never_comes() -> None:
    drawn = hung(rank(call("0", [0, 1]), call("0", [0, 1]), end="alive"), rank(call("0", [0, 1])))
    assert states(drawn) == [[(0, DONE), (1, WAITS)], [(0, DONE)]]
    assert drawing.text(drawn).splitlines()[3:5] == [
        "  rank 0    [----A----] [A ......... waits",
        "  rank 1    [----A----] done",
    ]


def test_calls_of_other_sizes_are_wrong() -> None:
    drawn = hung(rank(call("0", [0, 1]), end="alive"), rank(call("0", [0, 1], "2 x float32"), end="alive"))
    assert states(drawn) == [[(0, WRONG)], [(0, WRONG)]]
    assert [letter for letter, _ in drawn.legend] == ["A", "B"]


def test_a_call_is_right_of_all_that_its_ranks_did_before() -> None:
    drawn = hung(
        rank(call("a", [0, 1]), call("b", [0, 2]), end="alive"),
        rank(call("a", [0, 1])),
        rank(call("b", [0, 2]), call("c", [2, 1]), end="alive"),
    )
    assert states(drawn) == [[(0, DONE), (1, DONE), (2, WAITS)], [(0, DONE)], [(1, DONE), (2, WAITS)]]
    assert drawn.groups == ("ranks 0, 1", "ranks 0, 2", "ranks 2, 1")


def test_bars_of_both_sides_have_one_scale() -> None:
    bars = {"of": "the norm", "labels": ["rank 0", "rank 1"]}
    drawn = drawing.read({
        "title": "T", "before": "Too much.", "after": "Right.", "note": "", "case": "c", "bars": bars,
        "recorded": {
            "proof": "p", "topology": "t", "untouched": {"values": [4.0, None], "right": [1.0]},
            "patched": {"values": [1.0]},
        },
    })  # fmt: skip
    assert drawing.text(drawn).splitlines() == [
        "T", "The number: the norm", "", "Before: wrong. Too much.", f"  rank 0     4  {'#' * 50}", "  rank 1  none",
        f"  right      1  {'=' * 12}", "", "After: right. Right.", f"  all ranks  1  {'#' * 12}",
        f"  right      1  {'=' * 12}", "", "recorded: p, t, case c",
    ]  # fmt: skip


def test_a_fix_of_a_pack_needs_no_drawing(tmp_path: Path) -> None:
    fix = next(iter(catalog.fixes().values()))
    fix = fix._replace(folder=str(tmp_path))
    assert drawing.of_fix(fix) is None
    for text in ("{", "[]", '{"title": "T", "recorded": {"untouched": 1}}'):
        (tmp_path / "drawing.json").write_text(text)
        assert drawing.of_fix(fix) is None


def test_a_drawing_is_text_from_outside() -> None:
    drawn = hung(rank(call("0", [0, 1], "\x1b[31mred"), end="alive"), rank())
    assert "\\x1b[31mred" in drawing.text(drawn)
