"""The signatures in the manifests are complete, name real functions of the fix, and differ from each other."""

from __future__ import annotations

import re

import pytest
from packaging.version import Version

from support import fixes, wheels
from unhang.diagnose import signature
from unhang.diagnose.signature import Place
from unhang.shapes import catalog

PROJECTS = {"megatron": "megatron-core", "verl": "verl", "swift": "ms-swift"}
SWEPT = {f"{target.file}::{target.function}" for fix in catalog.fixes().values() for target in fix.functions}
HANGS = [(one.fix, hang) for one in signature.signatures() for hang in one.hangs]


def versions(project: str) -> list[str]:
    """Return the releases that the tests of the fixes read anyway, the newest first."""
    rows = [row for rows in fixes.of_each("MUTANTS").values() for row in rows if row.upstream == project]
    return sorted({version for row in rows for version in row.versions}, key=Version, reverse=True)


def is_there(place: Place) -> bool:
    """Return whether the sweep looks for the function, or the file of a release on record has it."""
    if f"{place.file}::{place.function}" in SWEPT:
        return True
    project = PROJECTS[place.file.partition("/")[0]]
    files = (wheels.read(project, version, place.file) or b"" for version in versions(project))
    parts = [rf"(?m)^ *(async def|def|class) {name}\b".encode() for name in place.function.split(".")]
    return any(all(re.search(part, data) for part in parts) for data in files)


@pytest.mark.parametrize("whole", signature.signatures(), ids=lambda whole: whole.fix)
def test_every_frame_is_of_a_function_that_a_release_has(whole: signature.Signature) -> None:
    chains = [chain for hang in whole.hangs for chain in (hang.waits, hang.peers or ())]
    chains += [error.frames for hang in whole.hangs for error in hang.errors]
    places = {place for chain in chains for step in chain for place in step}
    assert [place for place in places if not is_there(place)] == []


@pytest.mark.parametrize(("fix", "hang"), HANGS, ids=[f"{fix}-{number}" for number, (fix, _) in enumerate(HANGS)])
def test_a_hang_has_functions_or_errors_and_one_thing_that_differs(fix: str, hang: signature.Hang) -> None:
    assert hang.waits or hang.errors, fix
    assert not (hang.differ and hang.types)
    assert not (hang.peers is not None and (hang.differ or hang.types))
    assert hang.differ in ("", "size", "order", "empty")


def test_a_shape_in_which_it_hangs_so_is_one_that_needs_the_fix() -> None:
    affected = {
        (fix, digest) for (fix, _, digest), shape in catalog.shape_table().shapes.items() if shape.state == "affected"
    }
    named = {(fix, shape) for fix, hang in HANGS for shape in hang.shapes}
    assert named <= affected
    assert named


def test_a_manifest_becomes_a_hang() -> None:
    data = {
        "summary": "So it is.",
        "waits": [["a/b.py::C.d", "a/c.py::d"], ["e.py::f"]],
        "errors": [{"text": "no", "frames": [["g.py::h"]]}],
    }
    hang = signature.hang(data)
    assert hang.waits == ((Place("a/b.py", "C.d"), Place("a/c.py", "d")), (Place("e.py", "f"),))
    assert hang.errors == (signature.Error("no", ((Place("g.py", "h"),),)),)
    assert (hang.peers, hang.differ, hang.types, hang.first, hang.few, hang.shapes) == (None, "", (), False, False, ())
    assert signature.hang({**data, "peers": []}).peers == ()
    assert signature.hang({**data, "peers": ["g.py::h", "i.py::j"]}).peers == (
        (Place("g.py", "h"), Place("i.py", "j")),
    )
