"""What a rewrite of an unknown shape would give, and the hint that follows from it."""

import sys
from pathlib import Path

import pytest

from support import environments, gates
from unhang.records import Request
from unhang.rewrite import one_file
from unhang.shapes import catalog
from unhang.survey.unlocked import planned_without_lock
from unhang.survey.verdicts import survey

EDITED = gates.ONE.replace("return x", "return x + 1")


@pytest.mark.parametrize(
    ("two", "broken", "why"),
    [
        (gates.TWO, "", None),
        (
            gates.TWO.replace("    start()", "    begin()"),
            "",
            "the fix goes in whole or not at all, and verl/two.py is in",
        ),
        (gates.TWO, "second pass", "a second pass would change the result again"),
        (gates.TWO, "libcst", "LibCST, which rewrites, cannot be loaded"),
    ],
)
def test_no_command_is_suggested_that_would_be_refused(
    two: str, broken: str, why: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gates.install(monkeypatch)
    monkeypatch.setattr(catalog, "fix", {"gate": gates.GATE}.__getitem__)
    gates.lay_out(environments.verl(tmp_path, "1.0"), {"verl/one.py": EDITED, "verl/two.py": two})
    if broken == "second pass":
        monkeypatch.setattr(one_file, "_refuses", lambda change, function: False)
    elif broken:
        monkeypatch.delattr("unhang.codemods.splice")
        monkeypatch.setitem(sys.modules, "unhang.codemods.splice", None)
    request = Request(target=str(tmp_path), fixes=("gate",))
    first = survey(request).findings[0]
    verdict = first.verdict
    diff = f"`unhang diff --target {tmp_path} --unknown"
    suggested = f"to see the rewrite and its token (--run tries it too): {diff} --fix gate`"
    by_hand = "reinstall the package, or change it by hand: `unhang explain gate`; to see what it does: "
    by_hand += f"{diff} --run --fix gate`"
    assert verdict.hint == (by_hand if why else suggested)
    assert (f"match exactly once each, but {why}" in verdict.detail) is bool(why)
    assert first.result == (None if why else gates.shape_of(gates.gated(EDITED)))
    shown, plan = planned_without_lock(request, unknown=True)
    assert plan is not None
    assert (bool(plan.files), [item.reason for item in plan.blocked[:1]]) == (not why, [verdict.detail] if why else [])
    assert [finding.target.file for finding in shown.findings] == ["verl/one.py", "verl/two.py"]
