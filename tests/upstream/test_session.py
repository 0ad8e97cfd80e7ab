"""The whole session, on real verl with made-up tests, and what it rests on: the data, and two trees at a ref."""

import json
import shutil
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from git import Repo
from packaging.specifiers import SpecifierSet

from support import cli, environments
from unhang.errors import UnhangError
from unhang.shapes import catalog
from upstream import run, selection, trees, venvs

WHICH = {"upstream", "versions", "reason"}
KEYS = {"tests": {*WHICH, "files", "ranks", "covers"}, "disputed": {*WHICH, "test"}, "notes": {*WHICH, "test"}}


@pytest.mark.parametrize("path", sorted(selection.PATCHES.glob("*/*_tests.json")), ids=lambda path: path.parent.name)
def test_the_data_of_a_fix_is_complete_and_of_its_upstreams(path: Path) -> None:
    data = json.loads(path.read_text())
    assert (data["schema"], set(data) <= {"schema", *KEYS}) == (selection.SCHEMA, True)
    reads = {to.upstream for to in catalog.fix(path.parent.name).targets} | {"megatron-lm"}
    for kind, row in ((name, row) for name in KEYS for row in data.get(name, ())):
        assert (set(row), row["upstream"] in reads) == (KEYS[kind], True)
        assert SpecifierSet(row["versions"])


def test_files_that_cover_a_rewrite_come_first_and_a_file_of_two_fixes_is_run_once(tmp_path: Path) -> None:
    row: dict[str, Any] = {"upstream": "verl", "versions": ">=1", "ranks": 1, "covers": True, "reason": "why"}
    fixes = {
        "one": [{**row, "files": ["t/a.py"], "covers": False}, {**row, "files": ["t/b*.py", "t/gone_*.py"]}],
        "two": [{**row, "files": ["t/b1.py"], "ranks": 2}, {**row, "files": ["t/c.py"], "versions": ">=2"}],
        "other": [{**row, "files": ["t/c.py"], "ranks": 8}],
    }
    data = {f"{it}/upstream_tests.json": json.dumps({"schema": 1, "tests": rows}) for it, rows in fixes.items()}
    patches = environments.write(tmp_path / "patches", data)
    tree = environments.write(tmp_path / "tree", dict.fromkeys(("t/a.py", "t/b1.py", "t/b2.py", "t/c.py"), ""))
    some = selection.select("verl", "1.5", tree, ["one", "two"], patches)
    assert some.files == (("t/b1.py", ("one", "two")), ("t/b2.py", ("one",)), ("t/a.py", ()))
    assert (some.absent, some.ranks) == (("t/gone_*.py",), 2)
    assert selection.every(["t/*.py"], tree, some).files == (("t/a.py", ()), *some.files[:2], ("t/c.py", ()))


def commit(clone: Path, text: str, tag: str) -> str:
    with Repo.init(clone, initial_branch="main") as repo:
        repo.git.add("--force", ".")
        repo.git(c=["user.name=us", "user.email=us@here"]).commit("-qm", text, "--allow-empty")
        repo.git.tag("--force", tag)
        return str(repo.head.commit.hexsha)


def texts(where: str | Path, ref: str, cache: Path) -> set[str]:
    refs = trees.refs_of(ref, selection.upstream("megatron-lm"))
    with trees.of_clone(str(where), refs, cache, "A_VARIABLE") as both:
        assert both.before != both.after
        (both.after / "new").write_text("")
        return {(side / "file.py").read_text() for side in both[:2]}


def test_two_trees_at_a_tag_a_version_a_branch_or_a_commit_of_a_clone_that_stays(tmp_path: Path) -> None:
    clone = environments.write(tmp_path / "clone", {"file.py": "released"})
    first = commit(clone, "released", "core_v1.2.0")
    (clone / "file.py").write_text("newer")
    commit(clone, "newer", "later")
    with Repo(clone) as repo, repo.clone(str(tmp_path / "bare"), mirror=True):
        (tmp_path / "bare/config").unlink()  # git takes it for a bare one all the same
    before, cache = cli.tree(clone), tmp_path / "cache"
    for where in clone, tmp_path / "bare", f"file://{clone}":
        assert [texts(where, ref, cache) for ref in ("core_v1.2.0", "1.2.0", first)] == [{"released"}] * 3
        assert texts(where, "main", cache) == {"newer"}
    assert cli.tree(clone) == before
    for wrong, code in (clone, "no-ref"), (f"file://{clone}", "no-ref"), (tmp_path, "fetch-failed"):
        with pytest.raises(UnhangError) as caught:
            texts(wrong, "core_v9", cache)
        assert (caught.value.code, "A_VARIABLE" in str(caught.value.hint)) == (code, True)


ENGINE = "verl/workers/engine/megatron/transformer_impl.py"
HEAD = f"import os, pathlib\nSOURCE = pathlib.Path('{ENGINE}').read_text()\nPATCHED = '# unhang' in SOURCE\n"
ABOUT = {
    "clone": "A_VARIABLE", "url": "file:///nowhere/at/all", "tag": "v", "tests": ["ours/test_*.py"],
    "torch": "0", "shims": [], "environments": [],
    "main": {"python": "3", "requirements": "none.txt", "variables": {"OF_THE_DATA": "1"}},
}  # fmt: skip
TESTS = {
    "one": f"""
import pytest
def test_passes(): assert os.environ["OF_THE_DATA"] == "1"
def test_fails(): assert not "of course"
def test_hates_the_fix(): assert not PATCHED, "patched, alas"
def test_wants_the_fix():  # it executes the first of the rewritten lines, as far as the measure can tell
    (mark,) = (number for number, row in enumerate(SOURCE.splitlines()) if "# unhang mtp" in row)
    exec(compile("\\n" * mark + "def f():\\n pass\\nf()", str(pathlib.Path("{ENGINE}").resolve()), "exec"))
def test_flaky():
    first = not os.path.exists('was-here')
    open('was-here', 'w').close()
    assert not (PATCHED and first)
""",
    "two": "def test_stays(): pass\nif not PATCHED:\n    def test_goes(): pass\n",
    "three": "def test_three(): pass\n",
}


@pytest.mark.slow
def test_a_run_with_regressions_and_one_of_only_some_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clone = cli.unpack(tmp_path / "clone", ("verl", "0.7.1"))
    shutil.rmtree(clone / "tests")  # verl's own, of which the data lists some
    environments.write(clone, {f"ours/test_{name}.py": HEAD + source for name, source in TESTS.items()})
    commit(clone, "made up", "v0.7.1")
    monkeypatch.setattr(venvs, "ready", lambda *_: venvs.Environment(Path(sys.executable), "this Python", 0))
    monkeypatch.setattr(selection, "upstream", lambda name: ABOUT)
    monkeypatch.setenv("UNHANG_SKIP", ",".join(catalog.fixes().keys() - set(cli.FOUR)))  # verl needs others too
    places = ("--tmp", str(tmp_path / "out"), "--cache", str(tmp_path / "cache"), "--clone", str(clone))
    assert run.main(["verl", "v0.7.1", "--all", *places]) == 1
    report = json.loads((tmp_path / "out" / "verl-v0.7.1-1.json").read_text())["files"]
    assert max(file["runs"] for file in report) == 3, "what differs was run again, twice"
    assert {line["id"].partition("::test_")[2]: line["category"] for file in report for line in file["lines"]} == {
        "passes": "passed both", "fails": "failed both", "hates_the_fix": "regression", "wants_the_fix": "fixed",
        "flaky": "flaky", "stays": "passed both", "goes": "regression", "three": "passed both",
    }  # fmt: skip
    covered = "mtp-cp-deadlock: 1 of 5 rewritten lines executed, by tests that passed: 1 in ours/test_one.py"
    shown = capsys.readouterr().out
    assert [text for text in (covered, "FAILED: 2 regressions", "patched, alas") if text not in shown] == []
    assert run.main(["verl", "v0.7.1", "--all", *places, "--only", "_three."]) == 0
    assert "NARROWED: only files with _three. in their path, 1 of 3" in capsys.readouterr().out


def test_of_several_targets_an_unpatched_one_counts_and_nothing_to_compare_is_no_claim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "_trees", lambda *_: nullcontext(trees.Trees(tmp_path, tmp_path, "a clone")))
    for verdicts, code, said in (
        ("fixed-upstream not-affected", 0, "  fix: fixed-upstream\nnothing to compare: no fix is needed here"),
        ("applied drifted not-affected", 2, "  fix: drifted: why\nerror[not-applied]: "),
        ("", 2, "error[no-verdict]: "),
    ):
        rows = [{"fix": "fix", "verdict": it, "detail": "why", "version": "1.0"} for it in verdicts.split()]
        monkeypatch.setattr(run, "_unhang", lambda *_, rows=rows: {"results": rows})
        assert run.main(["verl", "v1", "--tmp", str(tmp_path)]) == code
        shown = "".join(capsys.readouterr())
        assert (said in shown, "no regression" in shown) == (True, False)
