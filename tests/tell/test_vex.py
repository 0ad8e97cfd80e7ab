"""OpenVEX: only what the code shows silences a scanner, and only for the version that the scanner sees."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support import cli, wheels
from unhang.judge.decide import BY_SHAPE_CHECK, FIXED_UPSTREAM
from unhang.judge.findings import Finding
from unhang.records import Environment, Request, Search
from unhang.shapes import catalog
from unhang.survey.verdicts import survey
from unhang.tell import vex
from unhang.tell.report import Report

ENGINE = "verl/workers/engine/megatron/transformer_impl.py"
MTP = ("--fix", "mtp-cp-deadlock")
DYNAMIC = ("--fix", "fsdp-dynamic-bsz")
KEYS = {"vulnerability", "products", "status", "status_notes"}
MORE: dict[str, set[str]] = {
    "not_affected": {"justification"},
    "affected": {"action_statement"},
    "fixed": set(),
    "under_investigation": set(),
}
"""What OpenVEX 0.2.0 demands with each status."""


def check(*arguments: str | Path) -> Any:
    """Return the document of a check, with what the format demands."""
    ran = cli.called_with_all("check", *arguments, "--output-format", "vex")
    document = ran.json
    assert document["@context"] == "https://openvex.dev/ns/v0.2.0"
    assert document["@id"].startswith("urn:uuid:")
    assert (document["author"], document["version"]) == ("unhang", 1)
    for statement in document["statements"]:
        assert {*statement} == KEYS | MORE[statement["status"]]
    is_left = any(statement["status"] in ("affected", "under_investigation") for statement in document["statements"])
    assert ran.code == (1 if is_left else 0), ran
    return document


def status(document: Any) -> dict[tuple[str, str], str]:
    """Return the status of each advisory and product."""
    found = {
        (it["vulnerability"]["name"].removeprefix("x_unhang-"), it["products"][0]["@id"]): it["status"]
        for it in document["statements"]
    }
    assert len(found) == len(document["statements"])
    return found


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return cli.unpack_targets(tmp_path / "site", ("megatron-core", "0.17.1"), ("verl", "0.7.1"))


def test_what_apply_brings_in_is_fixed_and_affected_again_after_revert(site: Path) -> None:
    chosen = ("--target", site, *MTP, "--fix", "empty-expert-hang")
    core, verl = "pkg:pypi/megatron-core@0.17.1", "pkg:pypi/verl@0.7.1"
    before = check(*chosen)
    assert status(before) == {("empty-expert-hang", core): "affected", ("mtp-cp-deadlock", verl): "affected"}
    for statement in before["statements"]:
        assert statement["action_statement"].startswith(f"unhang apply --target {site} --fix ")
        name = statement["vulnerability"]["name"].removeprefix("x_unhang-")
        assert statement["vulnerability"]["description"] == catalog.fix(name).title
    cli.applied("--target", site)
    after = check(*chosen)
    assert {*status(after).values()} == {"fixed"}
    assert after["@id"] != before["@id"]
    assert check(*chosen) == after
    assert cli.called("revert", "--target", site).code == 0
    assert check(*chosen) == before


@pytest.mark.parametrize("content", ["pass\n", "def f(:\n"])
def test_what_nobody_has_verified_is_under_investigation(content: str, site: Path) -> None:
    (site / ENGINE).write_text(content)
    assert [*status(check("--target", site, *MTP)).values()] == ["under_investigation"]


@pytest.mark.parametrize(("version", "expected"), [("0.7.0", "not_affected"), ("0.8.0", "fixed")])
def test_a_release_without_the_defect_says_so(version: str, expected: str, tmp_path: Path) -> None:
    site = cli.unpack_targets(tmp_path, ("verl", version))
    assert [*status(check("--target", site, *MTP)).values()] == [expected]


def test_of_several_functions_of_a_fix_the_worst_counts(site: Path) -> None:
    assert cli.called_with_all("apply", "--target", site, *DYNAMIC).code == 0
    assert [*status(check("--target", site, *DYNAMIC)).values()] == ["fixed"]
    (site / "verl/workers/critic/dp_critic.py").write_text("pass\n")  # two of its four functions
    assert [*status(check("--target", site, *DYNAMIC)).values()] == ["under_investigation"]


def test_a_short_check_silences_no_scanner(site: Path) -> None:
    what = Report(
        Search(Environment(None, "/job", "--target"), (), ()), Request(), [*_by_shape_check(site)], None, False
    )
    (statement,) = json.loads(vex.document(what))["statements"]
    assert statement["status"] == "under_investigation"


def _by_shape_check(site: Path) -> Iterator[Finding]:
    """Yield a finding that rests on a short check, of a real installation."""
    seen = survey(Request(target=str(site), fixes=("mtp-cp-deadlock",)))
    for found in seen.findings:
        yield found._replace(verdict=found.verdict._replace(verdict=FIXED_UPSTREAM, code=BY_SHAPE_CHECK))


def test_a_patched_wheel_is_named_by_the_version_that_scanners_see(tmp_path: Path) -> None:
    out, site = tmp_path / "out", tmp_path / "site"
    assert cli.called("wheel", wheels.fetch("verl", "0.7.1"), "-o", out).code == 0
    (patched,) = out.iterdir()
    shutil.unpack_archive(patched, site, "zip")
    assert status(check("--target", site, *MTP)) == {("mtp-cp-deadlock", "pkg:pypi/verl@0.7.1%2Bunhang.1"): "fixed"}


def test_without_an_installation_there_is_nothing_to_state(tmp_path: Path) -> None:
    ran = cli.called("check", "--target", tmp_path, "--allow-none", "--output-format", "vex")
    assert (ran.code, ran.out) == (0, "")
    assert "nothing to state: no installation here" in ran.err
