"""The issues that the nightly run keeps, on a local fake of GitHub's API."""

import json
from collections.abc import Iterator
from pathlib import Path

import nightly_issues
import nightly_plan as plan
import pytest
from nightly_issues import ApiError, Repository
from nightly_judge import Result

from support import cli, fake_github
from support.fake_github import GitHub

SCRIPTS = Path(__file__).parents[2] / ".github" / "scripts"
GREEN = Result(True, "exit code 0")
BAD = Result(False, "exit code 1", "the log")
URL = "https://ci/them/unhang/actions/runs/7"


@pytest.fixture
def github() -> Iterator[GitHub]:
    with fake_github.serve() as fake:
        yield fake


def keep(github: GitHub, **results: Result) -> list[str]:
    """Run one night, in which all planned jobs except these (with `_` for `-`) are green."""
    every = {job: results.get(job.name.replace("-", "_"), GREEN) for job in plan.jobs()}
    return nightly_issues.keep(Repository(f"{github.url}/repos/them/unhang", "secret"), every, URL)


def test_a_green_night_does_nothing(github: GitHub) -> None:
    assert (keep(github), github.issues, github.comments) == ([], [], [])
    assert github.tokens == {"Bearer secret"}


def test_trouble_opens_one_issue_for_each_upstream_with_the_log(github: GitHub) -> None:
    keep(github, verl_check_main=BAD, verl_radar=BAD, ms_swift_radar=BAD, proofs=BAD)
    assert github.open_titles() == [
        "Nightly trouble with verl: verl-check-main, verl-radar",
        "Nightly trouble with ms-swift: ms-swift-radar",
        "Nightly trouble with all upstreams: proofs",
    ]
    body = github.issues[0]["body"]
    assert (body.count("the log"), URL in body, github.issues[0]["labels"]) == (2, True, ["nightly"])


def test_the_issue_is_updated_while_trouble_lasts_and_closed_when_green(github: GitHub) -> None:
    keep(github, verl_check_main=BAD)
    keep(github, verl_check_main=BAD._replace(log="another log"))
    assert (len(github.issues), github.comments) == (1, [])
    assert "another log" in github.issues[0]["body"]
    keep(github, verl_check_main=BAD, verl_radar=BAD)
    assert github.issues[0]["title"] == "Nightly trouble with verl: verl-check-main, verl-radar"
    assert [number for number, _ in github.comments] == [1]
    keep(github)
    assert (len(github.issues), github.open_titles()) == (1, [])
    assert github.comments[-1] == (1, f"Green again: {URL}")
    keep(github, verl_check_main=BAD)
    assert [issue["number"] for issue in github.issues if issue["state"] == "open"] == [2]


def test_an_issue_is_found_on_any_page_and_others_are_left_alone(github: GitHub) -> None:
    mark = nightly_issues.marker("verl")
    others = [github.add(title="theirs", body="a question", labels=["nightly"]) for _ in range(130)]
    pull = github.add(title="pull", body=mark, labels=["nightly"], pull_request={})
    without_label = github.add(title="a stranger's", body=mark)
    mine = github.add(title="old", body=mark, labels=["nightly"])
    keep(github, verl_check_main=BAD)
    assert mine["title"] == "Nightly trouble with verl: verl-check-main"
    titles = {item["title"] for item in (*others, pull, without_label)}
    assert titles == {"theirs", "pull", "a stranger's"}
    assert len(github.issues) == 133


def test_good_news_is_one_issue(github: GitHub) -> None:
    news = GREEN._replace(news=(("verl", "mtp-cp-deadlock", "branch main"),))
    radar = news._replace(news=(("verl", "mtp-cp-deadlock", "release 0.9.0rc1"),))
    keep(github, verl_check_main=news, verl_radar=radar, verl_upstream_main=BAD)
    titles = ["Nightly trouble with verl: verl-upstream-main", "Good news: verl has fixed mtp-cp-deadlock"]
    assert github.open_titles() == titles, "trouble of one job does not hide news of another"
    assert "In branch main, release 0.9.0rc1" in github.issues[1]["body"]
    github.issues[1]["state"] = "closed"
    keep(github, verl_check_main=news, verl_upstream_main=BAD)
    assert github.open_titles() == titles[:1]
    assert sorted(github.labels) == ["fixed-upstream", "nightly"]


def test_a_log_cannot_break_out_of_its_quotation(github: GitHub) -> None:
    log = f"```\n@everyone\n`````\n{nightly_issues.marker('ms-swift')}"
    keep(github, verl_check_main=BAD._replace(log=log))
    assert f"``````\n{log}\n``````" in github.issues[0]["body"]
    keep(github, verl_check_main=BAD._replace(log=log), ms_swift_check_main=BAD)
    assert len(github.open_titles()) == 2


def test_a_body_fits_into_an_issue(github: GitHub) -> None:
    long = BAD._replace(log="x" * 100_000)
    keep(github, **{job.name.replace("-", "_"): long for job in plan.jobs()})
    assert max(len(issue["body"]) for issue in github.issues) < 65_536


@pytest.mark.parametrize("call", ["GET /repos/them/unhang/labels", "GET /repos/them/unhang/issues", "POST", "PATCH"])
def test_a_failing_api_is_an_error_with_the_call(github: GitHub, call: str) -> None:
    keep(github, verl_check_main=BAD)
    github.failing = call
    with pytest.raises(ApiError, match=rf"{call.split()[0]} .*503"):
        keep(github, verl_check_main=BAD, ms_swift_check_main=BAD)


# ---- the script, as the workflow runs it


def issues(folder: Path, github: GitHub) -> cli.Ran:
    env = {
        "GITHUB_API_URL": github.url,
        "GITHUB_REPOSITORY": "them/unhang",
        "GITHUB_SERVER_URL": "https://ci",
        "GITHUB_RUN_ID": "7",
        "GITHUB_TOKEN": "secret",
    }
    return cli.python("-S", SCRIPTS / "nightly_issues.py", folder, env=env)  # -S: the standard library alone


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """A folder with a green result of each job."""
    for job in plan.jobs():
        (tmp_path / f"{job.name}.json").write_text(json.dumps(GREEN._asdict()))
    return tmp_path


def test_all_green_results_are_no_issue_and_an_api_that_is_down_fails_the_job(github: GitHub, results: Path) -> None:
    assert issues(results, github) == (0, "all green, and no news\n", "")
    github.failing = "GET"
    ran = issues(results, github)
    assert (ran.code, "503" in ran.err, "secret" in ran.err) == (2, True, False)


def test_a_job_without_a_result_is_trouble(github: GitHub, results: Path) -> None:
    (results / "verl-check-main.json").unlink()
    ran = issues(results, github)
    assert ran.out == "opened #1: Nightly trouble with verl: verl-check-main\n"
    assert "the job left no result" in github.issues[0]["body"]


@pytest.mark.parametrize(
    "content",
    ["", "[]", '{"green": true}']
    + [json.dumps({**GREEN._asdict(), "news": [news]}) for news in (["u", "f"], ["u", "f", "@all"], ["u", "f", 7])],
)
def test_an_unreadable_result_is_trouble(github: GitHub, results: Path, content: str) -> None:
    (results / "verl-check-main.json").write_text(content)
    assert issues(results, github).code == 0
    assert github.open_titles() == ["Nightly trouble with verl: verl-check-main"]
