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
TORCH = {"default_pg", "mesh_*"}
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
    chains = [chain for hang in whole.hangs for chain in (hang.frames, hang.others, hang.outside)]
    chains += [error.frames for hang in whole.hangs for error in hang.errors]
    places = {place for chain in chains for step in chain for place in step}
    assert [place for place in places if not is_there(place)] == []


@pytest.mark.parametrize("group", sorted({group for _, hang in HANGS for group in hang.groups} - TORCH))
def test_every_other_group_is_described_so_by_megatron(group: str) -> None:
    releases = versions("megatron-core")
    files = [wheels.read("megatron-core", version, "megatron/core/parallel_state.py") or b"" for version in releases]
    described = group.removeprefix("HIERARCHICAL_").removesuffix("_L*")  # Megatron writes both around another group's
    assert any(re.search(f"group_desc=['\"]{described}['\"]".encode(), data) for data in files)


@pytest.mark.parametrize(("fix", "hang"), HANGS, ids=[f"{fix}-{number}" for number, (fix, _) in enumerate(HANGS)])
def test_what_makes_it_certain_is_a_clause_that_it_has(fix: str, hang: signature.Hang) -> None:
    assert {name for names in hang.certain for name in names} <= {name for name in hang._fields if getattr(hang, name)}
    for names in hang.certain:
        assert "frames" in names or ("errors" in names and any(error.only for error in hang.errors)), names
    if "size" in hang.differ or "dtype" in hang.differ:
        assert hang.operations


def test_a_shape_in_which_it_hangs_so_is_one_that_needs_the_fix() -> None:
    affected = {
        (fix, digest) for (fix, _, digest), shape in catalog.shape_table().shapes.items() if shape.state == "affected"
    }
    named = {(fix, shape) for fix, hang in HANGS for shape in hang.elsewhere}
    assert named <= affected
    assert named


def test_the_shapes_that_other_hangs_name_are_elsewhere() -> None:
    of = [signature.hang({"summary": "So.", **own}, ["a", "b"]).elsewhere for own in ({"shapes": ["a"]}, {})]
    assert of == [("b",), ()]


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
