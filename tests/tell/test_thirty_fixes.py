"""What lists the fixes stays readable with thirty of them: made-up ones, with ids and titles as long as they may be."""

import re
from xml.etree import ElementTree

import pytest

from support import made_up
from unhang.cli.main import main
from unhang.compat.sweep import pages
from unhang.judge import matrix
from unhang.judge.decide import Verdict
from unhang.judge.findings import Finding
from unhang.judge.observe import Observation
from unhang.records import Environment, Installation, Request, Search
from unhang.shapes import catalog
from unhang.tell import matrix_text, report, terminal, version_ranges
from unhang.tell.picture import picture
from unhang.tell.report import Report

UPSTREAMS = ("megatron-core", "ms-swift", "verl")
IDS = [f"a-made-up-fix-in-row-{number:03}" for number in range(30)]
FIXES = [made_up.fix(name, UPSTREAMS[number % 3])._replace(title="t" * 70) for number, name in enumerate(IDS)]
# each fix is needed by nine releases in a row
RELEASES = made_up.releases(
    FIXES,
    **{
        upstream: {
            f"0.{minor}.0": " ".join(
                "affected" if number // 2 <= minor < number // 2 + 9 else "-"
                for number in range(30)
                if number % 3 == place
            )
            for minor in range(24)
        }
        for place, upstream in enumerate(UPSTREAMS)
    },
)
ROWS = matrix.rows(FIXES, RELEASES, made_up.table(*FIXES))


def test_the_table_of_the_matrix_is_in_parts_that_fit() -> None:
    text = matrix_text.text_table(version_ranges.panels(ROWS, FIXES), colour=False)
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) < 200
    assert [line.split(":")[0] for line in lines if " releases" in line] == list(UPSTREAMS)
    heads = re.sub(r"\s+", "", text)
    assert all(heads.count(f"row-{name[-3:]}") == 1 for name in IDS)
    for fix in FIXES:
        needed = matrix_text.needed_by(ROWS, fix).split(" ", 1)[1]
        assert any(line.startswith(f"  {needed.split(' to ')[0]} ") and "needed" in line for line in lines), fix.id


def test_the_readmes_table_has_one_short_row_for_each() -> None:
    lines = pages.fixes_table(FIXES, RELEASES, made_up.table(*FIXES)).splitlines()
    assert [line.split("`")[1] for line in lines[2:]] == IDS
    assert max(map(len, lines)) <= 180


def test_the_picture_has_room_for_each_name() -> None:
    root = ElementTree.fromstring(picture(ROWS, FIXES))
    texts = [item for item in root.iter("{http://www.w3.org/2000/svg}text") if item.get("class") == "fix"]
    assert {item.text for item in texts} == set(IDS)
    for item in texts:  # a letter at 12 px is about 6.5 px wide
        assert float(item.get("x", 0)) - 6.5 * len(item.text or "") > 0
    assert float(root.get("height", 0)) < 2000


def test_list_and_check_have_a_line_or_two_for_each(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(catalog, "fixes", lambda: dict(zip(IDS, FIXES)))
    monkeypatch.setattr(catalog, "releases", lambda: RELEASES)
    monkeypatch.setattr(catalog, "shape_table", lambda: made_up.table(*FIXES))
    monkeypatch.setattr(terminal, "width", lambda _: 0)
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[:60:2]] == IDS
    assert (
        {line.index("t" * 70) for line in lines[:60:2]}
        == {line.index("hang; affects") for line in lines[1:60:2]}
        == {26}
    )
    assert lines[1].endswith("affects megatron-core 0.0.0 to 0.8.0")
    copies = [Installation(name, "0.20.0", "/job", "/job", f"/job/{name}", "source", None, ()) for name in UPSTREAMS]
    findings = tuple(
        Finding(copies[number % 3], fix.targets[0], Observation("/job/a.py", b""), Verdict("needed"))
        for number, fix in enumerate(FIXES)
    )
    what = Report(
        Search(Environment(None, "/job", "--target"), tuple(copies), ()), Request(), findings, None, False, {}
    )
    shown = report.text_report(what, colour=False).splitlines()
    found = [line.split()[:3] for line in shown if line.startswith("  needed")]
    assert sorted(found) == [["needed", name, "cure"] for name in IDS]
    assert len(shown) < 30 + 10
