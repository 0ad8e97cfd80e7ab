"""The wheel of a pack: what is in it, and what a pack cannot have."""

import json
import zipfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import pytest

from support import packed
from unhang.deliver import pack_wheel
from unhang.errors import UnhangError
from unhang.plugins import entry_points, packs
from unhang.store import dist_info

CODEMOD = f"codemods/{packed.ID.replace('-', '_')}.py"
PAGE = f"patches/{packed.ID}/page.md"


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    folder = packed.pack(tmp_path / "acme", licence="Apache-2.0", title="Fixes of ours")
    (folder / "LICENSE").write_text("the terms\n")
    (folder / "tests").mkdir()
    (folder / "tests" / "test_x.py").write_text("")
    (folder / "codemods" / "__pycache__").mkdir()
    (folder / "codemods" / "__pycache__" / "x.pyc").write_bytes(b"")
    return folder


def built(folder: Path) -> pack_wheel.Built:
    packs.use([str(folder)], True, {})
    return pack_wheel.build(str(folder))


def members(wheel: pack_wheel.Built) -> dict[str, bytes]:
    with zipfile.ZipFile(BytesIO(wheel.data)) as archive:
        assert {info.date_time for info in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        return {name: archive.read(name) for name in archive.namelist()}


def test_its_parts_are_in_a_package_that_the_entry_point_names(pack: Path) -> None:
    wheel = built(pack)
    assert (wheel.file, wheel.fixes) == ("unhang_pack_acme-1.2-py3-none-any.whl", 1)
    found, info = members(wheel), "unhang_pack_acme-1.2.dist-info"
    inside = {name.removeprefix("unhang_pack_acme/") for name in found if name.startswith("unhang_pack_acme/")}
    here = {path.relative_to(pack).as_posix() for path in pack.rglob("*") if path.is_file()}
    assert inside == here - {"LICENSE", "tests/test_x.py", "codemods/__pycache__/x.pyc"}
    assert entry_points.modules(found[f"{info}/entry_points.txt"].decode()) == ["unhang_pack_acme"]
    record = found[f"{info}/RECORD"]
    rows = {name: dist_info.row(record, name) for name in found}
    assert rows.pop(f"{info}/RECORD") == f"{info}/RECORD,,"
    assert dist_info.update(record, {name: found[name] for name in rows}) == record
    text = found[f"{info}/METADATA"].decode()
    for line in ("Name: unhang-pack-acme", "Version: 1.2", "Summary: Fixes of ours", "License-Expression: Apache-2.0",
                 "License-File: LICENSE", "Requires-Dist: unhang>=0.1"):  # fmt: skip
        assert line in text.splitlines()
    assert found[f"{info}/licenses/LICENSE"] == b"the terms\n"


def test_its_sbom_says_what_its_fixes_resolve(pack: Path) -> None:
    found = members(built(pack))
    component = json.loads(found["unhang_pack_acme-1.2.dist-info/sboms/unhang.cdx.json"])["metadata"]["component"]
    assert component["licenses"] == [{"expression": "Apache-2.0"}]
    assert [it["id"] for patch in component["pedigree"]["patches"] for it in patch["resolves"]] == [packed.ID]


def test_the_same_pack_gives_the_same_bytes(pack: Path) -> None:
    assert built(pack) == built(pack)


def remove(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).unlink()


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (remove(PAGE), "it is missing"),
        (remove(CODEMOD), "it is missing"),
        (lambda folder: (folder / CODEMOD).write_text("CODEMODS = {}\n"), "KeyError"),
        (lambda folder: (folder / CODEMOD).write_text("1 +\n"), "SyntaxError"),
        (lambda folder: (folder / CODEMOD).write_text(""), "AttributeError"),
        (lambda folder: (folder / CODEMOD).write_text("CODEMODS = 7\n"), "TypeError"),
        (lambda folder: (folder / CODEMOD).write_text("CODEMODS = {'value_loss': 1}\n"), "has no Codemod"),
        (lambda folder: (folder / "patches" / "run.sh").write_text(""), "files of these kinds alone"),
        (lambda folder: (folder / "patches" / "link.md").symlink_to("/etc/passwd"), "it is a link"),
        (lambda folder: (folder / "codemods" / "deep").symlink_to("/etc"), "it is a link"),
        (lambda folder: packed.change(folder, packed.ID, title="TODO: a title"), "begins with TODO"),
    ],
)
def test_what_a_pack_cannot_have(pack: Path, spoil: Callable[[Path], object], why: str) -> None:
    spoil(pack)
    with pytest.raises(UnhangError) as caught:
        built(pack)
    assert caught.value.code == "bad-pack"
    assert why in caught.value.message
