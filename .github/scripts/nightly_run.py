"""Runs one nightly job and writes what it came to: `nightly_run.py JOB --out FILE`. Holds no permission at all."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import nightly_judge as judge
from nightly_plan import REPOSITORY, Job, jobs

_NOT_THERE = "Sessions not found"  # as nox says it
_LIMIT_S = 100 * 60  # less than the workflow's own limit: what ran too long is told with its log


def run(job: Job, nox: Sequence[str], remote: str) -> judge.Result:
    """Run a job with this nox command, fetching upstreams from below this URL; never raises for what the job does."""
    if job.session is None:
        return _branch(job, remote)
    listed = _run([*nox, "-s", job.session, "--list", "--json"])
    if listed.code != 0:
        # anything else that is wrong with the noxfile is not a session that nobody has written yet
        return judge.missing(job.session) if _NOT_THERE in listed.err else judge.by_code(listed)
    ran = _run([*nox, "-s", job.session, *(("--", *job.arguments) if job.arguments else ())])
    return judge.by_verdicts(ran, "", _newest()) if job.verdicts else judge.by_code(ran)


def _branch(job: Job, remote: str) -> judge.Result:
    repository, tip = job.arguments
    with tempfile.TemporaryDirectory() as folder:
        clone = ["git", "clone", "--quiet", "--depth", "1", "--branch", tip, f"{remote}/{repository}", folder]
        cloned = _run(clone)
        if cloned.code != 0:
            return judge.by_code(cloned)
        check = [sys.executable, "-m", "unhang", "check", "--source", folder, "--output-format", "json"]
        return judge.by_verdicts(_run(check), f"branch {tip}", _newest())


def _newest() -> dict[tuple[str, str], str]:
    ran = _run([sys.executable, "-m", "unhang", "matrix", "--output-format", "json"])
    return judge.newest(json.loads(ran.out)["rows"])


def _run(command: Sequence[str]) -> judge.Ran:
    try:
        done = subprocess.run(
            command, cwd=REPOSITORY, capture_output=True, text=True, errors="replace", timeout=_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        told = [part.decode(errors="replace") if isinstance(part, bytes) else part or "" for part in (error.stdout,)]
        return judge.Ran(124, told[0], f"stopped after {_LIMIT_S} s")
    return judge.Ran(done.returncode, done.stdout, done.stderr)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one job; 0 if it is green, 1 if not. The result is written in either case."""
    parser = argparse.ArgumentParser()
    parser.add_argument("job", choices=[job.name for job in jobs()])
    parser.add_argument("--out", type=Path, required=True, metavar="FILE")
    parser.add_argument("--nox", default=str(REPOSITORY / ".ci" / "nox"), metavar="SCRIPT")
    parser.add_argument("--remote", default="https://github.com", metavar="URL")
    options = parser.parse_args(arguments)
    (job,) = (job for job in jobs() if job.name == options.job)
    result = run(job, [sys.executable, options.nox], options.remote)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result._asdict()), encoding="utf-8")
    print(f"{job.name}: {result.outcome}: {result.detail}\n{result.log}")
    return 0 if result.outcome == judge.GREEN else 1


if __name__ == "__main__":
    raise SystemExit(main())
