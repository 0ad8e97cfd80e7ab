"""Packs as users have them: named, installed, wrong, gone."""

import difflib
import json
import os
import py_compile
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from support import cli, packed
from support import environments as make
from support.packed import ID, MODEL
from unhang.plugins import packs

FILE = "verl/workers/utils/losses.py"
MAIN = "import sys; from unhang.cli.main import main; main(sys.argv[1:])"
"""The command, whose exit code is not of interest."""


@pytest.fixture
def acme(tmp_path: Path) -> Path:
    return packed.pack(tmp_path / "packs" / "acme")


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return cli.unpack_targets(tmp_path / "site", ("verl", "0.7.1"))


def run(command: str, *arguments: str | os.PathLike[str], env: dict[str, str] | None = None) -> cli.Ran:
    return cli.called_with_all(command, *arguments, env=env)


def code_of(ran: cli.Ran) -> str:
    """Return the code of the error with which a command ended."""
    assert ran.code == 2, ran
    return ran.err.partition("error[")[2].partition("]")[0]


def test_every_command_knows_its_fixes(acme: Path, site: Path, tmp_path: Path) -> None:
    of, here = ("--pack", acme), ("--target", site, "--fix", ID)
    checked = run("check", *here, *of)
    assert (checked.code, checked.out.splitlines()[0]) == (1, f"packs: acme 1.2 ({acme})")
    assert f"unhang apply --target {site} --pack {acme} --fix {ID}" in checked.out
    document = run("check", *here, *of, "--output-format", "json").json
    assert document["packs"] == [{"name": "acme", "version": "1.2", "folder": str(acme)}]
    assert [(it["fix"], it["pack"], it["verdict"]) for it in document["results"]] == [(ID, "acme 1.2", "needed")]
    assert f"# unhang {ID}:" in run("diff", *here, *of).out
    listed = run("list", *of).out.splitlines()
    assert next(line for line in listed if line.startswith(ID)).endswith("(acme 1.2)")
    assert "(unhang" not in "".join(listed)
    assert run("explain", ID, *of).out.startswith(f"# {ID}\n")
    assert ID in run("matrix", "--fix", ID, *of).out
    assert run("overlay", tmp_path / "overlay", *here, *of).code == 0
    assert run("overlay", tmp_path / "overlay", "--check", *here, *of).code == 0
    report = run("check", *here, *of, "--output-format", "github").out
    assert "title=unhang packs::packs%3A acme 1.2" in report or "title=unhang packs::packs: acme 1.2" in report
    for command, arguments in ("check", here), ("explain", (ID,)), ("matrix", ("--fix", ID)):
        assert code_of(run(command, *arguments)) == "unknown-fix", "without the pack"


def test_a_receipt_names_the_pack_and_revert_needs_it_no_more(acme: Path, site: Path) -> None:
    before = (site / FILE).read_bytes()
    ran = run("apply", "--target", site, "--fix", ID, "--pack", acme)
    assert (ran.code, f"--pack {acme}" in ran.err.partition("to undo: ")[2]) == (0, True)
    (fixed,) = json.loads((site / ".unhang" / "receipt.json").read_text())["files"][0]["fixes"]
    assert (fixed["fix"], fixed["pack"]) == (ID, "acme 1.2")
    shutil.rmtree(acme)
    for command in ("check", "revert"):
        ran = run(command, "--target", site, "--pack", acme)
        assert (code_of(ran), "`unhang revert` works without it" in ran.err) == ("no-pack", True)
    named = run("revert", "--target", site, "--fix", MODEL, env={"UNHANG_PACKS": str(acme)})
    assert (code_of(named), "pass --no-packs if UNHANG_PACKS names it" in named.err) == ("no-pack", True)
    assert run("check", "--target", site, "--fix", MODEL).code in (0, 1)
    assert code_of(run("revert", "--target", site, "--fix", "no-such-fix")) == "unknown-fix"
    assert run("revert", "--target", site, "--fix", MODEL).code == 0
    assert (site / FILE).read_bytes() != before, "it was not asked to"
    ran = run("revert", "--target", site)
    assert ((site / FILE).read_bytes(), (site / ".unhang").exists()) == (before, False)
    assert f"also of packs that are not in effect: {ID} (acme 1.2)" in ran.err


def test_a_fix_of_a_gone_pack_is_reverted_by_its_name(acme: Path, site: Path) -> None:
    before = (site / FILE).read_bytes()
    assert run("apply", "--target", site, "--fix", ID, "--fix", "mtp-cp-deadlock", "--pack", acme).code == 0
    assert run("revert", "--target", site, "--fix", ID).code == 0
    assert (site / FILE).read_bytes() == before
    assert "mtp-cp-deadlock" in (site / ".unhang" / "receipt.json").read_text()


def test_fixes_of_two_packs_share_a_file(tmp_path: Path) -> None:
    file = "megatron/core/transformer/moe/moe_utils.py"
    site = cli.unpack_targets(tmp_path / "site", ("megatron-core", "0.16.1"))
    before, here = (site / file).read_bytes(), ("--target", site)
    acme, ours = packed.pack(tmp_path / "acme", "acme-x", model="moe-aux-tracker-hang"), "router-token-scale"
    assert run("apply", *here, "--fix", "acme-x", "--pack", acme).code == 0
    assert run("apply", *here, "--fix", ours).code == 0, "whose file has a rewrite of a pack that is not in effect"
    assert run("check", *here, "--fix", ours, "--fix", "acme-x", "--pack", acme).code == 0
    ran = run("revert", *here, "--fix", ours)
    assert code_of(ran) == "cannot-keep"
    assert f"`unhang revert --target {site} --fix acme-x --fix {ours}`" in ran.err
    assert run("revert", *here, "--fix", ours, "--pack", acme).code == 0
    assert b"# unhang acme-x: " in (site / file).read_bytes()
    assert run("revert", *here).code == 0
    assert (site / file).read_bytes() == before


def test_nothing_that_lies_about_is_loaded(acme: Path, site: Path) -> None:
    shutil.copytree(acme, site, dirs_exist_ok=True)
    packed.distribution(site, acme)
    for arguments in ("--target", site), ("--source", site):
        ran = cli.installed("check", *arguments, cwd=site, env={"PYTHONPATH": str(site)})
        assert (ran.code, ID in ran.out + ran.err) == (1, False), ran


def test_the_environment_may_name_packs_by_whole_paths(acme: Path, site: Path, tmp_path: Path) -> None:
    other = packed.pack(tmp_path / "other", "other-scale", name="other")
    both = {"UNHANG_PACKS": f"{acme}{os.pathsep}{os.pathsep}{other}"}
    ran = run("check", "--target", site, env=both)
    assert ran.out.splitlines()[0] == f"packs: acme 1.2 ({acme}), other 1.2 ({other})"
    assert f"--pack {acme} --pack {other}" in ran.out
    ran = run("check", "--target", site, "--no-packs", env=both)
    assert ran.out.startswith("environment: ")
    assert f"unhang apply --target {site} --no-packs" in ran.out
    ran = run("check", "--target", site, "--no-packs", "--pack", other, env=both)
    assert ran.out.splitlines()[0] == f"packs: other 1.2 ({other})"
    for relative in (".", "packs/acme"):
        assert code_of(run("check", "--target", site, env={"UNHANG_PACKS": relative})) == "no-pack"


def test_two_of_a_kind_are_an_error_by_name(acme: Path, site: Path, tmp_path: Path) -> None:
    before = (site / FILE).read_bytes()
    here, of = ("--target", site), ("--pack", acme)
    twice = packed.pack(tmp_path / "twice", name="twice")
    ran = run("apply", *here, *of, "--pack", twice)
    assert (code_of(ran), "acme 1.2 and twice 1.2 both have a fix acme-scale" in ran.err) == ("fix-twice", True)
    assert code_of(run("list", *of, "--pack", packed.pack(tmp_path / "name", "another"))) == "pack-twice"
    for command in (("apply",), ("overlay", tmp_path / "out"), ("diff",)):
        ran = run(*command, *here, *of)
        assert code_of(ran) == "fixes-collide", command
        assert f"{ID} (acme 1.2) and {MODEL} (unhang" in ran.err
        for name in (ID, MODEL):
            assert f"unhang apply --target {site} --pack {acme} --skip {name}`" in ran.err
    assert ((site / FILE).read_bytes(), (tmp_path / "out").exists()) == (before, False)
    ran = run("check", *here, *of)
    assert (ran.code, "next, on every node" in ran.out) == (1, False)
    assert f"{ID} (acme 1.2) and {MODEL} (unhang 0.1.0) both change value_loss" in " ".join(ran.out.split())
    assert f"in each later `check` too: `unhang apply --target {site} --pack {acme} --skip {ID}`" in ran.out
    assert "next, on every node" in run("check", *here, *of, "--skip", MODEL).out
    assert run("apply", *here, *of, "--skip", MODEL).code == 0


def test_what_is_added_beside_a_rewritten_statement_rewrites_none(site: Path, tmp_path: Path) -> None:
    before, here = (site / FILE).read_text(), ("--target", site, "--fix", MODEL)
    row = '    vpreds = _slice_response_from_unpad_output(model_output["values"], data)'
    assert before.count(row) == 1, "ours adds something above it"
    after = before.replace(row, f"    mine = 1\n{row}")
    (tmp_path / "my.diff").write_text(
        "".join(difflib.unified_diff(before.splitlines(True), after.splitlines(True), f"a/{FILE}", f"b/{FILE}"))
    )
    begun = ("--pack", tmp_path / "mine", "--upstream", "verl==0.7.1", "--from-patch", tmp_path / "my.diff")
    assert run("new", "my-loss", *begun, "--target", site).code == 0
    ran = run("apply", *here, "--fix", "my-loss", "--pack", tmp_path / "mine")
    assert (ran.code, "change one place, at line" in ran.err, "rewrite one statement" in ran.err) == (2, True, False)


def test_of_two_fixes_for_one_function_the_second_waits(site: Path, tmp_path: Path) -> None:
    """They do not touch one statement, but nobody has seen both together."""
    before = (site / FILE).read_text().splitlines(keepends=True)
    after = [line.replace("metrics = {}", "metrics = dict()") for line in before]
    diff = tmp_path / "change.diff"
    diff.write_text("".join(difflib.unified_diff(before, after, f"a/{FILE}", f"b/{FILE}")))
    mine = tmp_path / "mine"
    begun = run("new", "my-loss", "--pack", mine, "--upstream", "verl==0.7.1", "--from-patch", diff, "--target", site)
    assert begun.code == 0, begun
    here = ("--target", site, "--pack", mine, "--fix", "my-loss")
    ran = run("apply", *here, "--fix", MODEL)
    assert (ran.code, ran.err.count("blocked: ")) == (1, 1)
    assert f"value_loss: {MODEL} rewrites this function too, and no result of both is on record" in ran.err
    assert "metrics = dict()" not in (site / FILE).read_text()
    assert run("revert", "--target", site).code == 0
    assert run("apply", *here).code == 0
    assert (site / FILE).read_text().count("metrics = dict()") == after.count("    metrics = dict()\n")


def test_two_upstreams_of_one_name_are_an_error(acme: Path, site: Path) -> None:
    (acme / "upstreams").mkdir()
    ours = json.loads((Path(packs.folder("upstreams")) / "verl.json").read_text())
    (acme / "upstreams" / "verl.json").write_text(json.dumps(ours))
    assert run("check", "--target", site, "--pack", acme).code == 1, "the same may be there twice"
    (acme / "upstreams" / "verl.json").write_text(json.dumps({**ours, "floor": "0.5"}))
    assert code_of(run("check", "--target", site, "--pack", acme)) == "upstream-twice"


def test_an_upstream_of_a_pack_is_found_and_judged(acme: Path, site: Path) -> None:
    (site / "verl").rename(site / "other")
    ours = json.loads((Path(packs.folder("upstreams")) / "verl.json").read_text())
    (acme / "upstreams").mkdir()
    theirs = {**ours, "import-name": "other", "version": {"file": "other/version/version"}}
    (acme / "upstreams" / "other.json").write_text(json.dumps(theirs))
    packed.change(
        acme, ID, targets=[{"upstream": "other", "file": "other/workers/utils/losses.py", "function": "value_loss"}]
    )
    data = (acme / "compat" / "data" / f"{ID}.json").read_text()
    (acme / "compat" / "data" / f"{ID}.json").write_text(data.replace("verl", "other"))
    found = run("check", "--target", site, "--pack", acme, "--upstream", "other", "--output-format", "json").json
    assert [(it["fix"], it["verdict"]) for it in found["results"]] == [(ID, "needed")]
    assert run("apply", "--target", site, "--pack", acme, "--upstream", "other").code == 0
    assert run("check", "--target", site, "--pack", acme).code == 0


def test_a_pack_for_another_unhang_is_told(acme: Path, tmp_path: Path) -> None:
    about = json.loads((acme / "pack.json").read_text())
    for wanted, code in ((">=99", 2), (">=0.1,<0.2", 0), ("<0.1", 2), ("!=0.1.0", 2), ("==0.1", 0)):
        (acme / "pack.json").write_text(json.dumps({**about, "requires-unhang": wanted}))
        ran = run("list", "--pack", acme)
        assert (ran.code, f"acme 1.2 is made for unhang {wanted}" in ran.err) == (code, code == 2), wanted


OUTSIDE = ["/etc/passwd.py", "verl/../../x.py", "../x.py", "verl//x.py", "swift/x.py", "verl.py", "verl/./x.py"]
OUTSIDE += [f"verl/{'a/' * 2000}x.py", f"verl/{'a' * 300}.py"]  # no system has such a path


@pytest.mark.parametrize("file", OUTSIDE)
def test_a_pack_names_no_file_outside_of_its_upstreams(file: str, acme: Path, site: Path) -> None:
    packed.retarget(acme, file)
    ran = run("apply", "--target", site, "--pack", acme)
    assert (code_of(ran), "nothing was changed" in ran.err or not (site / ".unhang").exists()) == ("bad-pack", True)


def test_a_link_in_a_target_leads_no_write_out_of_it(acme: Path, site: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside.py"
    (site / FILE).rename(outside)
    before = outside.read_bytes()
    (site / FILE).symlink_to(outside)
    run("apply", "--target", site, "--pack", acme, "--fix", ID)
    assert outside.read_bytes() == before
    (site / "verl/workers").rename(tmp_path / "workers")
    (site / "verl/workers").symlink_to(tmp_path / "workers")
    (tmp_path / "workers/utils/losses.py").unlink()
    shutil.copy(outside, tmp_path / "workers/utils/losses.py")
    run("apply", "--target", site, "--pack", acme, "--fix", ID)
    assert (tmp_path / "workers/utils/losses.py").read_bytes() == before


WRONG: dict[str, Callable[[str], str]] = {
    "no JSON": lambda text: text[:-5],
    "a key twice": lambda text: text.replace('"id":', '"id": "x", "id":'),
    "an unknown key": lambda text: text.replace('"id":', '"it": 1, "id":'),
    "another id": lambda text: text.replace(f'"{ID}"', '"another"'),
    "an escape sequence": lambda text: text.replace('"title": "', '"title": "\\u001b[31m'),
    "a line of a runner": lambda text: text.replace('"title": "', '"title": "::error::'),
    "text the wrong way round": lambda text: text.replace('"title": "', '"title": "\\u202e'),
    "a long title": lambda text: text.replace('"title": "', '"title": "' + "x" * 99),
    "another upstream": lambda text: text.replace('"verl"', '"nowhere"'),
    "nested deeply": lambda text: "[" * 100_000,
}


@pytest.mark.parametrize("what", WRONG)
def test_a_manifest_that_is_not_as_it_must_be_is_refused_by_name(what: str, acme: Path, site: Path) -> None:
    path = acme / "patches" / ID / "manifest.json"
    wrong = WRONG[what](path.read_text())
    assert wrong != path.read_text()
    path.write_text(wrong)
    ran = run("check", "--target", site, "--pack", acme)
    assert (code_of(ran), str(path) in ran.err) == ("bad-pack", True), ran.err
    assert not {"\x1b", "\u202e"} & {*ran.err}
    assert "\n::error::" not in ran.err


LOST: dict[str, Callable[[Path], object]] = {
    "nothing": lambda path: None,
    "a folder": Path.mkdir,
    "a pipe that nobody writes to": os.mkfifo,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a link to itself": lambda path: path.symlink_to(path),
}


@pytest.mark.parametrize("what", LOST)
def test_a_fix_without_its_manifest_is_not_left_out_in_silence(what: str, acme: Path, site: Path) -> None:
    path = acme / "patches" / ID / "manifest.json"
    path.unlink()
    LOST[what](path)
    ran = run("check", "--target", site, "--pack", acme)
    assert (code_of(ran), str(path) in ran.err) == ("bad-pack", True), ran.err


@pytest.mark.parametrize("what", LOST)
def test_facts_that_are_no_file_are_the_packs_error(what: str, acme: Path, site: Path) -> None:
    path = acme / "compat" / "data" / f"{ID}.json"
    path.unlink()
    LOST[what](path)
    ran = run("check", "--target", site, "--pack", acme)
    if what == "nothing":
        assert (ran.code, "drifted" in ran.out) == (1, True), "nothing is on record"
    else:
        assert (code_of(ran), str(path) in ran.err) == ("bad-pack", True), ran.err


def test_a_fix_whose_folder_is_lost_is_not_left_out_in_silence(acme: Path, site: Path) -> None:
    shutil.rmtree(acme / "patches")
    assert code_of(run("check", "--target", site, "--pack", acme)) == "bad-pack"


@pytest.mark.parametrize("named", ["--pack", "UNHANG_PACKS"])
@pytest.mark.parametrize("is_there", [True, False])
def test_a_pack_without_a_fix_is_no_gate_that_passes(is_there: bool, named: str, acme: Path, site: Path) -> None:
    shutil.rmtree(acme / "patches")
    shutil.rmtree(acme / "compat")
    if is_there:
        (acme / "patches" / "__pycache__").mkdir(parents=True)
    words, env = (("--pack", acme), None) if named == "--pack" else ((), {"UNHANG_PACKS": str(acme)})
    for command in ("check", "apply"):
        ran = run(command, "--target", site, *words, env=env)
        assert (code_of(ran), "there is no fix of acme 1.2" in ran.err) == ("bad-pack", True), ran.err


@pytest.mark.parametrize(
    "text", [None, "raise ValueError('\x1b[31m')", "raise SystemExit(0)", "1 +", "", "CODEMODS = []", "CODEMODS = None"]
)
def test_a_codemod_that_cannot_be_imported_is_the_packs_error(text: str | None, acme: Path, site: Path) -> None:
    path = acme / "codemods" / f"{ID.replace('-', '_')}.py"
    path.unlink()
    if text is not None:
        path.write_text(text)
    ran = run("apply", "--target", site, "--pack", acme, "--fix", ID)
    assert (code_of(ran), str(path) in ran.err) == ("bad-pack", True), ran.err
    assert "\x1b" not in ran.err
    if text is None:
        assert code_of(run("check", "--target", site, "--pack", acme, "--fix", ID)) == "bad-pack", "as far as it looks"


ENDS = [
    "raise SystemExit(0)",
    "raise KeyError",
    "class E(BaseException): pass\n        raise E",
    "1 / 0",
    "return self.plan(*_)",
]


@pytest.mark.parametrize("code", ENDS)
def test_a_codemod_that_raises_when_it_is_used_blocks_its_fix(code: str, acme: Path, site: Path) -> None:
    path = acme / "codemods" / f"{ID.replace('-', '_')}.py"
    text = path.read_text()
    (name,) = re.findall(r"^class (\w+)\(Codemod\)", text, re.M)
    path.write_text(
        f"{text}\n\nclass It({name}):\n    def plan(self, *_):\n        {code}\n\n\nCODEMODS['value_loss'] = It()\n"
    )
    before = cli.tree(site)
    ran = run("apply", "--target", site, "--pack", acme, "--fix", ID)
    assert (ran.code, "blocked: " in ran.err, "a bug in unhang" in ran.err) == (1, True, False), ran
    assert cli.tree(site) == before


def test_a_module_of_a_pack_is_made_from_its_source_alone(acme: Path, site: Path) -> None:
    path = acme / "codemods" / f"{ID.replace('-', '_')}.py"
    source = path.read_bytes()
    path.write_text("raise ValueError('of bytecode')")
    py_compile.compile(str(path), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    path.write_bytes(source)
    assert run("apply", "--target", site, "--pack", acme, "--fix", ID).code == 0
    shutil.rmtree(path.parent / "__pycache__")
    assert run("revert", "--target", site).code == 0
    ran = cli.installed("apply", "--target", site, "--pack", acme, "--fix", ID)
    assert (ran.code, (path.parent / "__pycache__").exists()) == (0, False), ran


def test_a_file_of_a_pack_has_a_largest_size(acme: Path, site: Path) -> None:
    for path in (
        acme / "pack.json",
        acme / "patches" / ID / "page.md",
        acme / "codemods" / f"{ID.replace('-', '_')}.py",
    ):
        data = path.read_bytes()
        with path.open("wb") as file:
            file.truncate(packs.LARGEST + 1)
        command = ("explain", ID) if path.suffix == ".md" else ("apply", "--target", site, "--fix", ID)
        ran = run(*command, "--pack", acme)
        assert (code_of(ran), f"it has more than 16 MiB\n  in: {path}\n" in ran.err) == ("bad-pack", True), ran
        path.write_bytes(data)


def test_a_wrong_pattern_in_a_manifest_is_the_packs_error(acme: Path, site: Path) -> None:
    place = {"upstream": "verl", "file": FILE}
    packed.change(acme, ID, **{"looks-at": {"pattern": "(", "files": [place]}})
    ran = run("check", "--target", site, "--pack", acme, "--fix", ID)
    assert (code_of(ran), "manifest.json" in ran.err) == ("bad-pack", True), ran


def test_the_facts_of_a_pack_are_checked_too(acme: Path, site: Path) -> None:
    path = acme / "compat" / "data" / f"{ID}.json"
    path.write_text(path.read_text().replace('"affected"', '"needed"'))
    assert code_of(run("check", "--target", site, "--pack", acme)) == "bad-pack"
    path.unlink()
    (found,) = run("check", "--target", site, "--pack", acme, "--fix", ID, "--output-format", "json").json["results"]
    assert found["verdict"] in ("drifted", "unlisted"), "nothing is on record"


def test_the_page_of_a_pack_does_nothing_on_a_terminal(acme: Path) -> None:
    (acme / "patches" / ID / "page.md").write_text("# A\n\x1b]0;title\x07\n::error::x\n")
    out = run("explain", ID, "--pack", acme).out
    assert "\\x1b]0;title\\x07" in out
    assert "\n::error" not in out


def test_a_pack_installed_beside_unhang_counts(acme: Path, site: Path, tmp_path: Path) -> None:
    env = make.make_env(tmp_path / "env")
    for name in ("codemods", "compat", "patches", "upstreams"):  # an editable install has these elsewhere
        shutil.copytree(packs.folder(name), env.site / "unhang" / name, dirs_exist_ok=True)
    packed.distribution(env.site, acme)
    check = ("-c", MAIN, "check", "--target", str(site))
    first, *_ = env.run(*check).splitlines()
    assert first == f"packs: acme 1.2 ({env.site / 'acme_pack'})"
    assert "packs: " not in env.run(*check, "--no-packs")
    shutil.rmtree(env.site / "acme_pack")
    assert "packs: " not in env.run(*check, "--no-packs")
    gone = env.run("-c", MAIN.replace("main(", "sys.stderr = sys.stdout; main(", 1), *check[2:])
    assert "error[no-pack]: there is no pack in this folder" in gone
    shutil.rmtree(env.site / "acme_pack-1.2.dist-info")
    assert "packs: " not in env.run(*check)
