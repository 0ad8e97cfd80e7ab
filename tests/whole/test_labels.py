"""The lines of docs/labels.md that label an image, run with a stand-in for docker."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

from support import cli, pages
from support.checkout import REPOSITORY

DOCKER = """#!/bin/sh
case $1 in
run) shift 3; exec "$@" --target {site} ;;
build) cat > {out} ;;
inspect) printf '%s\\n' {digest} ;;
esac
"""


def test_the_labels_have_the_digest_and_the_fixes_in_place(tmp_path: Path) -> None:
    site = cli.unpack_targets(tmp_path / "site", ("verl", "0.7.1"))
    fixes = ["--fix", "fsdp2-buffer-order", "--fix", "mtp-cp-deadlock"]
    assert cli.installed("apply", "--target", site, *fixes).code == 0  # one stays needed: check exits with 1
    digest = cli.installed("check", "--target", site, "--output-format", "json").json["digest"]
    docker = tmp_path / "docker"
    places = {"site": shlex.quote(str(site)), "out": shlex.quote(str(tmp_path / "built")), "digest": digest}
    docker.write_text(DOCKER.format(**places))
    docker.chmod(0o755)
    path = os.pathsep.join([str(tmp_path), os.path.dirname(sys.executable), os.environ["PATH"]])

    def bash(name: str) -> subprocess.CompletedProcess[str]:
        command = ["bash", "-e", "-o", "pipefail", "-c", pages.example(REPOSITORY / "docs" / "labels.md", name)]
        env = {**cli.environ(), "PATH": path}
        return subprocess.run(command, cwd=tmp_path, env=env, check=True, capture_output=True, text=True)

    bash("labels")
    first, label = (tmp_path / "built").read_text().splitlines()
    assert first == "FROM IMAGE"
    assert shlex.split(label) == ["LABEL", f"unhang.digest={digest}", "unhang.fixes=fsdp2-buffer-order mtp-cp-deadlock"]
    assert json.loads((tmp_path / "unhang.json").read_bytes())["digest"] == digest
    assert bash("labelled").stdout.strip() == digest
