"""The tables of docs/maintainers/proofs.md, from the JSON of a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from proofs import page
from support import pages


def line(case: str, *, control: bool = False, wrong: str = "", **statuses: str) -> dict[str, Any]:
    outcomes = {name: {"status": status, "detail": "a|b", "seconds": 1.0} for name, status in statuses.items()}
    return {
        "proof": "a fix", "case": case, "topology": "CP 2", "control": control, "wrong": wrong, "outcomes": outcomes,
    }  # fmt: skip


PAIR = line("cp2", untouched="hung", patched="passed")
RUN = {
    "proofs": [PAIR, line("dp2", control=True, untouched="passed", patched="passed"), line("cp2", half="hung")],
    "left-out": [{"proof": "a fix", "name": "cp8", "why": "too old"}],
}


def test_a_page_gets_the_summary_and_every_case(tmp_path: Path) -> None:
    path, source = tmp_path / "page.md", tmp_path / "proofs.json"
    path.write_text(f"above\n{page.START}\nstale\n{page.END}\nbelow\n")
    source.write_text(json.dumps(RUN))
    assert page.main([str(path), str(source)]) == 0
    lines = path.read_text().splitlines()
    assert (lines[0], lines[1], lines[-2], lines[-1]) == ("above", page.START, page.END, "below")
    assert "stale" not in lines
    assert "| a fix | 2 | 1 | 1 hung, 1 passed | 2 passed | 1 | 5 | 0 |" in lines
    assert "| a fix | `cp8` | too old |" in lines
    assert "| a fix | CP 2: `dp2` (control) | passed (1.0 s): a\\|b | passed (1.0 s): a\\|b |" in lines
    assert "| a fix | half | `cp2` | hung (1.0 s): a\\|b |" in lines
    path.write_text(f"{page.END} and then {page.START}")
    with pytest.raises(ValueError, match="does not contain"):
        pages.fill(path, page.START, page.END, "text")
    assert path.read_text() == f"{page.END} and then {page.START}"


def test_a_column_appears_where_something_is_wrong() -> None:
    assert "| wrong |" not in page.cases([PAIR])
    assert page.cases([line("cp2", wrong="it passes", untouched="passed", patched="passed")]).count("it passes") == 1


def test_parts_of_a_run_are_joined_and_the_first_counts() -> None:
    again = {"proofs": [{**PAIR, "wrong": "later"}, line("cp4", untouched="hung")], "left-out": RUN["left-out"]}
    whole = page.joined([RUN, again])
    assert [one["case"] for one in whole["proofs"]] == ["cp2", "dp2", "cp2", "cp4"]
    assert not any(one["wrong"] for one in whole["proofs"])
    assert whole["left-out"] == RUN["left-out"]
