"""Whatever is wrong with the input has its own message, code and hint, and nothing is changed."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from support import cli, environments, suggestions

VERL = ("verl", "0.7.1")
ENGINE = "verl/workers/engine/megatron/transformer_impl.py"
GATE = b"self.model_config.mtp.enable and self.is_mp_src_rank_with_outputs()"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return cli.unpack_targets(tmp_path / "site", VERL)


def edit(site: Path, old: bytes, new: bytes) -> None:
    source = site / ENGINE
    data = source.read_bytes()
    assert old in data
    source.write_bytes(data.replace(old, new, 1))


def check(site: Path) -> dict[str, Any]:
    (result,) = cli.called("check", "--target", site, "--output-format", "json").json["results"]
    return dict(result)


def test_edits_outside_the_function_keep_the_verdict(site: Path) -> None:
    edit(site, b"        # batch should be a list", b"        # ours: batch should be a list")
    cli.applied("--target", site)
    result = check(site)
    assert (result["verdict"], result["detail"]) == ("applied", ""), "our own rewrite does not count as an edit"
    edit(site, b"import", b"# ours\nimport")
    result = check(site)
    assert (result["verdict"], "edited since" in result["detail"]) == ("applied", True)


def test_no_upstream_found(tmp_path: Path) -> None:
    for name in ("swift", "verl"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("# another project of this name\n")
    before = cli.tree(tmp_path)
    for command in ("check", "apply", "diff", "revert"):
        ran = cli.called(command, "--target", tmp_path)
        assert ran.code == 2
        names = "megatron-core, megatron-lm, verl, ms-swift, megatron-bridge, mcore-bridge, trl"
        start = f"error[no-upstream]: none of {names} is installed in"
        assert ran.err.startswith(start)
        assert "is not ms-swift" in ran.err
        assert "is not the verl framework" in ran.err
        assert "--allow-none" in ran.err
        if command != "revert":
            assert cli.called(command, "--target", tmp_path, "--allow-none").code == 0
    assert cli.tree(tmp_path) == before


@pytest.mark.parametrize("option", ["--source", "--target"])
def test_a_project_that_vendors_an_upstream_gets_the_command_for_it(option: str, site: Path, tmp_path: Path) -> None:
    project = tmp_path / "my project"
    shutil.copytree(site, project / "third_party/verl")
    for command in ("check", "apply", "diff", "revert"):
        ran = cli.unhang(command, option, "my project", "--upstream", "verl", cwd=tmp_path)
        (suggested,) = suggestions.found(ran.err)
        assert (ran.code, suggested.command.split()[:3]) == (2, ["unhang", "check", option])
    assert suggestions.paste(suggested.command, cwd=tmp_path, env={}).returncode == 1, "it is needed there"


@pytest.mark.parametrize(
    ("old", "new", "code", "detail"),
    [
        (b"def forward_backward_batch(self", b"def forward_backward_batch(self self", "does-not-parse", "line "),
        (GATE, GATE.partition(b" and ")[0], "unknown-shape", "if ... and self.is_mp_src_rank_with_outputs(): metrics"),
    ],
)
def test_a_function_that_cannot_be_rewritten_is_refused_with_the_reason(
    old: bytes, new: bytes, code: str, detail: str, site: Path
) -> None:
    edit(site, old, new)
    before = cli.tree(site)
    result = check(site)
    assert (result["verdict"], result["code"]) == ("drifted", code)
    assert detail in result["detail"]
    assert "reinstall" in result["hint"]
    assert cli.called("apply", "--target", site).code == 1
    ran = cli.called("diff", "--unknown", "--target", site)
    assert (ran.code, ran.out, detail in ran.err) == (1, "", True), "it is named, with the reason"
    assert cli.tree(site) == before


@pytest.mark.parametrize("version", ["0.1.0", "0.17.1"])  # older than every release; one that has it in this file
def test_a_function_that_moved_to_a_target_of_another_upstream_is_not_affected_here(
    version: str, tmp_path: Path
) -> None:
    root = environments.tree(tmp_path, version)
    environments.write(root, {"megatron/core/utils.py": "def get_batch_on_this_tp_rank(batch):\n    return batch\n"})
    only = ("--fix", "sft-packed-seq-broadcast", "--upstream", "megatron-lm", "--output-format", "json")
    results = cli.called("check", "--source", root, *only).json["results"]
    assert {result["verdict"] for result in results} == {"not-affected"}
    (detail,) = (result["detail"] for result in results if result["file"] == "megatron/training/utils.py")
    assert "it is in megatron/core/utils.py" in detail


@pytest.mark.parametrize(
    ("version", "verdict", "code", "hint"),
    [
        ("0.7.1", "drifted", "unknown-shape", "--unknown"),
        ("99.0.0", "unlisted", "newer-than-matrix", "nearest supported version: 0.9.1"),
        ("0.3.0", "unlisted", "older-than-floor", "nearest supported version: 0.4.0"),
    ],
)
def test_an_edit_that_keeps_the_anchors_is_not_rewritten(
    version: str, verdict: str, code: str, hint: str, site: Path
) -> None:
    (site / "verl/version/version").write_text(version)
    assert check(site)["verdict"] == "needed", "a listed shape is trusted under any version"
    edit(site, b"        output = {}\n", b"        output = {}\n        ours = 1\n")
    before = cli.tree(site)
    result = check(site)
    assert (result["verdict"], result["code"], hint in result["hint"]) == (verdict, code, True)
    assert cli.called("apply", "--target", site).code == 1
    assert cli.tree(site) == before
    ran = cli.called("diff", "--unknown", "--target", site)
    assert (ran.code, "to accept what follows: " in ran.out) == (1, True)


def test_a_pipe_instead_of_a_version_file_is_not_read(site: Path) -> None:
    (site / "verl/version/version").unlink()
    os.mkfifo(site / "verl/version/version")
    result = check(site)
    assert (result["version"], result["verdict"]) == (None, "needed")


def test_a_broken_libcst_is_named_and_nothing_changes(site: Path, tmp_path: Path) -> None:
    """For example, its compiled part is for another Python; `check` does not need LibCST."""
    broken = tmp_path / "broken"
    (broken / "libcst").mkdir(parents=True)
    (broken / "libcst/__init__.py").write_text("raise ImportError('native.so: undefined symbol')\n")
    before = cli.tree(site)
    start = f"import sys; sys.path.insert(0, {str(broken)!r}); from unhang.cli.main import run; run()"
    assert cli.python("-c", start, "check", "--target", site).code == 1
    ran = cli.python("-c", start, "apply", "--target", site)
    assert ran.code == 2
    assert ran.err.startswith("error[no-libcst]: LibCST, which rewrites, cannot be loaded: native.so: undefined symbol")
    assert "an environment of its own" in ran.err
    assert cli.tree(site) == before
