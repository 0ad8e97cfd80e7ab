"""`unhang diff`: what `git apply` and `patch` accept, and the same bytes as `apply`."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from support import cli

ENGINE = "verl/workers/engine/megatron/transformer_impl.py"


def test_git_apply_and_patch_accept_the_diff(pristine: Path, site: Path, tmp_path: Path) -> None:
    ran = cli.unhang("diff", "--target", pristine)
    assert ran.code == 1
    assert [line for line in ran.out.splitlines() if line.startswith("--- ")] == [
        "--- a/megatron/core/parallel_state.py",
        "--- a/megatron/core/transformer/moe/experts.py",
        "--- a/megatron/training/utils.py",
        "--- a/swift/megatron/utils/megatron_lm_utils.py",
        f"--- a/{ENGINE}",
    ]
    diff = ran.out.encode("latin-1")
    by_git, by_patch = (Path(shutil.copytree(pristine, tmp_path / name)) for name in ("git", "patch"))
    subprocess.run(["git", "apply", "-p1"], cwd=by_git, input=diff, check=True)
    subprocess.run(["patch", "-p1", "--silent"], cwd=by_patch, input=diff, check=True)
    assert cli.unhang("apply", "--target", site).code == 0
    for folder in by_git, by_patch:
        for line in ran.out.splitlines():
            if line.startswith("+++ b/"):
                name = line.removeprefix("+++ b/")
                assert (folder / name).read_bytes() == (site / name).read_bytes()
        assert cli.unhang("check", "--target", folder).code == 0, "the code decides, with or without a receipt"


def test_diff_keeps_line_ends_and_a_missing_last_newline(site: Path) -> None:
    source = site / ENGINE
    source.write_bytes(source.read_bytes().rstrip(b"\n").replace(b"\n", b"\r\n"))
    diff = cli.unhang("diff", "--target", site, "--upstream", "verl").out.encode("latin-1")
    subprocess.run(["git", "apply", "-p1"], cwd=site, input=diff, check=True)
    data = source.read_bytes()
    assert b"# unhang mtp-cp-deadlock" in data
    assert data.count(b"\n") == data.count(b"\r\n")
    assert not data.endswith(b"\n")
