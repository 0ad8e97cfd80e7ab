"""Keeps one issue for each upstream, and one for each defect that it fixed: `nightly_issues.py RESULTS_FOLDER`.

The results come from jobs that ran foreign code: they are read by the names in the plan, checked, and quoted as code.
This job may write, so it installs no packages: it has the standard library and the scripts beside it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from nightly_judge import Result
from nightly_plan import Job, jobs

TROUBLE, NEWS = "nightly", "fixed-upstream"
_MOST = 60_000  # characters in a body; GitHub accepts 65,536
_PAGE = 100


class ApiError(Exception):
    """A call of GitHub's API failed; the message names the call and the reason."""


class Repository:
    """One repository on GitHub. Every method raises ApiError if its call fails."""

    def __init__(self, url: str, token: str) -> None:
        self._url = url
        self._headers = {"Accept": "application/vnd.github+json", "Authorization": f"Bearer {token}"}

    def call(self, method: str, path: str, content: Mapping[str, Any] | None = None) -> Any:
        """Return the answer's JSON."""
        data = None if content is None else json.dumps(content).encode()
        request = urllib.request.Request(self._url + path, data, self._headers, method=method)  # noqa: S310
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
                return json.load(answer)
        except (OSError, ValueError) as error:  # HTTPError is an OSError
            raise ApiError(f"{method} {path}: {error}") from error

    def issues(self, label: str, state: str) -> Iterator[dict[str, Any]]:
        """Yield the issues, without pull requests, with this label and state (``open`` or ``all``)."""
        for page in itertools.count(1):
            found = self.call("GET", f"/issues?labels={label}&state={state}&per_page={_PAGE}&page={page}")
            yield from (issue for issue in found if "pull_request" not in issue)
            if len(found) < _PAGE:
                return

    def ensure_label(self, name: str) -> None:
        """Create a label if it is missing: an issue without it would not be found again, and opened each night."""
        try:
            self.call("GET", f"/labels/{name}")
        except ApiError as error:
            if not isinstance(error.__cause__, urllib.error.HTTPError) or error.__cause__.code != 404:
                raise
            self.call("POST", "/labels", {"name": name})


def keep(repository: Repository, results: Mapping[Job, Result], run_url: str) -> list[str]:
    """Open, update and close the issues; return a line for each action. Raises ApiError."""
    for label in TROUBLE, NEWS:
        repository.ensure_label(label)
    done, open_issues = [], list(repository.issues(TROUBLE, "open"))
    for subject in dict.fromkeys(job.subject for job in results):
        bad = {job.name: result for job, result in results.items() if job.subject == subject and not result.green}
        mine = [issue for issue in open_issues if _is(issue, marker(subject))]
        done += _trouble(repository, subject, bad, mine, run_url)
    return done + _news(repository, results, list(repository.issues(NEWS, "all")), run_url)


def marker(subject: str) -> str:
    """Return the invisible start of an issue's body, by which the next night finds it."""
    return f"<!-- unhang nightly: {subject} -->"


def _trouble(
    repository: Repository, subject: str, bad: Mapping[str, Result], mine: list[dict[str, Any]], run_url: str
) -> list[str]:
    if not bad:
        for issue in mine:
            repository.call("POST", f"/issues/{issue['number']}/comments", {"body": f"Green again: {run_url}"})
            repository.call("PATCH", f"/issues/{issue['number']}", {"state": "closed"})
        return [f"closed #{issue['number']}: {subject} is green" for issue in mine]
    title = f"Nightly trouble with {subject}: {', '.join(bad)}"
    parts = [marker(subject), f"The newest run: {run_url}\n\nThis issue is updated each night, and closed when green."]
    for name, result in bad.items():
        parts += [f"### {name}", _quoted(result.detail[:500])]
        parts += [_quoted(result.log[-(_MOST // len(bad) - 1_000) :])] if result.log else []
    content = {"title": title, "body": "\n\n".join(parts)}
    if not mine:
        number = repository.call("POST", "/issues", {**content, "labels": [TROUBLE]})["number"]
        return [f"opened #{number}: {title}"]
    number = mine[0]["number"]
    if mine[0]["title"] != title:  # other jobs than last night: notify, which an edit does not
        repository.call("POST", f"/issues/{number}/comments", {"body": f"Now: {title}. {run_url}"})
    repository.call("PATCH", f"/issues/{number}", content)
    return [f"updated #{number}: {title}"]


def _news(
    repository: Repository, results: Mapping[Job, Result], known: Sequence[dict[str, Any]], run_url: str
) -> list[str]:
    places: dict[str, set[str]] = {}
    for result in results.values():
        for upstream, fix, place in result.news:
            places.setdefault(f"{upstream} has fixed {fix}", set()).add(place)
    done = []
    for news, where in sorted(places.items()):
        if not any(_is(issue, marker(news)) for issue in known):  # once, even if somebody closed it
            text = f"In {', '.join(sorted(where))}, though not yet in its newest release. Seen by {run_url}"
            content = {"title": f"Good news: {news}", "body": f"{marker(news)}\n\n{text}", "labels": [NEWS]}
            number = repository.call("POST", "/issues", content)["number"]
            done.append(f"opened #{number}: {content['title']}")
    return done


def read(path: Path) -> Result:
    """Return a job's result. A missing or unreadable one is trouble."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        news = tuple((_name(upstream), _name(fix), _name(place)) for upstream, fix, place in found["news"])
        return Result(found["green"] is True, str(found["detail"]), str(found["log"]), news)
    except FileNotFoundError:
        return Result(False, "the job left no result: it was cancelled, or could not start")
    except (OSError, ValueError, KeyError, TypeError) as error:
        return Result(False, f"the job left a result that cannot be read: {type(error).__name__}")


def _is(issue: Mapping[str, Any], mark: str) -> bool:
    """Return whether the body starts with this marker; further down it may be quoted from a log."""
    return str(issue["body"] or "").startswith(mark)


def _name(text: object) -> str:
    if not isinstance(text, str) or not re.fullmatch(r"[\w. +/-]{1,80}", text):
        raise ValueError("not a name")
    return text


def _quoted(text: str) -> str:
    """Return the text as code: it mentions nobody, and no fence in it ends the block."""
    fence = "`" * (max([2, *map(len, re.findall("`+", text))]) + 1)
    return f"{fence}\n{text}\n{fence}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Update the issues; return 0, or 2 if the API failed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("results", type=Path, metavar="FOLDER")
    folder = parser.parse_args(arguments).results
    name = os.environ["GITHUB_REPOSITORY"]
    run_url = f"{os.environ['GITHUB_SERVER_URL']}/{name}/actions/runs/{os.environ['GITHUB_RUN_ID']}"
    repository = Repository(f"{os.environ['GITHUB_API_URL']}/repos/{name}", os.environ["GITHUB_TOKEN"])
    try:
        done = keep(repository, {job: read(folder / f"{job.name}.json") for job in jobs()}, run_url)
    except ApiError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print("\n".join(done) or "all green, and no news")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
