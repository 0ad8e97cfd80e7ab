"""The commands' contract: exit codes, JSON, formats, narrowing, requirements; on real releases."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import unhang
from support import cli, wheels

CORE, VERL, SWIFT = ("megatron-core", "0.17.1"), ("verl", "0.7.1"), ("ms-swift", "4.6.0")
ENGINE = "verl/workers/engine/megatron/transformer_impl.py"
KEYS = "upstream version location fix file function verdict shape code detail hint nearest".split()


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The three releases of the README, in one folder that no test changes."""
    return cli.unpack(tmp_path_factory.mktemp("pristine") / "site", CORE, VERL, SWIFT)


@pytest.fixture
def site(pristine: Path, tmp_path: Path) -> Path:
    """A copy to change."""
    return Path(shutil.copytree(pristine, tmp_path / "site"))


def test_allow_none_makes_an_empty_folder_no_error(tmp_path: Path) -> None:
    for command in ("check", "apply", "diff"):
        assert cli.unhang(command, "--target", tmp_path, "--allow-none").code == 0
    assert list(tmp_path.iterdir()) == []


def test_nothing_to_revert_is_told_in_every_format(pristine: Path) -> None:
    ran = cli.unhang("revert", "--target", pristine, "--output-format", "json")
    assert (ran.code, {item["changed"] for item in ran.json["results"]}) == (1, {False})
    assert "nothing to revert: there is no receipt in" in ran.err


def test_a_fix_without_a_target_here_leaves_nothing_to_do(pristine: Path) -> None:
    ran = cli.unhang("check", "--target", pristine, "--upstream", "verl", "--fix", "empty-expert-hang")
    assert (ran.code, "nothing to judge" in ran.out) == (0, True)


def test_the_json_document_has_the_documented_form(pristine: Path) -> None:
    document = cli.unhang("check", "--target", pristine, "--output-format", "json").json
    assert list(document) == ["schema", "unhang", "environment", "digest", "interrupted", "warnings", "results"]
    assert (document["schema"], document["unhang"]) == (1, unhang.__version__)
    assert document["environment"] == {"python": None, "prefix": str(pristine), "found_by": "--target"}
    assert all(list(result) == KEYS for result in document["results"])
    assert {result["location"] for result in document["results"]} == {str(pristine)}


def test_commands_that_write_add_changed_to_each_result(site: Path) -> None:
    for command in ("apply", "revert"):
        results = cli.unhang(command, "--target", site, "--output-format", "json").json["results"]
        assert all(list(result) == [*KEYS, "changed"] for result in results)
        assert sum(result["changed"] for result in results) == 5


def test_every_fix_on_every_installation_has_one_line(pristine: Path) -> None:
    lines = cli.unhang("check", "--target", pristine).out.splitlines()
    told = [line.split()[1] for line in lines if line.startswith("  ")]
    assert sorted(told) == [
        "empty-expert-hang",
        "expert-dp-warmup",
        "expert-dp-warmup",
        "mtp-cp-deadlock",
        "sft-packed-seq-broadcast",
        "sft-packed-seq-broadcast",
    ]
    assert lines[0] == f"environment: {pristine} (found by --target)"


def test_narrowing_changes_only_what_was_named(site: Path) -> None:
    before = cli.tree(site)
    ran = cli.unhang("apply", "--target", site, "--fix", "expert-dp-warmup", "--upstream", "ms-swift")
    changed = {path for path, told in cli.tree(site).items() if told != before.get(path) and ".unhang" not in path}
    assert ran.code == 0
    assert changed == {
        "swift/megatron/utils/megatron_lm_utils.py",
        "ms_swift-4.6.0.dist-info/RECORD",
    }
    rest = cli.unhang("check", "--target", site, "--skip", "empty-expert-hang", "--skip", "sft-packed-seq-broadcast")
    assert "2 needed" in rest.out
    assert "empty-expert-hang" not in rest.out


def test_revert_of_one_fix_keeps_the_others(site: Path) -> None:
    cli.unhang("apply", "--target", site)
    assert cli.unhang("revert", "--target", site, "--fix", "expert-dp-warmup").code == 0
    told = cli.verdicts(cli.unhang("check", "--target", site, "--output-format", "json"))
    assert {fix for (_, fix, _), verdict in told.items() if verdict == "needed"} == {"expert-dp-warmup"}
    assert {fix for (_, fix, _), verdict in told.items() if verdict == "applied"} == {
        "empty-expert-hang",
        "mtp-cp-deadlock",
        "sft-packed-seq-broadcast",
    }


@pytest.mark.parametrize("command", ["check", "apply"])
def test_a_required_fix_with_nothing_to_judge_exits_1_by_name(command: str, tmp_path: Path) -> None:
    site = cli.unpack(tmp_path, ("verl", "0.9.1"))
    ran = cli.unhang(command, "--target", site, "--require", "mtp-cp-deadlock")
    assert ran.code == 0, "fixed upstream is good enough"
    ran = cli.unhang(command, "--target", site, "--require", "empty-expert-hang")
    assert ran.code == 1
    assert ran.err.splitlines()[-1].startswith(
        "required fix not in place: empty-expert-hang: there is no megatron-core here"
    )


def test_a_required_fix_that_is_blocked_is_the_last_line(site: Path) -> None:
    source = site / ENGINE
    source.write_bytes(source.read_bytes().replace(b"self.is_mp_src_rank_with_outputs():", b"True:", 1))
    ran = cli.unhang("apply", "--target", site, "--require", "mtp-cp-deadlock", "--require", "expert-dp-warmup")
    assert ran.code == 1
    last = ran.err.splitlines()[-1]
    assert last.startswith("required fix not in place: mtp-cp-deadlock is drifted on verl 0.7.1")
    assert "anchor is missing" in last
    assert "do: " in last
    assert "blocked: mtp-cp-deadlock on verl 0.7.1" in ran.err
    assert "4 needed" not in cli.unhang("check", "--target", site).out, "the other fixes went in"
    assert cli.unhang("check", "--target", site, "--require", "expert-dp-warmup", "--skip", "mtp-cp-deadlock").code == 0


def test_diff_is_taken_by_git_apply_and_by_patch(pristine: Path, site: Path, tmp_path: Path) -> None:
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
        assert cli.unhang("check", "--target", folder).code == 0, "code decides, receipt or not"


def test_diff_keeps_line_ends_and_a_missing_last_newline(site: Path) -> None:
    source = site / ENGINE
    source.write_bytes(source.read_bytes().rstrip(b"\n").replace(b"\n", b"\r\n"))
    diff = cli.unhang("diff", "--target", site, "--upstream", "verl").out.encode("latin-1")
    subprocess.run(["git", "apply", "-p1"], cwd=site, input=diff, check=True)
    data = source.read_bytes()
    assert b"# unhang mtp-cp-deadlock" in data
    assert data.count(b"\n") == data.count(b"\r\n")
    assert not data.endswith(b"\n")


def test_the_digest_is_equal_exactly_where_the_code_is(pristine: Path, site: Path) -> None:
    def digest(folder: Path) -> str:
        found: str = cli.unhang("check", "--target", folder, "--output-format", "json").json["digest"]
        return found

    assert digest(site) == digest(pristine)
    cli.unhang("apply", "--target", site)
    patched = digest(site)
    assert patched != digest(pristine)
    cli.unhang("revert", "--target", site)
    assert digest(site) == digest(pristine)


def test_patch_all_nodes_or_none_is_said_when_collectives_change(site: Path) -> None:
    quiet = cli.unhang("apply", "--target", site, "--fix", "empty-expert-hang")
    assert "Patch every node" not in quiet.err
    loud = cli.unhang("apply", "--target", site)
    assert "Patch every node of a job, or none" in loud.err


def test_github_annotations_escape_what_they_quote(site: Path) -> None:
    (site / ENGINE).write_text("def forward_backward_batch(:\n")
    ran = cli.unhang("check", "--target", site, "--output-format", "github")
    (line,) = [line for line in ran.out.splitlines() if "mtp-cp-deadlock" in line]
    assert line.startswith(
        f"::error file={site / ENGINE},title=unhang mtp-cp-deadlock::drifted: the file does not parse"
    )
    assert all(line.startswith("::") for line in ran.out.splitlines())


@pytest.mark.parametrize(
    ("environment", "coloured"),
    [({}, False), ({"FORCE_COLOR": "1"}, True), ({"NO_COLOR": "1", "FORCE_COLOR": "1"}, False)],
)
def test_colour_is_asked_for_or_left_out(pristine: Path, environment: dict[str, str], coloured: bool) -> None:
    assert ("\x1b[" in cli.unhang("check", "--target", pristine, env=environment).out) is coloured


def test_list_and_explain_tell_of_every_fix() -> None:
    told = cli.unhang("list").out
    for fix in ("mtp-cp-deadlock", "sft-packed-seq-broadcast", "empty-expert-hang", "expert-dp-warmup"):
        assert fix in told
        page = cli.unhang("explain", fix)
        assert page.code == 0
        for word in ("Symptom", "Cause", "Evidence", "Cost", "github.com"):
            assert word in page.out
        assert max(map(len, page.out.splitlines())) <= 80


def test_help_and_usage_errors_have_their_codes() -> None:
    assert cli.unhang("--help").code == 0
    assert cli.unhang("--version").out == f"unhang {unhang.__version__}\n"
    assert cli.unhang("frobnicate").code == 2
    assert cli.unhang("check", "--target", "/", "--python", "python3").code == 2


def test_a_reader_that_goes_away_is_no_traceback(pristine: Path) -> None:
    command = f"{sys.executable} -m unhang diff --target {pristine} | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, check=False, cwd="/")
    assert b"Traceback" not in done.stderr


def test_modes_stay_and_hardlinks_are_broken(site: Path, tmp_path: Path) -> None:
    source, other = site / ENGINE, tmp_path / "cache.py"
    os.chmod(source, 0o444)
    os.link(source, other)
    before = source.read_bytes()
    assert cli.unhang("apply", "--target", site).code == 0
    assert source.read_bytes() != before
    assert other.read_bytes() == before, "the other name, such as a cache's, keeps its bytes"
    assert stat.S_IMODE(source.stat().st_mode) == 0o444


def test_a_checkout_keeps_the_receipt_out_of_git(tmp_path: Path) -> None:
    checkout = cli.unpack(tmp_path / "verl", VERL)
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@t", "-C", str(checkout)]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-qm", "x"], check=True)
    exclude = (checkout / ".git/info/exclude").read_bytes()
    assert cli.unhang("apply", "--source", checkout).code == 0
    status = [*git, "status", "--porcelain"]
    told = subprocess.run(status, capture_output=True, text=True, check=True).stdout.splitlines()
    assert told == [" M verl-0.7.1.dist-info/RECORD", f" M {ENGINE}"]
    assert cli.unhang("revert", "--source", checkout).code == 0
    assert subprocess.run(status, capture_output=True, check=True).stdout == b""
    assert (checkout / ".git/info/exclude").read_bytes() == exclude


def test_a_required_fix_is_judged_whatever_else_was_named(pristine: Path) -> None:
    ran = cli.unhang("check", "--target", pristine, "--fix", "empty-expert-hang", "--require", "mtp-cp-deadlock")
    assert ran.code == 1
    assert "required fix not in place: mtp-cp-deadlock is needed on verl 0.7.1" in ran.err


def test_an_interpreter_is_asked_and_its_bytecode_made_anew(tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    python = venv / "bin" / "python"
    (site,) = venv.glob("lib/python*/site-packages")
    cli.unpack(site, VERL)
    subprocess.run([python, "-m", "compileall", "-q", str(site / ENGINE)], check=True)
    (cached,) = (site / ENGINE).parent.glob("__pycache__/transformer_impl.*.pyc")
    stale = cached.read_bytes()
    before = cli.tree(venv)

    by_variable = cli.unhang("check", env={"VIRTUAL_ENV": str(venv)})
    assert f"environment: {python} (found by $VIRTUAL_ENV)" in by_variable.out
    ran = cli.unhang("apply", "--python", python)
    assert ran.code == 0
    assert b"get_megatron_mtp_loss" in cached.read_bytes()
    assert cached.read_bytes() != stale
    assert (venv / "share/unhang/receipt.json").exists()
    assert cli.unhang("revert", "--python", python).code == 0
    assert cli.tree(venv) == before


def test_a_script_beside_a_checkout_shadows_the_wheel(tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    (site,) = venv.glob("lib/python*/site-packages")
    cli.unpack(site, ("verl", "0.9.1"))
    job = tmp_path / "job"
    cli.unpack(job, VERL)
    (job / "train.py").write_text("import verl\n")
    plain = cli.unhang("check", "--python", venv / "bin/python", "--output-format", "json", cwd=tmp_path)
    assert [item["verdict"] for item in plain.json["results"]] == ["fixed-upstream"]
    told = cli.unhang("check", "--python", venv / "bin/python", cwd=job)
    assert f"a job started here could import {job / 'verl'}" in told.err
    script = cli.unhang("check", "--python", venv / "bin/python", "--script", job / "train.py")
    assert script.code == 1
    assert f"shadows {site / 'verl'}" in script.out
    assert f"verl 0.7.1  {job}" in script.out


def test_the_wheels_that_are_pinned_are_what_they_say() -> None:
    with pytest.raises(wheels.WheelError, match="sha256"):
        wheels.verify(Path(__file__), "0" * 64)
