"""Where a fix stands in an environment, and the command that follows from it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support import cli
from unhang.diagnose.fix_verdicts import Standing, cure, standings, upstreams
from unhang.records import Request
from unhang.survey.verdicts import survey

MTP, WARMUP = "mtp-cp-deadlock", "expert-dp-warmup"
ENGINE = "verl/workers/engine/megatron/transformer_impl.py"


def found(site: Path, fix: str) -> tuple[Standing, ...]:
    request = Request(target=str(site), allow_none=True)
    narrowed = request._replace(fixes=(fix,), chosen=(("--fix", fix),))
    return standings(survey(narrowed).findings, request)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return cli.unpack_targets(tmp_path / "site", ("verl", "0.7.1"), ("megatron-core", "0.17.1"), ("ms-swift", "4.6.0"))


def test_a_needed_fix_is_applied_and_then_it_is_the_other_nodes_turn(site: Path) -> None:
    (before,) = found(site, MTP)
    assert before[:4] == ("verl", "0.7.1", str(site), "needed")
    assert before.hint == f"on every node of the job, run: unhang apply --target {site} --fix {MTP}"
    run(before.hint.partition("run: ")[2])
    (after,) = found(site, MTP)
    assert after.verdict == "applied"
    assert "restart" in after.hint
    check = after.hint.split("`")[1]
    assert check.startswith(f"unhang check --target {site} --fix {MTP} --expect-digest ")
    assert "nothing left to do" in run(check)


def run(command: str) -> str:
    """Run a suggested command as it is, and return what it prints; it must exit with 0."""
    words = [sys.executable, "-m", *command.split()]
    return subprocess.run(words, check=True, capture_output=True, text=True, env=cli.environ()).stdout


def test_a_fix_stands_on_each_installation_with_its_defect(site: Path) -> None:
    assert [(one.upstream, one.verdict) for one in found(site, WARMUP)] == [
        ("megatron-core", "needed"),
        ("ms-swift", "needed"),
    ]
    # megatron-core has a target of this one too, which is not affected
    assert [(one.upstream, one.verdict) for one in found(site, "sft-packed-seq-broadcast")] == [
        ("megatron-lm", "needed")
    ]


def test_code_without_the_defect_is_not_the_job_s_or_the_answer_is_wrong(tmp_path: Path) -> None:
    (one,) = found(cli.unpack_targets(tmp_path, ("verl", "0.9.1")), MTP)
    assert one.verdict == "fixed-upstream"
    assert "--python" in one.hint


def test_an_unknown_shape_has_the_hint_that_check_gives(site: Path) -> None:
    path = site / ENGINE
    path.write_bytes(path.read_bytes().replace(b"n_micro_batch = len(micro_batches)", b"n_micro_batch = 1"))
    (one,) = found(site, MTP)
    assert one.verdict == "drifted"
    assert f"--target {site}" in one.hint
    assert MTP in one.hint


def test_an_environment_without_the_upstream_has_no_standing(tmp_path: Path) -> None:
    assert found(tmp_path, WARMUP) == ()
    assert upstreams(WARMUP) == "megatron-core or ms-swift"
    assert cure(WARMUP, Request(python="/a b")) == f"unhang apply --python '/a b' --fix {WARMUP}"
