"""Every fix is described whole: manifest, page, and a codemod for each of its targets."""

from __future__ import annotations

import pytest

from unhang.errors import UnhangError
from unhang.judge.decide import codemod
from unhang.shapes import catalog
from unhang.shapes.catalog import Fix

DEP3 = {"description", "origin", "bug", "forwarded", "applied-upstream", "last-update"}
OURS = {"id", "title", "symptom", "cause", "licence", "affects", "fixed-in", "targets", "collectives"}
FIXES = list(catalog.fixes().values())


def test_an_unknown_fix_is_refused() -> None:
    with pytest.raises(UnhangError) as caught:
        catalog.fix("no-such-fix")
    assert caught.value.code == "unknown-fix"


def test_the_four_fixes_are_there() -> None:
    assert [fix.id for fix in FIXES] == [
        "empty-expert-hang",
        "expert-dp-warmup",
        "mtp-cp-deadlock",
        "sft-packed-seq-broadcast",
    ]


@pytest.mark.parametrize("fix", FIXES, ids=lambda fix: fix.id)
def test_manifest(fix: Fix) -> None:
    assert set(fix.manifest) == DEP3 | OURS
    assert fix.manifest["id"] == fix.id
    assert len(fix.title) <= 70
    assert fix.manifest["origin"].split(", ")[0] in ("backport", "vendor", "other")
    assert set(fix.manifest["affects"]) <= {target.upstream for target in fix.targets}
    for target in fix.targets:
        assert codemod(target).names, "a codemod says which names its rewrite uses"
        assert target.file.split("/")[0] in ("megatron", "verl", "swift")


@pytest.mark.parametrize("fix", FIXES, ids=lambda fix: fix.id)
def test_page(fix: Fix) -> None:
    page = catalog.page(fix.id)
    assert page.startswith(f"# {fix.id}\n")
    assert page.isascii()
    assert max(map(len, page.splitlines())) <= 80
    sections = [line.removeprefix("## ") for line in page.splitlines() if line.startswith("## ")]
    for wanted in ("Symptom", "Cause", "What unhang changes", "Evidence", "Cost", "What it does NOT cure", "Links"):
        assert wanted in sections
    if fix.manifest["collectives"]:
        assert any(section.startswith("Patch every node, or none") for section in sections)
