"""`unhang pack new`: on a made-up wheel, and on upstream's pull requests where clones are given."""

import ast
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support import cli, wheel_files, wheels
from support.checkout import COMPAT
from support.fake_clone import git
from unhang.cli.main import main
from unhang.codemods.base import Codemod
from unhang.compat.sweep import parts
from unhang.draft import modules as drafts
from unhang.draft import skeleton
from unhang.rewrite import one_file
from unhang.shapes import shape
from unhang.shapes.catalog import Target

FILE = "verl/engine.py"
MODULE = """\
import torch


class Engine:
    def step(self, batch):
        count = len(batch)
        if count > self.limit:
            self.reduce(count)
        return count
"""
DIFF = f"""\
Subject: [PATCH] Let every rank reduce

--- a/{FILE}
+++ b/{FILE}
@@ -4,6 +4,6 @@
 class Engine:
     def step(self, batch):
         count = len(batch)
-        if count > self.limit:
-            self.reduce(count)
+        count = self.reduce(torch.tensor(count))
+        print("done")
         return count
"""
IMPORT = f"--- a/{FILE}\n+++ b/{FILE}\n@@ -1,1 +1,2 @@\n import torch\n+import sys\n"


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    name = "verl-9.9-py3-none-any.whl"
    info = "verl-9.9.dist-info"
    files = {
        FILE: MODULE.encode(),
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: verl\nVersion: 9.9\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\n",
    }
    return wheel_files.made(tmp_path / "wheels", name, files)


def new(wheel: Path | str, diff: str, folder: Path, *more: str) -> cli.Ran:
    """Run `unhang pack new my-fix` on a diff; it writes below the folder's `out`."""
    (folder / "my.diff").write_text(diff)
    return begun(wheel, folder, "--from-patch", folder / "my.diff", *more)


def begun(wheel: Path | str, folder: Path, *more: Path | str) -> cli.Ran:
    return cli.called("new", "my-fix", "--upstream", wheel, "-o", folder / "out", *more)


def manifest_of(out: Path) -> dict[str, Any]:
    """Return the drafted manifest, which is as the schema has it."""
    manifest: dict[str, Any] = json.loads((out / "patches/my-fix/manifest.json").read_text())
    schema = json.loads((COMPAT / "schemas" / "manifest.json").read_text())
    pytest.importorskip("jsonschema").validate(manifest, schema)
    return manifest


def modules(out: Path) -> dict[str, str]:
    """Return the text of each drafted module, by its path; each compiles."""
    found = {str(path.relative_to(out)): path.read_text() for path in sorted(out.rglob("*.py"))}
    for path, text in found.items():
        compile(text, path, "exec")
    return found


def codemods(path: Path) -> dict[str, Codemod]:
    """Return what a codemod's module defines."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: dict[str, Codemod] = module.CODEMODS
    return found


def result(change: Codemod, target: Target, data: bytes, monkeypatch: pytest.MonkeyPatch) -> str:
    """Rewrite a file as `apply` does; return the function's shape."""
    monkeypatch.setattr(one_file, "codemod", lambda _: change)
    done = one_file.rewrite(data, [one_file.Step(target, None)])
    return done.shapes[0][1]


def test_the_files_of_the_fix_do_what_the_diff_does(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = new(wheel, DIFF, tmp_path)
    assert (ran.code, ran.err.count("note: "), "left to you" in ran.err) == (0, 1, False)
    out = tmp_path / "out"
    manifest = manifest_of(out)
    assert (manifest["id"], manifest["title"]) == ("my-fix", "verl: Let every rank reduce")
    assert manifest["targets"] == [{"upstream": "verl", "file": FILE, "function": "Engine.step"}]
    (change,) = codemods(out / "codemods/my_fix.py").values()
    after = MODULE.replace(
        "        if count > self.limit:\n            self.reduce(count)\n",
        '        count = self.reduce(torch.tensor(count))\n        print("done")\n',
    )
    wanted = shape.digest(shape.find(shape.parse(after.encode()), "Engine.step")[0])
    target = Target("my-fix", "verl", FILE, "Engine.step")
    assert result(change, target, MODULE.encode(), monkeypatch) == wanted
    assert wanted in ran.out
    assert change.names(shape.find(shape.parse(MODULE.encode()), "Engine.step")[0]) == {"torch"}
    assert [*modules(out)] == sorted(skeleton.paths("my-fix")[2:])
    for written in skeleton.paths("my-fix"):
        assert f"wrote {out / written}\n" in ran.out
        assert "TODO" in (out / written).read_text()
    page = (out / "patches/my-fix/page.md").read_text()
    assert page.startswith("# my-fix\n\nverl: Let every rank reduce\n")
    assert [line.removeprefix("## ") for line in page.splitlines() if line.startswith("## ")] == [*parts.SECTIONS]
    assert parts.EVERY_NODE in page.partition("\n## Danger\n")[2].partition("\n## ")[0]
    assert "\nNot shown" in page.partition("\n## Evidence\nGrade: safeguard. ")[2].partition("\n\n")[0]


@pytest.mark.parametrize(
    ("kind", "shows", "key", "does"),
    [("ranks", "HUNG", "signature", "hang"), ("values", "DIFFERS", "no-hang", "wrong-values")],
)
def test_the_kind_is_how_the_defect_shows(
    kind: str, shows: str, key: str, does: str, wheel: Path, tmp_path: Path
) -> None:
    assert new(wheel, DIFF, tmp_path, "--kind", kind).code == 0
    out = tmp_path / "out"
    scene, tests = (modules(out)[name] for name in ("src/unhang/prove/fixes/my_fix.py", "tests/fixes/test_my_fix.py"))
    assert f'{shows}, _WHERE, {{"defect": True}}' in scene
    manifest = manifest_of(out)
    wants_ranks = {"ranks" in manifest["strikes"], "ranks" in manifest["when"], '"ranks"' in scene, "dp=2" in scene}
    assert wants_ranks == {kind == "ranks"}
    assert {*manifest} & {"signature", "no-hang"} == {key}
    assert (manifest["kinds"], manifest["changes-numbers"]) == ([does], kind == "values")
    assert "TODO: what the rewrite changes. And above: all kinds, and" in manifest["description"], "a person decides"
    names = {node.targets[0].id for node in ast.parse(tests).body if isinstance(node, ast.Assign)}  # type: ignore[attr-defined]
    assert {*parts.SESSIONS} - names == (set() if key == "signature" else {"HANGS"})


def test_the_scene_has_what_every_scene_has_and_what_the_diff_says(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert new(wheel, DIFF, tmp_path).code == 0
    room: Any = importlib.import_module("unhang.prove.fixes")
    monkeypatch.setattr(room, "__path__", [str(tmp_path / "out/src/unhang/prove/fixes")])
    scene: Any = importlib.import_module("unhang.prove.fixes.my_fix")
    monkeypatch.delitem(sys.modules, scene.__name__)
    monkeypatch.delattr(room, "my_fix")
    assert [name for name in parts.SCENE if not hasattr(scene, name)] == []
    assert {*scene._OPTIONS} == {"defect", "count", "self.limit"}
    assert len({case.name for case in scene.GRID}) == len(scene.GRID) == 8
    assert {case.is_control is not case.options["defect"] for case in scene.GRID} == {True}
    called = ["self.reduce", "torch.tensor"]
    (function,) = scene._FUNCTIONS
    assert function == ("verl.engine", "Engine.step", ["self", "batch"], ["batch", "self.limit"], called)


def test_an_insertion_is_drafted_as_one(wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = "        count = len(batch)\n"
    added = line + "        batch = sorted(batch)\n"
    diff = f"--- a/{FILE}\n+++ b/{FILE}\n@@ -6,1 +6,2 @@\n {line}+        batch = sorted(batch)\n"
    assert new(wheel, diff, tmp_path).code == 0
    path = tmp_path / "out/codemods/my_fix.py"
    assert "reduce" not in path.read_text()
    done = result(
        codemods(path)["Engine.step"], Target("my-fix", "verl", FILE, "Engine.step"), MODULE.encode(), monkeypatch
    )
    assert done == shape.digest(shape.find(shape.parse(MODULE.replace(line, added).encode()), "Engine.step")[0])


def test_a_commit_gives_title_authors_and_links(wheel: Path, tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    (clone / "verl").mkdir(parents=True)
    git(clone, "init", "-q")
    for text in MODULE, MODULE.replace("len(batch)", "len(batch) + 1"):
        (clone / FILE).write_text("# Copyright 2025 A.\n# Licensed under the Apache License, Version 2.0\n" + text)
        git(clone, "add", "-A")
        git(clone, "commit", "-qm", f"[a, b] fix: count {'more ' * 10} (#12)\n\nFixes #7")
    ran = begun(wheel, tmp_path, "--from-commit", clone, "HEAD")
    assert ran.code == 0, ran.err
    manifest, page = manifest_of(tmp_path / "out"), (tmp_path / "out/patches/my-fix/page.md").read_text()
    assert manifest["title"] == f"[a, b] fix: count {'more ' * 10}".strip()
    address = "https://github.com/verl-project/verl"
    assert (manifest["origin"], manifest["bug"]) == (f"backport, {address}/pull/12", f"{address}/issues/7")
    assert "Upstream's change, by me:" in page
    assert max(map(len, page.splitlines())) <= 80


def test_a_mail_with_windows_line_ends_fits(wheel: Path, tmp_path: Path) -> None:
    assert new(wheel, DIFF.replace("\n", "\r\n"), tmp_path).code == 0


def test_a_hunk_outside_of_functions_is_refused_by_name(wheel: Path, tmp_path: Path) -> None:
    alone = new(wheel, IMPORT, tmp_path)
    assert (alone.code, (tmp_path / "out").exists()) == (2, False)
    assert "error[nothing-to-rewrite]" in alone.err
    both = new(wheel, IMPORT + DIFF.partition(f"+++ b/{FILE}\n")[2], tmp_path)
    assert both.code == 1
    told = f"left to you: {FILE}, line 2: it changes code outside of a function: import sys"
    assert told in both.err
    assert told.removeprefix("left to you: ") in " ".join(alone.err.split())


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["new", "My_Fix", "--upstream", "WHEEL", "--from-patch", "DIFF"], "bad-option"),
        (["new", "a" * 25, "--upstream", "WHEEL", "--from-patch", "missing.diff"], "bad-option"),
        (["new", "class", "--upstream", "WHEEL", "--from-patch", "missing.diff"], "bad-option"),
        (["new", "3d", "--upstream", "WHEEL", "--from-patch", "missing.diff"], "bad-option"),
        (["new", "my-fix", "--upstream", "WHEEL", "--from-commit", "missing", "HEAD"], "no-commit"),
        (["new", "mtp-cp-deadlock", "--upstream", "WHEEL", "--from-patch", "DIFF"], "fix-exists"),
        (["new", "my-fix", "--upstream", "verl", "--from-patch", "DIFF"], "bad-option"),
        (["new", "my-fix", "--upstream", "WHEEL", "--from-patch", "missing.diff"], "io"),
        (["new", "my-fix", "--upstream", "DEMO", "--from-patch", "DIFF"], "no-upstream"),
        (["new", "my-fix", "--upstream", "missing.whl", "--from-patch", "DIFF", "-o", "TWICE"], "fix-exists"),
    ],
)
def test_what_it_cannot_do_is_an_error_and_nothing_is_written(
    words: list[str],
    code: str,
    wheel: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my.diff").write_text(DIFF)
    Path("twice/codemods").mkdir(parents=True)
    Path("twice/codemods/my_fix.py").write_text("mine")
    demo = wheel_files.demo(tmp_path / "demo")
    names = {"WHEEL": str(wheel), "DIFF": "my.diff", "DEMO": str(demo), "TWICE": "twice"}
    before = sorted(tmp_path.rglob("*"))
    assert main([names.get(word, word) for word in words]) == 2
    assert f"error[{code}]: " in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == before


PULLS = [
    ("verl", "0.7.1", 5895, 1),
    ("verl", "0.7.1", 5591, 2),
    ("verl", "0.7.1", 6405, 1),
    ("ms-swift", "4.3.0", 9551, 1),
    ("megatron-core", "0.16.1", 3401, 1),
]


@pytest.mark.parametrize(("upstream", "version", "pull", "functions"), PULLS)
def test_an_upstreams_pull_request_becomes_a_fix(
    upstream: str, version: str, pull: int, functions: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clone = wheels.clone(upstream)

    def git(*words: str) -> str:
        return subprocess.run(["git", "-C", clone, *words], check=True, capture_output=True, text=True).stdout

    head = f"refs/pull/{pull}/head"
    base = git("merge-base", head, "refs/heads/main").strip()
    ran = new(wheels.fetch(upstream, version), git("diff", base, head), tmp_path)
    assert ran.code == 0, ran.err
    changes = codemods(tmp_path / "out/codemods/my_fix.py")
    targets = json.loads((tmp_path / "out/patches/my-fix/manifest.json").read_text())["targets"]
    assert len(changes) == len(targets) == functions
    tree = tmp_path / "tree"
    for row in targets:
        data = wheels.read(upstream, version, row["file"])
        assert data is not None
        (tree / row["file"]).parent.mkdir(parents=True, exist_ok=True)
        (tree / row["file"]).write_bytes(data)
    include = [f"--include={row['file']}" for row in targets]
    subprocess.run(["git", "apply", *include, tmp_path / "my.diff"], cwd=tree, check=True)
    for row in targets:
        target = Target("my-fix", **row)
        data = wheels.read(upstream, version, target.file)
        assert data is not None
        patched, theirs, ours = (
            shape.digest(shape.find(shape.parse(text), target.function)[0])
            for text in (
                (tree / target.file).read_bytes(),
                git("show", f"{head}:{target.file}").encode(),
                git("show", f"{base}:{target.file}").encode(),
            )
        )
        assert result(changes[target.function], target, data, monkeypatch) == patched
        same_base = ours == shape.digest(shape.find(shape.parse(data), target.function)[0])
        assert (patched == theirs) is same_base is (pull != 5895)  # that one was made for a later function


def test_a_mails_subject_and_the_lines_of_its_diff_run_nothing(wheel: Path, tmp_path: Path) -> None:
    proof = tmp_path / "ran"
    code = f"import pathlib; pathlib.Path({str(proof)!r}).touch()"
    subject = f"Subject: [PATCH] \"\"\"; {code}  # \u202e\n `<b>` ''' \\\n"
    diff = DIFF.replace("Subject: [PATCH] Let every rank reduce\n", subject).replace(
        'print("done")', f"print('done')  # \"\"\" ''' \\\\ {code}"
    )
    assert new(wheel, diff, tmp_path).code == 0
    out = tmp_path / "out"
    assert [*codemods(out / "codemods/my_fix.py")] == ["Engine.step"]
    assert not proof.exists()
    title = json.loads((out / "patches/my-fix/manifest.json").read_text())["title"]
    assert title.startswith("TODO: ")
    assert "\u202e" not in title
    modules(out)
    page = (out / "patches/my-fix/page.md").read_text()
    assert "import pathlib" in page
    assert not set("<>`\u202e") & set(page)


@pytest.mark.parametrize(
    "value", ["-" * 2000 + "1", "a" + ".b" * 900, "(" * 500, "("], ids=["minus", "dots", "deep", "open"]
)
def test_code_that_no_parser_or_codemod_takes_is_an_error(wheel: Path, tmp_path: Path, value: str) -> None:
    ran = new(wheel, DIFF.replace("self.reduce(torch.tensor(count))", value), tmp_path)
    assert (ran.code, ran.err.startswith("error[bad-patch]: ")) == (2, True)


def test_a_diff_without_an_end_and_a_hunk_without_a_place_are_errors(wheel: Path, tmp_path: Path) -> None:
    ran = cli.called("new", "my-fix", "--upstream", wheel, "--from-patch", "/dev/zero", "-o", tmp_path / "out")
    assert (ran.code, ran.err.startswith("error[bad-patch]: this file is too large")) == (2, True)
    ran = new(wheel, DIFF.replace("-4,6", "-" + "4" * 5000 + ",6"), tmp_path)
    assert (ran.code, ran.err.startswith("error[bad-patch]: ")) == (2, True)


def test_each_function_gets_a_class_of_its_own_whatever_its_name_is() -> None:
    names = drafts.class_names(["none", "_", "A.f_g", "B.fG", "edit", "_3d", "step", "a.b", "A.B"])
    assert len({*names}) == 9
    assert all(name.isidentifier() and name not in drafts._TAKEN for name in names)
