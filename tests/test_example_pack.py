"""The example pack of docs/packs.md: its codemod, and what it does to a real release."""

import importlib
import json
import re
import shlex
import shutil
import sys
import time
import venv
import zipfile
from pathlib import Path
from typing import Any

import pytest

from support import cli, examples, wheel_files
from support.checkout import REPOSITORY
from tried import trees
from tried.originals import Upstream
from unhang.codemods.base import AnchorError
from unhang.judge import scene
from unhang.judge.scene import NoTorchError, Question
from unhang.plugins import packs

PACK, FIX = REPOSITORY / "docs" / "packs" / "accelerate-fixes", "split-few-samples"
FILE = "accelerate/state.py"


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


@pytest.mark.torch
@pytest.mark.slow
def test_a_sweep_records_what_its_scene_shows(tmp_path: Path) -> None:
    copy = tmp_path / "accelerate-fixes"
    shutil.copytree(PACK, copy)
    path = copy / "compat" / "data" / f"{FIX}.json"
    path.unlink()
    wheels = [trees.wheel(Upstream("accelerate", version, "accelerate")) for version in ("1.14.0", "1.13.0")]
    swept = cli.called_with_all("sweep", "--pack", copy, "--releases", *wheels)
    assert swept.code == 0, swept.err
    for version, state in ("1.13.0", "affected"), ("1.14.0", "fixed"):
        where = f"accelerate {version} (accelerate-{version}-py3-none-any.whl)"
        assert f"{where}: PartialState.split_between_processes is {state}\n" in swept.out
    found, listed = (json.loads(it.read_text()) for it in (path, PACK / "compat" / "data" / path.name))
    assert found["releases"].items() <= listed["releases"].items()
    assert found["files"].items() <= listed["files"].items()
    for name, entry in found["shapes"].items():
        for key in "state", "result", "names":
            assert entry.get(key) == listed["shapes"][name].get(key)
    zipfile.ZipFile(wheels[1]).extractall(tmp_path / "site")
    assert cli.called_with_all("apply", "--pack", copy, "--target", tmp_path / "site").code == 0
    before = path.read_bytes()
    again = cli.called_with_all("sweep", "--pack", copy, "--target", tmp_path / "site")
    assert (again.code, path.read_bytes()) == (1, before)
    assert "not recorded" in again.err


def test_a_sweep_without_torch_records_nothing_and_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy, info = Path(shutil.copytree(PACK, tmp_path / "copy")), "accelerate-1.13.0.dist-info"
    before = cli.tree(copy)
    text = b"class PartialState:\n    def split_between_processes(self, inputs):\n        return inputs\n"
    files = {
        "accelerate/__init__.py": b"",
        FILE: text,
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: accelerate\nVersion: 1.13.0\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\n",
    }
    wheel = wheel_files.made(tmp_path, "accelerate-1.13.0-py3-none-any.whl", files)

    def ask(python: str, question: Question, *_: object) -> None:
        assert (Path(question.path[0]) / FILE).read_bytes() == text
        raise NoTorchError("no torch here: No module named 'torch'")

    monkeypatch.setattr(scene, "ask", ask)
    swept = cli.called_with_all("sweep", "--pack", copy, "--releases", wheel)
    assert (swept.code, cli.tree(copy)) == (1, before)
    assert f"no torch here: No module named 'torch'; install torch for {sys.executable}" in swept.err


@pytest.mark.slow
@pytest.mark.parametrize(("version", "code"), [("1.13.0", 1), ("1.14.0", 0)])
def test_check_apply_and_revert_on_a_real_release(version: str, code: int, tmp_path: Path) -> None:
    site = tmp_path / "site"
    zipfile.ZipFile(trees.wheel(Upstream("accelerate", version, "accelerate"))).extractall(site)
    shutil.copytree(site, tmp_path / "before")
    given = ("--pack", PACK, "--target", site)
    assert cli.called_with_all("check", *given).code == code
    assert cli.called_with_all("apply", *given, "--require", FIX).code == 0
    text = (site / FILE).read_text()
    assert text.count("if start_index >= len(inputs) and apply_padding:") == 2 * code
    assert cli.called_with_all("revert", *given).code == 1 - code  # 1: there is nothing to revert
    assert cli.tree(site) == cli.tree(tmp_path / "before")


@pytest.mark.slow
def test_the_pages_lines_from_a_patch_to_a_gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each command of that section as it stands there, in a folder with the patch and for an environment."""
    page = (REPOSITORY / "docs" / "packs.md").read_text(encoding="utf-8")
    section = page.partition("## From a `.patch` to a gate")[2].partition("\n## ")[0]
    lines = [shlex.split(it, comments=True)[1:] for it in re.findall("^    (unhang .+)", section, re.M)]
    names = re.findall(r"^    unhang (pack \w+|\w+)", section, re.M)
    assert names == ["pack new", "check", "apply", "revert", "pack sweep"]
    one, other = (zipfile.ZipFile(trees.wheel(Upstream("accelerate", it, "accelerate"))) for it in ("1.13.0", "1.14.0"))
    venv.create(tmp_path / "venv", symlinks=True)
    (site,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    one.extractall(site)
    before, after = (it.read(FILE).decode() for it in (one, other))
    *hunks, _other_change = re.split("^(?=@@ )", trees.diff({FILE: before}, {FILE: after}), flags=re.M)
    (tmp_path / "split.patch").write_text("".join(hunks))
    monkeypatch.chdir(tmp_path)
    env = {"VIRTUAL_ENV": str(tmp_path / "venv")}
    start = time.monotonic()
    ran = [cli.called_with_all(*words, env=env) for words in lines]
    print(f"from `new` to `sweep`: {time.monotonic() - start:.1f} seconds")
    assert [it.code for it in ran] == [0, 1, 0, 0, 0]
    assert re.findall(r"(\S+) \(.+\): (fits|upstream has every edit)", ran[-1].out) == [
        ("1.12.0", "fits"), ("1.14.0", "upstream has every edit"),
    ]  # fmt: skip
    (gate,) = re.findall("^RUN unhang (apply .+) 2>&1", section, re.M)
    words = gate.replace("/opt/our-pack", "our-pack").split()
    (site / FILE).write_text(before.replace("start_index >= len(inputs)", "start_index > len(inputs)"))
    drifted = cli.called_with_all(*words, env=env)
    (shown,) = re.findall("^    (drifted .+)", section, re.M)
    assert drifted.code == 1
    assert re.search(re.escape(shown).replace(r"\.\.\.", ".+").replace(r"\ \ ", " +"), drifted.out)
    (site / FILE).write_text(after)
    passes = cli.called_with_all(*words, env=env)
    assert (passes.code, "nothing was changed" in passes.err) == (0, True)
