"""`unhang check --lock`: the report of `check` about what files pin, and what to do about it."""

import json
import os
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

from support import cli, wheels
from support.checkout import REPOSITORY
from support.lock_files import COMMIT, uv, uv_package
from unhang.records import Token

MTP = "mtp-cp-deadlock"


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    path = tmp_path / "uv.lock"
    path.write_text(uv(uv_package("torch", "2.0"), uv_package("verl", "0.7.1"), uv_package("megatron-core", "0.17.1")))
    return path


def test_the_report_names_file_and_line_and_ends_with_the_line_of_the_dockerfile_and_the_release(lock: Path) -> None:
    ran = cli.called("check", "--lock", lock)
    lines = ran.out.splitlines()
    assert lines[0] == f"lock file: {lock} (verdicts are of untouched copies of what it pins)"
    assert [line for line in lines if line.startswith(("verl", "mega"))] == [
        f"verl 0.7.1  {lock}:10",
        f"megatron-core 0.17.1  {lock}:15",
        f"megatron-lm 0.17.1  {lock}:15",
    ]
    assert "4 needed, in untouched copies" in lines
    assert lines[lines.index("next, in the Dockerfile, below the line that installs them:") :] == [
        "next, in the Dockerfile, below the line that installs them:",
        "  RUN pip install --no-cache-dir unhang && unhang apply 2>&1",
        "or pin verl==0.9.1, which drops 1 of 1 (mtp-cp-deadlock) and brings in none",
        "or pin megatron-core==0.19.2, which drops 1 of 3 (sft-packed-seq-broadcast) and brings in none",
    ]
    assert (ran.code, ran.err) == (1, "")


def test_the_json_document_is_that_of_check_with_the_pin_and_without_a_digest(lock: Path) -> None:
    document = cli.called("check", "--lock", lock, "--fix", MTP, "--output-format", "json").json
    assert list(document) == ["schema", "unhang", "environment", "digest", "interrupted", "warnings", "results"]
    assert document["environment"] == {"python": None, "prefix": str(lock), "found_by": "--lock"}
    assert document["digest"] is None
    (row,) = document["results"]
    assert (row["verdict"], row["code"], row["version"], row["location"]) == (
        "needed",
        "by-release",
        "0.7.1",
        str(lock),
    )
    assert row["pin"] == {
        "distribution": "verl", "version": "0.7.1", "line": 10, "extras": [], "when": "",
        "repository": "", "ref": "", "commit": "", "source": "",
    }  # fmt: skip


def test_several_files_and_versions_are_told_apart_also_in_sarif(lock: Path, tmp_path: Path) -> None:
    other = tmp_path / "requirements.txt"
    other.write_text("verl==0.7.1 ; os_name == 'nt'\nverl==0.7.1 ; os_name != 'nt'\nverl==0.9.1\n")
    arguments = ("check", "--lock", str(lock), str(other), "--lock", str(lock), "--fix", MTP)
    ran = cli.installed(*arguments, "--output-format", "sarif", cwd=tmp_path)
    found = [result["locations"][0]["physicalLocation"] for result in ran.json["runs"][0]["results"]]
    assert [(it["artifactLocation"]["uri"], it["region"]["startLine"]) for it in found] == [
        ("uv.lock", 10), ("requirements.txt", 1), ("requirements.txt", 2)
    ]  # fmt: skip
    prints = {result["partialFingerprints"]["unhang/v1"] for result in ran.json["runs"][0]["results"]}
    assert len(prints) == 3
    github = cli.called(*arguments, "--output-format", "github").out
    assert f"::error file={other},line=2,title=unhang {MTP} (cure)::needed in verl 0.7.1" in github


def test_an_annotation_names_the_upstream_since_one_line_may_pin_two(tmp_path: Path) -> None:
    lock, fix = tmp_path / "requirements.txt", "sft-packed-seq-broadcast"
    lock.write_text("megatron-core==0.17.1\n")
    out = cli.called("check", "--lock", lock, "--fix", fix, "--output-format", "github").out
    not_affected, needed = out.splitlines()[:2]
    assert not_affected.startswith("::notice ")
    assert "::not-affected in megatron-core 0.17.1" in not_affected
    assert needed.startswith("::error ")
    assert "::needed in megatron-lm 0.17.1: packed-sequence metadata misses ranks and stages; only with " in needed


def test_a_checkout_without_a_name_is_no_silence(tmp_path: Path) -> None:
    lock, fix = tmp_path / "requirements.txt", "empty-expert-hang"
    lock.write_text("git+https://github.com/NVIDIA/Megatron-LM@core_v0.17.1\n-e ./verl\n")
    arguments = ("check", "--lock", lock, "--fix", fix, "--fix", MTP, "--allow-none", "--output-format", "json")
    ran = cli.called(*arguments)
    found = {row["upstream"]: (row["verdict"], row["version"]) for row in ran.json["results"]}
    assert ran.code == 1
    assert found == {"megatron-core": ("needed", "0.17.1"), "verl": ("unlisted", None)}


def test_what_has_no_name_is_known_by_its_code_or_named_in_a_warning(tmp_path: Path) -> None:
    lock = tmp_path / "requirements.txt"
    lock.write_text("-e ./ours\n-e ./other\ngit+https://a.example/fork@v1\n")
    (tmp_path / "other").mkdir()
    cli.unpack_targets(tmp_path / "ours", ("verl", "0.7.1"))
    ran = cli.called("check", "--lock", lock, "--fix", MTP, "--output-format", "json")
    assert [(row["upstream"], row["verdict"], row["pin"]["line"]) for row in ran.json["results"]] == [
        ("verl", "unlisted", 1)
    ]
    assert ran.json["results"][0]["hint"].endswith(f"--source {tmp_path}/./ours")
    assert [text.partition(" is: ")[0] for text in ran.json["warnings"]] == [
        f"{lock}:3: nobody can tell which package https://a.example/fork"
    ]


def test_each_pinned_release_of_one_upstream_has_its_own_advice(tmp_path: Path) -> None:
    lock = tmp_path / "requirements.txt"
    lock.write_text("verl[a]==0.7.1 ; os_name == 'a'\nverl==0.7.1 ; os_name != 'a'\nmegatron-core==0.17.1\n")
    advice = [line[:40] for line in cli.called("check", "--lock", lock).out.splitlines() if line.startswith("or pin")]
    assert advice == ["or pin verl[a]==0.9.1, which drops 1 of ", "or pin megatron-core==0.19.2, which drop"]
    lock.write_text("megatron-core==0.17.1 ; os_name == 'a'\nmegatron-core==0.17.0 ; os_name != 'a'\n")
    out = cli.called("check", "--lock", lock).out
    assert [line.split(",")[0] for line in out.splitlines() if line.startswith("or pin")] == [
        "or pin megatron-core==0.19.2 in place of 0.17.1", "or pin megatron-core==0.19.2 in place of 0.17.0"
    ]  # fmt: skip


def test_required_fixes_and_exit_codes(lock: Path, tmp_path: Path) -> None:
    new = tmp_path / "requirements.txt"
    new.write_text("verl==0.8.0\n")
    ran = cli.called("check", "--lock", new, "--upstream", "verl", "--require", MTP)
    assert (ran.code, ran.err) == (0, ""), "upstream's own fix does"
    assert ran.out.splitlines()[-1] == "nothing left to do, in untouched copies"
    ran = cli.called("check", "--lock", new, "--require", "sft-packed-seq-broadcast")
    assert ran.code == 1
    assert "there is no megatron-lm or megatron-core here; do: pin it in the lock file, or" in ran.err
    ran = cli.called("check", "--lock", lock, "--require", MTP)
    assert ran.code == 1
    assert f"required fix not in place: {MTP} is needed on verl 0.7.1 in {lock}; do: unhang apply" in ran.err
    new.write_text("torch==2.0\n")
    ran = cli.called("check", "--lock", new)
    assert (ran.code, "error[no-upstream]: none of" in ran.err, f"is pinned in {new}" in ran.err) == (2, True, True)
    ran = cli.called("check", "--lock", new, "--allow-none")
    assert (ran.code, ran.out.splitlines()[-1][:18]) == (0, "nothing to judge: ")


@pytest.mark.parametrize(
    "more",
    [
        ("--script", "a.py"),
        ("--accept", str(Token("0" * 16, 1, "1" * 16))),
        ("--expect-digest", "0" * 16),
    ],
)
def test_options_about_code_do_not_go_with_it(lock: Path, more: tuple[str, ...]) -> None:
    ran = cli.called("check", "--lock", lock, *more)
    assert (ran.code, f"error[bad-option]: --lock does not go with {more[0]}" in ran.err) == (2, True)
    assert cli.called("check", "--lock", lock, "--target", lock.parent).code == 2


def test_what_is_unlisted_for_one_reason_is_one_row_with_the_command(tmp_path: Path) -> None:
    lock = tmp_path / "requirements.txt"
    lock.write_text(f"megatron-core @ git+https://a.example/core@{COMMIT}\n")
    lines = cli.called("check", "--lock", lock).out.splitlines()
    assert lines[2] == f"megatron-core (no version)  {lock}:1  git {COMMIT[:9]}"
    assert lines[3].startswith(
        "  unlisted        3 fixes: commit bec9ef747 is not known as that of a release's tag  help: "
    )
    assert f"checkout --detach {COMMIT}`, then `unhang check --source megatron-core`  empty-expert-hang, " in lines[3]
    assert lines[5] == f"megatron-lm (no version)  {lock}:1  git {COMMIT[:9]}", "it may hold that, too"
    assert lines[-1] == "4 unlisted, in untouched copies"
    rows = cli.called("check", "--lock", lock, "--output-format", "json").json["results"]
    assert {row["hint"].rpartition("`, then `")[2] for row in rows} == {"unhang check --source megatron-core`"}
    assert len(cli.called("check", "--lock", lock, "-v").out.splitlines()) > len(lines), "-v has a row for each"


def test_a_wheel_beside_the_lock_file_is_judged_by_its_code(tmp_path: Path) -> None:
    wheel = wheels.fetch("verl", "0.7.1")
    assert cli.called("wheel", wheel, "-o", tmp_path / "a").code == 0
    (patched,) = (tmp_path / "a").iterdir()
    lock = tmp_path / "uv.lock"
    lock.write_text(uv(uv_package("verl", patched.name.split("-")[1], f'path = "a/{patched.name}"')))
    ran = cli.called("check", "--lock", lock, "--require", MTP)
    assert (ran.code, ran.out.splitlines()[-1]) == (0, "nothing left to do")
    rows = cli.called("check", "--lock", lock, "--fix", MTP, "--output-format", "json").json["results"]
    assert [(row["verdict"], row["code"], row["location"]) for row in rows] == [("applied", None, str(lock))]
    (tmp_path / "b").mkdir()
    shutil.copy(wheel, tmp_path / "b")
    lock.write_text(uv(uv_package("verl", "0.8.0", f'path = "b/{wheel.name}"')))
    ran = cli.called("check", "--lock", lock, "--fix", MTP, "--output-format", "github")
    assert ran.out.startswith(f"::error file={lock},line=5,title=unhang {MTP} (cure)::needed")
    assert f"unhang wheel {tmp_path}/b/{wheel.name} -o {tmp_path}/b --fix {MTP}" in ran.out
    patched.unlink()
    lock.write_text(uv(uv_package("verl", "0.7.1+unhang.1", f'path = "a/{patched.name}"')))
    assert "somebody's build of 0.7.1" in cli.called("check", "--lock", lock, "--fix", MTP).out


def test_an_included_file_is_a_warning_until_it_is_named(tmp_path: Path) -> None:
    lock, base = tmp_path / "requirements.txt", tmp_path / "base.txt"
    lock.write_text("-r base.txt\nverl==0.8.0\n")
    base.write_text("verl==0.7.1\n")
    ran = cli.called("check", "--lock", lock, "--fix", MTP)
    assert (ran.code, f"{base} is included, and was not read: name it too, with --lock" in ran.err) == (0, True)
    ran = cli.called("check", "--lock", lock, base, "--fix", MTP)
    assert (ran.code, ran.err) == (1, "")


def test_text_of_a_lock_file_is_no_command_of_a_terminal_or_a_runner(tmp_path: Path) -> None:
    lock = tmp_path / "bom.json"
    hostile = "0.7.1\x1b[2J\n::error::forged ##[error]"
    component: dict[str, Any] = {"name": "verl", "version": hostile}
    lock.write_text(json.dumps({"bomFormat": "CycloneDX", "components": [component]}))
    for output in "text", "json", "github", "sarif":
        ran = cli.called("check", "--lock", lock, "--output-format", output)
        assert ran.code == 1
        assert "\x1b" not in ran.out + ran.err
        assert "##[" not in ran.out
        assert not any(line.startswith("::error::forged") for line in ran.out.splitlines())


def test_the_commands_of_the_page_run_as_they_are(lock: Path) -> None:
    page = (REPOSITORY / "docs" / "lock.md").read_text(encoding="utf-8")
    commands = re.findall(r"^    unhang (.*)$", page, re.MULTILINE)
    codes = [cli.installed(*shlex.split(command), cwd=lock.parent).code for command in commands]
    assert codes == [1, 0, 0], commands


def test_nothing_slow_is_imported_and_nothing_is_run(lock: Path) -> None:
    code = (
        "import sys, unhang.cli.main as main\n"
        f"main.main(['check', '--lock', {str(lock)!r}])\n"
        "print(*sys.modules, file=sys.stderr)"
    )
    modules = {*cli.python("-c", code).err.split()}
    assert "unhang.pins.uv" in modules
    slow = {"ast", "libcst", "subprocess", "yaml", "packaging.requirements", "packaging.pylock", "importlib.metadata"}
    assert not modules & slow


def test_the_file_is_read_from_where_the_command_runs(lock: Path) -> None:
    ran = cli.installed("check", "--lock", lock.name, "--fix", MTP, cwd=lock.parent)
    assert f"verl 0.7.1  {lock.name}:10" in ran.out
    assert os.sep not in ran.out.splitlines()[0].partition("(")[0]
