"""`unhang apply` and `unhang revert`: what they write, keep and report; on real releases."""

import os
import re
from pathlib import Path

import pytest

from support import cli
from unhang.cli.main import main

VERL = ("verl", "0.7.1")
ENGINE = "verl/workers/engine/megatron/transformer_impl.py"
KEYS = (
    "upstream version location fix grade kinds changes_numbers file function verdict shape code detail hint notes"
    " nearest overlay accepted assumes fixed_in strikes leave_out needs"
).split()


def test_commands_that_write_add_changed_to_each_result(site: Path) -> None:
    for command in ("apply", "revert"):
        results = cli.called(command, "--target", site, "--output-format", "json").json["results"]
        assert all(list(result) == [*KEYS, "changed"] for result in results)
        assert sum(result["changed"] for result in results) == 5


def test_nothing_to_revert(pristine: Path) -> None:
    ran = cli.called("revert", "--target", pristine, "--output-format", "json")
    assert (ran.code, {item["changed"] for item in ran.json["results"]}) == (1, {False})
    assert "nothing to revert: there is no receipt in" in ran.err
    ran = cli.called("revert", "--target", pristine)
    assert (ran.code, ran.out, len(ran.err.splitlines())) == (1, "", 1), "no table above it"
    assert cli.called("revert", "--target", pristine, "-v").out != ""


def test_a_receipt_without_the_fix_is_nothing_to_undo(site: Path) -> None:
    cli.applied("--target", site, "--fix", "mtp-cp-deadlock")
    assert cli.called("revert", "--target", site, "--fix", "expert-dp-warmup").code == 0


def test_only_the_named_fix_and_upstream_are_changed(site: Path) -> None:
    before = cli.tree(site)
    ran = cli.called("apply", "--target", site, "--fix", "expert-dp-warmup", "--upstream", "ms-swift")
    changed = {path for path, now in cli.tree(site).items() if now != before.get(path) and ".unhang" not in path}
    assert ran.code == 0
    assert changed == {"swift/megatron/utils/megatron_lm_utils.py", "ms_swift-4.6.0.dist-info/RECORD"}
    rest = cli.called("check", "--target", site, "--skip", "empty-expert-hang", "--skip", "sft-packed-seq-broadcast")
    assert "2 needed" in rest.out
    assert "  empty-expert-hang  " not in rest.out


def test_a_required_fix_that_is_blocked_is_the_last_line(site: Path) -> None:
    source = site / ENGINE
    source.write_bytes(source.read_bytes().replace(b"self.is_mp_src_rank_with_outputs():", b"True:", 1))
    ran = cli.called("apply", "--target", site, "--require", "mtp-cp-deadlock", "--require", "expert-dp-warmup")
    assert ran.code == 1
    last = ran.err.splitlines()[-1]
    assert last.startswith("required fix not in place: mtp-cp-deadlock is drifted on verl 0.7.1")
    why = [line for line in (ran.out + ran.err).splitlines() if "anchor is missing" in line]
    assert [line.split()[:2] for line in why] == [["drifted", "mtp-cp-deadlock"]], "told once"
    assert last.endswith(
        f"its row above says why; do: unhang diff --target {site} --unknown --run --fix mtp-cp-deadlock"
    )
    assert f"blocked: mtp-cp-deadlock (cure) on verl 0.7.1 in {site}: its row above says why; do: unhang " in ran.err
    ran = cli.called("apply", "--target", site, "--require", "mtp-cp-deadlock", "--output-format", "json")
    assert [line.partition(":")[0] for line in ran.err.splitlines() if "anchor is missing" in line] == [
        "blocked", "required fix not in place"
    ], "no row says it"  # fmt: skip
    assert "4 needed" not in cli.called("check", "--target", site).out, "the other fixes went in"
    assert cli.called("check", "--target", site, "--require", "expert-dp-warmup", "--skip", "mtp-cp-deadlock").code == 0


def test_while_a_fix_is_blocked_the_last_line_has_a_command_and_none_starts_the_job(site: Path) -> None:
    source = site / ENGINE
    source.write_bytes(source.read_bytes().replace(b"self.is_mp_src_rank_with_outputs():", b"True:", 1))
    ran = cli.called("apply", "--target", site)
    assert (ran.code, "patched" in ran.err, "start the job" in ran.err) == (1, True, False)
    last = ran.err.splitlines()[-1]
    assert last.startswith("blocked: mtp-cp-deadlock ")
    assert last.endswith(f"; do: unhang diff --target {site} --unknown --run --fix mtp-cp-deadlock")


def test_the_undo_line_names_nothing_that_was_not_written(site: Path) -> None:
    ran = cli.called("apply", "--target", site, "--skip", "mtp-cp-deadlock", "--require", "expert-dp-warmup")
    assert f"to undo: unhang revert --target {site} --skip mtp-cp-deadlock\n" in ran.err
    cli.called("revert", "--target", site)
    ran = cli.called("apply", "--target", site, "--kind", "abort", "--require", "expert-dp-warmup")
    undo = ran.err.partition("to undo: ")[2].partition("\n")[0]
    before = {row["fix"] for row in cli.called("check", "--target", site, "--output-format", "json").json["results"]
              if row["verdict"] == "applied"}  # fmt: skip
    assert set(re.findall(r"--fix (\S+)", undo)) == before
    assert "expert-dp-warmup" in before


def test_what_changes_numbers_is_said_of_what_is_written_and_no_more(site: Path) -> None:
    numbers = "changes numbers: sft-packed-seq-broadcast; curves from before and after do not compare, "
    for more in (["--dry-run"], []):
        ran = cli.called("apply", "--target", site, "--kind", "abort", *more)
        assert (ran.code, ran.err.count(numbers)) == (0, 1)
    assert f"to undo: unhang revert --target {site} --kind abort" in ran.err
    after = cli.called("apply", "--target", site)
    assert (after.code, "patched" in after.err, "changes numbers: " in after.err) == (0, True, False)
    undone = cli.called("revert", "--target", site, "--kind", "abort", "--output-format", "json").json["results"]
    assert {row["fix"] for row in undone if row["changed"]} == {"empty-expert-hang", "sft-packed-seq-broadcast"}


def test_a_fix_that_changes_collectives_asks_to_patch_every_node(site: Path) -> None:
    quiet = cli.called("apply", "--target", site, "--fix", "empty-expert-hang")
    assert "Patch every node" not in quiet.err
    loud = cli.called("apply", "--target", site)
    assert "Patch every node of a job, or none" in loud.err
    after, others = quiet.err.splitlines()[-2:]
    assert after.startswith("next: start the job again")
    assert others == "3 other fixes are needed here; --fix left them out"
    assert loud.err.splitlines()[-1].startswith("next: the same on every other node, then start the job again")


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ((), 0),
        (("--skip", "mtp-cp-deadlock", "--require", "expert-dp-warmup"), 0),
        (("--edit",), 1),  # blocked
        (("--edit", "--require", "mtp-cp-deadlock"), 1),
        (("--upstream", "verl", "--require", "empty-expert-hang"), 1),
        (("--again",), 0),  # nothing to do
    ],
)
def test_a_dry_run_has_the_report_and_the_exit_code_of_apply_and_writes_nothing(
    options: tuple[str, ...], code: int, site: Path
) -> None:
    source = site / ENGINE
    if "--edit" in options:
        source.write_bytes(source.read_bytes().replace(b"self.is_mp_src_rank_with_outputs():", b"True:", 1))
    command = ["apply", "--target", str(site), *(word for word in options if word not in ("--edit", "--again"))]
    if "--again" in options:
        cli.applied(*command[1:])
    before = cli.tree(site)
    dry, document = (cli.called(*command, "--dry-run", *more) for more in ((), ("--output-format", "json")))
    assert cli.tree(site) == before
    real = cli.called(*command, "--output-format", "json")
    assert (dry.code, document.code, real.code) == (code, code, code)
    assert document.json == {**real.json, "dry_run": True}
    files = len({(row["upstream"], row["file"]) for row in real.json["results"] if row["changed"]})
    assert f"would patch {files} file{'' if files == 1 else 's'}; nothing was written\n" in dry.err
    changed = {(row["upstream"], row["fix"]) for row in real.json["results"] if row["changed"]}
    assert dry.out.count("  would apply  ") == len(changed)
    assert "  applied  " not in dry.out
    assert (f"next, on every node:\n  unhang apply --target {site}" in dry.err) is bool(changed)
    assert [line for line in document.err.splitlines() if line.startswith(("blocked", "required"))] == [
        line for line in real.err.splitlines() if line.startswith(("blocked", "required"))
    ]


def test_a_dry_run_where_nothing_can_be_written_or_known_fails_as_apply(
    site: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    dry = ["apply", "--dry-run", "--target", str(site)]
    with monkeypatch.context() as patch:  # made up, because root can write anywhere
        patch.setattr(os, "access", lambda path, mode: False)
        assert main(dry) == 2
    assert "error[not-writable]: cannot write" in capsys.readouterr().err
    (site / ".unhang").mkdir()
    (site / ".unhang/journal.json").touch()
    before = cli.tree(site)
    assert main(dry) == 2
    assert "error[interrupted]" in capsys.readouterr().err
    assert cli.tree(site) == before


def test_quiet_leaves_out_notes_and_verbose_says_where_it_looked(site: Path) -> None:
    assert cli.called("apply", "--target", site, "-q").err == ""
    verbose = cli.called("check", "--target", site, "-v")
    assert verbose.err.splitlines() == [f"searched: {site}", f"receipt: {site}/.unhang/receipt.json"]
    quiet = cli.called("revert", "--target", site, "-q")
    assert (quiet.err, quiet.out.count("  reverted  "), quiet.out.count("needed")) == ("", 5, 0)
    blocked = cli.called("apply", "--target", site, "-q", "--upstream", "verl", "--require", "empty-expert-hang")
    assert blocked.err.startswith("required fix not in place: empty-expert-hang")
