"""The fixes and the matrix as they are read from their files: made-up folders, and the ones that unhang carries."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from unhang.errors import UnhangError
from unhang.plugins import packs
from unhang.shapes import catalog
from unhang.shapes.catalog import Release, Shape, Target

TARGET = {"upstream": "verl", "file": "verl/one.py", "function": "run"}
MANIFEST: dict[str, Any] = {
    "title": "A gate", "grade": "cure", "kinds": ["hang", "abort"], "changes-numbers": True, "targets": [TARGET],
}  # fmt: skip
GATE: dict[str, Any] = {
    "targets": {"verl": ["one.py::run", "one.py::stop"]},
    "files": {"sha256": {"run": "1", "stop": None}},
    "shapes": {
        "run 1": {"state": "affected", "result": "2", "names": ["wait"], "last": "1.0", "outline": "bb"},
        "run 2": {"state": "ours", "outline": "aa"},
        "run 3": {"state": "fixed", "note": "a note"},
    },
    "releases": {"verl 1.0": ["1", None], "verl 1.1": [None, "9"]},
    "blocks": {"bb": "aa aa"},
    "kinds": {"aa": "Assign"},
}
RELEASES: dict[str, Any] = {"verl 1.0": {}, "verl 1.1": {"yanked": True}, "verl 1.2": {}}


def forget() -> None:
    for cached in (
        catalog.fixes,
        catalog.shape_table,
        catalog.releases,
        catalog.releases_of,
        catalog.outlines,
        catalog.facts,
        catalog._listed,
        packs.folder,
    ):
        cached.cache_clear()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a made-up fix and matrix, from which the catalog reads."""
    (tmp_path / "patches/no-fix").mkdir(parents=True)
    for name, title in (("gate", "A gate"), ("another", "Another")):
        (tmp_path / "patches" / name).mkdir()
        (tmp_path / "patches" / name / "manifest.json").write_text(json.dumps({**MANIFEST, "title": title}))
    (tmp_path / "patches/gate/page.md").write_text("# The page \u00e9\n", encoding="utf-8")
    (tmp_path / "compat/data").mkdir(parents=True)
    (tmp_path / "compat/generation.json").write_text('{"generation": 7}')
    (tmp_path / "compat/data/gate.json").write_text(json.dumps(GATE))
    (tmp_path / "compat/releases.json").write_text(json.dumps({"releases": RELEASES}))
    monkeypatch.setattr(packs, "_HERE", str(tmp_path))
    forget()
    yield tmp_path
    forget()


def test_a_fix_is_a_folder_with_a_manifest(folder: Path) -> None:
    assert list(catalog.fixes()) == ["another", "gate"]
    gate = catalog.fix("gate")
    targets = (Target("gate", "verl", "verl/one.py", "run"),)
    assert gate == (
        "gate",
        "A gate",
        "cure",
        MANIFEST,
        targets,
        str(folder / "patches/gate"),
        ("hang", "abort"),
        True,
        packs.OURS,
    )
    assert catalog.page("gate") == "# The page \u00e9\n"
    assert catalog.generation() == 7


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("", ["another", "gate"]),
        ("gat", ["another", "gate"]),  # in the title of one, in the id of the other
        ("Gate MEAN.compute", ["gate"]),
        ("stuck silent", ["gate"]),
        ("another gate", ["another"]),
        ("guard", []),  # on the page, and not in its symptom
        ("waits", []),  # a key
        ("size", []),  # a clause
        ("gate nothing", []),
    ],
)
def test_a_fix_is_found_by_words_of_its_symptom_and_signature(words: str, found: list[str], folder: Path) -> None:
    page = "# Gate\n\n## Symptom\nAll ranks are\nstuck.\n\n## Cause\nThe guard.\n"
    manifests: tuple[dict[str, Any], ...] = (
        {
            **MANIFEST,
            "symptom": "It is silent.",
            "signature": {"hangs": [{"waits": [["Mean.compute"]], "differ": "size"}, 2]},
        },
        {**MANIFEST, "symptom": "It is loud."},
    )
    for name, manifest in zip(("gate", "another"), manifests):
        title = "A wait" if name == "gate" else "Beside a gate"
        (folder / f"patches/{name}/manifest.json").write_text(json.dumps({**manifest, "title": title}))
        (folder / f"patches/{name}/page.md").write_text(page if name == "gate" else "# Other\n\n## Symptom\nNone.\n")
    assert [fix.id for fix in catalog.with_words(words.split())] == found


@pytest.mark.parametrize(("name", "hint"), [("gaet", "did you mean gate? `unhang list`"), ("zzz", "`unhang list`")])
@pytest.mark.usefixtures("folder")
def test_an_unknown_fix_is_refused(name: str, hint: str) -> None:
    for ask in (catalog.fix, catalog.page):
        with pytest.raises(UnhangError) as caught:
            ask(name)
        assert (caught.value.code, caught.value.message) == ("unknown-fix", f"there is no fix {name!r}")
        assert (caught.value.hint or "").startswith(hint)


@pytest.mark.usefixtures("folder")
def test_a_shape_is_found_by_fix_function_and_digest_and_a_file_by_fix_and_digest() -> None:
    table = catalog.shape_table()
    assert table.shapes.get(("gate", "run", "4")) is table.shapes.get(("another", "run", "1")) is None
    assert ("gate", "run", "1") in table.shapes
    assert dict(table.shapes) == {
        ("gate", "run", "1"): Shape("affected", "2", ("wait",), ""),
        ("gate", "run", "2"): Shape("ours", None, (), ""),
        ("gate", "run", "3"): Shape("fixed", None, (), "a note"),
    }
    assert {fix: dict(files) for fix, files in table.files.items()} == {"another": {}, "gate": GATE["files"]}
    assert (table.of_files("gate").get("sha256"), table.of_files("no-fix")) == (GATE["files"]["sha256"], {})
    assert catalog.shape_table() is table


def test_conflict_markers_are_told_with_what_to_do(folder: Path) -> None:
    (folder / "compat/data/gate.json").write_text('{"schema": 1,\n<<<<<<< HEAD\n"files": {}}\n=======\n>>>>>>> x\n')
    with pytest.raises(UnhangError) as caught:
        catalog.releases()
    assert (caught.value.code, caught.value.path) == ("conflict-markers", str(folder / "compat/data/gate.json"))
    assert "nox -s sweep -- --fix ID" in (caught.value.hint or "")
    manifest = folder / "patches/gate/manifest.json"
    manifest.write_text(f"<<<<<<< HEAD\n{manifest.read_text()}\n=======\n>>>>>>> x\n")
    forget()
    with pytest.raises(UnhangError, match="conflict markers"):
        dict(catalog.fix("gate").manifest)


def test_releases_have_a_shape_for_each_target_and_are_read_at_the_first_access(folder: Path) -> None:
    wanted = {
        "1.0": Release("1.0", False, {"one.py::run": "1", "one.py::stop": None}),
        "1.1": Release("1.1", True, {"one.py::run": None, "one.py::stop": "9"}),
        "1.2": Release("1.2", False, {}),  # swept since, but not for this fix
    }
    assert catalog.releases() == {"verl": wanted}
    found = catalog.releases_of("gate", "verl")
    assert dict(found) == wanted
    assert (len(found), "1.0" in found, found.get("2.0")) == (3, True, None)
    assert dict(catalog.releases_of("another", "verl")) == {v: Release(v, v == "1.1", {}) for v in wanted}
    assert dict(catalog.releases_of("gate", "no-upstream")) == {}
    forget()
    (folder / "compat/releases.json").write_text("no JSON")
    verl = catalog.releases_of("gate", "verl")
    with pytest.raises(ValueError, match="Expecting"):
        list(verl)
    forget()
    (folder / "compat/releases.json").unlink()
    with pytest.raises(UnhangError, match="a file of unhang's own is missing"):
        catalog.releases_of("gate", "verl").get("1.0")


@pytest.mark.usefixtures("folder")
def test_outlines_are_found_by_function_and_shape() -> None:
    rows = {("run", "1"): ("bb", "1.0"), ("run", "2"): ("aa", "")}
    assert catalog.outlines("gate") == ({"aa": "Assign"}, {"bb": "aa aa"}, rows)
    assert catalog.outlines("another") == ({}, {}, {})


def test_a_missing_folder_is_found_elsewhere_or_is_a_broken_install(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(folder / "patches")
    packs.folder.cache_clear()
    assert len(catalog.fixes()) >= 4, "as in an editable install, by the import system"
    shutil.rmtree(folder / "compat")
    packs.folder.cache_clear()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UnhangError) as caught:
        catalog.generation()
    assert (caught.value.code, caught.value.hint) == ("broken-install", "reinstall unhang")


def test_what_unhang_carries_is_complete() -> None:
    targets = [target for fix in catalog.fixes().values() for target in fix.functions]
    assert {(target.fix, target.function) for target in targets} == {key[:2] for key in catalog.shape_table().shapes}
    assert {target.upstream for target in targets} <= {*catalog.releases()}
    assert all(catalog.page(name).startswith("# ") for name in catalog.fixes())
    assert catalog.generation() >= 1
