"""Keeps one issue for each upstream, and one for each defect that it fixed: `nightly_issues.py RESULTS_FOLDER`.

The results come from jobs that ran foreign code: they are read by the names in the plan, checked, and quoted as code.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from github_api import ApiError, Repository
from nightly_judge import GREEN, TROUBLE, Result
from nightly_plan import Job, jobs

TROUBLE_LABEL, NEWS_LABEL = "nightly", "fixed-upstream"
_MOST = 60_000  # characters in a body; GitHub accepts 65,536


def read(folder: Path, planned: Sequence[Job]) -> dict[Job, Result]:
    """Return the result of each planned job. A missing or unreadable result is trouble."""
    return {job: _read(folder / f"{job.name}.json") for job in planned}


def keep(repository: Repository, results: Mapping[Job, Result], run_url: str) -> list[str]:
    """Open, update and close the issues; return a line for each action. Raises ApiError."""
    for label in TROUBLE_LABEL, NEWS_LABEL:
        repository.ensure_label(label)
    done = []
    open_issues = list(repository.issues(TROUBLE_LABEL, "open"))
    for subject in dict.fromkeys(job.subject for job in results):
        bad = {job: result for job, result in results.items() if job.subject == subject and result.outcome != GREEN}
        mine = [issue for issue in open_issues if _is(issue, marker(subject))]
        done += _trouble(repository, subject, bad, mine, run_url)
    done += _news(repository, results, list(repository.issues(NEWS_LABEL, "all")), run_url)
    return done


def marker(subject: str) -> str:
    """Return the invisible start of an issue's body, by which the next night finds it."""
    return f"<!-- unhang nightly: {subject} -->"


def title_of(subject: str, bad: Mapping[Job, Result]) -> str:
    """Return the title of an issue on trouble."""
    return f"Nightly trouble with {subject}: {', '.join(job.name for job in bad)}"


def body_of(subject: str, bad: Mapping[Job, Result], run_url: str) -> str:
    """Return the body of an issue on trouble: each job, its result, and the end of its log."""
    parts = [marker(subject), f"The newest run: {run_url}\n\nThis issue is updated each night, and closed when green."]
    room = _MOST // max(1, len(bad))
    for job, result in bad.items():
        parts.append(f"### {job.name}: {result.outcome}\n\n{_quoted(result.detail[:500])}")
        if result.log:
            parts.append(_quoted(result.log[-(room - 1_000) :]))
    return "\n\n".join(parts)


def _trouble(
    repository: Repository, subject: str, bad: Mapping[Job, Result], mine: list[dict[str, Any]], run_url: str
) -> list[str]:
    if not bad:
        for issue in mine:
            repository.comment(issue["number"], f"Green again: {run_url}")
            repository.edit(issue["number"], {"state": "closed"})
        return [f"closed #{issue['number']}: {subject} is green" for issue in mine]
    title, body = title_of(subject, bad), body_of(subject, bad, run_url)
    if not mine:
        repository.open(title, body, TROUBLE_LABEL)
        return [f"opened: {title}"]
    issue = mine[0]
    if issue["title"] != title:  # other jobs than last night: notify, which an edit does not
        repository.comment(issue["number"], f"Now: {title}. {run_url}")
    repository.edit(issue["number"], {"title": title, "body": body})
    return [f"updated #{issue['number']}: {title}"]


def _news(
    repository: Repository, results: Mapping[Job, Result], known: Sequence[dict[str, Any]], run_url: str
) -> list[str]:
    places: dict[tuple[str, str], list[str]] = {}
    for result in results.values():
        for upstream, fix, place in result.news:
            places.setdefault((upstream, fix), []).append(place)
    done = []
    for (upstream, fix), where in sorted(places.items()):
        mark = marker(f"{upstream} has fixed {fix}")
        if not any(_is(issue, mark) for issue in known):  # once, even if somebody closed it
            title = f"Good news: {upstream} has fixed {fix}"
            text = f"In {', '.join(sorted(set(where)))}, though not yet in its newest release. Seen by {run_url}"
            repository.open(title, f"{mark}\n\n{text}", NEWS_LABEL)
            done.append(f"opened: {title}")
    return done


def _read(path: Path) -> Result:
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
        news = tuple((_name(upstream), _name(fix), _name(place)) for upstream, fix, place in result["news"])
        outcome = GREEN if result["outcome"] == GREEN else str(result["outcome"])[:20]
        return Result(outcome, str(result["detail"]), str(result["log"]), news)
    except FileNotFoundError:
        return Result(TROUBLE, "the job left no result: it was cancelled, or could not start", "", ())
    except (OSError, ValueError, KeyError, TypeError) as error:
        return Result(TROUBLE, f"the job left a result that cannot be read: {type(error).__name__}", "", ())


def _is(issue: Mapping[str, Any], mark: str) -> bool:
    """Return whether the body starts with this marker; further down it may be quoted from a log."""
    return str(issue["body"] or "").startswith(mark)


def _name(text: object) -> str:
    if not isinstance(text, str) or not re.fullmatch(r"[\w. +/-]{1,80}", text):
        raise ValueError("not a name")
    return text


def _quoted(text: str) -> str:
    """Return the text as code: it mentions nobody, and no fence in it ends the block."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{text}\n{fence}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Update the issues; return 0, or 2 if the API failed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("results", type=Path, metavar="FOLDER")
    options = parser.parse_args(arguments)
    api, name = os.environ["GITHUB_API_URL"], os.environ["GITHUB_REPOSITORY"]
    run_url = f"{os.environ['GITHUB_SERVER_URL']}/{name}/actions/runs/{os.environ['GITHUB_RUN_ID']}"
    try:
        done = keep(Repository(api, name, os.environ["GITHUB_TOKEN"]), read(options.results, jobs()), run_url)
    except ApiError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print("\n".join(done) or "all green, and no news")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
