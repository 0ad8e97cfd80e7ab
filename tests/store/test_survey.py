"""What is in an environment: its installations, what earlier runs did, the verdicts, and the plan that follows."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support import cli, environments, gates
from unhang.cli.requests import selection
from unhang.errors import UnhangError
from unhang.records import Request
from unhang.rewrite import one_file
from unhang.shapes import catalog
from unhang.store import history, survey
from unhang.store.state import READY

MTP = "mtp-cp-deadlock"
ENGINE = "verl/workers/engine/megatron/transformer_impl.py"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return cli.unpack_targets(tmp_path / "site", ("verl", "0.7.1"))


def asked(site: Path, *upstreams: str) -> Request:
    return Request(target=str(site), fixes=(MTP,), upstreams=upstreams or Request().upstreams)


def verdicts(seen: survey.Survey) -> list[str]:
    return [finding.verdict.verdict for finding in seen.findings]


def test_an_untouched_release(site: Path) -> None:
    seen = survey.survey(asked(site))
    assert verdicts(seen) == ["needed"]
    assert (seen.receipts, seen.interrupted, seen.environment.prefix) == ((), False, str(site))
    plan = survey.planned(seen)
    assert [file.path for file in plan.files] == [str(site / ENGINE)]
    assert plan.blocked == ()
    (site / ".unhang").mkdir()
    (site / ".unhang" / READY).write_text("{}")
    assert survey.survey(asked(site)).interrupted


def test_if_none_of_the_named_upstreams_is_there_that_is_an_error_unless_it_is_allowed(site: Path) -> None:
    assert survey.find(asked(site, "verl")).installations
    request = asked(site, "ms-swift", "megatron-core")
    with pytest.raises(UnhangError) as caught:
        survey.survey(request)
    assert caught.value.code == "no-upstream"
    assert f"none of ms-swift, megatron-core is installed in {site} (found by --target)" in caught.value.message
    assert survey.survey(request._replace(allow_none=True)).findings == ()


def test_a_copy_that_a_project_vendors_is_named(site: Path, tmp_path: Path) -> None:
    """With the command for it, which repeats what was asked for."""
    project, deep = tmp_path / "my project", "third_party/it"
    shutil.copytree(site, project / deep)
    (script := tmp_path / "job.py").touch()
    wanted = selection({"skip": [MTP]})
    for request, option in (
        (wanted._replace(source=str(project), script=str(script)), "--source"),
        (wanted._replace(target=str(project)), "--target"),
    ):
        with pytest.raises(UnhangError) as caught:
            survey.survey(request)
        more = f" --script {script}" if request.script else ""
        assert caught.value.hint == (
            f"below it there is a copy in {project / deep}; "
            f"run: unhang check {option} '{project / deep}'{more} --skip {MTP}"
        )
    with pytest.raises(UnhangError) as caught:
        survey.survey(wanted._replace(source=str(project), upstreams=("ms-swift",)))
    assert "--allow-none" in (caught.value.hint or ""), "what is there was not asked for"


def test_after_apply_the_receipt_is_read_and_nothing_is_left_to_plan(site: Path) -> None:
    assert cli.unhang("apply", "--target", site, "--fix", MTP).code == 0
    seen = survey.survey(asked(site))
    (receipt,) = seen.receipts
    assert [entry.path for entry in receipt.files] == [str(site / ENGINE)]
    assert verdicts(seen) == ["applied"]
    assert survey.planned(seen) == ((), ())


def test_a_file_that_changed_is_seen_again(site: Path) -> None:
    seen = survey.survey(asked(site))
    (site / ENGINE).write_text("class MegatronEngine: pass\n")
    now = survey.again(seen.search, asked(site))
    assert verdicts(now) == ["drifted"]


def assert_reverted(site: Path) -> None:
    assert cli.unhang("revert", "--target", site).code == 0


def test_a_plan_beside_a_writer_reads_again_and_only_a_damaged_original_is_refused(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli.unhang("apply", "--target", site, "--fix", MTP).code == 0
    state, genuine, lost = site / ".unhang", history.originals, list[Path]()
    (site / ENGINE).write_bytes(next((state / "pristine").iterdir()).read_bytes())

    def racing(*given: Any) -> Any:  # another run writes while this one reads, in the given ways one after the other
        if way := next(ways, None):
            way()
        return genuine(*given)

    def lose() -> None:
        lost[:] = (state / "pristine").iterdir()
        lost[0].rename(site / "lost")

    def replace() -> None:  # the same bytes, in another file
        (site / "lost").rename(lost[0])
        (state / "copy").write_bytes((state / "receipt.json").read_bytes())
        (state / "copy").rename(state / "receipt.json")

    monkeypatch.setattr(history, "originals", racing)
    for racers, interrupted in (([lose, replace], False), ([lose, (state / READY).touch], True)):
        ways = iter(racers)
        seen, plan = survey.planned_without_lock(asked(site))
        assert (seen.interrupted, plan is None) == (interrupted, interrupted)
        assert plan is None or [file.path for file in plan.files] == [str(site / ENGINE)]
    (state / READY).unlink()
    with pytest.raises(UnhangError, match="are gone") as caught:
        survey.planned_without_lock(asked(site))
    assert (caught.value.code, "check" in (caught.value.hint or "")) == ("bad-receipt", True)
    ways = iter([lambda: assert_reverted(site)])
    site.joinpath("lost").rename(lost[0])
    assert survey.planned_without_lock(asked(site))[1] is not None, "the receipt is gone now"


@pytest.mark.slow
def test_diff_and_overlay_beside_a_run_that_keeps_writing(site: Path, tmp_path: Path) -> None:
    code = "import sys; from unhang.cli.main import main\n"
    code += "while True: [main([name, '--target', sys.argv[1]]) for name in ('apply', 'revert')]"
    command, nothing = [sys.executable, "-c", code, str(site)], subprocess.DEVNULL
    writer = subprocess.Popen(command, stdout=nothing, stderr=nothing, cwd="/")
    try:
        for _ in range(5):
            ran = cli.unhang("diff", "--target", site)
            assert (ran.code in (0, 1), "error[" in ran.err) == (True, False), ran.err
            ran = cli.unhang("overlay", tmp_path / "overlay", "--target", site)
            assert ran.code == 0 or "error[interrupted]" in ran.err, ran.err
        assert writer.poll() is None
    finally:
        writer.kill()
        writer.wait()


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
    first = survey.survey(request).findings[0]
    verdict = first.verdict
    suggested = f"to see what a rewrite would do, and its token: `unhang diff --target {tmp_path} --unknown --fix gate`"
    by_hand = "reinstall the package, or change it by hand: `unhang explain gate`"
    assert verdict.hint == (by_hand if why else suggested)
    assert (f"match exactly once each, but {why}" in verdict.detail) is bool(why)
    assert first.result == (None if why else gates.shape_of(gates.gated(EDITED)))
    shown, plan = survey.planned_without_lock(request, unknown=True)
    assert plan is not None
    assert (bool(plan.files), [item.reason for item in plan.blocked[:1]]) == (not why, [verdict.detail] if why else [])
    assert [one.target.file for one in shown.findings] == ["verl/one.py", "verl/two.py"]
