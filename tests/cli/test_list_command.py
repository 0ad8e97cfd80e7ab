"""`unhang list`."""

from __future__ import annotations

from support import cli
from unhang.shapes import catalog


def test_each_fix_has_two_lines_its_title_and_what_it_affects() -> None:
    ran = cli.unhang("list")
    assert ran.code == 0
    lines = ran.out.splitlines()
    for fix, title, affects in zip(catalog.fixes().values(), lines[::2], lines[1::2], strict=True):
        assert title == f"{fix.id:<25} {fix.title}"
        assert affects.split()[0] == "affects"
        assert all(f"{upstream} {releases}" in affects for upstream, releases in fix.manifest["affects"].items())
