"""The example pack of docs/packs.md: its codemod, and what it does to a real release."""

import importlib
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest

from support import cli, examples
from support.checkout import REPOSITORY
from tried import trees
from tried.originals import Upstream
from unhang import packs
from unhang.codemods.base import AnchorError

PACK, FIX = REPOSITORY / "docs" / "packs" / "accelerate-fixes", "split-few-samples"


@pytest.fixture
def codemod() -> Any:
    packs.use([str(PACK)], True, {})
    module = importlib.import_module(packs.module(packs.load(str(PACK)), "codemods", FIX))
    return module.CODEMODS["PartialState.split_between_processes"]


def test_the_codemod_does_what_its_docstring_shows(codemod: Any) -> None:
    (example,) = examples.examples(type(codemod))
    done = examples.rewritten(codemod, example.before)
    assert examples.shows(example, done), done
    with pytest.raises(AnchorError):
        codemod.plan(examples.function_of(done))


@pytest.mark.parametrize("old", ["apply_padding", "start_index >= len(inputs)"])
def test_a_function_that_differs_is_no_anchor(codemod: Any, old: str) -> None:
    (example,) = examples.examples(type(codemod))
    with pytest.raises(AnchorError, match="apply_padding"):
        codemod.plan(examples.function_of(example.before.replace(old, "other")))


@pytest.mark.slow
@pytest.mark.parametrize(("version", "code"), [("1.13.0", 1), ("1.14.0", 0)])
def test_check_apply_and_revert_on_a_real_release(version: str, code: int, tmp_path: Path) -> None:
    site = tmp_path / "site"
    zipfile.ZipFile(trees.wheel(Upstream("accelerate", version, "accelerate"))).extractall(site)
    shutil.copytree(site, tmp_path / "before")
    given = ("--pack", PACK, "--target", site)
    assert cli.called_with_all("check", *given).code == code
    assert cli.called_with_all("apply", *given, "--require", FIX).code == 0
    text = (site / "accelerate" / "state.py").read_text()
    assert text.count("if start_index >= len(inputs) and apply_padding:") == 2 * code
    assert cli.called_with_all("revert", *given).code == 1 - code  # 1: there is nothing to revert
    assert cli.tree(site) == cli.tree(tmp_path / "before")
