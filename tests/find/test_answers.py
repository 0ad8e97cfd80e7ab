"""How an answer of the probe is read: is it the upstream, where is it, and which copies does it hide."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from support import environments as make
from unhang.find import answers


@pytest.mark.parametrize(
    ("write", "module"),
    [
        (make.tree, "megatron.core"),
        (make.tree, "megatron.training"),
        (make.verl, "verl"),
        (make.swift, "swift"),
    ],
)
def test_a_package_without_one_of_its_marks_is_a_namesake(
    write: Callable[[Path], Path], module: str, tmp_path: Path
) -> None:
    package = answers.folder(str(write(tmp_path)), module)
    assert answers.is_framework(module, package)
    assert answers.is_installed(module, answers.in_folder(str(tmp_path), module))
    for mark in answers.MARKS[module]:
        path = Path(package, mark)
        path.rename(tmp_path / "away")
        assert not answers.is_framework(module, package), mark
        (tmp_path / "away").rename(path)


def test_what_is_in_a_folder(tmp_path: Path) -> None:
    nothing: answers.Found = {"origin": None, "folders": [], "regular": False, "others": []}
    assert answers.in_folder(str(tmp_path), "verl") == nothing
    (tmp_path / "verl").mkdir()
    assert answers.in_folder(str(tmp_path), "verl") == {**nothing, "folders": [f"{tmp_path}/verl"]}
    make.verl(tmp_path)
    package = {"origin": f"{tmp_path}/verl/__init__.py", "folders": [f"{tmp_path}/verl"], "regular": True}
    assert answers.in_folder(str(tmp_path), "verl") == {**nothing, **package}


def test_the_place_is_the_package_the_module_or_the_first_folder_that_exists(tmp_path: Path) -> None:
    def place(origin: str | None, folders: list[str]) -> str | None:
        return answers.place({"origin": origin, "folders": folders, "regular": bool(origin and folders), "others": []})

    assert place("/site/verl/__init__.py", ["/site/verl"]) == "/site/verl"
    assert place("/site/verl.py", []) == "/site/verl.py"
    assert place(None, ["/no/such/folder", str(tmp_path)]) == str(tmp_path)
    assert place(None, []) is None


def test_a_hidden_copy_is_the_upstream_itself_and_is_named_once(tmp_path: Path) -> None:
    roots = [make.verl(tmp_path / name) for name in ("used", "other")]
    (tmp_path / "link").symlink_to(roots[1])
    namesake = make.write(tmp_path / "namesake", {"verl/__init__.py": ""})
    used, other, link, wrong = (answers.in_folder(str(root), "verl") for root in (*roots, tmp_path / "link", namesake))
    assert answers.hidden("verl", {**used, "others": [other, link, wrong, used]}) == (f"{tmp_path}/other/verl",)
