"""Every fix is complete: manifest, page, codemod, tests, and a proof or the reason why there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from unhang.errors import UnhangError
from unhang.judge.decide import codemod
from unhang.shapes import catalog
from unhang.shapes.catalog import Fix

DEP3 = {"description", "origin", "bug", "forwarded", "applied-upstream", "last-update"}
OURS = {"id", "title", "grade", "symptom", "cause", "licence", "affects", "fixed-in", "targets", "collectives"}
FIXES = list(catalog.fixes().values())
REPOSITORY = Path(__file__).parents[2]


def test_an_unknown_fix_is_refused() -> None:
    with pytest.raises(UnhangError) as caught:
        catalog.fix("no-such-fix")
    assert caught.value.code == "unknown-fix"


def test_every_folder_of_patches_is_a_fix() -> None:
    folders = [path.name for path in sorted((REPOSITORY / "patches").iterdir()) if (path / "manifest.json").exists()]
    assert [fix.id for fix in FIXES] == folders
    assert folders


@pytest.mark.parametrize("fix", FIXES, ids=lambda fix: fix.id)
def test_a_fix_has_all_its_parts(fix: Fix) -> None:
    """Its files are found by their names: no list of fixes needs an edit for a new one."""
    name = fix.id.replace("-", "_")
    assert (REPOSITORY / "patches" / fix.id / "page.md").exists()
    codemods = REPOSITORY / "codemods"
    assert (codemods / f"{name}.py").exists() != (codemods / name / "__init__.py").exists()
    assert (REPOSITORY / "tests" / "fixes" / f"test_{name}.py").exists()
    proofs = REPOSITORY / "src" / "unhang" / "prove" / "fixes"
    proven = (proofs / f"{name}.py").exists() or (proofs / name / "__init__.py").exists()
    assert proven != ("No proof: " in catalog.page(fix.id)), "without a proof, the page gives the reason"


@pytest.mark.parametrize("fix", FIXES, ids=lambda fix: fix.id)
def test_manifest(fix: Fix) -> None:
    assert set(fix.manifest) - {"looks-at", "as-written"} == DEP3 | OURS
    assert fix.manifest["id"] == fix.id
    assert len(fix.title) <= 70
    assert fix.manifest["origin"].split(", ")[0] in ("backport", "vendor", "other")
    assert set(fix.manifest["affects"]) <= {target.upstream for target in fix.targets}
    for target in fix.targets:
        assert codemod(target)
        shapes = catalog.shape_table().shapes.items()
        affected = [item for key, item in shapes if key[:2] == (fix.id, target.function) and item.state == "affected"]
        assert affected
        assert all(item.names for item in affected), "a codemod lists the names that its rewrite uses"
        assert target.file.split("/")[0] in ("megatron", "verl", "swift")


@pytest.mark.parametrize("fix", FIXES, ids=lambda fix: fix.id)
def test_page(fix: Fix) -> None:
    page = catalog.page(fix.id)
    assert page.startswith(f"# {fix.id}\n")
    assert f"\nGrade: {fix.grade}. " in page.partition("\n## ")[0]
    assert ("Not shown" in page.partition("\n## ")[0]) == (fix.grade == "safeguard")
    assert page.isascii()
    assert max(map(len, page.splitlines())) <= 80
    sections = [line.removeprefix("## ") for line in page.splitlines() if line.startswith("## ")]
    for wanted in ("Symptom", "Cause", "What unhang changes", "Evidence", "Cost", "What it does NOT cure", "Links"):
        assert wanted in sections
    if fix.manifest["collectives"]:
        assert any(section.startswith("Patch every node, or none") for section in sections)
