"""The reports to the upstreams: each is ready to send, and there is one for each defect that no upstream has cured."""

import json
from pathlib import Path

import pytest

from support import reports
from support.checkout import COMPAT
from support.pages import example
from unhang.judge import matrix
from unhang.judge.decide import NEEDED
from unhang.shapes import catalog

NO_FIX_HERE = {
    "async-lora-never-synced": "async-lora-unsynced cures it, and what upstream is asked for is to refuse it meanwhile",
    "lost-turn-separator": "upstream has cured the loop, and the report is about the builders that took its place",
    "router-token-scale": "upstream has cured a part of it, and the rest from 0.19 on is what the report is about",
}
"""Reports on defects of which the matrix says nothing, or that upstream has a fix."""
NO_REPORT = {
    "empty-expert-hang": "no backend that is in use is known to fail on zero rows",
    "expert-dp-warmup": "NCCL's stall needs GPUs whose memory is full: no program shows it on a CPU",
}
CLOSED = {"fsdp-size-one-no-sync": "its pull request was closed, and upstream still takes the setting"}
"""Defects that upstream has been told of, and will not cure as it was told."""
PROGRAMS = sorted(reports.REPORTS.glob("*.py"))


def untold() -> set[str]:
    """Return the unfixed defects for which upstream has no pull request that would do."""
    return {name for name in unfixed() if name in CLOSED or catalog.fix(name).manifest["forwarded"] == "no"}


def unfixed() -> set[str]:
    """Return the fixes whose defect is in the newest release, and in every commit that came after it."""
    releases, table = catalog.releases(), catalog.shape_table()
    found = set()
    for fix in catalog.fixes().values():
        shapes = json.loads((COMPAT / "data" / f"{fix.id}.json").read_text())["shapes"].values()
        is_merged = any(shape["state"] == "fixed" and "first" in shape for shape in shapes)
        if None in matrix.droppable(fix, releases, table).values() and not is_merged:
            found.add(fix.id)
    return found


def test_there_is_a_report_for_each_defect_that_no_upstream_has_cured() -> None:
    due = untold() - NO_REPORT.keys() | NO_FIX_HERE.keys()
    assert {path.stem for path in PROGRAMS} == {path.stem for path in reports.REPORTS.glob("*.md")} == due
    assert untold() >= {*NO_REPORT, *CLOSED}, "these need no reason any more"


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.stem)
def test_a_report_has_its_parts(program: Path) -> None:
    page = program.with_suffix(".md")
    text, source = page.read_text(encoding="utf-8"), program.read_text(encoding="utf-8")
    assert len(source.splitlines()) <= 60
    assert text.startswith(f"# {reports.title(program)}\n")
    assert [line for line in text.splitlines() if line.startswith("## ")] == [
        "## Numbers", "## Cause", "## Change", "## The program",
    ]  # fmt: skip
    assert example(page, "program") == source, "run nox -s reports -- --write-docs"
    figures = text.partition(reports.FIGURES[0])[2].partition(reports.FIGURES[1])[0]
    rows = [line.strip("| ").split(" | ") for line in figures.splitlines() if line.startswith("| ")][2:]
    assert rows[0][0].split()[0] == reports.title(program).partition(":")[0] in reports.CLONES
    assert all(wrong != right for _, wrong, right in rows)


@pytest.mark.parametrize("name", sorted(untold() - NO_REPORT.keys()))
def test_a_report_has_the_first_version_that_is_wrong(name: str) -> None:
    fix = catalog.fix(name)  # the report is to the upstream of its first target; others may have copies
    rows = matrix.rows([fix], catalog.releases(), catalog.shape_table())
    first = next(row.version for row in rows if row.verdict == NEEDED and row.upstream == fix.targets[0].upstream)
    assert f"Affects {first.partition('rc')[0]} and " in (reports.REPORTS / f"{name}.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("printed", "expected"),
    [
        ("wrong: 1\nright: 2", None),
        ("wrong: 2\nright: 2", "is cured in verl 1: 2"),
        ("wrong: 1", "does not run on verl 1"),
        ("wrong: 1\nright: 2\nraise SystemExit(1)", "does not run on verl 1"),
    ],
)
def test_a_program_without_a_defect_fails(printed: str, expected: str | None, tmp_path: Path) -> None:
    lines = [line if line.startswith("raise") else f"print({line!r})" for line in printed.splitlines()]
    program = tmp_path / "made-up.py"
    program.write_text("\n".join(lines))
    code = reports.Code("verl 1", "")
    if expected is None:
        assert reports.run(program, code) == ("verl 1", "1", "2")
    else:
        with pytest.raises(ValueError, match=expected):
            reports.run(program, code)
