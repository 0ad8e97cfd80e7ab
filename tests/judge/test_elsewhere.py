"""Code elsewhere on which a rewrite depends: which files are looked at, for which findings."""

import os
import re
import sys
from pathlib import Path

import pytest

from support import gates
from support.gates import FILES, GATE, PAUSE
from unhang.judge.findings import judge
from unhang.shapes import catalog


@pytest.fixture(autouse=True)
def _made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    gates.install(monkeypatch)


def test_code_elsewhere_is_looked_at_where_the_fix_is_needed_or_applied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The manifest names the files, the codemod's module judges one that has the pattern."""
    looks = {"pattern": r"start\(\)", "files": [{"upstream": "verl", "file": "verl/start.py"}]}
    fix = GATE._replace(manifest={"looks-at": looks})
    module = sys.modules[f"unhang.codemods.{fix.id}"]
    monkeypatch.setattr(module, "notes", lambda tree: [(node.lineno, "STARTS") for node in tree.body], raising=False)
    where = gates.lay_out(tmp_path, {**FILES, "verl/start.py": "start()\n"})
    script = tmp_path / "job.py"
    script.write_text("\nstart()\n")
    notes = tuple(f"{path} STARTS: `unhang explain gate`" for path in (f"{tmp_path}/verl/start.py:1", f"{script}:2"))
    assert [one.notes for one in judge([where], [fix, PAUSE], {}, str(script))] == [notes, notes, ()]
    core = where._replace(upstream="megatron-core")
    assert judge([core, where], [fix], {})[0].notes == notes[:1], "whichever installation has it"
    for code in ("other()\n", "start() start()\n", None):
        (tmp_path / "verl/start.py").unlink()
        if code:
            (tmp_path / "verl/start.py").write_text(code)
        else:
            os.mkfifo(tmp_path / "verl/start.py")
        assert judge([where], [fix], {})[0].notes == ()
    gates.lay_out(tmp_path, {"verl/one.py": "x = 1\n", "verl/two.py": "def run(z): pass\n"})
    assert [one.notes for one in judge([where], [fix], {}, str(script))] == [(), ()], "drifted"


# -- what runs in place of a target -----------------------------------------------------------------------------------

ROW = {"module": "top.deep", "package": "Deep", "files": ["top/deep/new.py", "top/deep/old.py"], "what": "copies run"}


def test_a_package_that_runs_other_code_is_noted_where_that_code_is(tmp_path: Path) -> None:
    fix = GATE._replace(manifest={"instead": [{**ROW, "pattern": r"copied\("}]})
    where = gates.lay_out(tmp_path, {**FILES, "top/deep/old.py": "\n\ncopied()\n"})
    packages = {"top.deep": str(tmp_path / "top/deep")}

    def notes() -> list[tuple[str, ...]]:
        return [one.notes for one in judge([where], [fix, PAUSE], {}, packages=packages)]

    told = "Deep copies run (top/deep/old.py:3); unhang does not rewrite that: `unhang explain gate`"
    assert notes() == [(told,), (told,), ()]
    (tmp_path / "top/deep/new.py").write_text("copied()")
    assert "new.py:1)" in notes()[0][0], "the first of the files that has it"
    for name in "new.py", "old.py":
        (tmp_path / "top/deep" / name).write_text("a namesake")
    assert notes() == [(), (), ()]
    (tmp_path / "top/deep/old.py").unlink()
    os.mkfifo(tmp_path / "top/deep/old.py")
    assert notes() == [(), (), ()], "and nothing waits for a pipe"
    assert [one.notes for one in judge([where], [fix], {})] == [(), ()], "it is not installed"


def test_a_function_that_is_not_affected_has_no_such_note(tmp_path: Path) -> None:
    fix = GATE._replace(manifest={"instead": [{**ROW, "pattern": "."}]})
    where = gates.lay_out(tmp_path, {"verl/one.py": "x = 1\n", "verl/two.py": "", "top/deep/new.py": "x"})
    where = where._replace(version="1.5")
    found = judge([where], [fix], {}, packages={"top.deep": str(tmp_path / "top/deep")})
    assert [(one.verdict.verdict, one.notes) for one in found] == [("not-affected", ())] * 2


def test_a_copy_in_its_own_upstream_is_needed_and_never_rewritten(tmp_path: Path) -> None:
    row = {**ROW, "module": "verl", "package": "verl", "files": ["verl/old/one.py"], "what": "has a copy"}
    fix = GATE._replace(manifest={"instead": [{**row, "pattern": r"copied\("}]})
    where = gates.lay_out(tmp_path, {"verl/one.py": "x = 1\n", "verl/two.py": "", "verl/old/one.py": "copied()"})
    where = where._replace(version="1.5")
    told = "verl has a copy (verl/old/one.py:1)", "unhang does not rewrite that: `unhang explain gate`"
    found = judge([where], [fix], {})
    assert [one.verdict[:4] for one in found] == [("needed", "no-rewrite", *told)] * 2
    assert not any(one.verdict.to_rewrite for one in found)
    (tmp_path / "verl/old/one.py").write_text("right")
    assert [one.verdict.verdict for one in judge([where], [fix], {})] == ["not-affected"] * 2


def test_each_row_of_the_manifests_names_files_of_its_module_and_a_pattern() -> None:
    rows = [row for fix in catalog.fixes().values() for row in fix.manifest.get("instead", ())]
    assert len(rows) > 10
    for row in rows:
        assert all(file.startswith(row["module"].replace(".", "/") + "/") for file in row["files"]), row
        assert not re.search(row["pattern"], ""), "it would match everything"
