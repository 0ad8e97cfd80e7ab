"""Every fix is complete: manifest, page, codemod, tests, and a proof or the reason why there is none."""

from __future__ import annotations

import pytest

from support.checkout import REPOSITORY
from unhang.compat.sweep import parts
from unhang.errors import UnhangError
from unhang.shapes import catalog
from unhang.shapes.catalog import Fix

FIXES = list(catalog.fixes().values())


def test_an_unknown_fix_is_refused() -> None:
    with pytest.raises(UnhangError) as caught:
        catalog.fix("no-such-fix")
    assert caught.value.code == "unknown-fix"


def test_every_folder_of_patches_is_a_fix() -> None:
    assert [fix.id for fix in FIXES] == parts.names(REPOSITORY)
    assert FIXES


@pytest.mark.parametrize("fix", FIXES, ids=lambda fix: fix.id)
def test_a_fix_has_all_its_parts(fix: Fix) -> None:
    """Its files are found by their names: no list of fixes needs an edit for a new one."""
    assert list(parts.problems(REPOSITORY, fix.id)) == []


@pytest.mark.parametrize("fix", FIXES, ids=lambda fix: fix.id)
def test_each_target_is_affected_somewhere(fix: Fix) -> None:
    for target in fix.targets:
        shapes = catalog.shape_table().shapes.items()
        affected = [item for key, item in shapes if key[:2] == (fix.id, target.function) and item.state == "affected"]
        assert affected
