"""The nightly run: what it does, how a job is judged, and the issues that it keeps, against a local fake of the API."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from support import cli, environments, fake_github, fake_index
from support.fake_github import GitHub

REPOSITORY = Path(__file__).parents[2]
SCRIPTS = REPOSITORY / ".github" / "scripts"
sys.path.insert(0, str(SCRIPTS))

import nightly_issues  # noqa: E402
import nightly_judge as judge  # noqa: E402
import nightly_plan as plan  # noqa: E402
from github_api import ApiError, Repository  # noqa: E402
from nightly_judge import Ran, Result  # noqa: E402

GREEN = Result("green", "passed", "", ())
BAD = Result("trouble", "exit code 1", "the log", ())
URL = "https://ci/them/unhang/actions/runs/7"
ENGINE = "verl/workers/engine/megatron/transformer_impl.py"


@pytest.fixture
def github() -> Iterator[GitHub]:
    with fake_github.serve() as fake:
        yield fake


def keep(github: GitHub, **results: Result) -> list[str]:
    """One night: all planned jobs are green but these (`-` written as `_`)."""
    told = {job: results.get(job.name.replace("-", "_"), GREEN) for job in plan.jobs()}
    return nightly_issues.keep(Repository(github.url, "them/unhang", "secret"), told, URL)


# ---- the plan


def test_each_upstream_has_its_branches_pre_release_radar_tests_and_proofs_and_the_rest_is_for_all() -> None:
    jobs = {job.name: job for job in plan.jobs()}
    assert len(jobs) == len(plan.jobs())
    for name, about in plan.upstreams().items():
        alive = [tip for tip in about["tips"] if (name, tip) not in plan.LEFT_BEHIND]
        trees = {f"{name}-{kind}-{ref}" for kind in ("tests", "prove") for ref in (*alive, "pre-release")}
        checks = {f"{name}-{tip}" for tip in about["tips"]}
        assert {job.name for job in jobs.values() if job.subject == name} == {*trees, *checks, f"{name}-radar"}
    assert {"megatron-core-prove-dev", "megatron-core-tests-main", "verl-prove-main", "ms-swift-tests-main"} <= {*jobs}
    assert {job.what for job in jobs.values() if job.subject == plan.EVERY} == {"sweep", "proofs"}
    left = {(job.subject, job.ref) for job in jobs.values() if job.what in (plan.TESTS, plan.PROVE)}
    assert not left & plan.LEFT_BEHIND


def test_the_workflow_takes_its_jobs_from_the_plan() -> None:
    done = subprocess.run([sys.executable, SCRIPTS / "nightly_plan.py"], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.removeprefix("jobs=")) == [job.name for job in plan.jobs()]
    assert "fromJSON(needs.plan.outputs.jobs)" in (REPOSITORY / ".github/workflows/nightly.yml").read_text()


# ---- the workflows' text


def yaml_files() -> list[Path]:
    return sorted(path for path in (REPOSITORY / ".github").rglob("*.yml"))


@pytest.mark.parametrize("path", yaml_files(), ids=lambda path: path.name)
def test_every_action_is_pinned_by_digest(path: Path) -> None:
    used = re.findall(r"uses: (\S+)(.*)", path.read_text())
    for action, comment in used:
        if not action.startswith("./"):
            assert re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40}", action), action
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


# ---- how a job is judged


def rows(*verdicts: str, **told: Any) -> str:
    row = {"upstream": "verl", "version": "0.9.0", "fix": "f", "function": "g", "shape": None, "detail": "d", **told}
    return json.dumps({"schema": 1, "results": [{**row, "verdict": verdict} for verdict in verdicts]})


def test_what_is_needed_is_known_and_no_trouble() -> None:
    assert judge.by_verdicts(Ran(1, rows("needed", "not-affected"), ""), "branch main", {}).outcome == "green"


@pytest.mark.parametrize("verdict", ["drifted", "unlisted"])
def test_an_unknown_shape_is_trouble_and_named(verdict: str) -> None:
    result = judge.by_verdicts(Ran(1, rows("needed", verdict), ""), "branch main", {})
    assert (result.outcome, result.log) == ("trouble", f"verl branch main f {verdict} g -: d")


def test_a_branch_that_upstream_left_behind_is_no_trouble() -> None:
    assert judge.by_verdicts(Ran(1, rows("unlisted", code="older-than-floor"), ""), "", {}).outcome == "green"


@pytest.mark.parametrize("ran", [Ran(2, '{"schema": 1, "error": {}}', "why"), Ran(1, "no JSON", ""), Ran(0, "[1]", "")])
def test_no_verdicts_are_trouble(ran: Ran) -> None:
    assert judge.by_verdicts(ran, "", {}).outcome == "trouble"


def test_what_pip_says_before_the_verdicts_does_no_harm() -> None:
    assert judge.by_verdicts(Ran(0, f"Looking in links: {{}}\n{rows('applied')}\nbye", ""), "", {}).outcome == "green"


@pytest.mark.parametrize(("newest", "told"), [("needed", True), ("fixed-upstream", False), (None, False)])
def test_a_fix_upstream_is_news_while_the_newest_release_lacks_it(newest: str | None, told: bool) -> None:
    known = {} if newest is None else {("verl", "f"): newest}
    result = judge.by_verdicts(Ran(0, rows("fixed-upstream"), ""), "branch main", known)
    assert result.news == ((("verl", "f", "branch main"),) if told else ())


def test_the_newest_release_is_no_nightly_and_not_yanked() -> None:
    table = [("0.9.0", False, "a"), ("0.10.0", False, "b"), ("0.11.0", True, "c"), ("0.12.0rc1", False, "d")]
    told = [{"upstream": "u", "version": v, "yanked": y, "fix": "f", "verdict": verdict} for v, y, verdict in table]
    assert judge.newest(told) == {("u", "f"): "b"}


def answers(*told: str, **also: Any) -> str:
    row = {"upstream": "verl", "fix": "f", "case": "cp2", "detail": "why", "patched": None, **also}
    side = {"status": "hung", "detail": "rank 0", "seconds": 1.0}
    return json.dumps({"schema": 1, "results": [{**row, "untouched": side, "answer": answer} for answer in told]})


def test_that_an_untouched_tip_shows_its_defect_is_no_trouble() -> None:
    told = answers("proven", "unaffected", "patched-passes", "nothing-to-prove")
    assert judge.by_answers(Ran(1, told, ""), ["verl"]).outcome == "green"


@pytest.mark.parametrize("answer", ["failed", "unknown"])
def test_a_proof_that_fails_or_does_not_know_the_tip_is_trouble_and_told(answer: str) -> None:
    result = judge.by_answers(Ran(0, answers("proven", answer), ""), ["verl"])
    assert (result.outcome, result.detail) == ("trouble", "1 of 2 answers are bad")
    assert result.log == f"verl f cp2 {answer}: why; untouched hung: rank 0"


def test_answers_about_what_was_only_put_beside_do_not_count() -> None:
    ours, beside = (json.loads(answers(answer, upstream=name))["results"] for answer, name in
                    (("proven", "verl"), ("failed", "megatron-core")))  # fmt: skip
    assert judge.by_answers(Ran(1, json.dumps({"results": ours + beside}), ""), ["verl"]).outcome == "green"
    assert judge.by_answers(Ran(1, json.dumps({"results": beside}), ""), ["verl"]).outcome == "trouble"


@pytest.mark.parametrize("ran", [Ran(2, '{"schema": 1, "error": {}}', "why"), Ran(0, "nothing", ""), Ran(0, "{}", "")])
def test_no_answers_are_trouble(ran: Ran) -> None:
    result = judge.by_answers(ran, ["verl"])
    assert (result.outcome, result.detail) == ("trouble", f"exit code {ran.code}, and no answers")


def test_a_long_log_keeps_its_end() -> None:
    log = judge.by_code(Ran(1, "x" * 100_000, "the reason")).log
    assert len(log) < 7_000
    assert log.endswith("the reason")


# ---- a job, run


def run(tmp_path: Path, job: str, *options: str | Path) -> tuple[int, dict[str, Any]]:
    out = tmp_path / "out" / "result.json"
    ran = cli.python(SCRIPTS / "nightly_run.py", job, "--out", out, *options)
    assert out.exists(), ran.err
    return ran.code, json.loads(out.read_text())


def nox(tmp_path: Path, *sessions: str, prints: str = "", code: int = 0) -> Path:
    """A stand-in for nox, which knows these sessions."""
    text = f"""\
        import sys
        name = sys.argv[sys.argv.index("-s") + 1]
        if name not in {sessions!r}: sys.exit(print("nox > Sessions not found: " + name, file=sys.stderr) or 3)
        if "--list" in sys.argv: sys.exit(print("[]"))
        print({prints!r} or sys.argv[1:])
        sys.exit({code})
        """
    environments.write(tmp_path, {"nox.py": text})
    return tmp_path / "nox.py"


def test_a_session_that_does_not_exist_is_named_and_no_success(tmp_path: Path) -> None:
    code, result = run(tmp_path, "proofs", "--nox", nox(tmp_path, "sweep"))
    assert (code, result["outcome"]) == (1, "missing")
    assert result["detail"] == "noxfile.py has no session 'proofs': it was not run"


def test_the_real_noxfile_has_the_sessions_that_are_planned() -> None:
    sessions = set(re.findall(r"^def (\w+)\(session", (REPOSITORY / "noxfile.py").read_text(), flags=re.MULTILINE))
    assert {job.what for job in plan.jobs()} - {plan.CHECK, plan.TESTS} <= sessions


def test_a_session_gets_its_arguments_and_is_judged_by_its_code(tmp_path: Path) -> None:
    code, result = run(tmp_path, "verl-tests-main", "--nox", nox(tmp_path, "upstream", code=1))
    assert (code, result["outcome"], result["detail"]) == (1, "trouble", "exit code 1")
    assert "['-s', 'upstream', '--', 'verl', 'main']" in result["log"]
    assert run(tmp_path, "verl-tests-main", "--nox", nox(tmp_path, "upstream"))[0] == 0


def test_the_radar_is_judged_by_its_findings(tmp_path: Path) -> None:
    finding = {"upstream": "verl", "version": "0.9.0", "fix": "f", "function": "g", "shape": "s", "detail": "d"}
    told = json.dumps({"findings": [{**finding, "verdict": "unlisted"}]}, indent=1)
    code, result = run(tmp_path, "verl-radar", "--nox", nox(tmp_path, "radar", prints=told, code=1))
    assert (code, result["log"]) == (1, "verl release 0.9.0 f unlisted g s: d")


@pytest.fixture
def remote(tmp_path: Path) -> Path:
    """A server's folder with a repository of verl's name, whose branch main is a stand-in for verl."""
    work = environments.verl(tmp_path / "work", "99.0.0")
    where = tmp_path / "server" / "verl-project" / "verl"
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    environments.write(work, {ENGINE: ""})
    for command in (["init", "-q", "-b", "main"], ["add", "."], [*identity, "commit", "-q", "-m", "a"]):
        environments.run("git", *command, cwd=work)
    environments.run("git", "clone", "-q", "--bare", str(work), str(where), cwd=tmp_path)
    return where


def test_the_tip_of_a_branch_is_checked(tmp_path: Path, remote: Path) -> None:
    code, result = run(tmp_path, "verl-main", "--remote", f"file://{tmp_path}/server")
    assert (code, result["outcome"]) == (1, "trouble")
    assert "verl branch main mtp-cp-deadlock unlisted MegatronEngine.forward_backward_batch" in result["log"]


def test_a_branch_that_cannot_be_fetched_is_trouble(tmp_path: Path) -> None:
    code, result = run(tmp_path, "verl-main", "--remote", f"file://{tmp_path}/nowhere")
    assert (code, result["detail"]) == (1, "what it runs on could not be had")
    assert result["log"].startswith("git clone failed with 128: ")
    assert "does not appear to be a git repository" in result["log"]


@pytest.fixture
def server(tmp_path: Path, remote: Path) -> str:
    """A server with the stand-in for verl, and one for Megatron-LM, for what is to lie beside it."""
    megatron = environments.core(tmp_path / "core", "99.0.0")
    where = remote.parent.parent / "NVIDIA" / "Megatron-LM"
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q", "-b", "main"], ["add", "."], [*identity, "commit", "-q", "-m", "a"]):
        environments.run("git", *command, cwd=megatron)
    environments.run("git", "clone", "-q", "--bare", str(megatron), str(where), cwd=tmp_path)
    return f"file://{tmp_path}/server"


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[fake_index.FakeIndex]:
    with fake_index.serving(fake_index.FakeIndex()) as index:
        monkeypatch.setenv("PIP_INDEX_URL", index.url)
        monkeypatch.delenv("UNHANG_INDEX", raising=False)
        index.add("verl", "0.9.0", {"verl/a.py": ""})
        yield index


def prover(tmp_path: Path) -> Path:
    """A stand-in for nox: its `prove` tells as an answer what lies in the folder that it was given."""
    text = """\
        import json, os, sys
        if "--list" in sys.argv: sys.exit(print("[]"))
        option, folder = sys.argv[sys.argv.index("--") + 1 :][:2]
        detail = " ".join([option, *sorted(name for name in os.listdir(folder) if name[0] != ".")])
        row = {"upstream": "verl", "fix": "f", "case": "", "detail": detail, "untouched": None, "patched": None}
        print("nox > python -m pip install")
        print(json.dumps({"results": [{**row, "answer": "unknown"}]}, indent=1))
        sys.exit(1)
        """
    environments.write(tmp_path, {"prover.py": text})
    return tmp_path / "prover.py"


def test_a_branch_is_proved_with_megatron_beside_it(tmp_path: Path, server: str) -> None:
    code, result = run(tmp_path, "verl-prove-main", "--remote", server, "--nox", prover(tmp_path))
    assert (code, result["log"]) == (1, "verl f unknown: --source megatron verl")


def test_a_tagged_pre_release_is_tested_and_proved_by_its_tag(
    tmp_path: Path, server: str, remote: Path, served: fake_index.FakeIndex
) -> None:
    for tag in "v0.8.0", "v0.10.0rc1", "v0.10.0.rc2", "v-nonsense", "other":
        environments.run("git", "tag", tag, "main", cwd=remote)
    options = ["--remote", server, "--nox"]
    result = run(tmp_path, "verl-tests-pre-release", *options, nox(tmp_path, "upstream", code=1))[1]
    assert "['-s', 'upstream', '--', 'verl', 'v0.10.0.rc2']" in result["log"]
    result = run(tmp_path, "verl-prove-pre-release", *options, prover(tmp_path))[1]
    assert result["log"] == "verl f unknown: --source megatron verl"


def test_a_pre_release_that_the_index_alone_has_is_proved_from_its_wheel_and_not_tested(
    tmp_path: Path, server: str, remote: Path, served: fake_index.FakeIndex
) -> None:
    told = {"METADATA": "Metadata-Version: 2.1\nName: verl\nVersion: 0.10.0.dev0\n", "WHEEL": "Wheel-Version: 1.0\n"}
    about = {f"verl-0.10.0.dev0.dist-info/{name}": text for name, text in told.items()}
    served.add("verl", "0.10.0.dev0", {"verl/a.py": "", "of_the_wheel.py": "", **about})
    options = ["--remote", server, "--nox"]
    result = run(tmp_path, "verl-prove-pre-release", *options, prover(tmp_path))[1]
    assert result["log"].startswith("verl f unknown: --target megatron of_the_wheel.py")
    code, result = run(tmp_path, "verl-tests-pre-release", *options, nox(tmp_path, "upstream", code=1))
    assert (code, result["detail"]) == (0, "not run: 0.10.0.dev0 has no tag, and a wheel holds no tests")


@pytest.mark.parametrize("kind", ["tests", "prove"])
def test_a_pre_release_older_than_the_newest_release_is_not_run_and_that_is_said(
    kind: str, tmp_path: Path, server: str, remote: Path, served: fake_index.FakeIndex
) -> None:
    environments.run("git", "tag", "v0.9.0rc1", "main", cwd=remote)
    served.add("verl", "0.8.0.dev0", {"verl/a.py": ""})
    session = nox(tmp_path, "upstream", "prove", code=1)
    code, result = run(tmp_path, f"verl-{kind}-pre-release", "--remote", server, "--nox", session)
    assert (code, result["detail"]) == (0, "not run: no pre-release is newer than the newest release")


def test_an_index_that_is_down_is_trouble(tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNHANG_INDEX", "http://127.0.0.1:9/simple/")
    code, result = run(tmp_path, "verl-prove-pre-release", "--remote", server, "--nox", prover(tmp_path))
    assert (code, result["detail"]) == (1, "what it runs on could not be had")
    assert "the index has no answer about verl" in result["log"]


# ---- the issues


def test_a_green_night_says_nothing(github: GitHub) -> None:
    assert (keep(github), github.issues, github.comments) == ([], [], [])
    assert github.tokens == {"Bearer secret"}


def test_trouble_opens_one_issue_for_each_upstream_with_the_log(github: GitHub) -> None:
    keep(github, verl_main=BAD, verl_radar=BAD, ms_swift_radar=BAD)
    assert github.standing() == [
        "Nightly trouble with verl: verl-main, verl-radar",
        "Nightly trouble with ms-swift: ms-swift-radar",
    ]
    body = github.issues[0]["body"]
    assert (body.count("the log"), URL in body, github.issues[0]["labels"]) == (2, True, ["nightly"])


def test_it_is_updated_while_it_lasts_and_closed_when_green(github: GitHub) -> None:
    keep(github, verl_main=BAD)
    keep(github, verl_main=BAD._replace(log="another log"))
    assert (len(github.issues), github.comments) == (1, [])
    assert "another log" in github.issues[0]["body"]
    keep(github, verl_main=BAD, verl_radar=BAD)
    assert github.issues[0]["title"] == "Nightly trouble with verl: verl-main, verl-radar"
    assert [number for number, _ in github.comments] == [1]
    keep(github)
    assert (len(github.issues), github.standing()) == (1, [])
    assert github.comments[-1] == (1, f"Green again: {URL}")
    keep(github, verl_main=BAD)
    assert [issue["number"] for issue in github.issues if issue["state"] == "open"] == [2]


def test_an_issue_is_found_on_any_page_and_others_are_left_alone(github: GitHub) -> None:
    mark = nightly_issues.marker("verl")
    others = [github.add(title="theirs", body="a question", labels=["nightly"]) for _ in range(130)]
    pull = github.add(title="pull", body=mark, labels=["nightly"], pull_request={})
    without_label = github.add(title="a stranger's", body=mark)
    mine = github.add(title="old", body=mark, labels=["nightly"])
    keep(github, verl_main=BAD)
    assert mine["title"] == "Nightly trouble with verl: verl-main"
    assert {item["title"] for item in others} | {pull["title"], without_label["title"]} == {
        "theirs",
        "pull",
        "a stranger's",
    }
    assert len(github.issues) == 133


def test_a_missing_session_is_trouble(github: GitHub) -> None:
    keep(github, proofs=judge.missing("proofs"))
    assert github.standing() == ["Nightly trouble with all upstreams: proofs"]
    assert "noxfile.py has no session 'proofs'" in github.issues[0]["body"]


def test_good_news_is_told_once(github: GitHub) -> None:
    news = GREEN._replace(news=(("verl", "mtp-cp-deadlock", "branch main"),))
    keep(github, verl_main=news, verl_radar=news._replace(news=(("verl", "mtp-cp-deadlock", "release 0.9.0rc1"),)))
    assert github.standing() == ["Good news: verl has fixed mtp-cp-deadlock"]
    assert "In branch main, release 0.9.0rc1" in github.issues[0]["body"]
    github.issues[0]["state"] = "closed"
    keep(github, verl_main=news)
    assert len(github.issues) == 1


def test_trouble_of_one_job_does_not_hide_news_of_another(github: GitHub) -> None:
    keep(github, verl_main=GREEN._replace(news=(("verl", "f", "branch main"),)), verl_radar=BAD)
    assert len(github.standing()) == 2


def test_a_log_cannot_break_out_of_its_quotation(github: GitHub) -> None:
    log = f"```\n@everyone\n`````\n{nightly_issues.marker('ms-swift')}"
    keep(github, verl_main=BAD._replace(log=log))
    assert f"``````\n{log}\n``````" in github.issues[0]["body"]
    keep(github, verl_main=BAD._replace(log=log), ms_swift_main=BAD)
    assert len(github.standing()) == 2


def test_a_body_fits_into_an_issue(github: GitHub) -> None:
    long = BAD._replace(log="x" * 100_000)
    keep(github, **{job.name.replace("-", "_"): long for job in plan.jobs()})
    assert max(len(issue["body"]) for issue in github.issues) < 65_536


def test_the_labels_are_made_once(github: GitHub) -> None:
    keep(github, verl_main=BAD)
    keep(github, verl_main=BAD)
    assert sorted(github.labels) == ["fixed-upstream", "nightly"]


@pytest.mark.parametrize("call", ["GET /repos/them/unhang/labels", "GET /repos/them/unhang/issues", "POST", "PATCH"])
def test_a_failing_api_is_an_error_with_the_call(github: GitHub, call: str) -> None:
    keep(github, verl_main=BAD)
    github.failing = call
    with pytest.raises(ApiError, match=rf"{call.split()[0]} .*503"):
        keep(github, verl_main=BAD, ms_swift_main=BAD)


# ---- from the results' folder to the issues, as the workflow runs it


def issues(folder: Path, github: GitHub) -> cli.Ran:
    env = {
        "GITHUB_API_URL": github.url,
        "GITHUB_REPOSITORY": "them/unhang",
        "GITHUB_SERVER_URL": "https://ci",
        "GITHUB_RUN_ID": "7",
        "GITHUB_TOKEN": "secret",
    }
    return cli.python(SCRIPTS / "nightly_issues.py", folder, env=env)


def results(folder: Path, **changed: Mapping[str, Any] | str | None) -> Path:
    folder.mkdir(exist_ok=True)
    for job in plan.jobs():
        told = changed.get(job.name.replace("-", "_"), GREEN._asdict())
        if told is not None:
            (folder / f"{job.name}.json").write_text(told if isinstance(told, str) else json.dumps(told))
    return folder


def test_all_green_results_are_no_issue(github: GitHub, tmp_path: Path) -> None:
    assert issues(results(tmp_path / "results"), github) == (0, "all green, and no news\n", "")


def test_a_job_without_a_result_is_trouble(github: GitHub, tmp_path: Path) -> None:
    ran = issues(results(tmp_path / "results", verl_main=None), github)
    assert ran.out == "opened: Nightly trouble with verl: verl-main\n"
    assert "the job left no result" in github.issues[0]["body"]


@pytest.mark.parametrize(
    "told",
    [
        "",
        "[]",
        '{"outcome": "green"}',
        json.dumps({**GREEN._asdict(), "news": [["verl", "f"]]}),
        json.dumps({**GREEN._asdict(), "news": [["verl", "f", "@everyone"]]}),
        json.dumps({**GREEN._asdict(), "news": [["verl", "f", 7]]}),
    ],
)
def test_a_result_that_cannot_be_read_is_trouble(github: GitHub, tmp_path: Path, told: str) -> None:
    assert issues(results(tmp_path / "results", verl_main=told), github).code == 0
    assert github.standing() == ["Nightly trouble with verl: verl-main"]


def test_an_api_that_is_down_fails_the_job(github: GitHub, tmp_path: Path) -> None:
    github.failing = "GET"
    ran = issues(results(tmp_path / "results"), github)
    assert (ran.code, "503" in ran.err, "secret" in ran.err) == (2, True, False)


def test_the_job_that_writes_issues_needs_the_standard_library_alone(github: GitHub, tmp_path: Path) -> None:
    env = {"GITHUB_API_URL": github.url, "GITHUB_REPOSITORY": "them/unhang", "GITHUB_SERVER_URL": "https://ci"}
    command = [sys.executable, "-S", SCRIPTS / "nightly_issues.py", results(tmp_path / "results")]
    done = subprocess.run(
        command, env={**os.environ, **env, "GITHUB_RUN_ID": "7", "GITHUB_TOKEN": "x"}, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
