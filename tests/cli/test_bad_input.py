"""Whatever is wrong with the input has its own message, code and hint, and nothing is changed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support import cli, environments

VERL = ("verl", "0.7.1")
ENGINE = "verl/workers/engine/megatron/transformer_impl.py"
GATE = b"self.model_config.mtp.enable and self.is_mp_src_rank_with_outputs()"


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return cli.unpack_targets(tmp_path_factory.mktemp("pristine") / "site", VERL)


@pytest.fixture
def site(pristine: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(pristine, tmp_path / "site"))


def edit(site: Path, old: bytes, new: bytes, file: str = ENGINE) -> None:
    source = site / file
    data = source.read_bytes()
    assert data.count(old) >= 1
    source.write_bytes(data.replace(old, new, 1))


def the_result(site: Path, *options: str) -> tuple[int, dict[str, str]]:
    """Return exit code and the only result of a check; neither it nor apply may change anything."""
    before = cli.tree(site)
    ran = cli.unhang("check", "--target", site, "--output-format", "json")
    (result,) = ran.json["results"]
    applied = cli.unhang("apply", "--target", site, *options)
    assert applied.code == ran.code
    assert cli.tree(site) == before
    return ran.code, result


def test_an_edited_comment_does_not_change_the_verdict(site: Path) -> None:
    edit(site, b"        # batch should be a list", b"        # ours: batch should be a list")
    ran = cli.unhang("apply", "--target", site, "--output-format", "json")
    (result,) = ran.json["results"]
    assert (ran.code, result["verdict"]) == (0, "applied")
    (result,) = cli.unhang("check", "--target", site, "--output-format", "json").json["results"]
    assert result["detail"] == "", "our own rewrite does not count as an edit"


def test_an_edit_elsewhere_in_the_file_is_only_reported(site: Path) -> None:
    cli.unhang("apply", "--target", site)
    edit(site, b"import", b"# ours\nimport")
    (result,) = cli.unhang("check", "--target", site, "--output-format", "json").json["results"]
    assert (result["verdict"], "edited since" in result["detail"]) == ("applied", True)


@pytest.mark.parametrize("command", ["check", "apply", "diff", "revert"])
def test_no_upstream_found(command: str, tmp_path: Path) -> None:
    ran = cli.unhang(command, "--target", tmp_path)
    assert ran.code == 2
    assert ran.err.startswith("error[no-upstream]: none of megatron-core, megatron-lm, verl, ms-swift is installed in")
    assert "--allow-none" in ran.err
    assert list(tmp_path.iterdir()) == []


def test_allow_none_makes_an_empty_folder_no_error(tmp_path: Path) -> None:
    for command in ("check", "apply", "diff"):
        assert cli.unhang(command, "--target", tmp_path, "--allow-none").code == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("option", "code"), [("--target", "not-a-folder"), ("--source", "not-a-folder"), ("--python", "no-interpreter")]
)
def test_a_place_that_does_not_exist(option: str, code: str, tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    ran = cli.unhang("check", option, missing)
    assert ran.code == 2
    assert ran.err.startswith(f"error[{code}]: ")
    assert str(missing) in ran.err
    assert "hint: " in ran.err


def test_namesakes_are_reported_and_not_touched(tmp_path: Path) -> None:
    for name in ("swift", "verl"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("# another project of this name\n")
    before = cli.tree(tmp_path)
    ran = cli.unhang("apply", "--target", tmp_path)
    assert ran.code == 2
    assert "is not ms-swift" in ran.err
    assert "is not the verl framework" in ran.err
    assert cli.tree(tmp_path) == before


def test_a_pipe_instead_of_a_version_file_is_not_read(site: Path) -> None:
    (site / "verl/version/version").unlink()
    os.mkfifo(site / "verl/version/version")
    (result,) = cli.unhang("check", "--target", site, "--output-format", "json").json["results"]
    assert (result["version"], result["verdict"]) == (None, "needed")


def test_a_broken_libcst_is_named_and_nothing_changes(site: Path, tmp_path: Path) -> None:
    """For example, its compiled part is for another Python; `check` does not need LibCST."""
    broken = tmp_path / "broken"
    (broken / "libcst").mkdir(parents=True)
    (broken / "libcst/__init__.py").write_text("raise ImportError('native.so: undefined symbol')\n")
    before = cli.tree(site)
    env = {"PYTHONPATH": str(broken)}
    assert cli.unhang("check", "--target", site, env=env).code == 1
    ran = cli.unhang("apply", "--target", site, env=env)
    assert ran.code == 2
    assert ran.err.startswith("error[no-libcst]: LibCST, which rewrites, cannot be loaded: native.so: undefined symbol")
    assert "an environment of its own" in ran.err
    assert cli.tree(site) == before


def test_an_unknown_fix_names_the_nearest(site: Path) -> None:
    for arguments in (("check", "--fix"), ("apply", "--require"), ("revert", "--skip")):
        ran = cli.unhang(*arguments, "mtp-cp-deadlok", "--target", site)
        assert ran.code == 2
        assert ran.err.startswith("error[unknown-fix]: there is no fix 'mtp-cp-deadlok'")
        assert "did you mean mtp-cp-deadlock?" in ran.err
    assert cli.unhang("explain", "nothing-like-it-zzz").code == 2


def test_a_file_that_does_not_parse(site: Path) -> None:
    edit(site, b"    def forward_backward_batch(self", b"    def forward_backward_batch(self self")
    code, result = the_result(site)
    assert (code, result["verdict"], result["code"]) == (1, "drifted", "does-not-parse")
    assert "line " in result["detail"]
    assert "reinstall" in result["hint"]


@pytest.mark.parametrize("junk", [b"\x00", b"\xff\xfe\xff"])
def test_a_file_that_is_not_text(junk: bytes, site: Path) -> None:
    edit(site, b"import", junk + b"import")
    code, result = the_result(site)
    assert (code, result["verdict"], result["code"]) == (1, "drifted", "does-not-parse")


def test_a_function_edited_by_hand_names_the_missing_anchor(site: Path) -> None:
    edit(site, GATE, b"self.is_mp_src_rank_with_outputs()")
    code, result = the_result(site, "--unverified")
    assert (code, result["verdict"], result["code"]) == (1, "drifted", "unknown-shape")
    assert "if self.model_config.mtp.enable and self.is_mp_src_rank_with_outputs()" in result["detail"]
    assert result["hint"]


def test_an_edit_that_keeps_the_anchors_is_rewritten_only_with_unverified(site: Path) -> None:
    edit(site, b"        output = {}\n", b"        output = {}\n        ours = 1\n")
    before = cli.tree(site)
    (result,) = cli.unhang("check", "--target", site, "--output-format", "json").json["results"]
    assert (result["verdict"], result["code"]) == ("drifted", "unknown-shape")
    assert "--unverified" in result["hint"]
    assert cli.unhang("apply", "--target", site).code == 1
    assert cli.tree(site) == before
    ran = cli.unhang("apply", "--target", site, "--unverified", "--output-format", "json")
    (result,) = ran.json["results"]
    assert (ran.code, result["verdict"], result["changed"]) == (0, "applied", True)
    assert "--unverified" in result["detail"]
    assert cli.unhang("check", "--target", site).code == 0
    assert cli.unhang("revert", "--target", site).code == 0
    assert cli.tree(site) == before


def test_a_function_that_is_defined_twice(site: Path) -> None:
    source = site / ENGINE
    source.write_bytes(
        source.read_bytes() + b"\n\nclass MegatronEngine:\n    def forward_backward_batch(self):\n        pass\n"
    )
    code, result = the_result(site, "--unverified")
    assert (code, result["verdict"], result["code"]) == (1, "drifted", "defined-twice")


def test_a_name_that_the_rewrite_needs_but_the_file_does_not_bind(site: Path) -> None:
    edit(site, b"from megatron.core import parallel_state as mpu", b"from megatron.core import parallel_state as other")
    code, result = the_result(site, "--unverified")
    assert (code, result["verdict"], result["code"]) == (1, "drifted", "name-not-bound")
    assert "mpu" in result["detail"]


def test_a_function_that_a_listed_release_has_is_gone(site: Path) -> None:
    edit(site, b"def forward_backward_batch(", b"def forward_backward_batches(")
    code, result = the_result(site)
    assert (code, result["verdict"], result["code"]) == (1, "drifted", "function-gone")


@pytest.mark.parametrize(
    ("version", "code", "nearest"), [("99.0.0", "newer-than-matrix", "0.9.1"), ("0.3.0", "older-than-floor", "0.4.0")]
)
def test_a_version_outside_of_the_matrix_with_an_unknown_shape(
    version: str, code: str, nearest: str, site: Path
) -> None:
    (site / "verl/version/version").write_text(version)
    (result,) = cli.unhang("check", "--target", site, "--output-format", "json").json["results"]
    assert result["verdict"] == "needed", "a listed shape is trusted under any version"
    edit(site, b"        output = {}\n", b"        output = dict()\n")
    exit_code, result = the_result(site)
    assert (exit_code, result["verdict"], result["code"]) == (1, "unlisted", code)
    assert f"nearest supported version: {nearest}" in result["hint"]


@pytest.mark.parametrize("only", [(), ("--upstream", "megatron-lm")], ids=["both", "megatron-lm alone"])
def test_a_function_that_moved_to_another_target_is_judged_there(only: tuple[str, ...], tmp_path: Path) -> None:
    """A newer tree is not `unlisted` for a function that upstream moved to another target of the fix."""
    fix = ("--fix", "sft-packed-seq-broadcast", "--output-format", "json", *only)
    root = environments.tree(tmp_path, "99.0.0")
    results = cli.unhang("check", "--source", root, *fix).json["results"]
    assert {result["verdict"] for result in results} == {"unlisted"}
    environments.write(root, {"megatron/core/utils.py": "def get_batch_on_this_tp_rank(batch):\n    return batch\n"})
    results = cli.unhang("check", "--source", root, *fix).json["results"]
    verdicts = {(result["upstream"], result["verdict"]) for result in results}
    assert ("megatron-lm", "not-affected") in verdicts
    assert ("megatron-core", "unlisted") in verdicts or only, "an unknown shape is reported in the file that has it"
    (detail,) = {result["detail"] for result in results if result["upstream"] == "megatron-lm"}
    assert "it is in megatron/core/utils.py" in detail


def test_a_link_to_a_file_outside_of_the_installation(site: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside.py"
    shutil.move(site / ENGINE, outside)
    (site / ENGINE).symlink_to(outside)
    before = outside.read_bytes()
    code, result = the_result(site, "--unverified")
    assert (code, result["verdict"], result["code"]) == (1, "drifted", "outside")
    assert outside.read_bytes() == before


# Runs `unhang` as the user nobody. The first run imports all modules, because that user may not be able to read them.
AS_NOBODY = """
import os, sys
from unhang.cli.main import main
main(["apply", "--target", sys.argv[2]])
os.setgroups([]); os.setgid(65534); os.setuid(65534)
sys.exit(main(["apply", "--target", sys.argv[1]]))
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_a_folder_that_the_user_cannot_write(site: Path, pristine: Path, tmp_path: Path) -> None:
    warm_up = Path(shutil.copytree(pristine, tmp_path / "warm-up"))
    for folder in (tmp_path, *tmp_path.parents):
        if folder.owner() == "root" and folder != Path("/"):
            os.chmod(folder, 0o755)
    before = cli.tree(site)
    command = [sys.executable, "-c", AS_NOBODY, str(site), str(warm_up)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")
    assert done.returncode == 2
    assert "error[not-writable]" in done.stderr
    assert str(site) in done.stderr
    assert "hint: " in done.stderr
    assert cli.tree(site) == before


def test_a_read_only_mount(site: Path) -> None:
    mount = ["mount", "--bind", str(site), str(site)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting is not permitted here")
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", str(site)], check=True)
        before = cli.tree(site)
        ran = cli.unhang("apply", "--target", site)
        assert ran.code == 2
        assert "error[not-writable]" in ran.err
        assert "read-only" in ran.err.lower()
        assert str(site) in ran.err
        assert cli.tree(site) == before
        assert cli.unhang("check", "--target", site).code == 1
    finally:
        subprocess.run(["umount", str(site)], check=True)
