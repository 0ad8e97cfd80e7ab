"""The fixes and the matrix as they are read from their files: made-up folders, and the ones that unhang carries."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from unhang.errors import UnhangError
from unhang.shapes import catalog
from unhang.shapes.catalog import Release, Shape, Target

TARGET = {"upstream": "verl", "file": "verl/one.py", "function": "run"}
MANIFEST: dict[str, Any] = {"title": "A gate", "grade": "cure", "targets": [TARGET]}
SHAPES: list[dict[str, Any]] = [
    {"fix": "gate", "function": "run", "shape": "1", "state": "affected", "result": "2", "names": ["wait"]},
    {"fix": "gate", "function": "run", "shape": "3", "state": "fixed", "note": "a note"},
    {"fix": "gate", "function": "run", "shape": "4", "state": "superseded", "result": "5"},
    {"fix": "gate", "function": "run", "shape": "5", "state": "fixed", "note": "upstream took our rewrite"},
]
VERSIONS: dict[str, Any] = {"1.0": {"shapes": ["1", None]}, "1.1": {"shapes": [None, "9"], "yanked": True}}
OUTLINES: list[dict[str, str]] = [
    {"function": "run", "shape": "1", "outline": "bb", "last": "1.0"},
    {"function": "run", "shape": "2", "outline": "aa"},
]
DATA: dict[str, Any] = {
    "shapes.json": {"shapes": SHAPES},
    "files.json": {"files": {"sha256": {"run": "1", "stop": None}}},
    "releases.json": {"releases": {"verl": {"targets": ["one.py::run", "one.py::stop"], "versions": VERSIONS}}},
    "outlines.json": {"kinds": {"aa": "Assign"}, "blocks": {"bb": "aa aa"}, "outlines": OUTLINES},
}


def forget() -> None:
    for cached in (catalog.fixes, catalog.shape_table, catalog._release_data, catalog.outlines):
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
    for name, data in DATA.items():
        (tmp_path / "compat/data" / name).write_text(json.dumps(data))
    monkeypatch.setattr(catalog, "_PACKAGE", str(tmp_path))
    forget()
    yield tmp_path
    forget()


def test_a_fix_is_a_folder_with_a_manifest(folder: Path) -> None:
    assert list(catalog.fixes()) == ["another", "gate"]
    gate = catalog.fix("gate")
    targets = (Target("gate", "verl", "verl/one.py", "run"),)
    assert gate == ("gate", "A gate", "cure", MANIFEST, targets, str(folder / "patches/gate"))
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
        ("frames", []),  # a key
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
            "signature": {"hangs": [{"frames": [["Mean.compute"]], "differ": ["size"]}, 2]},
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
def test_the_result_of_a_rewrite_is_ours_unless_it_is_on_record_itself() -> None:
    table = catalog.shape_table()
    assert table.shapes == {
        ("gate", "run", "1"): Shape("affected", "2", ("wait",), ""),
        ("gate", "run", "2"): Shape("ours", None, (), ""),
        ("gate", "run", "3"): Shape("fixed", None, (), "a note"),
        ("gate", "run", "4"): Shape("superseded", "5", (), ""),
        ("gate", "run", "5"): Shape("fixed", None, (), "upstream took our rewrite"),
    }
    assert table.files == {"sha256": {"run": "1", "stop": None}}
    assert catalog.shape_table() is table


def test_releases_have_a_shape_for_each_target_and_are_read_at_the_first_access(folder: Path) -> None:
    found = catalog.releases()
    assert list(found) == ["verl"]
    assert dict(found["verl"]) == {
        "1.0": Release("1.0", False, {"one.py::run": "1", "one.py::stop": None}),
        "1.1": Release("1.1", True, {"one.py::run": None, "one.py::stop": "9"}),
    }
    assert (len(found["verl"]), "1.0" in found["verl"], found["verl"].get("2.0")) == (2, True, None)
    assert dict(catalog.releases_of("no-upstream")) == {}
    forget()
    (folder / "compat/data/releases.json").unlink()
    verl = catalog.releases_of("verl")
    with pytest.raises(FileNotFoundError):
        verl.get("1.0")


@pytest.mark.usefixtures("folder")
def test_outlines_are_found_by_function_and_shape() -> None:
    rows = {("run", "1"): ("bb", "1.0"), ("run", "2"): ("aa", "")}
    assert catalog.outlines() == ({"aa": "Assign"}, {"bb": "aa aa"}, rows)


def test_a_missing_folder_is_found_elsewhere_or_is_a_broken_install(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(folder / "patches")
    assert len(catalog.fixes()) >= 4, "as in an editable install, by the import system"
    shutil.rmtree(folder / "compat")
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
