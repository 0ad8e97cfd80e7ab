"""`unhang diff`: what `git apply` and `patch` accept, and the same bytes as `apply`."""

import shutil
import subprocess
from pathlib import Path

from support import cli, ptys, runner

ENGINE = "verl/workers/engine/megatron/transformer_impl.py"


def test_git_apply_and_patch_accept_the_diff(pristine: Path, site: Path, tmp_path: Path) -> None:
    ran = cli.called("diff", "--target", pristine)
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
    assert cli.called("apply", "--target", site).code == 0
    for folder in by_git, by_patch:
        for line in ran.out.splitlines():
            if line.startswith("+++ b/"):
                name = line.removeprefix("+++ b/")
                assert (folder / name).read_bytes() == (site / name).read_bytes()
        assert cli.called("check", "--target", folder).code == 0, "the code decides, with or without a receipt"


def test_a_kind_narrows_it(pristine: Path) -> None:
    ran = cli.called("diff", "--target", pristine, "--kind", "wrong-values")
    changed = [line for line in ran.out.splitlines() if line.startswith("--- ")]
    assert (ran.code, changed) == (1, ["--- a/megatron/training/utils.py"])


def test_diff_keeps_line_ends_and_a_missing_last_newline(site: Path) -> None:
    source = site / ENGINE
    source.write_bytes(source.read_bytes().rstrip(b"\n").replace(b"\n", b"\r\n"))
    diff = cli.called("diff", "--target", site, "--upstream", "verl").out.encode("latin-1")
    subprocess.run(["git", "apply", "-p1"], cwd=site, input=diff, check=True)
    data = source.read_bytes()
    assert b"# unhang mtp-cp-deadlock" in data
    assert data.count(b"\n") == data.count(b"\r\n")
    assert not data.endswith(b"\n")


def test_a_file_gets_the_patch_and_a_runners_log_nothing_that_acts(site: Path, tmp_path: Path) -> None:
    source, gate = site / ENGINE, b"if self.model_config.mtp.enable and self.is_mp_src_rank_with_outputs():"
    chosen = ("--target", str(site), "--fix", "mtp-cp-deadlock")
    in_a_runner = {"GITHUB_ACTIONS": "true"}
    plain = cli.called("diff", *chosen)
    assert cli.called("diff", *chosen, env=in_a_runner).out == plain.out, "what needs no escape has none"
    hostile = b'"""\n##[error]a\n        ::error::b\n\x1b[2J"""\n        '
    assert source.read_bytes().count(gate) == 1
    source.write_bytes(source.read_bytes().replace(gate, hostile + gate, 1))
    shown = cli.called("diff", *chosen, "--unknown")
    (token,) = {line.rpartition(" ")[2] for line in shown.out.splitlines() if line.startswith("# to write it")}
    words = [*cli.COMMAND, "diff", *chosen, "--accept", token]
    patch = cli.called(*words[len(cli.COMMAND) :]).out.encode("latin-1")
    assert b"\x1b[2J" in patch
    with open(tmp_path / "a.diff", "wb") as file:
        subprocess.run(words, stdout=file, check=False, cwd="/", env=cli.environ(in_a_runner))
    assert (tmp_path / "a.diff").read_bytes() == patch
    log = subprocess.run(words, stdout=subprocess.PIPE, check=False, cwd="/", env=cli.environ(in_a_runner)).stdout
    _, terminal = ptys.unhang(*words[len(cli.COMMAND) :], columns=80)
    for text in log.decode(), terminal:
        assert runner.commands(text) == []
        assert "\x1b[2J" not in text
        assert "# no patch: " in text
    assert subprocess.run(["git", "apply", "--check"], cwd=site, input=log, check=False).returncode
    patched = Path(shutil.copytree(site, tmp_path / "patched"))
    subprocess.run(["git", "apply", "-p1", tmp_path / "a.diff"], cwd=patched, check=True)
    assert cli.called("apply", *chosen, "--accept", token).code == 0
    assert (patched / ENGINE).read_bytes() == source.read_bytes()


def test_what_is_written_is_what_apply_would_have_written_and_reverses_to_the_originals(
    pristine: Path, site: Path
) -> None:
    where = ("--target", site)
    planned = cli.called("diff", *where)
    nothing = cli.called("diff", "--applied", *where)
    assert (nothing.code, nothing.out) == (0, "")
    assert nothing.err.splitlines()[-1].startswith("nothing is written here: ")
    cli.applied(*where)
    written = cli.called("diff", "--applied", *where)
    assert (written.code, written.out) == (1, planned.out)
    assert cli.called("diff", "--applied", *where, "--output-format", "json").json["diff"] == planned.out
    subprocess.run(["git", "apply", "-R", "-p1"], cwd=site, input=written.out.encode("latin-1"), check=True)
    before, after = cli.tree(pristine), cli.tree(site)
    assert {name: it for name, it in after.items() if name.endswith(".py")} == {
        name: it for name, it in before.items() if name.endswith(".py")
    }


def test_what_is_written_is_that_of_the_chosen_fix_without_edits_of_others(site: Path) -> None:
    where = ("--target", site)
    one = cli.called("diff", *where, "--fix", "mtp-cp-deadlock")
    cli.applied(*where)
    source = site / ENGINE
    source.write_bytes(b"# ours\n" + source.read_bytes())
    written = cli.called("diff", "--applied", *where, "--fix", "mtp-cp-deadlock")
    lines = [[line for line in ran.out.splitlines() if line[:1] in "+-"] for ran in (one, written)]
    assert (written.code, lines[1]) == (1, lines[0])
    source.write_bytes(
        source.read_bytes().replace(b"# unhang mtp-cp-deadlock", b"broken() # unhang mtp-cp-deadlock", 1)
    )
    edited = cli.called("diff", "--applied", *where, "--fix", "mtp-cp-deadlock")
    assert (edited.code, "+# ours\n" in edited.out, "broken() # unhang" in edited.out) == (1, True, True)


def test_what_is_written_without_a_receipt_is_named_with_the_way_back(site: Path) -> None:
    cli.applied("--target", site)
    shutil.rmtree(site / ".unhang")
    ran = cli.called("diff", "--applied", "--target", site, "--upstream", "verl")
    assert (ran.code, ran.out) == (1, "")
    assert f"patched, and no receipt has its original bytes: {site / ENGINE}\n" in ran.err
    assert "nothing is written here" not in ran.err


def test_what_is_written_and_what_is_unknown_are_two_diffs(site: Path) -> None:
    for other in "--unknown", "--run":
        assert "error[bad-option]: --applied " in cli.called("diff", "--applied", other, "--target", site).err
