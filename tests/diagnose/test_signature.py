"""The signatures in the manifests are complete, name real functions of the fix, and differ from each other."""

from __future__ import annotations

import pytest

from unhang.diagnose import signature
from unhang.diagnose.signature import Place
from unhang.shapes import catalog

FIXES = sorted(catalog.fixes())
HANGS = [(one.fix, hang) for one in signature.signatures() for hang in one.hangs]


@pytest.mark.parametrize("fix", FIXES)
def test_every_fix_has_a_signature(fix: str) -> None:
    data = catalog.fix(fix).manifest["signature"]
    assert data.get("hangs") or data["no-hang"]
    assert fix in {name for name, _ in HANGS}


@pytest.mark.parametrize(("fix", "hang"), HANGS, ids=[f"{fix}-{number}" for number, (fix, _) in enumerate(HANGS)])
def test_what_makes_it_certain_is_a_clause_that_it_has(fix: str, hang: signature.Hang) -> None:
    assert {name for names in hang.certain for name in names} <= {name for name in hang._fields if getattr(hang, name)}
    # without frames or a line, only a group that Megatron has named tells one job from another
    for names in hang.certain:
        assert {"frames", "errors"} & {*names} or ("groups" in names and "default_pg" not in hang.groups), names
    if "size" in hang.differ or "dtype" in hang.differ:
        assert hang.operations


def test_a_manifest_becomes_a_hang() -> None:
    data = {
        "summary": "So it is.",
        "elements": [1, 2],
        "waiting": [0],
        "frames": [["a/b.py::C.d", "a/c.py::d"], ["e.py::f"]],
        "errors": [{"text": "no", "frames": [["g.py::h"]]}],
        "certain": [["frames", "waiting"]],
    }
    hang = signature.hang(data)
    assert (hang.elements, hang.waiting, hang.first, hang.difference) == ((1, 2), (0,), False, None)
    assert hang.frames == ((Place("a/b.py", "C.d"), Place("a/c.py", "d")), (Place("e.py", "f"),))
    assert hang.errors == (signature.Error("no", ((Place("g.py", "h"),),)),)
    assert hang.certain == (("frames", "waiting"),)
