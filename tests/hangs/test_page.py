"""The tables of docs/maintainers/diagnose-evidence.md, from the JSON of a run."""

from __future__ import annotations

import json
from pathlib import Path

from hangs import page

_FIX = "mtp-cp-deadlock"
RUN = {
    f"{_FIX} 4": {"gloo": f"known {_FIX}", "py-spy": f"possible {_FIX}"},
    f"{_FIX} 8": {"gloo": f"known {_FIX}", "py-spy": f"known {_FIX}"},
    f"{_FIX} 4, patched": {"gloo": "slow", "py-spy": "slow"},
    "slow-rank": {"gloo": "slow", "py-spy": "not-enough"},
}


def test_a_page_counts_the_answers_by_input_and_by_job(tmp_path: Path) -> None:
    path, source = tmp_path / "page.md", tmp_path / "hangs.json"
    path.write_text(f"above\n{page.START}\nstale\n{page.END}\nbelow\n")
    source.write_text(json.dumps({"hangs": [{"job": job, "answers": answers} for job, answers in RUN.items()]}))
    assert page.main([str(path), str(source)]) == 0
    lines = path.read_text().splitlines()
    assert (lines[0], lines[-1]) == ("above", "below")
    assert "stale" not in lines
    assert f"| input | `{_FIX}`, 2 jobs |" in lines
    assert "| gloo | known |" in lines
    assert "| py-spy | 1 known, 1 possible |" in lines
    assert f"| `{_FIX} 4, patched` |  | slow |" in lines
    assert "| `slow-rank` | One rank is at work on its data while its peers wait | 1 not-enough, 1 slow |" in lines
