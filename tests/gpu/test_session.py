"""The session without a GPU: its ranks speak gloo, or are stand-ins. What it judges, keeps and writes is real."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from gpu import __main__ as session
from gpu import pages, table
from gpu.__main__ import RANKS, Outcomes, Part, Row
from proofs import suite
from support import fixes
from support.jobs import needs_torch
from unhang.prove import gpus, host
from unhang.prove.cases import BROKEN, CRASHED, DIFFERS, HUNG, PASSED, Case, Outcome, Topology
from unhang.prove.gpus import Gpu
from unhang.shapes import catalog

GPU = Gpu("0", "GPU-1", 0, 80 << 30, "NVIDIA H100")
VERSIONS = {"torch": "2.11.0+cu130", "python": "3.12.3", "nccl": "2.28.9"}
EVERY = list(session.parts())


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "free", lambda _: [GPU])


def ended(part: Part) -> Outcomes:
    """Return how a part ends that is as it should be."""
    is_patched = part.side == host.PATCHED
    return Outcomes(
        {it.name: Outcome(it.patched if is_patched else it.untouched, f"at {it.at}") for it in part.cases}, VERSIONS
    )


def test_every_fix_with_ranks_has_a_part_for_each_side() -> None:
    for side in (host.UNTOUCHED, host.PATCHED):
        played = {part.proof.fix for part in EVERY if part.side == side}
        of_ranks = {
            fix for fix, found in fixes.of_each("PROOFS").items()
            for one in found for release in one.releases if release.core and not release.cases
            for case in suite.Proof(fix, one, release).every_case() if case.core and 1 < case.topology.world <= RANKS
        }  # fmt: skip
        assert played == of_ranks
    assert {"expert-dp-warmup", "mtp-cp-deadlock", "moe-aux-tracker-hang", "fsdp-dynamic-bsz"} <= played
    assert all(case.at == "" for part in EVERY for case in part.cases)  # a rank waits where it needs the GPU's answer


def test_without_a_gpu_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(gpus, "free", lambda _: (_ for _ in ()).throw(gpus._none("none here", "go")))
    assert session.main([]) == 2
    assert capsys.readouterr().err == "none here; go\n"


@pytest.mark.usefixtures("gpu")
def test_it_runs_side_by_side_after_the_one_that_fills_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    begun: list[tuple[str, float, float]] = []

    def ask(part: Part, names: Sequence[str], until: float, keep: Path) -> Outcomes:
        start = time.monotonic()
        time.sleep(0.2)
        begun.append((part.proof.fix, start, time.monotonic()))
        assert names == [GPU.uuid]
        return ended(part)

    monkeypatch.setattr(session, "ask", ask)
    assert session.main(["--out", str(tmp_path)]) == 0
    alone = [row for row in begun if row[0] == session.ALONE]
    others = [row for row in begun if row[0] != session.ALONE]
    assert max(end for _, _, end in alone) <= min(start for _, start, _ in others)
    assert any(one[1] < other[1] < one[2] for one in others for other in others)
    found = json.loads((tmp_path / "table.json").read_bytes())
    assert found["versions"] == {**VERSIONS, "gpu": GPU.name}
    settings = sum(len(part.cases) for part in EVERY if part.side == host.UNTOUCHED)
    printed = capsys.readouterr().out
    assert (len(found["rows"]), f"{settings} settings, 0 wrong" in printed) == (settings, True)
    assert (
        "| mtp-cp-deadlock | verl 0.7.1 with megatron-core 0.16.1 | 3 | 1 hung, 1 aborted, 1 right | 3 right |"
        in printed
    )
    assert session.main(["--out", str(tmp_path), "--fix", "no-such-fix"]) == 1, "nothing that ran is no success"


CASE = Case("hangs", Topology(cp=2), HUNG, "all_reduce at x.py")


@pytest.mark.parametrize(
    ("case", "untouched", "patched", "is_wrong"),
    [
        (CASE, HUNG, PASSED, False),
        (CASE, DIFFERS, PASSED, False),  # who has less goes on, with wrong numbers
        (CASE, CRASHED, PASSED, False),
        (CASE, PASSED, PASSED, True),
        (CASE, BROKEN, PASSED, True),
        (CASE, HUNG, HUNG, True),
        (CASE._replace(patched=CRASHED), DIFFERS, HUNG, False),  # a job that the fix is to be left out of
        (CASE._replace(patched=CRASHED), DIFFERS, PASSED, True),
        (CASE._replace(options={"may_pass": True}), PASSED, PASSED, False),
        (Case("control", Topology(cp=2), PASSED), HUNG, PASSED, True),
    ],
)
def test_a_setting_is_judged_by_both_sides(case: Case, untouched: str, patched: str, is_wrong: bool) -> None:
    case = case._replace(at="")
    part = Part(EVERY[0].proof, host.UNTOUCHED, [case])
    found = {
        (part.proof.name, side): Outcomes({case.name: Outcome(status, "")}, VERSIONS)
        for side, status in ((host.UNTOUCHED, untouched), (host.PATCHED, patched))
    }
    (row,) = session.judged([part], found)
    assert bool(row.wrong) is is_wrong


@needs_torch
def test_a_part_really_runs_and_what_is_late_is_broken(tmp_path: Path) -> None:
    part = next(it for it in EVERY if it.proof.fix == "mean-metric-dtype" and it.side == host.PATCHED)
    part = part._replace(cases=part.cases[:1])
    answer = session.ask(part, [], time.monotonic() + 300, tmp_path)
    assert ({it.status for it in answer.by_case.values()}, set(answer.versions)) == ({PASSED}, {"torch", "python"})
    late = session.ask(part, [], time.monotonic(), tmp_path)
    assert {it.status for it in late.by_case.values()} == {BROKEN}


def rows(*ends: tuple[str, str, str]) -> list[Mapping[str, Any]]:
    """Return the rows of a fix, each as the untouched side, the patched one, and what is wrong."""
    fix, release = "moe-aux-tracker-hang", "core 0.16.1"
    return [
        session.plain(Row(fix, release, f"{number}", 3, Outcome(one, "", 31), Outcome(two, "", 1), why))
        for number, (one, two, why) in enumerate(ends)
    ]


def test_the_table_and_a_fixs_page_say_what_was_seen() -> None:
    seen = rows((HUNG, PASSED, ""), (DIFFERS, PASSED, ""), (HUNG, PASSED, ""), (PASSED, PASSED, ""))
    assert list(table.lines({"versions": {**VERSIONS, "gpu": GPU.name}, "rows": seen}))[-1] == (
        "| moe-aux-tracker-hang | core 0.16.1 | 4 | 2 hung, 1 wrong, 1 right | 4 right | 128 |"
    )
    text = pages.sentence(VERSIONS, seen)
    assert text == "Seen on NCCL 2.28.9 (`nox -s gpu`): 2 hung, 1 wrong; rewritten all right.\n"
    assert pages.sentence(VERSIONS, rows((HUNG, HUNG, "it hangs"))) == ""
    left_out = pages.sentence(VERSIONS, rows((DIFFERS, PASSED, ""), (DIFFERS, HUNG, "")))
    assert " ".join(left_out.split()).endswith(": 2 wrong; rewritten 1 hung and 1 right, as they must.")
    seen = rows((HUNG, BROKEN, "late"), (DIFFERS, PASSED, ""), (HUNG, BROKEN, "late"), (PASSED, HUNG, "it hangs"))
    assert list(table.lines({"versions": {**VERSIONS, "gpu": GPU.name}, "rows": seen}))[-3:] == [
        "",
        "- moe-aux-tracker-hang, core 0.16.1: untouched hung, patched not run: 0, 2",
        "- moe-aux-tracker-hang, core 0.16.1: untouched right, patched hung: 3",
    ]
    page = "# x\n\n## Evidence\nIt is so.\n\n## Links\n- a\n"
    once = pages.with_sentence(page, text)
    assert once == f"# x\n\n## Evidence\nIt is so.\n\n{text}\n## Links\n- a\n"
    assert pages.with_sentence(once, text.replace("2.28.9", "2.30.1")) == once.replace("2.28.9", "2.30.1")


def test_of_several_tables_each_side_is_the_first_that_has_run() -> None:
    part = next(it for it in EVERY if it.proof.fix == "moe-aux-tracker-hang" and it.side == host.UNTOUCHED)
    release, settings = part.proof.name.partition(" ")[2], {case.name: case.untouched for case in part.cases}

    def of(side: str, ended: str = "") -> Mapping[str, Any]:
        ends = {host.UNTOUCHED: Outcome(BROKEN, "late"), host.PATCHED: Outcome(BROKEN, "late")}
        every = [{**ends, side: Outcome(ended or due, "")} for due in settings.values()]
        found = [
            Row(part.proof.fix, release, name, 3, it[host.UNTOUCHED], it[host.PATCHED], "late")
            for name, it in zip(settings, every)
        ]
        return {"versions": VERSIONS, "rows": [session.plain(row) for row in found]}

    tables = of(host.UNTOUCHED), of(host.PATCHED, PASSED), of(host.UNTOUCHED, PASSED)
    whole = pages.joined(tables)["rows"]
    found = [row for row in whole if row["fix"] == part.proof.fix]
    assert {row["setting"]: (row["untouched"]["status"], row["patched"]["status"], row["wrong"]) for row in found} == {
        name: (untouched, PASSED, "") for name, untouched in settings.items()
    }
    assert all(row["wrong"] for row in whole if row not in found), "what has run in none"
    with pytest.raises(ValueError, match="different versions"):
        pages.joined([tables[0], {**tables[1], "versions": {}}])


def test_no_page_says_more_than_the_table() -> None:
    """What a page says that it has seen on NCCL, the table has, with the same version."""
    table = pages.PAGE.read_text(encoding="utf-8").partition(pages.START)[2].partition(pages.END)[0]
    for fix in catalog.fixes():
        if said := pages.SEEN.search((pages.CHECKOUT / "patches" / fix / "page.md").read_text(encoding="utf-8")):
            (version,) = re.findall(r"NCCL ([\d.]+)", said.group())
            assert f"NCCL {version}" in table, fix
            assert f"| {fix} |" in table, fix
