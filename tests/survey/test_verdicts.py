"""What is in an environment now: what earlier runs did, the verdicts, and the plan that follows."""

from pathlib import Path

import pytest

from support import cli
from unhang.records import Request
from unhang.store.state import READY
from unhang.survey.trial import planned
from unhang.survey.verdicts import Survey, again, survey

MTP = "mtp-cp-deadlock"
ENGINE = "verl/workers/engine/megatron/transformer_impl.py"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return cli.unpack_targets(tmp_path / "site", ("verl", "0.7.1"))


def asked(site: Path) -> Request:
    return Request(target=str(site), fixes=(MTP,))


def verdicts(now: Survey) -> list[str]:
    return [finding.verdict.verdict for finding in now.findings]


def test_an_untouched_release(site: Path) -> None:
    seen = survey(asked(site))
    assert verdicts(seen) == ["needed"]
    assert (seen.receipts, seen.interrupted, seen.environment.prefix) == ((), False, str(site))
    plan = planned(seen.findings, seen.receipts)
    assert [file.path for file in plan.files] == [str(site / ENGINE)]
    assert plan.blocked == ()
    (site / ".unhang").mkdir()
    (site / ".unhang" / READY).write_text("{}")
    assert survey(asked(site)).interrupted


def test_after_apply_the_receipt_is_read_and_nothing_is_left_to_plan(site: Path) -> None:
    cli.applied("--target", site, "--fix", MTP)
    seen = survey(asked(site))
    (receipt,) = seen.receipts
    assert [entry.path for entry in receipt.files] == [str(site / ENGINE)]
    assert verdicts(seen) == ["applied"]
    assert planned(seen.findings, seen.receipts) == ((), (), ())


def test_a_file_that_changed_is_seen_again(site: Path) -> None:
    seen = survey(asked(site))
    (site / ENGINE).write_text("class MegatronEngine: pass\n")
    now = again(seen.search, asked(site))
    assert verdicts(now) == ["drifted"]
