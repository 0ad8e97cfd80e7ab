"""The Dockerfiles of docs/docker.md, built and run with buildah, and builds that must fail."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import cli, images, wheels
from support.images import Buildah

DOCS = images.REPOSITORY / "docs"
SITE = f"/opt/venv/lib/{Path(os.__file__).parent.name}/site-packages"
ENGINE = "verl/workers/engine/megatron/transformer_impl.py"

if images.trouble() is not None:
    pytest.skip(f"no image is built: {images.trouble()}", allow_module_level=True)


@pytest.fixture(scope="module")
def buildah() -> Iterator[Buildah]:
    with images.storage() as folder:
        built = Buildah(folder)
        upstreams = [wheels.fetch("verl", "0.7.1"), wheels.fetch("megatron-core", "0.16.1")]
        images.make_base(built, folder, images.download_needs(folder / "wheels"), upstreams)
        yield built


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = images.make_context(tmp_path_factory.mktemp("context"))
    tree = cli.unpack(folder / "Megatron-LM", ("megatron-core", "0.17.1"))
    shutil.rmtree(next(tree.glob("*.dist-info")))
    return folder


@pytest.fixture(scope="module")
def verl(buildah: Buildah, context: Path) -> str:
    buildah.must_build(DOCS / "docker" / "Dockerfile.verl", context, "verl")
    return "verl"


@pytest.fixture(scope="module")
def installed(buildah: Buildah, context: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An image with the page's lines except the last."""
    buildah.must_build(write(tmp_path_factory.mktemp("file"), *step()[:-1]), context, "installed")
    return "localhost/installed"


def write(folder: Path, *lines: str) -> Path:
    """Write a Dockerfile with these lines on the base image."""
    path = folder / "Dockerfile"
    path.write_text("\n".join(["ARG BASE", "FROM ${BASE}", *lines, ""]))
    return path


def step() -> list[str]:
    """Return the lines of the page."""
    (block,) = re.findall(r"<!-- step -->\n```Dockerfile\n(.*?)```", (DOCS / "docker.md").read_text(), flags=re.DOTALL)
    return str(block).splitlines()


def test_the_base_has_no_git_no_patch_and_needs_both_fixes(buildah: Buildah) -> None:
    base = images.BASE.removeprefix("localhost/")
    for command in "git", "patch", "unhang":
        assert "1" in buildah.in_image(base, "sh", "-c", f"command -v {command} || echo 1").out.split()
    source = buildah.in_image(base, "cat", f"{SITE}/{ENGINE}").out
    assert ("def forward_backward_batch" in source, "unhang" in source) == (True, False)


def test_the_verl_image_is_patched(buildah: Buildah, verl: str) -> None:
    ran = buildah.in_image(verl, "unhang", "check", "--output-format", "json")
    assert ran.code == 0
    found = {(item["upstream"], item["fix"]): item["verdict"] for item in ran.json["results"]}
    assert found["verl", "mtp-cp-deadlock"] == found["megatron-core", "expert-dp-warmup"] == "applied"
    assert set(found.values()) == {"applied", "not-affected"}


def test_any_user_can_read_the_receipt_and_check_without_a_home_or_any_variable(buildah: Buildah, verl: str) -> None:
    for user in "0:0", "1000:1000":
        receipt = json.loads(buildah.in_image(verl, "cat", f"{SITE}/.unhang/receipt.json", user=user).out)
        assert ENGINE in json.dumps(receipt)
        ran = buildah.in_image(verl, "env", "-i", "/opt/venv/bin/unhang", "check", user=user)
        assert (ran.code, "nothing left to do" in ran.out) == (0, True)


def test_the_image_can_be_reverted(buildah: Buildah, verl: str) -> None:
    script = f"unhang revert >/dev/null 2>&1 && ls -d {SITE}/.unhang; cat {SITE}/{ENGINE}"
    ran = buildah.in_image(verl, "sh", "-c", script)
    original = wheels.read("verl", "0.7.1", ENGINE)
    assert original is not None
    assert ran.out.rstrip().endswith(original.decode().rstrip())
    assert f"ls: cannot access '{SITE}/.unhang'" in ran.out


def test_the_megatron_image_has_its_checkout_patched(buildah: Buildah, context: Path) -> None:
    buildah.must_build(DOCS / "docker" / "Dockerfile.megatron", context, "megatron")
    ran = buildah.in_image(
        "megatron", "unhang", "check", "--fix", "sft-packed-seq-broadcast", "--output-format", "json"
    )
    found = [item for item in ran.json["results"] if item["verdict"] == "applied"]
    assert (ran.code, {item["location"] for item in found}) == (0, {"/opt/Megatron-LM"})


def test_the_three_lines_of_the_page_build(buildah: Buildah, context: Path, tmp_path: Path) -> None:
    buildah.must_build(write(tmp_path, *step()), context, "lines")
    assert buildah.in_image("lines", "unhang", "check", "--fix", "mtp-cp-deadlock").code == 0


def test_the_step_needs_no_home_and_no_variable(buildah: Buildah, installed: str, tmp_path: Path) -> None:
    last = step()[-1]
    bare = last.replace("RUN unhang", "RUN env -i /opt/venv/bin/unhang")
    assert bare != last
    buildah.must_build(write(tmp_path, bare), tmp_path, "bare", installed)
    assert buildah.in_image("bare", "unhang", "check", "--fix", "mtp-cp-deadlock").code == 0


def test_a_drifted_file_fails_the_build_with_the_reason_as_the_last_line(
    buildah: Buildah, installed: str, tmp_path: Path
) -> None:
    # one more argument makes it an unknown shape
    edit = (
        f"RUN sed -i 's/def forward_backward_batch(self,/def forward_backward_batch(self, more=None,/' {SITE}/{ENGINE}"
    )
    built = buildah.build(write(tmp_path, edit, step()[-1]), tmp_path, "drifted", installed)
    assert built.code == 1
    expected = f"required fix not in place: mtp-cp-deadlock is drifted on verl 0.7.1 in {SITE}: "
    assert built.last_line_of_the_step().startswith(expected), built.lines[-6:]
    assert "; do: " in built.last_line_of_the_step()


def test_a_missing_upstream_fails_the_build_by_name(buildah: Buildah, installed: str, tmp_path: Path) -> None:
    built = buildah.build(write(tmp_path, f"RUN rm -r {SITE}/verl", step()[-1]), tmp_path, "missing", installed)
    assert built.code == 1
    assert built.last_line_of_the_step().startswith("required fix not in place: mtp-cp-deadlock: no verl to judge here")


def test_files_that_another_user_may_not_write_are_listed(buildah: Buildah, installed: str, tmp_path: Path) -> None:
    built = buildah.build(write(tmp_path, "USER 1000:1000", step()[-1]), tmp_path, "denied", installed)
    assert built.code == 2
    names = [line for line in built.lines if line.startswith("not writable here: ")]
    assert f"not writable here: {SITE}/{ENGINE}" in names
    assert len(names) == 3
    assert any(line.startswith(f"error[not-writable]: cannot write {SITE}/.unhang") for line in built.lines)


def test_another_user_can_patch_its_own_files(buildah: Buildah, installed: str, tmp_path: Path) -> None:
    lines = ["RUN chown -R 1000:1000 /opt/venv", "USER 1000:1000", step()[-1]]
    buildah.must_build(write(tmp_path, *lines), tmp_path, "own", installed)
    ran = buildah.in_image("own", "unhang", "check", "--fix", "mtp-cp-deadlock", user="1000:1000")
    assert ran.code == 0
