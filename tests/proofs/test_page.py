"""The tables of docs/maintainers/proofs.md, from the JSON of a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from proofs import page
from support import pages
from support.checkout import REPOSITORY
from unhang.shapes import catalog


def line(case: str, *, control: bool = False, wrong: str = "", **statuses: str) -> dict[str, Any]:
    outcomes = {name: {"status": status, "detail": "a|b", "seconds": 1.0} for name, status in statuses.items()}
    about = {"proof": "gate verl 0.7.1", "case": case, "topology": "CP 2"}
    return {**about, "control": control, "wrong": wrong, "outcomes": outcomes}


PAIR = line("cp2", untouched="hung", patched="passed")
RUN = {
    "proofs": [PAIR, line("dp2", control=True, untouched="passed", patched="passed"), line("cp2", half="hung")],
    "left-out": [{"proof": "gate verl 0.7.1", "name": "cp8", "why": "too old"}],
}


def test_a_page_gets_a_row_for_each_fix_and_a_page_below_it(tmp_path: Path) -> None:
    path, source = tmp_path / "page.md", tmp_path / "proofs.json"
    other = "| [`mtp-cp-deadlock`](page/mtp-cp-deadlock.md) | 1 | 1 | 1 | 1 hung | 1 passed | 1 | 0 |"
    path.write_text(f"above\n{page.START}\nstale\n{other}\n| [`no-fix`](page/no-fix.md) | 1 |\n{page.END}\nbelow\n")
    source.write_text(json.dumps(RUN))
    assert page.main([str(path), str(source)]) == 0
    lines = path.read_text().splitlines()
    assert (lines[0], lines[1], lines[-2], lines[-1]) == ("above", page.START, page.END, "below")
    assert "stale" not in lines
    assert other in lines, "a fix that this run did not play keeps its row"
    assert "no-fix" not in path.read_text()
    assert "| [`gate`](page/gate.md) | 1 | 2 | 1 | 1 hung, 1 passed | 2 passed | 1 | 0 |" in lines
    assert (tmp_path / "page/gate.md").read_text() == page.of_fix("gate", RUN["proofs"], RUN["left-out"])
    path.write_text(f"{page.END} and then {page.START}")
    with pytest.raises(ValueError, match="does not contain"):
        pages.fill(path, page.START, page.END, "text")
    assert path.read_text() == f"{page.END} and then {page.START}"


def test_the_page_of_a_fix_begins_with_what_was_seen_and_has_every_case() -> None:
    lines = page.of_fix("gate", RUN["proofs"], RUN["left-out"]).splitlines()
    assert lines[4:8] == [
        "- **Run on** verl 0.7.1.",
        "- **Untouched**, of 2 cases: 1 hang. Controls, which lack the defect and pass: 1.",
        "- **Rewritten**, 2 of 2 pass.",
        "- **With a part of the rewrite left out or changed**, the proof fails, as it must: half.",
    ]
    assert "| verl 0.7.1 | 2 | 1 | 1 hung, 1 passed | 2 passed | 1 | 5 | 0 |" in lines
    assert "| verl 0.7.1 | `cp8` | too old |" in lines
    assert "| verl 0.7.1 | CP 2: `dp2` (control) | passed (1.0 s): a\\|b | passed (1.0 s): a\\|b |" in lines
    assert "| verl 0.7.1 | half | `cp2` | hung (1.0 s): a\\|b |" in lines


def test_what_is_wrong_is_counted_and_told() -> None:
    wrong = line("cp2", wrong="it passes", untouched="passed", patched="passed")
    text = page.of_fix("gate", [wrong], [])
    assert "- **Wrong**: 1 lines below." in text
    assert text.count("it passes") == 1
    assert "it passes" not in page.of_fix("gate", [PAIR], [])
    assert "Wrong" not in page.of_fix("gate", [PAIR], [])


def test_each_fix_has_a_page_with_a_summary_of_a_minute() -> None:
    """A person reads some 250 words in a minute."""
    folder = REPOSITORY / "docs" / "maintainers" / "proofs"
    assert {path.stem for path in folder.glob("*.md")} == catalog.fixes().keys()
    for path in folder.glob("*.md"):
        summary = path.read_text(encoding="utf-8").partition("\n![")[0]
        assert 40 < len(summary.split()) < 250, path


def test_parts_of_a_run_are_joined_and_the_first_counts() -> None:
    again = {"proofs": [{**PAIR, "wrong": "later"}, line("cp4", untouched="hung")], "left-out": RUN["left-out"]}
    whole = page.joined([RUN, again])
    assert [one["case"] for one in whole["proofs"]] == ["cp2", "dp2", "cp2", "cp4"]
    assert not any(one["wrong"] for one in whole["proofs"])
    assert whole["left-out"] == RUN["left-out"]
