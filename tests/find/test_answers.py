"""How an answer of the probe is read: is it the upstream, where is it, and which copies does it hide."""

from collections.abc import Callable
from pathlib import Path

import pytest

from support import environments as make
from unhang.find import answers
from unhang.plugins import packs

MODULES = [(make.tree, "megatron.core"), (make.tree, "megatron.training"), (make.verl, "verl"), (make.swift, "swift")]


@pytest.mark.parametrize(("write", "module"), MODULES)
def test_a_package_without_one_of_its_marks_is_a_namesake(
    write: Callable[[Path], Path], module: str, tmp_path: Path
) -> None:
    package = answers.folder(str(write(tmp_path)), module)
    assert answers.is_installed(module, answers.in_folder(str(tmp_path), module))
    for mark in packs.modules()[module].marks:
        path = Path(package, mark)
        path.rename(tmp_path / "away")
        assert not answers.is_framework(module, package), mark
        (tmp_path / "away").rename(path)


def test_the_place_of_a_namespace_is_its_first_folder_that_exists(tmp_path: Path) -> None:
    found: answers.Found = {"origin": None, "folders": ["/no/such/folder", str(tmp_path)]}
    assert answers.place(found) == str(tmp_path)
    assert answers.place({**found, "folders": []}) is None


def test_a_hidden_copy_is_the_upstream_itself_and_is_named_once(tmp_path: Path) -> None:
    roots = [make.verl(tmp_path / name) for name in ("used", "other")]
    (tmp_path / "link").symlink_to(roots[1])
    namesake = make.write(tmp_path / "namesake", {"verl/__init__.py": ""})
    used, other, link, wrong = (answers.in_folder(str(root), "verl") for root in (*roots, tmp_path / "link", namesake))
    assert answers.hidden("verl", {**used, "others": [other, link, wrong, used]}) == (f"{tmp_path}/other/verl",)
