"""Hydra's configs: composed as Hydra does, and from files alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.cli import unpack
from unhang.job import documents, hydra
from unhang.job.hydra import NotComposedError

FILES = {
    "pkg/main.py": "import hydra\n@hydra.main(config_path='config', config_name='top')\ndef main(): ...\n",
    "pkg/config/top.yaml": """
hydra:
  searchpath: ["pkg://other.conf"]
defaults:
  - engine: one
  - actor@a.actor: ${engine}_actor
  - model@a.model: big
  - _self_
  - optional_base
a: {actor: {lr: 3}}
engine: ${engine}
""",
    "pkg/config/engine/one.yaml": "# @package _global_\nengine: one\n",
    "pkg/config/engine/two.yaml": "# @package _global_\nengine: two\n",
    "pkg/config/actor/base.yaml": "lr: 1\nsteps: 2\nkind: base\nbelow: {x: 1}\n",
    "pkg/config/actor/one_actor.yaml": "defaults: [{../optim@optim: plain}, base, _self_]\nkind: one\nbelow: {y: 2}\n",
    "pkg/config/actor/two_actor.yaml": "defaults: [base]\nkind: two\n",
    "pkg/config/optim/plain.yaml": "name: plain\n",
    "other/conf/model/big.yaml": "size: 7\n",
    "pkg/config/optional_base.yaml": "late: true\na: {actor: {steps: 9}}\n",
    "pkg/config/second.yaml": "hydra: {searchpath: [file://other/conf]}\ndefaults: [top, override engine: two]\n",
}  # fmt: skip


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def flat(root: Path, name: str = "top", **chosen: str) -> dict[str, Any]:
    found = hydra.composed(str(root / "pkg/config"), name, str(root), lambda group: chosen.get(group))
    return {key: setting.value for key, setting in documents.flat(found, "").items()}


def test_the_program_names_its_config(root: Path) -> None:
    expected = (str(root / "pkg/config"), "top")
    assert hydra.entry(str(root), "pkg.main") == hydra.entry(str(root), "pkg/main.py") == expected
    assert hydra.entry(str(root), "pkg.gone") is hydra.entry(str(root), "../x.py") is None


def test_a_defaults_list_is_composed_in_its_order(root: Path) -> None:
    assert flat(root) == {
        "engine": "${engine}", "a.actor.optim.name": "plain", "a.actor.lr": 3, "a.actor.steps": 9,
        "a.actor.kind": "one", "a.actor.below.x": 1, "a.actor.below.y": 2, "a.model.size": 7, "late": True,
    }  # fmt: skip


def test_a_job_and_a_config_choose_from_groups(root: Path) -> None:
    assert flat(root, engine="two")["a.actor.kind"] == "two"
    assert flat(root, **{"actor@a.actor": "base"})["a.actor.kind"] == "base"
    second = flat(root, "second")
    assert (second["a.actor.kind"], second["late"]) == ("two", True)


def test_what_is_not_there_or_has_no_end_is_told(root: Path) -> None:
    with pytest.raises(NotComposedError, match="there is no config engine/three"):
        flat(root, engine="three")
    (root / "pkg/config/loop.yaml").write_text("defaults: [loop]\n")
    with pytest.raises(NotComposedError, match="nested too deeply"):
        flat(root, "loop")
    with pytest.raises(NotComposedError, match="no config"):
        flat(root, "../../etc/passwd")


@pytest.mark.parametrize("name", ["ppo_trainer", "ppo_megatron_trainer"])
def test_the_configs_of_a_release_are_as_hydra_has_composed_them(name: str, tmp_path: Path) -> None:
    # the release has what Hydra itself gives, made by its own script
    root = unpack(tmp_path, ("verl", "0.9.1"))
    folder = root / "verl/trainer/config"
    made = documents.yaml((folder / f"_generated_{name}.yaml").read_text())
    found = hydra.composed(str(folder), name, str(root), lambda group: None)
    ours, theirs = (documents.flat(it, "") for it in (found, made))
    del ours["model_engine"]  # its script leaves that out
    assert len(ours) > 800
    assert ours == theirs
