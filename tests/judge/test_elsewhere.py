"""Code elsewhere on which a rewrite depends: which files are looked at, for which findings."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from support import gates
from support.gates import FILES, GATE, PAUSE
from unhang.judge.findings import judge


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
