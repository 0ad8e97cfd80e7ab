"""`unhang pack new --pack` and `pack sweep`: from a diff to a fix that fails loudly where it does not fit."""

import base64
import difflib
import hashlib
import io
import json
import re
import shlex
import shutil
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from support import cli, wheel_files, widgets
from support.widgets import DIFF, ENGINE, FILE, PATCHED


@pytest.fixture(autouse=True)
def _four_fixes() -> None:
    """These tests are about fixes of other packs, beside all of ours."""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return widgets.site(tmp_path)


def new(folder: Path, *more: Path | str, diff: str = DIFF, release: Path | str = "widgets==1.0") -> cli.Ran:
    (folder / "my.patch").write_text(diff, newline="")
    words = ("--pack", folder / "our-pack", "--upstream", release, "--from-patch", folder / "my.patch", *more)
    return cli.called_with_all("new", "my-fix", *words)


def ran(command: str, folder: Path, *more: Path | str) -> cli.Ran:
    return cli.called_with_all(command, "--pack", folder / "our-pack", *more)


def test_a_diff_becomes_a_gate(site: Path, tmp_path: Path) -> None:
    begun = new(tmp_path, "--target", site)
    assert begun.code == 0, begun.err
    pack = tmp_path / "our-pack"
    assert sorted(str(path.relative_to(pack)) for path in pack.rglob("*") if path.is_file()) == [
        "codemods/my_fix.py", "compat/data/my-fix.json", "pack.json", "patches/my-fix/manifest.json",
        "patches/my-fix/page.md", "upstreams/widgets.json",
    ]  # fmt: skip
    assert f"from {site}" in begun.out
    assert "my-fix is unproved: it is for exactly the shapes of widgets 1.0" in begun.err
    before = cli.tree(site)
    needed = ran("check", tmp_path, "--target", site, "--output-format", "json")
    assert needed.code == 1
    assert {(row["verdict"], row["grade"]) for row in needed.json["results"]} == {("needed", "unproved")}
    applied = ran("apply", tmp_path, "--target", site)
    assert applied.code == 0, applied.err
    assert "unproved: my-fix, from a diff alone; nobody has shown what it does" in applied.err
    text = (site / FILE).read_text()
    assert text.count("# unhang my-fix") == 5
    assert [row for row in text.splitlines() if "# unhang" not in row] == PATCHED.splitlines()
    compile(text, FILE, "exec")
    assert ran("check", tmp_path, "--target", site).code == 0
    assert ran("apply", tmp_path, "--target", site).code == 0
    assert ran("revert", tmp_path, "--target", site).code == 0
    assert cli.tree(site) == before


def test_it_is_unproved_everywhere(site: Path, tmp_path: Path) -> None:
    new(tmp_path, "--target", site)
    for command in ("list", "matrix"):
        assert "unproved" in ran(command, tmp_path, *(("--fix", "my-fix") if command == "matrix" else ())).out
    page = ran("explain", tmp_path, "my-fix").out
    assert "Grade: unproved." in page
    assert "nobody has shown what it does" in " ".join(page.split())
    assert "unproved" in ran("check", tmp_path, "--target", site).out


@pytest.mark.parametrize(
    ("old", "new_text", "why"),
    [
        ("LIMIT = 3", "LIMIT = 7", "unknown-shape"),
        ("return job.go(LIMIT)", "return job.go(1)", "unknown-shape"),
        ("class Engine", "class Other", "function-gone"),
        (None, None, "function-gone"),
    ],
)
def test_what_does_not_fit_fails_loudly(old: str | None, new_text: str, why: str, site: Path, tmp_path: Path) -> None:
    new(tmp_path, "--target", site)
    if old is None:
        (site / FILE).unlink()
    else:
        (site / FILE).write_text(ENGINE.replace(old, new_text))
    before = cli.tree(site)
    for command in ("check", "apply"):
        found = ran(command, tmp_path, "--target", site)
        assert found.code == 1
        assert "drifted" in found.out
    codes = {row["code"] for row in ran("check", tmp_path, "--target", site, "--output-format", "json").json["results"]}
    assert why in codes
    assert cli.tree(site) == before
    assert ran("apply", tmp_path, "--target", site, "--require", "my-fix").code == 1


def test_what_a_copy_has_already_is_not_needed_and_the_rest_is_written(site: Path, tmp_path: Path) -> None:
    new(tmp_path, "--target", site)
    (site / FILE).write_text(ENGINE.replace("LIMIT = 3", "LIMIT = 4"))
    before = cli.tree(site)
    found = ran("check", tmp_path, "--target", site, "--output-format", "json").json["results"]
    assert {(row["function"], row["verdict"]) for row in found if row["function"] == "line-4"} == {
        ("line-4", "fixed-upstream")
    }
    reverted = ran("revert", tmp_path, "--target", site)
    assert (reverted.code, "no receipt has" in reverted.err) == (1, False), "nothing of ours is there"
    assert ran("apply", tmp_path, "--target", site, "--require", "my-fix").code == 0
    assert [row for row in (site / FILE).read_text().splitlines() if "# unhang" not in row] == PATCHED.splitlines()
    assert ran("revert", tmp_path, "--target", site).code == 0
    assert cli.tree(site) == before


def test_the_release_is_a_wheel_or_that_of_the_environment(site: Path, tmp_path: Path) -> None:
    path = widgets.wheel(tmp_path / "other", "2.0")
    begun = new(tmp_path, release=path)
    assert begun.code == 0, begun.err
    assert "from widgets-2.0-py3-none-any.whl" in begun.out
    shutil.rmtree(tmp_path / "our-pack")
    (site / FILE).write_text(ENGINE.replace("# runs", "# mine"))
    refused = new(tmp_path, "--target", site)
    assert refused.code == 2
    assert "was edited since it was installed" in refused.err
    assert not (tmp_path / "our-pack").exists()


MORE = (
    "--- a/csrc/a.cu\n+++ b/csrc/a.cu\n@@ -1 +1 @@\n-a\n+b\n",
    "--- a/pyproject.toml\n+++ b/pyproject.toml\n@@ -1 +1 @@\n-a\n+b\n",
    "--- a/tests/test_a.py\n+++ b/tests/test_a.py\n@@ -1 +1 @@\n-a\n+b\n",
)
ADDED = "--- /dev/null\n+++ b/widgets/new.py\n@@ -0,0 +1 @@\n+a = 1\n"


def test_what_cannot_matter_is_left_out_and_told(site: Path, tmp_path: Path) -> None:
    refused = new(tmp_path, "--target", site, "--strict", diff="".join((DIFF, *MORE)))
    assert (refused.code, "error[patch-does-not-fit]" in refused.err) == (2, True), refused.err
    assert not (tmp_path / "our-pack").exists()
    begun = new(tmp_path, "--target", site, diff="".join((DIFF, *MORE)))
    assert begun.code == 0, begun.err
    for path in ("csrc/a.cu", "pyproject.toml", "tests/test_a.py"):
        assert f"left out: {path}: widgets 1.0 has no such file" in begun.err
    assert ran("apply", tmp_path, "--target", site, "--require", "my-fix").code == 0


def test_what_it_cannot_express_is_named_and_may_be_left_out(site: Path, tmp_path: Path) -> None:
    begun = new(tmp_path, "--target", site, diff=DIFF + ADDED)
    assert (begun.code, "left to you: widgets/new.py: the diff adds it" in begun.err) == (1, True), begun.err
    page = ran("explain", tmp_path, "my-fix").out
    assert "Not in this fix" in page
    assert "widgets&#47;new.py" in page or "widgets/new" in page, page[:900]
    shutil.rmtree(tmp_path / "our-pack")
    other = new(tmp_path, "--target", site, "--leave-out", "widgets/knew.py", diff=DIFF + ADDED)
    assert (other.code, "the diff has no widgets/knew.py" in other.err) == (2, True), other.err
    begun = new(tmp_path, "--target", site, "--leave-out", "widgets/new.py", diff=DIFF + ADDED)
    assert (begun.code, "left out: widgets/new.py: the diff adds it" in begun.err) == (0, True), begun.err
    assert ran("apply", tmp_path, "--target", site, "--require", "my-fix").code == 0


def test_code_that_binds_no_name_is_in_the_fix(site: Path, tmp_path: Path) -> None:
    begun = new(tmp_path, "--target", site, diff=widgets.diff(f"{PATCHED}register(main)\n"))
    assert begun.code == 0, begun.err
    assert ran("apply", tmp_path, "--target", site).code == 0
    assert (site / FILE).read_text().endswith("\nregister(main)\n")


def test_what_it_suggests_can_be_pasted(site: Path, tmp_path: Path) -> None:
    diff = widgets.diff(ENGINE.replace('"widgets"', '"/opt/a b/python"'))
    begun = new(tmp_path, "--target", site, "--set", "PY=/opt/a b/python", diff=diff)
    check, sweep = (shlex.split(it) for it in re.findall("`(unhang [^`]+)`", begun.err))
    pack = ["--pack", str(tmp_path / "our-pack")]
    assert check == ["unhang", "check", "--target", str(site), *pack, "--set", "PY=/opt/a b/python"]
    assert cli.called_with_all(*check[1:]).code == 1
    assert sweep == ["unhang", "pack", "sweep", *pack, "--releases", "widgets==1.0"]
    assert cli.called_with_all(*sweep[1:], "--target", site).code == 0


@pytest.mark.parametrize(("old", "code"), [("job.go", "records it in the pack"), ("LIMIT)", "begin the fix again")])
def test_drift_says_what_the_keeper_of_a_pack_can_do(old: str, code: str, site: Path, tmp_path: Path) -> None:
    """And nothing of a scene, which such a fix does not have."""
    new(tmp_path, "--target", site, diff=widgets.diff(ENGINE.replace("LIMIT)", "LIMIT, 2)")))
    text = ENGINE.replace("# runs", "log(job)") if old == "job.go" else ENGINE.replace(old, "LIMIT, 1)")
    (site / FILE).write_text(text)
    drifted = ran("apply", tmp_path, "--target", site, "--require", "my-fix")
    assert drifted.code == 1
    assert code in drifted.out
    assert "--run" not in drifted.out + drifted.err
    assert "--run" not in ran("diff", tmp_path, "--target", site, "--unknown").err


def test_a_codemod_that_was_edited_is_refused_until_it_is_swept_again(site: Path, tmp_path: Path) -> None:
    assert new(tmp_path, "--target", site).code == 0
    here, pack, before = ("--target", site), tmp_path / "our-pack", cli.tree(site)
    path, build = pack / "codemods" / "my_fix.py", ("pack", "build", pack, "-o", tmp_path / "dist")
    text = path.read_text()
    path.write_text(text.replace("\n            old", "\n      old").replace("CODEMODS", "# mine\nCODEMODS"))
    manifest = pack / "patches" / "my-fix" / "manifest.json"
    manifest.write_text(manifest.read_text().replace("TODO", "It is done"))
    assert ran("check", tmp_path, *here).code == 1, "only its layout"
    path.write_text(text.replace("LIMIT = 4", "LIMIT = 5"))
    for found in (ran("check", tmp_path, *here), ran("apply", tmp_path, *here), cli.called_with_all(*build)):
        assert (found.code, f"in: {path}\n" in found.err, "it was edited since" in found.err) == (2, True, True), found
    assert cli.tree(site) == before
    swept = ran("sweep", tmp_path, *here)
    assert (swept.code, "its codemod was edited: its record starts again from nothing" in swept.err) == (0, True), swept
    assert cli.called_with_all(*build).code == 0
    assert ran("apply", tmp_path, *here).code == 0
    assert "LIMIT = 5" in (site / FILE).read_text()
    path.write_text(text)
    for command in "check", "apply":
        found = ran(command, tmp_path, *here)
        assert (found.code, "it was edited since" in found.err) == (2, True), "although the edit of it is in place"
    assert ran("revert", tmp_path, *here).code == 0
    assert cli.tree(site) == before, "it does not ask the codemod"


@pytest.mark.parametrize(
    "wrong", ["Swap((1,), (), (), ())", "Swap(('a',), ('b',), 1, ())", "(('a',), (), (), ())", "7"]
)
def test_a_wrong_edit_is_the_packs_error(wrong: str, site: Path, tmp_path: Path) -> None:
    assert new(tmp_path, "--target", site).code == 0
    pack = tmp_path / "our-pack"
    path, data = pack / "codemods" / "my_fix.py", pack / "compat" / "data" / "my-fix.json"
    path.write_text(re.sub(r"Exact\(", f"Exact({wrong}, ", path.read_text(), count=1))
    known = json.loads(data.read_text())
    data.write_text(json.dumps({key: known[key] for key in known if key != "codemod"}))
    found = ran("apply", tmp_path, "--target", site)
    assert (found.code, "error[bad-pack]" in found.err, f"in: {path}\n" in found.err) == (2, True, True), found
    manifest = pack / "patches" / "my-fix" / "manifest.json"
    manifest.write_text(manifest.read_text().replace("TODO", "It is done"))
    built = cli.called_with_all("pack", "build", pack, "-o", tmp_path / "dist")
    assert (built.code, "it does not say which codemod gave its results" in built.err) == (2, True), built


def test_a_fix_that_has_its_diff_in_part_is_never_applied(site: Path, tmp_path: Path) -> None:
    """Not while nobody has said that the rest is done; and who has the pack is told what that is."""
    added = "--- /dev/null\n+++ b/widgets/new.py\n@@ -0,0 +1 @@\n+a = 1\n"
    assert new(tmp_path, "--target", site, diff=DIFF + added).code == 1
    before, here, left = cli.tree(site), ("--target", site), "widgets/new.py: the diff adds it"
    path = tmp_path / "our-pack" / "patches" / "my-fix" / "manifest.json"
    for command in ("check", "apply", "overlay"):
        words = (tmp_path / "out",) if command == "overlay" else ()
        found = ran(command, tmp_path, *words, *here, "--fix", "my-fix")
        assert (found.code, cli.tree(site) == before) == (1, True), command
        assert f"the fix has its diff in part, and nothing of it is written; left to you: {left}" in found.out
        assert f"remove it from `left` in {path}" in found.out
        assert "next, on every node" not in found.out
    rows = ran("check", tmp_path, *here, "--output-format", "json").json["results"]
    assert {(row["verdict"], row["code"], *row["left"]) for row in rows} == {("drifted", "incomplete", left)}
    assert "it has its diff in part" in ran("list", tmp_path).out
    listed = ran("list", tmp_path, "--output-format", "json").json["fixes"]
    assert [row["left"] for row in listed if "left" in row] == [[left]]
    built = cli.called_with_all("pack", "build", tmp_path / "our-pack", "-o", tmp_path / "dist")
    assert (built.code, "error[bad-pack]" in built.err, left in built.err) == (2, True, True)
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps(manifest | {"left": []}))
    assert ran("apply", tmp_path, *here, "--dry-run").code == 0, "none is left"
    path.write_text(json.dumps({key: manifest[key] for key in manifest if key != "left"}))
    assert ran("apply", tmp_path, *here).code == 0
    rows = ran("check", tmp_path, *here, "--output-format", "json").json["results"]
    assert {("left" in row, row["verdict"]) for row in rows} == {(False, "applied")}
    path.write_text(json.dumps(manifest))
    found = ran("check", tmp_path, *here)
    assert (found.code, "in part, and this is in place; left to you:" in found.out) == (1, True), "as any other day"
    assert ran("revert", tmp_path, *here).code == 0
    assert cli.tree(site) == before


def test_texts_of_a_diff_do_nothing(site: Path, tmp_path: Path) -> None:
    head = "Subject: [PATCH] \x1b[31m ::error::a \u202e ##[b]\n\n"
    diff = widgets.diff(ENGINE.replace('"widgets"', "\"''' + \\x1b {exec} ${A}\""))
    begun = new(tmp_path, "--target", site, diff=head + diff)
    assert begun.code == 0, begun.err
    for ran_ in (
        begun,
        ran("list", tmp_path),
        ran("explain", tmp_path, "my-fix"),
        ran("check", tmp_path, "--target", site),
    ):
        assert not {"\x1b", "\u202e"} & {*ran_.out, *ran_.err}
        assert " ::error::" not in ran_.out + ran_.err
    assert ran("apply", tmp_path, "--target", site).code == 0
    assert """print("\'\'\' + \\x1b {exec} ${A}")""" in (site / FILE).read_text()


def test_a_second_fix_of_the_pack(site: Path, tmp_path: Path) -> None:
    new(tmp_path, "--target", site)
    again = new(tmp_path, "--target", site)
    assert again.code == 2
    assert "fix-exists" in again.err
    (shown,) = (shlex.split(it) for it in re.findall("`(unhang explain [^`]+)`", again.err))
    assert cli.called_with_all(*shown[1:]).code == 0, shown
    (tmp_path / "b.patch").write_text(widgets.diff(ENGINE.replace('"widgets"', '"w"')))
    words = ("--upstream", "widgets==1.0", "--from-patch", tmp_path / "b.patch", "--target", site)
    other = cli.called_with_all("new", "their-fix", "--pack", tmp_path / "our-pack", *words)
    assert other.code == 0, other.err
    assert ran("apply", tmp_path, "--target", site).code == 0
    assert {"# unhang my-fix: unproved", "# unhang their-fix: unproved"} <= {
        row.strip() for row in (site / FILE).read_text().splitlines()
    }
    assert ran("revert", tmp_path, "--target", site, "--fix", "my-fix").code == 0
    text = (site / FILE).read_text()
    assert "my-fix" not in text
    assert 'print("w")' in text


def test_an_import_that_another_fix_has_made_is_there(site: Path, tmp_path: Path) -> None:
    """And stays when that one is taken back. Where the lines around it are others, nothing is written."""
    new(tmp_path, "--target", site)
    (tmp_path / "b.patch").write_text(
        widgets.diff(ENGINE.replace("import os", "import os\nimport sys").replace('"widgets"', "sys.argv"))
    )
    words = ("--upstream", "widgets==1.0", "--from-patch", tmp_path / "b.patch", "--target", site)
    assert cli.called_with_all("new", "their-fix", "--pack", tmp_path / "our-pack", *words).code == 0
    before = cli.tree(site)
    assert ran("apply", tmp_path, "--target", site, "--fix", "my-fix").code == 0
    assert ran("apply", tmp_path, "--target", site).code == 0
    assert (site / FILE).read_text().count("import sys") == 1
    assert ran("check", tmp_path, "--target", site).code == 0
    assert ran("revert", tmp_path, "--target", site, "--fix", "my-fix").code == 0
    assert (site / FILE).read_text().count("import sys") == 1
    rows = ran("check", tmp_path, "--target", site, "--output-format", "json").json["results"]
    assert {(row["fix"], row["verdict"]) for row in rows if row["fix"] == "their-fix"} == {("their-fix", "applied")}
    kept = cli.tree(site)
    refused = ran("apply", tmp_path, "--target", site, "--require", "my-fix")
    assert (refused.code, cli.tree(site) == kept, "missing or not unique" in refused.out) == (1, True, True), refused
    assert ran("revert", tmp_path, "--target", site).code == 0
    assert cli.tree(site) == before


def test_a_sweep_records_where_the_edits_fit(site: Path, tmp_path: Path) -> None:
    new(tmp_path, "--target", site)
    moved = ENGINE.replace("go(LIMIT)\n", "go(LIMIT)\n        log(job)\n") + "OTHER = 1\n"
    paths = [
        widgets.wheel(tmp_path / "w", "1.1", moved),
        widgets.wheel(tmp_path / "w", "1.2", PATCHED),
        widgets.wheel(tmp_path / "w", "1.3", ENGINE.replace("LIMIT = 3", "LIMIT = 5")),
    ]
    swept = ran("sweep", tmp_path, "--releases", *paths)
    assert swept.code == 1
    assert "my-fix: widgets 1.1 (widgets-1.1-py3-none-any.whl): fits, 1 new shape" in swept.out
    assert "widgets 1.2 (widgets-1.2-py3-none-any.whl): upstream has every edit" in swept.out
    assert "widgets 1.3 (widgets-1.3-py3-none-any.whl): does not fit, and nothing of it is recorded" in swept.err
    assert f"{FILE}  line-4: the diff's lines are missing or not unique (not found: LIMIT = 3)" in swept.err
    for version, engine, verdict in ("1.1", moved, "needed"), ("1.2", PATCHED, "fixed-upstream"):
        there = widgets.site(tmp_path / version, version, engine)
        found = ran("check", tmp_path, "--target", there, "--output-format", "json").json["results"]
        assert {row["verdict"] for row in found} == {verdict}, version
    assert ran("check", tmp_path, "--target", site).code == 1
    assert ran("apply", tmp_path, "--target", site).code == 0
    assert ran("check", tmp_path, "--target", site).code == 0
    table = ran("matrix", tmp_path, "--fix", "my-fix").out
    assert "1.0 to 1.1" in table


def test_a_sweep_of_a_patched_copy_records_nothing(site: Path, tmp_path: Path) -> None:
    new(tmp_path, "--target", site)
    data = tmp_path / "our-pack" / "compat" / "data" / "my-fix.json"
    before = json.loads(data.read_text())
    assert ran("apply", tmp_path, "--target", site).code == 0
    swept = ran("sweep", tmp_path, "--target", site)
    assert "nothing is recorded" in swept.err or "not recorded" in swept.err
    assert json.loads(data.read_text()) == before


def test_a_folder_that_is_no_pack_is_left_alone(site: Path, tmp_path: Path) -> None:
    (tmp_path / "our-pack").mkdir()
    (tmp_path / "our-pack" / "mine").touch()
    refused = new(tmp_path, "--target", site)
    assert refused.code == 2
    assert "no-pack" in refused.err
    assert [path.name for path in (tmp_path / "our-pack").iterdir()] == ["mine"]
    assert ran("sweep", tmp_path).code == 2


def test_an_edited_copy_can_be_looked_at_and_accepted(site: Path, tmp_path: Path) -> None:
    new(tmp_path, "--target", site)
    (site / FILE).write_text(ENGINE.replace("go(LIMIT)\n", "go(LIMIT)\n        log(job)\n"))
    before = cli.tree(site)
    shown = ran("diff", tmp_path, "--target", site, "--unknown", "--run")
    assert shown.code == 1, shown.err
    assert "+        return job.go(LIMIT, sys.argv, again)" in shown.out
    assert "my-fix: the rewrite assumes: what the diff does; it is unproved" in shown.out
    (token,) = {word for word in shown.out.split() if re.fullmatch("[0-9a-f]{16}-[0-9]+-[0-9a-f]{16}", word)}
    assert ran("apply", tmp_path, "--target", site, "--accept", token).code == 0
    assert ran("check", tmp_path, "--target", site, "--accept", token).code == 0
    assert ran("revert", tmp_path, "--target", site).code == 0
    assert cli.tree(site) == before


def test_a_token_is_of_one_fix_alone(site: Path, tmp_path: Path) -> None:
    """A function that two packs change: what a person accepted of one of them says nothing of the other."""
    new(tmp_path, "--target", site, diff=widgets.diff(ENGINE.replace("LIMIT)", "LIMIT, 2)")))
    (tmp_path / "b.patch").write_text(widgets.diff(ENGINE.replace("(self, job)", "(self, job, n=1)")))
    words = ("--upstream", "widgets==1.0", "--from-patch", tmp_path / "b.patch", "--target", site)
    theirs, here = ("--pack", tmp_path / "theirs"), ("--target", site)
    assert cli.called_with_all("new", "their-fix", *theirs, *words).code == 0
    assert ran("apply", tmp_path, *here).code == 0
    shown = cli.called_with_all("diff", *theirs, *here, "--unknown").out
    (token,) = {word for word in shown.split() if re.fullmatch("[0-9a-f]{16}-[0-9]+-[0-9a-f]{16}", word)}
    before = cli.tree(site)
    refused = ran("apply", tmp_path, *theirs, *here, "--accept", token)
    assert (refused.code, "my-fix is in place in this function" in refused.out + refused.err) == (1, True)
    assert cli.tree(site) == before
    assert cli.called_with_all("apply", *theirs, *here, "--accept", token).code == 0, "without that pack"
    found = ran("check", tmp_path, *theirs, *here, "--accept", token, "--output-format", "json")
    rows = {row["fix"]: (row["verdict"], row["code"]) for row in found.json["results"]}
    assert (found.code, rows["my-fix"]) == (1, ("drifted", "unknown-shape"))
    assert rows["their-fix"] == ("drifted", "accepted")


def test_the_lines_of_a_fix_are_taken_back_beside_an_edit(site: Path, tmp_path: Path) -> None:
    diff = widgets.diff(PATCHED.replace("Any, Dict, List", "Any, List").replace("Dict[str, Any]", "dict"))
    new(tmp_path, "--target", site, diff=diff)
    assert ran("apply", tmp_path, "--target", site).code == 0
    text = (site / FILE).read_text()
    (site / FILE).write_text(text.replace("def main", "MINE = 1\n\n\ndef main"))
    assert ran("check", tmp_path, "--target", site).code == 0
    assert ran("revert", tmp_path, "--target", site).code == 0
    assert (site / FILE).read_text() == ENGINE.replace("def main", "MINE = 1\n\n\ndef main")


def test_a_value_of_the_environment_is_a_parameter(site: Path, tmp_path: Path) -> None:
    diff = widgets.diff(ENGINE.replace('print("widgets")', 'exec("/opt/a/python", "-m")'))
    begun = new(tmp_path, "--target", site, "--set", "PYTHON=/opt/a/python", diff=diff)
    assert begun.code == 0, begun.err
    assert '"${PYTHON}"' in (tmp_path / "our-pack" / "codemods" / "my_fix.py").read_text().replace("\\", "")
    assert "/opt/a" not in (tmp_path / "our-pack" / "codemods" / "my_fix.py").read_text()
    before = cli.tree(site)
    blocked = ran("apply", tmp_path, "--target", site)
    assert blocked.code == 1
    assert "--set PYTHON=VALUE" in blocked.out + blocked.err
    assert cli.tree(site) == before
    mine = ("--set", 'PYTHON=/home/it\'s "mine"/python')
    needed = ran("check", tmp_path, "--target", site, *mine)
    assert needed.code == 1
    assert ran("apply", tmp_path, "--target", site, *mine).code == 0
    assert """exec("/home/it\\'s \\"mine\\"/python", "-m")""" in (site / FILE).read_text()
    (receipt,) = json.loads((site / ".unhang" / "receipt.json").read_text())["files"]
    assert receipt["fixes"][0]["values"] == 'PYTHON=/home/it\'s "mine"/python'
    digests = []
    for value, code in (mine, 0), (("--set", "PYTHON=/other"), 1), ((), 1):
        found = ran("check", tmp_path, "--target", site, "--output-format", "json", *value)
        assert found.code == code
        digests.append(found.json["digest"])
    assert digests[0] == digests[1], "it is of the code, which has the value"
    again = ran("apply", tmp_path, "--target", site, *mine)
    assert (again.code, "nothing was changed" in again.err) == (0, True)
    assert ran("revert", tmp_path, "--target", site).code == 0
    assert cli.tree(site) == before
    for wrong in "python=1", "PYTHON", "PYTHON=":
        assert ran("check", tmp_path, "--target", site, "--set", wrong).code == 2


@pytest.mark.parametrize("text", ['f"{1} /opt/a/python"', 'b"/opt/a/python -m"', 'rf"/opt/a/python{1}"'])
def test_a_parameter_may_be_in_any_kind_of_string(text: str, site: Path, tmp_path: Path) -> None:
    diff = widgets.diff(ENGINE.replace('"widgets"', text))
    begun = new(tmp_path, "--target", site, "--set", "PY=/opt/a/python", diff=diff)
    assert begun.code == 0, begun.err
    mine = ("--target", site, "--set", "PY=/usr/bin/python3")
    assert ran("apply", tmp_path, *mine, "--require", "my-fix").code == 0
    assert text.replace("/opt/a/python", "/usr/bin/python3") in (site / FILE).read_text()
    assert ran("check", tmp_path, *mine).code == 0
    assert ran("check", tmp_path, "--target", site, "--set", "PY=/other").code == 1


def test_a_value_that_its_string_cannot_hold_is_refused(site: Path, tmp_path: Path) -> None:
    diff = widgets.diff(ENGINE.replace('"widgets"', 'r"/opt/a/python", f"{1} /opt/a/python"'))
    assert new(tmp_path, "--target", site, "--set", "PY=/opt/a/python", diff=diff).code == 0
    before = cli.tree(site)
    refused = ran("apply", tmp_path, "--target", site, "--set", 'PY=/a"b', "--require", "my-fix")
    assert (refused.code, cli.tree(site) == before) == (1, True)
    assert """the value '/a"b' cannot stand where PY does: its string cannot hold it""" in refused.err
    assert ran("apply", tmp_path, "--target", site, "--set", "PY=/a{b}", "--require", "my-fix").code == 0
    assert 'r"/a{b}", f"{1} /a{{b}}"' in (site / FILE).read_text()
    assert ran("check", tmp_path, "--target", site, "--set", "PY=/a{b}").code == 0


@pytest.mark.parametrize(
    ("code", "written"),
    [('"{} /opt/a/python".format(1)', '"{} /a{{b}}%".format(1)'), ('"%s /opt/a/python" % 1', '"%s /a{b}%%" % 1')],
)
def test_a_value_in_a_template_is_written_as_it_wants_it(code: str, written: str, site: Path, tmp_path: Path) -> None:
    diff = widgets.diff(ENGINE.replace('"widgets"', code))
    assert new(tmp_path, "--target", site, "--set", "PY=/opt/a/python", diff=diff).code == 0
    mine = ("--target", site, "--set", "PY=/a{b}%")
    assert ran("apply", tmp_path, *mine, "--require", "my-fix").code == 0
    assert written in (site / FILE).read_text()
    assert [ran("check", tmp_path, *mine).code, ran("check", tmp_path, *mine[:2], "--set", "PY=/a").code] == [0, 1]
    (site / FILE).write_text(
        (site / FILE).read_text().replace(written, written.replace("{{b}}", "{b}").replace("%%", "%"))
    )
    assert ran("check", tmp_path, *mine).code == 1, "the value as it is would be a part of the template"


def test_a_value_that_is_code_is_no_parameter(site: Path, tmp_path: Path) -> None:
    for code, why in ("= 42", "outside of a string"), ('= f"{3:42}"', "in a format spec, which is no text"):
        refused = new(tmp_path, "--target", site, "--set", "N=42", diff=widgets.diff(ENGINE.replace("= 3", code)))
        assert (refused.code, f"the value '42' cannot stand where N does: it stands {why}" in refused.err) == (2, True)
        assert "inside of strings alone" in refused.err
    assert not (tmp_path / "our-pack").exists()


def test_a_package_of_another_name_than_its_project(tmp_path: Path) -> None:
    refused = new(tmp_path, "--import-name", "gadgets", release=widgets.wheel(tmp_path))
    assert (refused.code, "it has widgets; leave out --import-name" in refused.err) == (2, True)
    assert not (tmp_path / "our-pack").exists()


@pytest.mark.parametrize("where", ["wheel", "environment"])
def test_modules_of_one_file_and_several_packages_are_found_by_record(where: str, tmp_path: Path) -> None:
    """Whatever their letter case; the release that has them is read as it is, and put back to the byte."""
    info = "Yaml_Tools-1.0.dist-info"
    texts = {
        "Yaml_Tools/__init__.py": "A = 1\n",
        "one_file.py": "B = 1\n",
        "other/x.py": "C = 1\n",
        "other/d.json": '["D"]',
    }
    files = {name: text.encode() for name, text in texts.items()} | {"other/__init__.py": b""}
    files |= {
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: Yaml-Tools\nVersion: 1.0\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\n",
    }
    path = wheel_files.made(tmp_path, "Yaml_Tools-1.0-py3-none-any.whl", files)
    there = tmp_path / "there"
    with zipfile.ZipFile(path) as archive:
        archive.extractall(there)
    rows = [(name, hashlib.sha256(data).digest(), len(data)) for name, data in files.items()]
    lines = [f"{it},sha256={base64.urlsafe_b64encode(sha).rstrip(b'=').decode()},{size}" for it, sha, size in rows]
    (there / info / "RECORD").write_text("\n".join([*lines, f"{info}/RECORD,,", ""]))
    diff = "".join(
        f"--- a/{name}\n+++ b/{name}\n@@ -1 +1 @@\n-{text.strip()}\n{end}+{text.strip()} \n{end}"
        for name, text in texts.items()
        for end in ["" if text.endswith("\n") else "\\ No newline at end of file\n"]
    )
    words = () if where == "wheel" else ("--target", there)
    begun = new(tmp_path, *words, diff=diff, release=path if where == "wheel" else "Yaml-Tools==1.0")
    assert begun.code == 0, begun.err
    before = cli.tree(there)
    assert ran("check", tmp_path, "--target", there).code == 1
    assert ran("apply", tmp_path, "--target", there, "--require", "my-fix").code == 0
    for name, text in texts.items():
        kept = [row for row in (there / name).read_text().splitlines() if "# unhang" not in row]
        assert kept == [f"{text.strip()} "], name
    assert ran("check", tmp_path, "--target", there).code == 0
    assert ran("revert", tmp_path, "--target", there).code == 0
    assert cli.tree(there) == before


def test_edits_that_do_not_work_together_have_a_reason(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unhang.draft.pack_texts.literal", lambda text: repr(text.replace("LIMIT, sys", "3, sys")))
    refused = new(tmp_path, "--target", site)
    assert refused.code == 2
    assert "do not work together: read again from their file, those of" in refused.err
    assert not (tmp_path / "our-pack").exists()


def test_a_package_below_two_namespaces(tmp_path: Path) -> None:
    site = tmp_path / "venv" / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
    venv.create(tmp_path / "venv", symlinks=True)
    shutil.copytree(widgets.site(tmp_path), site, dirs_exist_ok=True)
    (site / "a" / "b").mkdir(parents=True)
    (site / "widgets").rename(site / "a" / "b" / "widgets")
    record = site / "widgets-1.0.dist-info" / "RECORD"
    record.write_text(re.sub("^widgets/", "a/b/widgets/", record.read_text(), flags=re.M))
    where = ("--python", tmp_path / "venv" / "bin" / "python")
    begun = new(tmp_path, *where, "--import-name", "a.b.widgets", diff=DIFF.replace("/src/", "/a/b/"))
    assert begun.code == 0, begun.err
    for command, code in ("check", 1), ("apply", 0), ("check", 0), ("revert", 0):
        assert ran(command, tmp_path, *where).code == code
    assert (site / "a" / "b" / FILE).read_text() == ENGINE


def test_an_import_that_a_person_added_is_completed_and_stays_when_that_is_reverted(site: Path, tmp_path: Path) -> None:
    text = ENGINE.replace("import os\n", "import os\nimport sys\n").replace("go(LIMIT)", "go(sys.argv)")
    assert new(tmp_path, "--target", site, diff=widgets.diff(text)).code == 0
    (site / FILE).write_text(ENGINE.replace("import os\n", "import os\nimport sys\n"))
    before = cli.tree(site)
    assert ran("apply", tmp_path, "--target", site).code == 0
    reverted = ran("revert", tmp_path, "--target", site)
    assert (reverted.code, "no receipt has its original bytes" in reverted.err) == (0, False), reverted
    assert cli.tree(site) == before
    assert ran("check", tmp_path, "--target", site).code == 1, "needed, as before"


def test_a_revert_without_the_pack_says_what_it_does(site: Path, tmp_path: Path) -> None:
    assert new(tmp_path, "--target", site).code == 0
    before = cli.tree(site)
    assert ran("apply", tmp_path, "--target", site).code == 0
    reverted = cli.called_with_all("revert", "--target", site)
    assert (reverted.code, cli.tree(site) == before) == (0, True), reverted
    assert "reverted, also of packs that are not in effect: my-fix (our-pack 0.1)" in reverted.err
    assert reverted.out.splitlines()[-1].startswith("nothing to judge")


@pytest.mark.parametrize("end", ["", "\n"], ids=["before and after", "before alone"])
def test_a_file_that_ends_without_a_newline(end: str, tmp_path: Path) -> None:
    before = ENGINE.removesuffix("\n")
    site, mark = widgets.site(tmp_path, "1.0", before), "\n\\ No newline at end of file\n"
    diff = widgets.diff(before.replace('"widgets"', '"gears"') + end, before)
    diff = diff.replace('-    print("widgets")+', f'-    print("widgets"){mark}+').removesuffix("\n")
    begun = new(tmp_path, "--target", site, diff=diff + ("\n" if end else mark))
    assert begun.code == 0, begun.err
    kept = cli.tree(site)
    assert ran("apply", tmp_path, "--target", site).code == 0
    assert (site / FILE).read_text().endswith(f'    print("gears"){end}')
    assert ran("revert", tmp_path, "--target", site).code == 0
    assert cli.tree(site) == kept


def test_a_record_without_a_hash_is_no_edit(site: Path, tmp_path: Path) -> None:
    (record,) = site.glob("*.dist-info/RECORD")
    record.write_text(re.sub(rf"(?m)^{FILE},.*$", f"{FILE},,", record.read_text()))
    refused = new(tmp_path, "--target", site)
    assert (refused.code, "error[patch-does-not-fit]" in refused.err) == (2, True)
    assert f"{FILE} has no sha256 and size in the RECORD of its package" in refused.err


@pytest.mark.parametrize("start", ["../../..", "/etc", "./.", "widgets/.."])
def test_a_path_that_leads_out_of_its_folder_is_no_file_of_the_release(start: str, site: Path, tmp_path: Path) -> None:
    refused = new(tmp_path, "--target", site, diff=widgets.diff(PATCHED).replace(f"src/{FILE}", f"{start}/{FILE}"))
    assert (refused.code, "widgets 1.0 has no such file" in refused.err) == (2, True), refused.err


def test_diffs_of_one_file_are_applied_in_order(site: Path, tmp_path: Path) -> None:
    texts = [ENGINE, *(ENGINE.replace("job.go(LIMIT)", text) for text in ("job.go(1)", "job.go(2)"))]
    two = [widgets.diff(after, before) for before, after in zip(texts, texts[1:])]
    refused = new(tmp_path, "--target", site, diff="".join(reversed(two)))
    assert (refused.code, "error[patch-does-not-fit]" in refused.err) == (2, True), refused.err
    assert new(tmp_path, "--target", site, diff="".join(two)).code == 0
    assert ran("apply", tmp_path, "--target", site).code == 0
    assert "return job.go(2)" in (site / FILE).read_text()


def test_crlf_stays(tmp_path: Path) -> None:
    site = widgets.site(tmp_path, "1.0", ENGINE.replace("\n", "\r\n"))
    begun = new(tmp_path, "--target", site, diff=DIFF.replace("\n", "\r\n"))
    assert begun.code == 0, begun.err
    assert ran("apply", tmp_path, "--target", site).code == 0
    data = (site / FILE).read_bytes()
    assert data.count(b"\n") == data.count(b"\r\n") > 20


def test_a_value_that_a_shell_did_not_fill_is_not_taken_for_another_one(site: Path, tmp_path: Path) -> None:
    diff = widgets.diff(ENGINE.replace('"widgets"', '"/opt/a/python"'))
    assert new(tmp_path, "--target", site, "--set", "PY=/opt/a/python", diff=diff).code == 0
    assert ran("apply", tmp_path, "--target", site, "--set", "PY=${PY}").code == 0
    assert ran("check", tmp_path, "--target", site, "--set", "PY=/opt/a/python").code == 1
    assert ran("check", tmp_path, "--target", site).code == 1


def test_a_value_that_the_function_has_itself_is_told_from_the_fixs(site: Path, tmp_path: Path) -> None:
    shutil.rmtree(site)
    old, added = (ENGINE.replace('"widgets"', f'{text}"mean of it"') for text in ("", '"/opt/a/python", '))
    site, diff = widgets.site(tmp_path, engine=old), widgets.diff(added, old)
    assert new(tmp_path, "--target", site, "--set", "PY=/opt/a/python", diff=diff).code == 0
    before = cli.tree(site)
    for value in ("mean", "/mean"):
        assert ran("apply", tmp_path, "--target", site, "--set", f"PY={value}").code == 0
        assert f'print("{value}", "mean of it")' in (site / FILE).read_text()
        assert ran("check", tmp_path, "--target", site, "--set", f"PY={value}").code == 0
        assert ran("check", tmp_path, "--target", site, "--set", "PY=/other").code == 1
        assert ran("revert", tmp_path, "--target", site).code == 0
        assert cli.tree(site) == before


def test_a_value_twice_and_a_name_that_no_fix_has_are_refused(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    diff = widgets.diff(ENGINE.replace('"widgets"', '"/opt/a/python"'))
    assert new(tmp_path, "--target", site, "--set", "PY=/opt/a/python", diff=diff).code == 0
    twice = ran("check", tmp_path, "--target", site, "--set", "PY=/a", "--set", "PY=/b")
    assert (twice.code, "PY has two values: '/a', '/b'" in twice.err) == (2, True), twice
    assert ran("check", tmp_path, "--target", site, "--set", "PY=/a", "--set", "PY=/a").code == 1
    unknown = ran("check", tmp_path, "--target", site, "--set", "PYY=/a")
    assert (unknown.code, "no fix in effect has a parameter PYY" in unknown.err) == (2, True), unknown
    assert "known: PY\n" in unknown.err
    monkeypatch.setenv("UNHANG_SET", "PY=/a\nOF_ANOTHER_PACK=/b")
    found = ran("check", tmp_path, "--target", site)
    assert (found.code, "--set PY=/a" in found.out, "OF_ANOTHER" in found.out) == (1, True, False), found
    assert "--set PY=/c" in ran("check", tmp_path, "--target", site, "--set", "PY=/c").out, "an option wins"


def test_what_a_fix_takes_out_is_not_in_place_where_it_has_another_name(site: Path, tmp_path: Path) -> None:
    assert new(tmp_path, "--target", site, diff=widgets.diff(ENGINE.replace("LIMIT = 3\n", "# gone\n"))).code == 0
    assert ran("apply", tmp_path, "--target", site).code == 0
    assert ran("check", tmp_path, "--target", site).code == 0
    assert ran("revert", tmp_path, "--target", site).code == 0
    (site / FILE).write_text(ENGINE.replace("LIMIT = 3", "LIMIT_ = 3"))
    before = cli.tree(site)
    assert ran("apply", tmp_path, "--target", site, "--require", "my-fix").code == 1
    assert cli.tree(site) == before


@pytest.mark.parametrize("where", ["if typing.TYPE_CHECKING:", "if 0:", 'if __name__ == "__main__":', "with LOCK:"])
@pytest.mark.parametrize("old", ["import os\n", 'def main():\n    print("widgets")\n', "    size: int = 1\n"])
def test_what_stands_in_another_block_than_on_record_is_unknown(
    where: str, old: str, site: Path, tmp_path: Path
) -> None:
    """What is added would follow its neighbour there, and what is there already may never run."""
    new_lines = {"i": "import queue\n", "d": "\n\ndef stop():\n    pass\n", " ": "    names = ()\n"}[old[0]]
    assert new(tmp_path, "--target", site, diff=widgets.diff(ENGINE.replace(old, old + new_lines))).code == 0
    gap = "    " if old[0] == " " else ""

    def below(lines: str) -> str:
        rows = [f"    {row}".rstrip() for row in lines.splitlines()]
        return "\n".join((gap + where, *rows, ""))

    for text in (ENGINE.replace(old, below(old)), ENGINE.replace(old, old + below(new_lines))):
        (site / FILE).write_text(text)
        for command in "check", "apply":
            found = ran(command, tmp_path, "--target", site, "--fix", "my-fix", "--output-format", "json")
            rows = [(row["verdict"], row["code"]) for row in found.json["results"]]
            assert (found.code, rows) == (1, [("drifted", "unknown-shape")]), command
            assert (site / FILE).read_text() == text
        swept = ran("sweep", tmp_path, "--releases", widgets.wheel(tmp_path / "w", "1.9", text))
        assert (swept.code, "nothing of it is recorded" in swept.err) == (1, True), swept


def spelled(data: bytes) -> list[str]:
    """The lines of a file, with a letter for each byte."""
    return [f"{row}\n" for row in data.decode("latin-1").removesuffix("\n").split("\n")]


def begun(
    folder: Path, before: bytes, after: bytes, file: str = FILE, named: bytes | None = None
) -> tuple[Path, cli.Ran]:
    """Begin a fix from the diff of two states of a file; return the site that has the first, and what was said.

    ``named`` is its name as git writes it into a diff.
    """
    site = folder / "site" if (folder / "site").exists() else widgets.site(folder)
    (site / file).write_bytes(before)
    digest = base64.urlsafe_b64encode(hashlib.sha256(before).digest()).rstrip(b"=").decode()
    record = site / "widgets-1.0.dist-info" / "RECORD"
    rows = [row for row in record.read_text().splitlines(keepends=True) if not row.startswith(f"{file},")]
    record.write_text("".join([*rows, f"{file},sha256={digest},{len(before)}\n"]), encoding="utf-8")
    name = (named or file.encode()).decode("latin-1")
    old, new = (f'"{one}/{name}"' if named else f"{one}/{name}" for one in "ab")
    diff = "".join(difflib.unified_diff(spelled(before), spelled(after), old, new)).encode("latin-1")
    (folder / "c.patch").write_bytes(diff)
    words = ("--pack", folder / "our-pack", "--upstream", "widgets==1.0", "--from-patch", folder / "c.patch")
    return site, cli.called_with_all("new", "my-fix", *words, "--target", site)


CODED = ENGINE.replace('"widgets"', '"{}"')


@pytest.mark.parametrize(
    ("encoding", "old", "new"),
    [
        ("latin-1", "caf\u00e9", "th\u00e9"), ("cp1252", "\u20ac", "\u2026"), ("koi8-r", "\u043c", "\u0434\u0430"),
        ("shift_jis", "\u65e5\u672c", "\u8868"), ("utf-8-sig", "\u00e9", "\u65e5"), ("latin-1", "a\u0085b", "\u00a0"),
        ("utf-8", "a\u2028b", "\x0c"),
    ],
)  # fmt: skip
def test_a_file_is_rewritten_in_its_own_encoding(encoding: str, old: str, new: str, tmp_path: Path) -> None:
    cookie = f"# coding: {encoding.removesuffix('-sig')}\n"
    before, after = ((cookie + CODED.format(text)).encode(encoding) for text in (old, new))
    site, said = begun(tmp_path, before, after)
    assert said.code == 0, said.err
    assert ran("apply", tmp_path, "--target", site, "--require", "my-fix").code == 0
    assert (site / FILE).read_bytes().replace(b"    # unhang my-fix: unproved\n", b"") == after
    assert ran("check", tmp_path, "--target", site).code == 0
    assert ran("revert", tmp_path, "--target", site).code == 0
    assert (site / FILE).read_bytes() == before


LATIN = "# coding: latin-1\n"


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        (LATIN, "# coding: utf-8\n", "the diff changes its encoding, from iso-8859-1 to utf-8"),
        ("", "\xff\n", "the file is not text in its own encoding"),
        ("\xef\xbb\xbf", "", "the diff changes its encoding, from utf-8-sig to utf-8"),
        ("# coding: rot13\n", "# coding: rot13\n\n", "the file is not text in its own encoding"),
    ],
)
def test_an_encoding_that_cannot_be_kept_is_refused_with_a_cure(
    before: str, after: str, why: str, tmp_path: Path
) -> None:
    old, new = (f"{head}{CODED.format(word)}".encode("latin-1") for head, word in ((before, "a"), (after, "b")))
    _, said = begun(tmp_path, old, new)
    assert (said.code, why in said.err, "begin the fix from a diff without it" in said.err) == (2, True, True), said


def test_a_value_that_the_files_encoding_lacks_is_refused_by_name(tmp_path: Path) -> None:
    site, said = begun(tmp_path, (LATIN + CODED.format("a")).encode(), (LATIN + CODED.format("/opt/a/python")).encode())
    assert said.code == 0
    shutil.rmtree(tmp_path / "our-pack")
    words = ("--pack", tmp_path / "our-pack", "--upstream", "widgets==1.0", "--from-patch", tmp_path / "c.patch")
    given = ("--target", site, "--set", "PY=/opt/a/python")
    assert cli.called_with_all("new", "my-fix", *words, *given).code == 0
    refused = ran("apply", tmp_path, "--target", site, "--require", "my-fix", "--set", "PY=/opt/\u65e5")
    why = "the file is in iso-8859-1, which does not have '\u65e5'".encode().decode("latin-1")
    assert (refused.code, why in refused.err) == (1, True), refused
    assert ran("apply", tmp_path, "--target", site, "--require", "my-fix", "--set", "PY=/opt/\u00e9").code == 0
    assert b'"/opt/\xe9"' in (site / FILE).read_bytes()


@pytest.mark.parametrize(
    ("file", "named"),
    [
        ("widgets/caf\u00e9.py", rb"widgets/caf\303\251.py"),
        ("widgets/core/\u65e5.py", rb"widgets/core/\346\227\245.py"),
    ],
)
def test_a_path_that_git_has_quoted_is_the_files(file: str, named: bytes, tmp_path: Path) -> None:
    before, after = (CODED.format(word).encode() for word in "ab")
    site, said = begun(tmp_path, before, after, file, named)
    assert said.code == 0, said.err
    assert ran("apply", tmp_path, "--target", site, "--require", "my-fix").code == 0
    assert b'print("b")' in (site / file).read_bytes()


def test_a_quoted_path_that_no_module_has_is_named_as_it_is(tmp_path: Path) -> None:
    before, after = (CODED.format(word).encode() for word in "ab")
    _, said = begun(tmp_path, before, after, "widgets/a b\t\\.py", rb"widgets/a b\t\\.py")
    assert (said.code, r"widgets/a b\t\.py: its name is not that of a file of a package" in said.err) == (2, True), said


@pytest.mark.parametrize("word", ["rename", "copy"])
def test_a_file_that_the_diff_moves_is_left_to_a_person(word: str, site: Path, tmp_path: Path) -> None:
    moved = (
        f'diff --git "a/widgets/caf\\303\\251.py" b/{FILE}\n{word} from "widgets/caf\\303\\251.py"\n{word} to {FILE}\n'
    )
    changes = widgets.diff(PATCHED).replace("a/src/" + FILE, '"a/widgets/caf\\303\\251.py"').replace("b/src", "b")
    refused = new(tmp_path, "--target", site, diff=moved + changes)
    why = f"{FILE}: the diff makes it as a {word} of widgets/caf\u00e9.py; keep that as a patch of its own"
    assert (refused.code, why.encode().decode("latin-1") in refused.err) == (2, True), refused


def test_a_diff_in_utf_16_is_told_from_one_that_is_none(site: Path, tmp_path: Path) -> None:
    for encoding, code in ("utf-16", 2), ("utf-8-sig", 0):
        (tmp_path / "c.patch").write_text(widgets.diff(PATCHED), encoding=encoding)
        words = ("--pack", tmp_path / "our-pack", "--upstream", "widgets==1.0", "--from-patch", tmp_path / "c.patch")
        found = cli.called_with_all("new", "my-fix", *words, "--target", site)
        assert (found.code, "in UTF-16" in found.err, "--output=FILE" in found.err) == (code, code == 2, code == 2), (
            found
        )


def begun_on(folder: Path, name: str, text: str, before: str, *more: Path | str) -> cli.Ran:
    """Begin a fix of a pack of its own."""
    (folder / f"{name}.patch").write_text(widgets.diff(text, before))
    words = ("--pack", folder / name, "--upstream", "widgets==1.0", "--from-patch", folder / f"{name}.patch")
    return cli.called_with_all("new", name, *words, *more)


@pytest.mark.parametrize("has_marks", [True, False])
def test_a_second_fix_on_top_of_a_first(has_marks: bool, site: Path, tmp_path: Path) -> None:
    here, first, second = ("--target", site), ("--pack", tmp_path / "first"), ("--pack", tmp_path / "second")
    both, before = (*first, *second), cli.tree(site)
    once = ENGINE.replace("job.go(LIMIT)", "job.go(1)")
    assert begun_on(tmp_path, "first", once, ENGINE, *here).code == 0
    assert cli.called_with_all("apply", *first, *here).code == 0
    there = (site / FILE).read_text() if has_marks else once
    begun = begun_on(tmp_path, "second", there.replace("job.go(1)", "job.go(2)"), there, *here)
    assert begun.code == 0, begun.err
    manifest = json.loads((tmp_path / "second" / "patches" / "second" / "manifest.json").read_text())
    assert manifest["after"] == ["first"]
    assert cli.called_with_all("apply", *both, *here).code == 0
    assert [row for row in (site / FILE).read_text().splitlines() if "# unhang" not in row] == (
        ENGINE.replace("job.go(LIMIT)", "job.go(2)").splitlines()
    )
    assert cli.called_with_all("check", *both, *here).code == 0
    assert cli.called_with_all("revert", *both, *here).code == 0
    assert cli.tree(site) == before
    other = cli.called_with_all("apply", *second, *here, "--require", "second")
    assert (other.code, "it goes on top of first, which is not in place" in other.out) == (1, True), other
    assert "give its pack as well, with --pack: first is in none of these" in other.out
    assert cli.tree(site) == before
    done = cli.called_with_all("apply", *both, *here, "--require", "second")
    assert done.code == 0, done
    assert cli.called_with_all("revert", *both, *here).code == 0
    assert cli.called_with_all("apply", *first, *here).code == 0
    back = cli.called_with_all("revert", *both, *here)
    assert [row.split()[:2] for row in back.out.splitlines() if row.startswith("  ")][-2:] == [
        ["reverted", "first"], ["drifted", "second"],
    ]  # fmt: skip


def test_a_fix_from_a_diff_is_written_to_all_that_its_distribution_holds_or_to_none(tmp_path: Path) -> None:
    site = widgets.site(tmp_path / "site", "1.0", ENGINE, {"widgets_one.py": "X = 1\n"})
    before = cli.tree(site)
    diff = widgets.diff(ENGINE.replace("job.go(LIMIT)", "job.go(1)"), ENGINE)
    diff += "--- a/widgets_one.py\n+++ b/widgets_one.py\n@@ -1 +1 @@\n-X = 1\n+X = 2\n"
    (tmp_path / "both.patch").write_text(diff)
    pack = ("--pack", tmp_path / "pack", "--target", site)
    begun = cli.called_with_all(
        "new", "both", *pack, "--upstream", "widgets==1.0", "--from-patch", tmp_path / "both.patch"
    )
    assert begun.code == 0, begun
    (site / FILE).write_text(ENGINE.replace("job.go(LIMIT)", "job.went()"))
    assert cli.called_with_all("apply", *pack).code == 1
    assert (site / "widgets_one.py").read_text() == "X = 1\n"
    (site / FILE).write_text(ENGINE)
    assert cli.called_with_all("apply", *pack).code == 0
    assert cli.called_with_all("revert", *pack).code == 0
    assert cli.tree(site) == before


def test_an_edit_of_somebody_beside_a_fix_is_no_release(site: Path, tmp_path: Path) -> None:
    here = ("--target", site)
    assert begun_on(tmp_path, "first", ENGINE.replace("job.go(LIMIT)", "job.go(1)"), ENGINE, *here).code == 0
    assert cli.called_with_all("apply", "--pack", tmp_path / "first", *here).code == 0
    text = (site / FILE).read_text().replace("LIMIT = 3", "LIMIT = 5")
    (site / FILE).write_text(text)
    refused = begun_on(tmp_path, "second", text.replace("widgets", "w"), text, *here)
    assert (refused.code, "was edited since it was installed" in refused.err) == (2, True), refused


def test_a_release_that_nobody_has_read_needs_more_evidence_than_a_line(site: Path, tmp_path: Path) -> None:
    newer = widgets.site(tmp_path / "new", "1.1", ENGINE + "MORE = 1\n")
    before = cli.tree(newer)
    assert begun_on(tmp_path, "line", ENGINE.replace("LIMIT = 3", "LIMIT = 4"), ENGINE, "--target", site).code == 0
    words = ("--pack", tmp_path / "line", "--target", newer)
    for command in ("check", "apply"):
        found = cli.called_with_all(command, *words, "--output-format", "json")
        assert (found.code, {(row["verdict"], row["code"]) for row in found.json["results"]}) == (
            1,
            {("unlisted", "release-not-read")},
        )
    assert cli.tree(newer) == before
    applied = cli.called_with_all("apply", *words, "--require", "line")
    (sweep,) = {
        shlex.join(it) for it in map(shlex.split, re.findall("unhang pack sweep [^`;\n]+", applied.out + applied.err))
    }
    assert cli.called_with_all(*shlex.split(sweep)[1:]).code == 0, sweep
    assert cli.called_with_all("apply", *words, "--require", "line").code == 0
    assert cli.called_with_all("revert", *words).code == 0
    text = ENGINE.replace("LIMIT = 3", "LIMIT = 4").replace('"widgets"', "LIMIT")
    assert begun_on(tmp_path, "both", text, ENGINE, "--target", site).code == 0
    assert cli.called_with_all("apply", "--pack", tmp_path / "both", "--target", newer, "--require", "both").code == 0


def test_a_pack_may_say_that_a_line_is_enough(site: Path, tmp_path: Path) -> None:
    newer = widgets.site(tmp_path / "new", "1.1", ENGINE + "MORE = 1\n")
    assert begun_on(tmp_path, "line", ENGINE.replace("LIMIT = 3", "LIMIT = 4"), ENGINE, "--target", site).code == 0
    path = tmp_path / "line" / "patches" / "line" / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["targets"][0]["any-release"] = True
    path.write_text(json.dumps(manifest))
    assert cli.called_with_all("apply", "--pack", tmp_path / "line", "--target", newer, "--require", "line").code == 0


def test_a_required_fix_is_told_once(site: Path, tmp_path: Path) -> None:
    new(tmp_path, "--target", site)
    (site / FILE).write_text("x = 1\n")
    refused = ran("apply", tmp_path, "--target", site, "--require", "my-fix")
    assert (refused.code, refused.err.count("required fix not in place")) == (1, 1), refused
    assert "line-2: not found" in refused.out + refused.err


HEADED = """\
From 1111111111111111111111111111111111111111 Mon Sep 17 00:00:00 2001
From: A Person <a@example.org>
Date: Mon, 1 Jan 2024 00:00:00 +0000
Subject: [PATCH 1/1] Count to four

---
"""


def test_a_diff_from_stdin_and_from_a_pull_request(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = (HEADED + widgets.diff(ENGINE.replace("LIMIT = 3", "LIMIT = 4"))).encode()
    asked: list[str] = []

    def opened(address: str, timeout: float) -> io.BytesIO:
        asked.append(address)
        return io.BytesIO(data)

    monkeypatch.setattr("urllib.request.urlopen", opened)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))
    for source in ("-", "https://github.com/acme/widgets/pull/7/files"):
        words = (
            "--pack",
            tmp_path / "our-pack",
            "--upstream",
            "widgets==1.0",
            "--from-patch",
            source,
            "--target",
            site,
        )
        begun = cli.called_with_all("new", "my-fix", *words)
        assert begun.code == 0, begun.err
        manifest = json.loads((tmp_path / "our-pack" / "patches" / "my-fix" / "manifest.json").read_text())
        assert (manifest["author"], "Count to four" in manifest["title"]) == (["A Person"], True)
        shutil.rmtree(tmp_path / "our-pack")
    assert asked == ["https://github.com/acme/widgets/pull/7.patch"]
    assert manifest["origin"] == "other, https://github.com/acme/widgets/pull/7/files"
    refused = cli.called_with_all("new", "my-fix", *words[:5], "https://example.org/a.diff", "--target", site)
    assert (refused.code, "error[bad-option]" in refused.err) == (2, True), refused

    def closed(address: str, timeout: float) -> io.BytesIO:
        raise OSError("no way there")

    monkeypatch.setattr("urllib.request.urlopen", closed)
    refused = cli.called_with_all("new", "my-fix", *words)
    assert (refused.code, "error[download-failed]" in refused.err, "no way there" in refused.err) == (2, True, True)


@pytest.mark.parametrize("text", ['{"a": "b"}\n', "let a = 1;\nlet b = 2;\n", "caf\u00e9\r\nb\r\n", "no end"])
def test_a_file_that_is_no_module(text: str, site: Path, tmp_path: Path) -> None:
    data, name = text.encode("latin-1"), "widgets/static/a b.js"
    (site / name).parent.mkdir()
    after = data + b"more" + data[len(data.rstrip(b"\r\n")) :].rpartition(b"\r\n")[1]
    after += b"\n" if text.endswith("\n") and b"\r" not in data else b""
    site, said = begun(tmp_path, data, after, name)
    assert said.code == 0, said.err
    before, here = cli.tree(site), ("--target", site)
    assert ran("apply", tmp_path, *here, "--require", "my-fix").code == 0
    assert (site / name).read_bytes() == after
    assert ran("check", tmp_path, *here).code == 0
    assert ran("apply", tmp_path, *here).code == 0
    assert cli.called_with_all("revert", *here).code == 0, "without the pack"
    assert cli.tree(site) == before


def test_an_overlay_holds_modules_alone(tmp_path: Path) -> None:
    name = "widgets/static.json"
    site, said = begun(tmp_path, b'{"a": 1}\n', b'{"a": 2}\n', name)
    assert said.code == 0, said.err
    made = ran("overlay", tmp_path, tmp_path / "out", "--target", site, "--fix", "my-fix")
    assert (made.code, "not in an overlay" in made.out + made.err) == (1, True), made
    assert not [*(tmp_path / "out").rglob("*.json")] or name not in str([*(tmp_path / "out").rglob("*")])


STATES = {
    "needed": ENGINE,
    "half": ENGINE.replace("LIMIT = 3", "LIMIT = 4"),
    "fixed upstream": PATCHED,
    "an edit of a function": ENGINE.replace("go(LIMIT)\n", "go(LIMIT)\n        log(job)\n"),
    "an edit of a line": ENGINE.replace("LIMIT = 3", "LIMIT = 5"),
    "no function": ENGINE.replace("def run", "def walk"),
    "no Python": "(\n",
}


@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize("state", STATES)
def test_each_way_out_that_is_printed_runs_as_printed(state: str, version: str, tmp_path: Path) -> None:
    assert new(tmp_path, release=widgets.wheel(tmp_path / "w", "1.0")).code == 0
    site = widgets.site(tmp_path / "there", version, STATES[state])
    here, tried = ("--target", site), set[str]()
    for words in (("check",), ("apply",), ("apply", "--require", "my-fix"), ("diff", "--unknown"), ("revert",)):
        said = ran(words[0], tmp_path, *words[1:], *here)
        assert said.code != 2, said
        text = re.sub("\x1b[^m]*m", "", said.out + said.err)
        tried |= {it.strip(" .`") for it in re.findall(r"\bunhang [a-z ]+? --?[^`;\n]+", text) if it not in tried}
    assert tried or state in ("fixed upstream", "no Python", "an edit of a line", "no function"), "apply would refuse"
    for line in sorted(tried):
        kept = tmp_path / "kept"
        shutil.copytree(tmp_path / "our-pack", kept)
        done = cli.called_with_all(*shlex.split(line)[1:])
        assert (done.code in (0, 1), "error[" in done.err) == (True, False), (line, done)
        shutil.rmtree(tmp_path / "our-pack")
        kept.rename(tmp_path / "our-pack")


BROKEN = "def main():\n    a = 1\n   b = 2\n"


@pytest.mark.parametrize(
    ("before", "after", "code"),
    [
        (BROKEN, BROKEN.replace("   b", "    b"), 0),
        (BROKEN, BROKEN.replace("a = 1", "a = 2"), "newer-syntax"),
        ("a = 1\n", "a = (\n", "bad-patch"),
        ('A = f"{d["k"]}"\n', 'A = f"{d["q"]}"\n', 0),
        ("type A = int\n", "type A = str\n", 0),
        ("a = 1\n", "type A = str\n", 0),
    ],
)
def test_a_file_with_newer_syntax_than_the_tools_own(before: str, after: str, code: int | str, tmp_path: Path) -> None:
    """And one that the diff mends: what parses in the end is right, on whatever Python."""
    site, said = begun(tmp_path, before.encode(), after.encode())
    if code:
        assert (said.code, f"error[{code}]" in said.err, f"{FILE}, line" in said.err) == (2, True, True), said
        return
    assert said.code == 0, said.err
    kept, here = cli.tree(site), ("--target", site)
    assert ran("apply", tmp_path, *here, "--require", "my-fix").code == 0
    assert "".join(row for row in (site / FILE).read_text().splitlines(True) if "# unhang" not in row) == after
    assert ran("check", tmp_path, *here).code == 0
    assert ran("revert", tmp_path, *here).code == 0
    assert cli.tree(site) == kept


def test_a_function_of_one_name_in_two_files_is_judged_in_each(tmp_path: Path) -> None:
    """A release that has lost one of them does not get the other half."""
    other = "widgets/core/other.py"
    text, after = "def run(x):\n    return x\n", "def run(x):\n    return x + 1\n"
    old, new_lines = (it.splitlines(keepends=True) for it in (text, after))
    diff = "".join("".join(difflib.unified_diff(old, new_lines, f"a/{it}", f"b/{it}")) for it in (FILE, other))
    begun_ = new(tmp_path, diff=diff, release=widgets.wheel(tmp_path / "w", "1.0", text, {other: text}))
    assert begun_.code == 0, begun_.err
    site = widgets.site(tmp_path / "there", "1.1", text)
    (site / other).write_text("x = 1\n")
    before = cli.tree(site)
    found = ran("apply", tmp_path, "--target", site, "--require", "my-fix")
    assert (found.code, "drifted" in found.out, cli.tree(site) == before) == (1, True, True), found
