"""The workflows' text, and the plan that the nightly one takes its jobs from."""

import json
import re
import subprocess
import sys
from pathlib import Path

import nightly_plan as plan
import pytest

REPOSITORY = Path(__file__).parents[2]


def test_each_upstream_has_checks_radar_tests_and_proofs_and_the_other_jobs_are_for_all() -> None:
    jobs = {job.name: job for job in plan.jobs()}
    assert len(jobs) == len(plan.jobs())
    for name, about in plan.UPSTREAMS.items():
        alive = [tip for tip in about["tips"] if (name, tip) not in plan.LEFT_BEHIND]
        alive += ["pre-release"] if (name, "pre-release") not in plan.LEFT_BEHIND else []
        trees = {f"{name}-{kind}-{ref}" for kind in ("upstream", "prove") for ref in alive}
        checks = {f"{name}-check-{tip}" for tip in about["tips"]}
        assert {job.name for job in jobs.values() if job.subject == name} == {*trees, *checks, f"{name}-radar"}
    assert {"megatron-core-prove-dev", "megatron-core-upstream-main", "ms-swift-check-dev"} <= {*jobs}
    assert "ms-swift-prove-dev" not in jobs
    assert {job.what for job in jobs.values() if job.subject == plan.EVERY} == {"sweep", "proofs"}


def test_the_workflow_takes_its_jobs_from_the_plan() -> None:
    command = [sys.executable, plan.__file__]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.removeprefix("jobs=")) == [job.name for job in plan.jobs()]
    assert "fromJSON(needs.plan.outputs.jobs)" in (REPOSITORY / ".github/workflows/nightly.yml").read_text()


def yaml_files() -> list[Path]:
    return sorted((REPOSITORY / ".github" / "workflows").glob("*.yml"))


@pytest.mark.parametrize("path", yaml_files(), ids=lambda path: path.name)
def test_every_action_is_pinned_by_digest(path: Path) -> None:
    used = re.findall(r"uses: (\S+)(.*)", path.read_text())
    for action, comment in used:
        if not action.startswith("./"):
            assert re.fullmatch(r"(actions/[\w-]+|pypa/gh-action-pypi-publish)@[0-9a-f]{40}", action), action
            assert re.fullmatch(r" # v\d+\.\d+\.\d+", comment), action


def test_one_action_has_one_pin() -> None:
    pins = {pin for path in yaml_files() for pin in re.findall(r"uses: (actions/.*)", path.read_text())}
    assert len({pin.split("@")[0] for pin in pins}) == len(pins)


def test_only_the_job_that_writes_issues_may() -> None:
    nightly, ci = ((REPOSITORY / ".github/workflows" / name).read_text() for name in ("nightly.yml", "ci.yml"))
    *others, last = re.split(r"\n  (?=\w+:\n)", nightly)
    assert last.startswith("issues:\n")
    assert "issues: write" in last
    assert not re.search(r"pip |nox|nightly_run", last)
    assert ": write" not in "".join(others) + ci
    assert all("\npermissions: {}\n" in text for text in (nightly, ci))
    assert nightly.count("persist-credentials: false") == nightly.count("actions/checkout@")


def test_a_release_is_published_by_a_job_that_runs_nothing_of_the_repository() -> None:
    text = (REPOSITORY / ".github/workflows/release.yml").read_text()
    before, _, after = text.partition("\njobs:")
    named = re.split(r"\n  (?=\w+:\n)", after)[1:]
    jobs = {job.partition(":")[0]: job for job in named}
    assert [*jobs] == ["build", "test", "publish", "announce"]
    assert "\npermissions: {}\n" in before
    assert {name: re.findall(r"([\w-]+): write", job) for name, job in jobs.items()} == {
        "build": [], "test": [], "publish": ["id-token", "attestations"], "announce": ["contents"],
    }  # fmt: skip
    assert "    environment: release\n" in jobs["publish"], "where a person approves it"
    for name in "publish", "announce":
        assert "actions/checkout@" not in jobs[name]
    assert not re.search(r"nox|run:", jobs["publish"])
    assert all(f"needs: {earlier}\n" in jobs[later] for earlier, later in zip([*jobs], [*jobs][1:]))
    assert "secrets." not in text
