"""What the commands print for people on stderr, and the last line of a check."""

import os
from typing import cast

import pytest

from support.receipts import entry
from unhang.errors import UnhangError
from unhang.judge.decide import Verdict
from unhang.judge.findings import Finding
from unhang.judge.observe import Observation
from unhang.records import Environment, Installation, Request, Search
from unhang.rewrite.plan import Blocked, FilePlan, Plan
from unhang.shapes import catalog
from unhang.store.receipt import Receipt
from unhang.store.revert import Revert
from unhang.suggest import Hint, Line
from unhang.survey.apply import Applied
from unhang.tell import console
from unhang.tell.report import Report

FIX = catalog.fix("mtp-cp-deadlock")
SITE = Environment(None, "/site", "--target")
VERL = Installation("verl", "0.7.1", "/site", "/site", "/site/verl", "source", None, ())


def finding(verdict: str, place: Installation = VERL, detail: str = "", hint: str = "see its page") -> Finding:
    (target,) = (target for target in FIX.targets if target.upstream == "verl")
    seen = Observation("/site/verl/x.py", b"", "", None, False, None, "", None)
    return Finding(place, target, seen, Verdict(verdict, None, detail, hint))


def done(files: int, *blocked: Blocked) -> Applied:
    """Return what ``apply`` did: files with no collectives in them."""
    plans = tuple(FilePlan(VERL, f"/site/{number}.py", b"", b"", ()) for number in range(files))
    return Applied(Plan(plans, blocked), plans, {}, (), {})


def stderr(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().err.splitlines()


def test_each_file_that_cannot_be_replaced_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The folder of the second is writable; this is made up, because root can write anywhere."""
    monkeypatch.setattr(os, "access", lambda path, mode: path.endswith("/two"))
    found = [finding("needed"), finding("needed"), finding("needed"), finding("applied")]
    paths = [f"/{name}/file.py" for name in ("one", "two", "three", "four")]
    found = [one._replace(seen=one.seen._replace(path=path)) for one, path in zip(found, paths)]
    console.refused(UnhangError("disk-full", "no"), found)
    assert stderr(capsys) == []
    console.refused(UnhangError("not-writable", "no"), found)
    assert stderr(capsys) == ["not writable here: /one/file.py", "not writable here: /three/file.py"]
    many = [one._replace(seen=one.seen._replace(path=f"/{number}/file.py")) for one in found[:1] for number in range(9)]
    console.refused(UnhangError("not-writable", "no"), many)
    assert stderr(capsys)[-2:] == [
        "not writable here: /2/file.py", "not writable here: 6 more files (-v names each)"
    ]  # fmt: skip


def test_a_format_without_a_place_for_the_run_has_what_is_wrong_with_it_on_stderr(
    capsys: pytest.CaptureFixture[str],
) -> None:
    what = Report(Search(SITE, (), ("look here",)), Request(), (), None, True)
    wrong = ["warning: look here", "interrupted: a run did not get to its end"]
    for output_format, printed, said in (
        ("gitlab", "[]\n", []),
        ("vex", "", ["nothing to state: no installation here"]),
    ):
        console.results(output_format, what)
        out, err = capsys.readouterr()
        lines = [line.partition(" has a version")[0] for line in err.splitlines()]
        assert (out, lines) == (printed, [*said, *wrong])


def test_warnings_are_in_the_text_and_in_json_but_on_stderr_only_for_text(capsys: pytest.CaptureFixture[str]) -> None:
    what = Report(Search(SITE, (), ("look here",)), Request(), (), None, False)
    for output_format, expected in (("text", ["warning: look here"]), ("json", []), ("github", []), ("sarif", [])):
        console.results(output_format, what)
        out, err = capsys.readouterr()
        assert err.splitlines() == expected
        assert ("look here" in out) is (output_format != "text")


def test_the_next_command_and_the_undo_repeat_what_was_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    request = Request(script="ml/it.py", chosen=(("--skip", FIX.id),))
    console.applied(request, done(1), ())
    undo = f"patched 1 file; to undo: unhang revert --script ml/it.py --skip {FIX.id}"
    assert stderr(capsys) == [undo, "next: start the job again: what runs now has the old code"]
    assert console.summary([finding("needed")], request).endswith(
        f"; next, on every node:\n  unhang apply --script ml/it.py --skip {FIX.id}"
    )


def test_apply_that_changes_nothing_says_why_unless_a_fix_is_blocked(capsys: pytest.CaptureFixture[str]) -> None:
    console.applied(Request(), done(0), ())
    console.applied(Request(), done(0, cast(Blocked, None)), ())
    assert stderr(capsys) == ["nothing was changed: there was nothing left to do", "nothing was changed"]


def test_the_summary_counts_each_fix_once_for_each_installation() -> None:
    other = VERL._replace(root="/other")
    summary = console.summary([finding("needed"), finding("needed"), finding("needed", other)], Request())
    assert summary.startswith("2 needed (digest ")
    assert console.summary([finding("drifted")], Request()).endswith("); see the help above")
    triable = finding("drifted")._replace(result="a shape")
    assert console.summary([triable], Request()).endswith("); next:\n  unhang diff --unknown")
    assert console.summary([finding("applied")], Request()).startswith("nothing left to do (digest ")
    noted = finding("applied")._replace(elsewhere=("job.py:1 WHY",))
    assert console.summary([noted], Request()).startswith("nothing left to do, but read the notes above (digest ")
    assert console.summary([], Request()).startswith("nothing to judge")


def test_a_required_fix_that_is_not_in_place_has_a_sentence_with_the_reason() -> None:
    assert console.unmet([FIX.id], [finding("applied")]) == []
    assert console.unmet([FIX.id], [finding("drifted", detail="an anchor is missing")]) == [
        "mtp-cp-deadlock is drifted on verl 0.7.1 in /site: an anchor is missing; do: see its page"
    ]
    seen = finding("drifted", detail="an anchor is missing", hint=Hint("its token: ", Line("unhang diff --unknown")))
    assert console.unmet([FIX.id], [seen], shown={"an anchor is missing"}) == [
        "mtp-cp-deadlock is drifted on verl 0.7.1 in /site: its row above says why; do: unhang diff --unknown"
    ]
    assert console.unmet([FIX.id], [finding("drifted")._replace(accepted=True)]) == []
    unsure = finding("fixed-upstream", detail="a short check finds it")
    unsure = unsure._replace(verdict=unsure.verdict._replace(code="by-shape-check"))
    assert unsure.settled
    assert console.unmet([FIX.id], [unsure]) == [
        "mtp-cp-deadlock is fixed-upstream on verl 0.7.1 in /site: a short check finds it; do: see its page"
    ]
    (absent,) = console.unmet([FIX.id], [])
    assert absent == "mtp-cp-deadlock: there is no verl here; do: install it, or use --python PY"


def test_revert_prints_what_it_refuses_and_how_many_files_are_back(capsys: pytest.CaptureFixture[str]) -> None:
    edited = UnhangError("edited", "/site/x.py: edited since", path="/site/x.py", hint="use --force")
    undo = Revert("/site", (), Receipt("", ()), (edited,), ("y.py is gone",), (), ())
    console.reverted(undo)
    refusal = ["note: y.py is gone", "error[edited]: /site/x.py: edited since", "  hint: use --force"]
    assert stderr(capsys) == refusal
    console.reverted(undo._replace(files=((entry(), b"1", b"2"), (entry(), b"1", b"1"))))
    assert stderr(capsys) == [*refusal, "reverted 1 file in /site"]
    console.reverted(undo._replace(refused=(), notes=()))
    assert stderr(capsys) == ["reverted 0 files in /site"]
    rests = undo._replace(refused=(), notes=(), asleep=("/site/p/m.py",), remaining=Receipt("", (entry(),)))
    other = rests._replace(remaining=Receipt("", (entry(), entry(relative="p/n.py"))))
    for one, lines in (rests, 2), (other, 1):
        console.reverted(one)
        assert len([line for line in stderr(capsys) if "delete that folder" in line]) == lines - 1


def test_a_root_that_failed_is_named_with_its_error(capsys: pytest.CaptureFixture[str]) -> None:
    console.failed({"/base": UnhangError("not-writable", "no", hint="run as root")})
    assert stderr(capsys) == ["nothing was changed in /base:", "error[not-writable]: no", "  hint: run as root"]
