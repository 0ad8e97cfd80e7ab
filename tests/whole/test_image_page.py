"""The lines of docs/image.md, tried to the letter on an image made by hand."""

import os
import re
import shlex
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from support import cli, pages
from support import made_images as make

PAGE = Path(__file__).parents[2] / "docs" / "image.md"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the image as the page's `docker save` writes it."""
    tree = [(f"opt/Megatron-LM/{path}", data) for path, data in make.release("megatron-core", "0.17.1", "x")]
    tree = [(path.replace("/x/", "/"), data) for path, data in tree]
    make.saved(tmp_path / "saved.tar", [make.base(), make.tar(*make.release("verl", "0.9.1"), *tree)])
    docker = tmp_path / "bin" / "docker"
    docker.parent.mkdir()
    docker.write_text('#!/bin/sh\ntest "$*" = "save -o image.tar IMAGE" && cp saved.tar image.tar\n')
    docker.chmod(stat.S_IRWXU)
    return tmp_path


def test_the_command_prints_what_the_page_shows(folder: Path) -> None:
    save, check = pages.example(PAGE, "check").splitlines()
    path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(shlex.split(save), cwd=folder, env={"PATH": path}, check=True)
    ran = cli.installed(*shlex.split(check)[1:], cwd=folder)
    assert ran.code == 1
    # each new fix of verl has its part in these two
    shown, printed = (re.sub(r"digest \w+|\d+ settled: .*", "", it) for it in (pages.example(PAGE, "shown"), ran.out))
    assert printed == shown.replace("/work/", f"{folder}/")
    assert "no environment of the image imports the copy in /opt/Megatron-LM" in ran.err


def test_one_environment_or_a_checkout_can_be_chosen(folder: Path) -> None:
    shutil.copy(folder / "saved.tar", folder / "image.tar")
    places = []
    for line in pages.example(PAGE, "choose").splitlines():
        ran = cli.unhang(*shlex.split(line)[1:], "--output-format", "json", cwd=folder)
        places.append({row["location"] for row in ran.json["results"]})
    assert places == [{f"/{make.SITE}"}, {"/opt/Megatron-LM"}]
