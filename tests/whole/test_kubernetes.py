"""docs/kubernetes.md: its manifests are valid, and the commands of their containers do what the page says."""

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from support import cli, environments, pages

if find_spec("kubernetes_validate") is None:
    pytest.skip("kubernetes-validate is not installed: nox -s fleet runs these tests", allow_module_level=True)

import yaml

PAGE = Path(__file__).parents[2] / "docs" / "kubernetes.md"
VERSIONS = ["1.30", "1.37"]


class Node(NamedTuple):
    """Stand-ins for a node: folders for the paths in its containers, and an environment for the image's."""

    folder: Path
    env: environments.Env

    def run(self, container: dict[str, Any]) -> cli.Ran:
        """Run the command of a container, its paths replaced by folders of ours."""
        places = {"/opt/venv/lib/python3.11/site-packages": str(self.env.site), "/code": str(self.folder / "code")}
        places |= {"/shared": str(self.folder / "shared")}
        words = list(container["command"])
        for place, ours in places.items():
            words = [word.replace(place, ours) for word in words]
        tools = self.folder / "tools"
        path = os.pathsep.join([str(tools), str(self.env.prefix / "bin"), os.environ["PATH"]])
        env = cli.environ({"PATH": path, "VIRTUAL_ENV": str(self.env.prefix)})
        done = subprocess.run(words, cwd=self.folder, env=env, capture_output=True, text=True, check=False)
        return cli.Ran(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    for name in "tools", "shared", "code":
        (tmp_path / name).mkdir()
    command = tmp_path / "tools" / "unhang"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m unhang "$@"\n')
    command.chmod(0o755)
    env = environments.make_env(tmp_path / "venv")
    cli.unpack(env.site, ("verl", "0.7.1"))
    return Node(tmp_path, env)


def manifest(name: str) -> Any:
    """Return a manifest of the page; one that has only a part of a Pod's `spec` is completed."""
    found = yaml.safe_load(pages.example(PAGE, name))
    if "kind" not in found:
        spec = {"containers": [{"name": "train", "image": "registry.example/train:1"}], **found}
        found = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "train"}, "spec": spec}
    return found


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", ["check", "overlay", "volume"])
def test_the_manifests_are_valid(name: str, version: str) -> None:
    from kubernetes_validate import ValidationError, validate

    found = manifest(name)
    validate(found, version, strict=True)
    found["spec"]["volumess"] = []
    with pytest.raises(ValidationError):
        validate(found, version, strict=True)


def test_the_check_stops_a_pod_until_its_image_is_patched(node: Node) -> None:
    (check,) = manifest("check")["spec"]["initContainers"]
    assert node.run(check).code == 1
    assert cli.installed("apply", "--python", node.env.python).code == 0
    assert node.run(check).code == 0


def test_the_overlay_is_what_the_training_imports(node: Node) -> None:
    spec = manifest("overlay")["spec"]
    before = cli.tree(node.env.site)
    for container in spec["initContainers"] * 2:  # Kubernetes may run them again
        ran = node.run(container)
        assert ran.code == 0, ran
    assert cli.tree(node.env.site) == before, "the image is as it was"
    (train,) = spec["containers"]
    (variable,) = train["env"]
    overlay = variable["value"].replace("/shared", str(node.folder / "shared"))
    where = ("--python", node.env.python, "--fix", "mtp-cp-deadlock")
    ran = cli.unhang("check", *where, env={"PYTHONPATH": overlay})
    assert (ran.code, f"in the overlay {overlay}" in ran.out) == (0, True), ran

    shutil.rmtree(node.env.site / "verl" / "utils")
    shutil.rmtree(node.folder / "shared")
    (node.folder / "shared").mkdir()
    assert [node.run(container).code for container in spec["initContainers"]] == [0, 1], "the fix cannot be in place"


def test_the_job_patches_the_checkout_on_the_volume(node: Node) -> None:
    tree = cli.unpack(node.folder / "code" / "Megatron-LM", ("megatron-core", "0.17.1"))
    shutil.rmtree(next(tree.glob("*.dist-info")))
    (apply,) = manifest("volume")["spec"]["template"]["spec"]["containers"]
    check = {**apply, "command": ["unhang", "check", *apply["command"][2:]]}
    codes = [node.run(container).code for container in (check, apply, check)]
    assert codes == [1, 0, 0]
