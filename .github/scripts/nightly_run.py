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
import nightly_trees as trees
from nightly_plan import CHECK, PRE_RELEASE, PROVE, RADAR, REPOSITORY, TESTS, Job, jobs, names_of, upstreams

_NOT_THERE = "Sessions not found"  # as nox says it
_LIMIT_S = 100 * 60  # less than the workflow's own limit: what ran too long is told with its log


def run(job: Job, nox: Sequence[str], remote: str) -> judge.Result:
    """Run a job with this nox command, fetching upstreams from below this URL; never raises for what the job does."""
    if job.what != CHECK and (trouble := _trouble_with_session(job.what, nox)):
        return trouble
    if job.ref is None:
        narrowed = [word for name in names_of(job.subject) for word in ("--upstream", name)]
        arguments = ["--output-format", "json", *narrowed] if job.what == RADAR else []
        ran = _session(nox, job.what, *arguments)
        return judge.by_verdicts(ran, "", _newest()) if job.what == RADAR else judge.by_code(ran)
    try:
        with tempfile.TemporaryDirectory() as folder:
            return _on_tree(job, nox, remote, Path(folder) / "tree")
    except trees.TreeError as error:
        return judge.Result(judge.TROUBLE, "what it runs on could not be had", str(error), ())


def _on_tree(job: Job, nox: Sequence[str], remote: str, tree: Path) -> judge.Result:
    about, ref, pre = upstreams()[job.subject], job.ref, None
    if ref == PRE_RELEASE:
        pre = trees.newest_pre_release(job.subject, about, remote)
        if pre is None:
            return judge.nothing("no pre-release is newer than the newest release")
        ref = pre.tag
    if job.what == TESTS:
        if ref is None:
            return judge.nothing(f"{pre.version if pre else job.subject} has no tag, and a wheel holds no tests")
        # the session makes its own trees; a clone of Megatron-LM is tested whole
        return judge.by_code(_session(nox, TESTS, names_of(job.subject)[-1], ref))
    if ref is not None:
        trees.clone(about["repository"], ref, tree, remote)
    elif pre is not None:
        trees.unpack(job.subject, pre, tree)
    if job.what == PROVE:
        trees.put_megatron_beside(tree, remote)
        place = "--source" if ref is not None else "--target"
        ran = _session(nox, PROVE, place, str(tree), "--output-format", "json")
        return judge.by_answers(ran, names_of(job.subject))
    check = [sys.executable, "-m", "unhang", "check", "--source", str(tree), "--output-format", "json"]
    return judge.by_verdicts(_run(check), f"branch {ref}", _newest())


def _trouble_with_session(name: str, nox: Sequence[str]) -> judge.Result | None:
    """Why a session cannot be run, if it cannot."""
    listed = _run([*nox, "-s", name, "--list", "--json"])
    if listed.code == 0:
        return None
    # anything else that is wrong with the noxfile is not a session that nobody has written yet
    return judge.missing(name) if _NOT_THERE in listed.err else judge.by_code(listed)


def _session(nox: Sequence[str], name: str, *arguments: str) -> judge.Ran:
    return _run([*nox, "-s", name, *(("--", *arguments) if arguments else ())])


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
