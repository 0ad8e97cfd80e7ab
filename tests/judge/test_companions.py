"""Which fixes come along, in which releases; and which harm a release alone rules out."""

from pathlib import Path

import pytest

from support import gates, job_fixes
from unhang.judge import companions
from unhang.judge.findings import Finding
from unhang.shapes import catalog


@pytest.fixture(autouse=True)
def _made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    job_fixes.install(monkeypatch)


def short(findings: list[Finding]) -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
    return {it.target.fix: (it.needs, it.along) for it in findings}


def test_what_may_come_along_is_what_the_chosen_fixes_need_and_was_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    assert companions.of(["pause"]) == ("gate",)
    assert companions.of(["pause", "gate"]) == companions.of(["gate"]) == companions.of([]) == ()
    known = catalog.fixes()
    last = known["pause"]._replace(id="last", manifest={"with": [{**job_fixes.WITH, "fix": "pause"}]})
    monkeypatch.setattr(catalog, "fixes", lambda: {**known, "last": last})
    assert companions.of(["last"]) == ("gate", "pause"), "one that comes along may need another"
    monkeypatch.setattr(catalog, "fixes", lambda: {"last": last})
    assert companions.of(["last"]) == (), "of a pack that is not in effect"


def test_it_comes_along_where_it_is_needed_and_its_fix_too(tmp_path: Path) -> None:
    both = job_fixes.findings(tmp_path / "both")
    assert short(companions.along(both, ["gate"], [])) == {"gate": ((), ("pause",)), "pause": (("gate",), ())}
    assert short(companions.along(both, [], [])) == {"gate": ((), ()), "pause": (("gate",), ())}, "both were chosen"
    assert short(companions.along(both, ["gate"], ["gate"])) == {"pause": (("gate",), ())}, "--skip leaves it out"
    files = {"verl/one.py": gates.gated(gates.ONE), "verl/two.py": gates.gated(gates.TWO)}
    in_place = job_fixes.findings(tmp_path / "in_place", files)
    assert short(companions.along(in_place, ["gate"], [])) == {"gate": ((), ("pause",)), "pause": ((), ())}
    gone = job_fixes.findings(tmp_path / "gone", {"verl/two.py": gates.TWO, "verl/one.py": "import os\n"})
    assert {it.verdict.verdict for it in gone if it.target.fix == "pause"} != {"needed"}
    alone = [it._replace(verdict=it.verdict._replace(verdict="not-affected")) for it in both if it.target.fix != "gate"]
    assert short(companions.along([*alone, *both[:2]], ["gate"], [])) == {"pause": ((), ())}


@pytest.mark.parametrize(
    ("version", "releases", "is_in"),
    [
        ("0.7.1", "<0.8", True),
        ("0.8.0", "<0.8", False),
        ("0.8", "<=0.8.0", True),
        ("0.10.0", "<0.8", False),
        ("0.7.1", ">=0.7,<0.8", True),
        ("0.8.0.dev0", "<0.8", False),
        ("0.8.0rc1", ">=0.8.0rc0", True),
        ("0.7.1", "~=0.7.0", True),
        ("0.7.1", "", True),
        (None, "<0.8", True),
        ("unknown", "<0.8", True),
    ],
)
def test_the_releases_are_as_pip_compares_them(version: str | None, releases: str, is_in: bool) -> None:
    assert companions._is_in(version, releases) is is_in


@pytest.mark.parametrize(
    ("condition", "there"),
    [
        ('version("verl") >= "0.8"', False),
        ('loss == "mean" and version("verl") >= "0.8"', False),
        ('loss == "mean" and version("verl") < "0.8"', True),
        ('loss == "mean" or version("verl") >= "0.8"', True),
        ('not (loss == "mean" and version("verl") >= "0.8")', True),
        ('version("megatron-core") >= "0.8"', True),
        ("loss", True),
    ],
)
def test_without_a_job_what_its_release_alone_rules_out_is_no_harm(
    condition: str, there: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    job_fixes.install(monkeypatch, leave_out={**job_fixes.LEAVE_OUT, "if": condition})
    verl = gates.installation(tmp_path, "0.7.1")
    found = [it for it in companions.with_harms(job_fixes.findings(tmp_path), [verl]) if it.target.fix == "gate"]
    assert [[harm.holds for harm in it.harms] for it in found] == [[None] if there else []] * 2
