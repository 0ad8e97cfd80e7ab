"""Runs one nightly job and writes its result: `nightly_run.py JOB --out FILE`. Needs no permission."""

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
from nightly_plan import CHECK, PRE_RELEASE, PROVE, RADAR, REPOSITORY, SWEEP, TESTS, Job, jobs, names_of, upstreams

_NOT_FOUND = "Sessions not found"  # nox's words
_LIMIT_S = 100 * 60  # less than the workflow's limit, so that a job that runs too long is reported with its log


def run(job: Job, nox: Sequence[str], remote: str) -> judge.Result:
    """Run a job with this nox command, and with upstreams fetched from below this URL. A failing job raises nothing."""
    if job.what == RADAR:
        upstreams_of_it = [word for name in names_of(job.subject) for word in ("--upstream", name)]
        ran = _unhang("matrix", "--against-index", "--output-format", "json", *upstreams_of_it)
        return judge.by_verdicts(ran, "", _newest())
    if job.what != CHECK and (trouble := _trouble_with_session(job.what, nox)):
        return trouble
    if job.ref is None:
        newest = ["--newest"] if job.what == SWEEP else []  # not the frozen commits: what upstream has today
        return judge.by_code(_session(nox, job.what, *newest))
    try:
        with tempfile.TemporaryDirectory() as folder:
            return _on_tree(job, nox, remote, Path(folder) / "tree")
    except trees.TreeError as error:
        return judge.Result(judge.TROUBLE, "the source could not be fetched", str(error), ())


def _on_tree(job: Job, nox: Sequence[str], remote: str, tree: Path) -> judge.Result:
    about, ref, pre = upstreams()[job.subject], job.ref, None
    if ref == PRE_RELEASE:
        pre = trees.newest_pre_release(job.subject, about, remote)
        if pre is None:
            return judge.nothing("no pre-release is newer than the newest release")
        ref = pre.tag
    if job.what == TESTS:
        if ref is None:
            return judge.nothing(f"{pre.version if pre else job.subject} has no tag, and its wheel has no tests")
        # the session clones the source itself; Megatron-LM is tested as a whole
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
    ran = _unhang("check", "--source", str(tree), "--output-format", "json")
    return judge.by_verdicts(ran, f"branch {ref}", _newest())


def _trouble_with_session(name: str, nox: Sequence[str]) -> judge.Result | None:
    """Return the result of a session that cannot be run; None if it can."""
    listed = _run([*nox, "-s", name, "--list", "--json"])
    if listed.code == 0:
        return None
    # any other error is not a missing session
    return judge.missing(name) if _NOT_FOUND in listed.err else judge.by_code(listed)


def _session(nox: Sequence[str], name: str, *arguments: str) -> judge.Ran:
    return _run([*nox, "-s", name, *(("--", *arguments) if arguments else ())])


def _newest() -> dict[tuple[str, str], str]:
    return judge.newest(json.loads(_unhang("matrix", "--output-format", "json").out)["rows"])


def _unhang(*arguments: str) -> judge.Ran:
    return _run([sys.executable, "-m", "unhang", *arguments])


def _run(command: Sequence[str]) -> judge.Ran:
    try:
        done = subprocess.run(
            command, cwd=REPOSITORY, capture_output=True, text=True, errors="replace", timeout=_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        # bytes in spite of text=True
        out = error.stdout.decode(errors="replace") if isinstance(error.stdout, bytes) else error.stdout or ""
        return judge.Ran(124, out, f"stopped after {_LIMIT_S} s")
    return judge.Ran(done.returncode, done.stdout, done.stderr)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one job and write its result; return 0 if it is green, else 1."""
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
